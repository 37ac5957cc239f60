//! Copies of floats: this library's have the results of a plain loop, for any shape, strides and number of threads, and compute what they should.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use crate::ggml::{self, Tensor, bytes, noise};
use crate::{HAS_KERNELS, numbers, tensor};

/// The places of a tensor's floats in the memory of the tensor that it is a view of.
fn places(tensor: Tensor) -> Vec<usize> {
    // SAFETY: the context is alive.
    let (ne, nb, offset) = unsafe { ((*tensor).ne, (*tensor).nb, (*tensor).view_offs) };
    let of = |at: [i64; 4]| {
        offset + at.iter().zip(nb).map(|(at, stride)| usize::try_from(*at).unwrap() * stride).sum::<usize>()
    };
    let mut places = Vec::new();
    for i3 in 0..ne[3] {
        for i2 in 0..ne[2] {
            for i1 in 0..ne[1] {
                places.extend((0..ne[0]).map(|i0| of([i0, i1, i2, i3]) / size_of::<f32>()));
            }
        }
    }
    places
}

/// Computes a graph with several numbers of threads. `build` also returns the floats that are expected.
fn assert_copies(name: &str, build: impl Fn(*mut sys::ggml_context) -> (Vec<(Tensor, Vec<u8>)>, Tensor, Vec<f32>)) {
    for n_threads in 1..4 {
        let (before, mut expected) = (foredraft::llama::kernel_calls().copies, Vec::new());
        let copied = ggml::compute(n_threads, |ctx| {
            let (inputs, out, floats) = build(ctx);
            expected = floats;
            (inputs, out)
        });
        assert!(copied == expected, "{name}, {n_threads} threads");
        assert_eq!(foredraft::llama::kernel_calls().copies - before, u64::from(HAS_KERNELS), "{name}: calls");
    }
}

/// Numbers from `range`, the same for the same seed.
fn sizes<const N: usize>(seed: u64, range: Range<i64>) -> [i64; N] {
    let values = noise(seed, N + 8);
    std::array::from_fn(|i| range.start + ((values[i + 8] + 1.0) / 2.0 * (range.end - range.start) as f32) as i64)
}

#[test]
fn wide_rows_are_copied_by_all_threads() {
    foredraft::llama::start();
    for seed in 0..8 {
        let [width, n_rows, n_ids] = [sizes::<1>(seed, 8192..40_000)[0], 5, 1 + seed as i64 % 4];
        let (rows, ids) = (numbers(seed, width * n_rows), sizes::<4>(seed, 0..n_rows));
        let ids = &ids[..usize::try_from(n_ids).unwrap()];
        assert_copies(&format!("{n_ids} rows of {width}"), |ctx| {
            let from = tensor(ctx, [width, n_rows, 1, 1]);
            // SAFETY: the context is alive.
            let (at, out) = unsafe {
                let at = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, n_ids);
                (at, sys::ggml_get_rows(ctx, from, at))
            };
            let of =
                |id: &i64| rows[usize::try_from(id * width).unwrap()..][..usize::try_from(width).unwrap()].to_vec();
            let contents = vec![
                (from, bytes(&rows)),
                (at, bytes(&ids.iter().map(|id| i32::try_from(*id).unwrap()).collect::<Vec<i32>>())),
            ];
            (contents, out, ids.iter().flat_map(of).collect())
        });
    }
}

#[test]
fn views_are_copied() {
    foredraft::llama::start();
    for seed in 0..60 {
        // Parts of rows as llama.cpp cuts the state of a short convolution, a long row, or any axes exchanged.
        let kind = seed % 3;
        let [columns, gap, matrices, behind] = sizes(seed, 1..9);
        let [rows] = sizes(seed + 1, if kind == 1 { 1..4 } else { 1..40 });
        let columns = if kind == 1 { columns * 1500 } else { columns };
        assert_copies(&format!("view {seed}: {columns} of {rows} rows, {matrices} matrices"), |ctx| {
            let whole = tensor(ctx, [columns + gap, rows, matrices, 2]);
            let target = tensor(ctx, [columns * rows * matrices + behind, 2, 1, 1]);
            // SAFETY: the context is alive, and the views are within their tensors.
            let (view, out) = unsafe {
                let nb = (*whole).nb;
                let view =
                    sys::ggml_view_4d(ctx, whole, columns, rows, matrices, 2, nb[1], nb[2], nb[3], 4 * gap as usize);
                let exchanged = [[1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3], [1, 2, 0, 3]][(seed / 3 % 4) as usize];
                let [a, b, c, d] = exchanged;
                let view = if kind == 2 { sys::ggml_permute(ctx, view, a, b, c, d) } else { view };
                let to = sys::ggml_view_2d(ctx, target, columns * rows * matrices, 2, (*target).nb[1], 0);
                (view, sys::ggml_cpy(ctx, view, to))
            };
            let (from, mut to) = (
                numbers(seed, (columns + gap) * rows * matrices * 2),
                numbers(seed + 1, (columns * rows * matrices + behind) * 2),
            );
            let contents = vec![(whole, bytes(&from)), (target, bytes(&to))];
            for (from_place, to_place) in places(view).into_iter().zip(places(out)) {
                to[to_place] = from[from_place];
            }
            // A view's bytes end with its last row.
            to.truncate(to.len() - usize::try_from(behind).unwrap());
            (contents, out, to)
        });
    }
}

#[test]
fn rows_are_joined() {
    foredraft::llama::start();
    for seed in 0..24 {
        let [first, second, matrices] = sizes(seed, 1..6);
        let [rows, long] = sizes(seed + 1, 1..300);
        let second = if seed % 4 == 3 { long } else { second };
        assert_copies(&format!("rows of {first} and {second}, {rows} of {matrices} matrices"), |ctx| {
            let shape = |width| if seed % 2 == 0 { [rows, width, matrices, 1] } else { [width, rows, matrices, 1] };
            let (a, b) = (tensor(ctx, [first, rows, matrices, 1]), tensor(ctx, shape(second)));
            // SAFETY: the context is alive.
            let (b_rows, out) = unsafe {
                // llama.cpp joins the state of a short convolution with transposed tokens.
                let b_rows = if seed % 2 == 0 { sys::ggml_transpose(ctx, b) } else { b };
                (b_rows, sys::ggml_concat(ctx, a, b_rows, 0))
            };
            let (of_a, of_b) = (numbers(seed, first * rows * matrices), numbers(seed + 1, second * rows * matrices));
            let take = |from: &[f32], of: Tensor| places(of).into_iter().map(|place| from[place]).collect::<Vec<f32>>();
            let (in_a, in_b) = (take(&of_a, a), take(&of_b, b_rows));
            let widths = (usize::try_from(first).unwrap(), usize::try_from(second).unwrap());
            let joined = in_a.chunks(widths.0).zip(in_b.chunks(widths.1)).flat_map(|(a, b)| [a, b].concat());
            (vec![(a, bytes(&of_a)), (b, bytes(&of_b))], out, joined.collect())
        });
    }
}
