//! The gated delta net: this library's has the bits of ggml's for AVX2, at every level.

use llama_cpp_sys_2 as sys;

use crate::ggml::{self, Tensor, bytes, noise};
use crate::{HAS_KERNELS, tensor};

/// The dot product of ggml's kernels for AVX2: 32 running sums, which are added in pairs that lie 16, 8 and 4 apart, then neighbours.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 32];
    for (at, (a, b)) in a.iter().zip(b).enumerate() {
        sums[at % 32] = a.mul_add(*b, sums[at % 32]);
    }
    for apart in [16, 8, 4] {
        for i in 0..apart {
            sums[i] += sums[i + apart];
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// Computes a head's tokens as ggml does: the outputs, and the state after each token.
fn delta_net_of_head(
    width: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    gates: &[f32],
    beta: &[f32],
    state: &mut [f32],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (mut outputs, mut states) = (Vec::new(), Vec::new());
    let n_gates = gates.len() / beta.len();
    for token in 0..beta.len() {
        let of = |all: &[f32], n: usize| all[token * n..][..n].to_vec();
        let (q, k, v, gates) = (of(q, width), of(k, width), of(v, width), of(gates, n_gates));
        for (row, v) in state.chunks_mut(width).zip(v) {
            for (at, value) in row.iter_mut().enumerate() {
                *value *= gates[at % n_gates].exp();
            }
            let delta = (v - dot(row, &k)) * beta[token];
            for (value, k) in row.iter_mut().zip(&k) {
                *value = k.mul_add(delta, *value);
            }
            outputs.push(dot(row, &q) * (1.0 / (width as f32).sqrt()));
        }
        states.push(state.to_vec());
    }
    (outputs, states)
}

#[test]
fn gated_delta_net_has_the_bits_of_ggml() {
    foredraft::llama::start();
    for (width, n_tokens, n_gates, n_states, n_key_heads) in [
        (32, 1, 1, 1, 2),
        (64, 5, 1, 4, 1),
        (64, 70, 64, 3, 2),
        (96, 33, 96, 1, 1),
        (128, 2, 1, 8, 2),
        (256, 1, 1, 2, 1),
    ] {
        const N_HEADS: usize = 2;
        const N_SEQS: usize = 2;
        let of = |seed, n: usize| noise(seed, n * n_tokens * N_SEQS);
        let (q, k, v) = (of(40, width * n_key_heads), of(41, width * n_key_heads), of(42, width * N_HEADS));
        let gates: Vec<f32> = of(43, n_gates * N_HEADS).iter().map(|x| -x.abs()).collect();
        let (beta, state) = (of(44, N_HEADS), noise(45, width * width * N_HEADS * N_SEQS));
        let mut outputs = vec![0.0_f32; width * N_HEADS * n_tokens * N_SEQS];
        let mut states = vec![0.0_f32; n_states * state.len()];
        for (sequence, head) in (0..N_SEQS).flat_map(|sequence| (0..N_HEADS).map(move |head| (sequence, head))) {
            // A head's numbers of all tokens.
            let take = |all: &[f32], n: usize, n_heads: usize| -> Vec<f32> {
                let token = |t: usize| all[((sequence * n_tokens + t) * n_heads + head % n_heads) * n..][..n].to_vec();
                (0..n_tokens).flat_map(token).collect()
            };
            let at = (sequence * N_HEADS + head) * width * width;
            let mut now = state[at..][..width * width].to_vec();
            let (out, after) = delta_net_of_head(
                width,
                &take(&q, width, n_key_heads),
                &take(&k, width, n_key_heads),
                &take(&v, width, N_HEADS),
                &take(&gates, n_gates, N_HEADS),
                &take(&beta, 1, N_HEADS),
                &mut now,
            );
            for (token, out) in out.chunks(width).enumerate() {
                outputs[((sequence * n_tokens + token) * N_HEADS + head) * width..][..width].copy_from_slice(out);
            }
            for (back, kept) in after.iter().rev().take(n_states).enumerate() {
                states[back * state.len() + at..][..width * width].copy_from_slice(kept);
            }
        }
        for n_threads in [1, 2, 3] {
            let before = foredraft::llama::kernel_calls().delta_nets;
            let result = ggml::compute(n_threads, |ctx| {
                let [n, seqs, heads] = [n_tokens, N_SEQS, N_HEADS].map(|n| i64::try_from(n).unwrap());
                let of = |width: usize, heads: i64| tensor(ctx, [i64::try_from(width).unwrap(), heads, n, seqs]);
                let key_heads = i64::try_from(n_key_heads).unwrap();
                let inputs =
                    [of(width, key_heads), of(width, key_heads), of(width, heads), of(n_gates, heads), of(1, heads)];
                let first = tensor(ctx, [width as i64, width as i64, heads, seqs]);
                let [q_in, k_in, v_in, gates_in, beta_in] = inputs;
                // SAFETY: the context is alive.
                let out = unsafe {
                    sys::ggml_gated_delta_net(ctx, q_in, k_in, v_in, gates_in, beta_in, first, n_states as i64)
                };
                let contents = [&q, &k, &v, &gates, &beta].map(|values| bytes(values));
                let mut contents: Vec<(Tensor, Vec<u8>)> = inputs.into_iter().zip(contents).collect();
                contents.push((first, bytes(&state)));
                (contents, out)
            });
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let name = format!("width {width}, {n_tokens} tokens, {n_states} states, {n_threads} threads");
            assert!(bits(&result[..outputs.len()]) == bits(&outputs), "{name}: outputs");
            let n_kept = n_states.min(n_tokens) * state.len();
            assert!(bits(&result[outputs.len()..][..n_kept]) == bits(&states[..n_kept]), "{name}: states");
            assert_eq!(foredraft::llama::kernel_calls().delta_nets - before, u64::from(HAS_KERNELS), "{name}: calls");
        }
    }
}
