//! Gated delta nets that read and write their states in a recurrent cache: the results are those of the copies, and copies are made where a graph
//! needs them.

use llama_cpp_sys_2 as sys;

use crate::ggml::{self, Tensor, bytes, noise};
use crate::{HAS_KERNELS, tensor};

const WIDTH: i64 = 32;
const N_HEADS: i64 = 3;
const STATE: i64 = WIDTH * WIDTH * N_HEADS;
/// States of all sequences after a token, of which llama.cpp keeps those of the last tokens behind each other.
const N_CELLS: i64 = 5;

/// Operations of a graph beside those of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The copied rows are a result of the graph.
    ResultIsRows,
    /// Another operation reads the copied rows.
    SecondReader,
    /// The rows are read after another operation has changed the cache.
    ChangedCache,
    /// Another operation reads the computed states.
    SecondReaderOfStates,
}

/// A layer.
struct Layer<'a> {
    /// The cell of each sequence's state. The first sequence is written to the cell 1, the second to the next one.
    ids: &'a [i32],
    n_tokens: i64,
    /// The most states that are kept of a sequence.
    n_states: i64,
}

/// Computes a layer: outputs, then the cache, then what is beside.
fn compute(n_threads: i32, layer: &Layer<'_>, beside: Beside) -> Vec<f32> {
    ggml::compute(n_threads, |ctx| {
        let (n, n_seqs) = (layer.n_tokens, layer.ids.len() as i64);
        let n_kept = layer.n_states.min(n);
        let cache = tensor(ctx, [STATE, N_CELLS * layer.n_states, 1, 1]);
        let [q, k, v] = [(); 3].map(|()| tensor(ctx, [WIDTH, N_HEADS, n, n_seqs]));
        let [gate, beta] = [(); 2].map(|()| tensor(ctx, [1, N_HEADS, n, n_seqs]));
        let of = |tensor: Tensor, seed, of: fn(f32) -> f32| {
            // SAFETY: the context is alive.
            let n = usize::try_from(unsafe { sys::ggml_nelements(tensor) }).unwrap();
            (tensor, bytes(&noise(seed, n).into_iter().map(of).collect::<Vec<f32>>()))
        };
        let mut inputs = vec![of(cache, 60, |x| x), of(q, 61, |x| x), of(k, 62, |x| x), of(v, 63, |x| x)];
        inputs.extend([of(gate, 64, |x| -x.abs()), of(beta, 65, f32::abs)]);
        // SAFETY: the context is alive, and all views are within their tensors.
        unsafe {
            let flat = |x: Tensor| sys::ggml_reshape_1d(ctx, x, sys::ggml_nelements(x));
            let join = |a: Tensor, b: Tensor| sys::ggml_concat(ctx, a, b, 0);
            let ids = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, n_seqs);
            inputs.push((ids, bytes(layer.ids)));
            let rows = sys::ggml_get_rows(ctx, cache, ids);
            let row = (*cache).nb[1];
            let all = sys::ggml_view_2d(ctx, rows, STATE, n_seqs, row, 0);
            let state = sys::ggml_reshape_4d(ctx, all, WIDTH, WIDTH, N_HEADS, n_seqs);
            let mut first = tensor(ctx, [1, 1, 1, 1]);
            inputs.push((first, bytes(&[0.0_f32])));
            let mut gate = gate;
            match beside {
                Beside::ResultIsRows => sys::ggml_set_output(rows),
                Beside::SecondReader => first = join(first, flat(all)),
                // The rows come first in the graph, then the change, then the delta net.
                Beside::ChangedCache => {
                    let change = sys::ggml_scale_inplace(ctx, sys::ggml_view_1d(ctx, cache, 2 * STATE, 0), 0.5);
                    let zero = sys::ggml_scale(ctx, sys::ggml_view_1d(ctx, change, 1, 0), 0.0);
                    gate = sys::ggml_add(ctx, gate, zero);
                }
                Beside::Nothing | Beside::SecondReaderOfStates => {}
            }
            let net = sys::ggml_gated_delta_net(ctx, q, k, v, gate, beta, state, layer.n_states);
            let n_outputs = WIDTH * N_HEADS * n * n_seqs;
            let outputs = sys::ggml_view_1d(ctx, net, n_outputs, 0);
            let float = size_of::<f32>();
            let at = usize::try_from(n_outputs).unwrap() * float;
            let states = sys::ggml_view_3d(ctx, net, STATE, n_seqs, n_kept, row, row * layer.ids.len(), at);
            let to = sys::ggml_view_3d(ctx, cache, STATE, n_seqs, n_kept, row, row * N_CELLS as usize, row);
            let copy = sys::ggml_cpy(ctx, states, to);
            // As in llama.cpp's graphs: the first operation copies the rows, and those that no sequence has, here none, into the cache.
            let no_rows = sys::ggml_view_1d(ctx, rows, 0, 0);
            let others = sys::ggml_cpy(ctx, no_rows, sys::ggml_view_1d(ctx, cache, 0, 0));
            // The cache is read after the copy, because a part of the copy's result is read before.
            let written = sys::ggml_view_1d(ctx, copy, 1, 0);
            let mut result = join(join(others, join(written, outputs)), join(first, flat(cache)));
            if beside == Beside::SecondReaderOfStates {
                result = join(result, flat(states));
            }
            (inputs, result)
        }
    })
}

#[test]
fn states_in_the_cache_are_those_of_copies() {
    foredraft::llama::start();
    let calls = || foredraft::llama::kernel_calls();
    // Own cells, cells that are not written, states of earlier tokens, and cells that another sequence's state is written to.
    let cases: [(&[i32], bool); 7] = [
        (&[1], true),
        (&[1, 2], true),
        (&[3, 2], true),
        (&[0, 4], true),
        (&[6], true),
        (&[2, 1], false),
        (&[2, 3], false),
    ];
    for (n_tokens, n_states) in [(1, 4), (2, 4), (7, 4), (40, 2), (3, 2)] {
        for (ids, may_stay) in cases {
            for n_threads in [1, 2] {
                let layer = Layer { ids, n_tokens, n_states };
                let name = format!("{ids:?}, {n_tokens} tokens, {n_states} states, {n_threads} threads");
                let before = calls();
                let copied = compute(n_threads, &layer, Beside::ResultIsRows);
                assert_eq!(
                    calls().states_in_place,
                    before.states_in_place,
                    "{name}: rows that are a result are copied"
                );
                let result = compute(n_threads, &layer, Beside::Nothing);
                let n_in_place = calls().states_in_place - before.states_in_place;
                assert_eq!(n_in_place, u64::from(may_stay && HAS_KERNELS), "{name}");
                assert!(result == copied, "{name}");
            }
        }
    }
}

#[test]
fn states_are_copied_where_something_else_sees_them() {
    foredraft::llama::start();
    let layer = Layer { ids: &[1, 2], n_tokens: 2, n_states: 4 };
    let before = foredraft::llama::kernel_calls();
    for beside in [Beside::SecondReader, Beside::ChangedCache, Beside::SecondReaderOfStates] {
        let alone = compute(1, &layer, beside);
        assert!(alone == compute(2, &layer, beside) && alone.iter().all(|value| value.is_finite()), "{beside:?}");
    }
    let after = foredraft::llama::kernel_calls();
    assert_eq!(after.states_in_place, before.states_in_place);
    assert_eq!(after.delta_nets - before.delta_nets, if HAS_KERNELS { 6 } else { 0 });
}
