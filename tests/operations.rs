//! Operations of graphs, by this library or ggml, and completions: the results do not depend on the number of threads nor on drafts. With
//! `FOREDRAFT_RESULTS` set to a folder, writes a line for each result with a hash of its bits, so that builds for two kinds of processors can
//! be compared (`scripts/aarch64.sh`).
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod common;
#[path = "operations/copies.rs"]
mod copies;
#[path = "operations/delta_net.rs"]
mod delta_net;
mod ggml;
#[path = "operations/states.rs"]
mod states;

use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::null_mut;

use common::Endpoint::{Foredraft, Plain};
use ggml::{Tensor, bytes, noise};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

const HAS_KERNELS: bool = cfg!(any(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    all(windows, target_env = "gnu", target_arch = "x86_64"),
));
/// Not a multiple of 16: some of ggml's loops have a remainder.
const WIDTH: i64 = 300;
const ROWS: i64 = 6;

/// A graph: makes tensors with their contents, and the result.
type Graph<'a> = dyn Fn(*mut sys::ggml_context) -> (Vec<(Tensor, Vec<u8>)>, Tensor) + 'a;

fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Numbers between -8 and 8.
fn numbers(seed: u64, n: i64) -> Vec<f32> {
    noise(seed, usize::try_from(n).unwrap()).into_iter().map(|x| 8.0 * x).collect()
}

struct Hashes(String);

impl Hashes {
    fn add(&mut self, name: &str, graph: &Graph) {
        let alone = ggml::compute(1, graph);
        assert!(alone.iter().any(|value| *value != 0.0), "{name} computes something");
        let together = ggml::compute(2, graph);
        assert!(
            alone.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{name}: one and two threads compute the same bits"
        );
        writeln!(self.0, "{name} {:016x}", hash(alone.iter().flat_map(|value| value.to_bits().to_le_bytes()))).unwrap();
    }

    /// An operation of one tensor.
    fn unary(&mut self, name: &str, width: i64, of: unsafe extern "C" fn(*mut sys::ggml_context, Tensor) -> Tensor) {
        self.add(name, &|ctx| {
            // SAFETY: the context is alive.
            let (input, out) = unsafe {
                let input = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, width, ROWS);
                (input, of(ctx, input))
            };
            (vec![(input, bytes(&numbers(1, width * ROWS)))], out)
        });
    }

    /// An operation of two tensors.
    fn binary(&mut self, name: &str, of: unsafe extern "C" fn(*mut sys::ggml_context, Tensor, Tensor) -> Tensor) {
        self.add(name, &|ctx| {
            // SAFETY: the context is alive.
            let (inputs, out) = unsafe {
                let inputs = [(); 2].map(|()| sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, WIDTH, ROWS));
                (inputs, of(ctx, inputs[0], inputs[1]))
            };
            let contents = |seed| bytes(&numbers(seed, WIDTH * ROWS));
            (vec![(inputs[0], contents(2)), (inputs[1], contents(3))], out)
        });
    }
}

/// A result of other numbers than F32 as F32.
fn as_floats(ctx: *mut sys::ggml_context, of: Tensor) -> Tensor {
    // SAFETY: the context is alive.
    unsafe { sys::ggml_cast(ctx, of, sys::GGML_TYPE_F32) }
}

fn norms(hashes: &mut Hashes) {
    unsafe extern "C" fn rms(ctx: *mut sys::ggml_context, a: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_rms_norm(ctx, a, 1e-5) }
    }
    unsafe extern "C" fn rms_scaled(ctx: *mut sys::ggml_context, a: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_mul(ctx, sys::ggml_rms_norm(ctx, a, 1e-5), a) }
    }
    unsafe extern "C" fn mean(ctx: *mut sys::ggml_context, a: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_norm(ctx, a, 1e-5) }
    }
    unsafe extern "C" fn length(ctx: *mut sys::ggml_context, a: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_l2_norm(ctx, a, 1e-5) }
    }
    for width in [WIDTH, 576] {
        hashes.unary(&format!("rms_norm {width}"), width, rms);
        hashes.unary(&format!("rms_norm and mul {width}"), width, rms_scaled);
        hashes.unary(&format!("norm {width}"), width, mean);
        hashes.unary(&format!("l2_norm {width}"), width, length);
    }
}

fn activations(hashes: &mut Hashes) {
    for width in [WIDTH, 1536] {
        for (name, of) in [
            ("silu", sys::ggml_silu as unsafe extern "C" fn(_, _) -> _),
            ("gelu", sys::ggml_gelu),
            ("gelu_quick", sys::ggml_gelu_quick),
            ("gelu_erf", sys::ggml_gelu_erf),
            ("relu", sys::ggml_relu),
            ("sigmoid", sys::ggml_sigmoid),
            ("tanh", sys::ggml_tanh),
            ("softplus", sys::ggml_softplus),
            ("exp", sys::ggml_exp),
            ("sqr", sys::ggml_sqr),
            ("sin", sys::ggml_sin),
            ("cos", sys::ggml_cos),
            ("sum_rows", sys::ggml_sum_rows),
            ("mean", sys::ggml_mean),
        ] {
            hashes.unary(&format!("{name} {width}"), width, of);
        }
    }
    for (name, of) in [
        ("add", sys::ggml_add as unsafe extern "C" fn(_, _, _) -> _),
        ("mul", sys::ggml_mul),
        ("div", sys::ggml_div),
        ("sub", sys::ggml_sub),
        ("swiglu", sys::ggml_swiglu_split),
        ("geglu", sys::ggml_geglu_split),
        ("reglu", sys::ggml_reglu_split),
        ("geglu_erf", sys::ggml_geglu_erf_split),
        ("geglu_quick", sys::ggml_geglu_quick_split),
    ] {
        hashes.binary(name, of);
    }
    unsafe extern "C" fn oai(ctx: *mut sys::ggml_context, a: Tensor, b: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_swiglu_oai(ctx, a, b, 1.702, 7.0) }
    }
    unsafe extern "C" fn scale(ctx: *mut sys::ggml_context, a: Tensor) -> Tensor {
        // SAFETY: the context is alive.
        unsafe { sys::ggml_scale_bias(ctx, a, 0.3, 0.7) }
    }
    hashes.binary("swiglu_oai", oai);
    hashes.unary("scale_bias", WIDTH, scale);
}

fn rope(hashes: &mut Hashes) {
    const HEAD: i64 = 64;
    for (name, mode) in [("norm", 0), ("neox", 2)] {
        for (kind, scale, extension) in [("plain", 1.0, 0.0), ("linear", 0.25, 0.0), ("yarn", 0.25, 1.0)] {
            hashes.add(&format!("rope {name} {kind}"), &|ctx| {
                // SAFETY: the context is alive.
                let (x, positions, out) = unsafe {
                    let x = sys::ggml_new_tensor_3d(ctx, sys::GGML_TYPE_F32, HEAD, 3, 5);
                    let positions = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, 5);
                    let out = sys::ggml_rope_ext(
                        ctx,
                        x,
                        positions,
                        null_mut(),
                        HEAD as i32,
                        mode,
                        2048,
                        10000.0,
                        scale,
                        extension,
                        1.0,
                        32.0,
                        1.0,
                    );
                    (x, positions, out)
                };
                (vec![(x, bytes(&numbers(4, HEAD * 15))), (positions, bytes(&[0_i32, 1, 77, 1000, 2047]))], out)
            });
        }
    }
}

fn softmax(hashes: &mut Hashes) {
    for (width, scale) in [(WIDTH, 0.125_f32), (8, 1.0), (64, 1.0)] {
        hashes.add(&format!("soft_max {width}"), &|ctx| {
            // SAFETY: the context is alive.
            let (x, out) = unsafe {
                let x = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, width, ROWS);
                (x, sys::ggml_soft_max_ext(ctx, x, null_mut(), scale, 0.0))
            };
            (vec![(x, bytes(&numbers(5, width * ROWS)))], out)
        });
    }
}

/// The first formats are those of caches.
const N_CACHE_TYPES: usize = 8;
const FORMATS: [(&str, sys::ggml_type); 28] = [
    ("f16", sys::GGML_TYPE_F16),
    ("bf16", sys::GGML_TYPE_BF16),
    ("q8_0", sys::GGML_TYPE_Q8_0),
    ("q4_0", sys::GGML_TYPE_Q4_0),
    ("q4_1", sys::GGML_TYPE_Q4_1),
    ("q5_0", sys::GGML_TYPE_Q5_0),
    ("q5_1", sys::GGML_TYPE_Q5_1),
    ("iq4_nl", sys::GGML_TYPE_IQ4_NL),
    ("mxfp4", sys::GGML_TYPE_MXFP4),
    ("nvfp4", sys::GGML_TYPE_NVFP4),
    ("q2_k", sys::GGML_TYPE_Q2_K),
    ("q3_k", sys::GGML_TYPE_Q3_K),
    ("q4_k", sys::GGML_TYPE_Q4_K),
    ("q5_k", sys::GGML_TYPE_Q5_K),
    ("q6_k", sys::GGML_TYPE_Q6_K),
    ("iq4_xs", sys::GGML_TYPE_IQ4_XS),
    ("q1_0", sys::GGML_TYPE_Q1_0),
    ("q2_0", sys::GGML_TYPE_Q2_0),
    ("tq1_0", sys::GGML_TYPE_TQ1_0),
    ("tq2_0", sys::GGML_TYPE_TQ2_0),
    ("iq1_s", sys::GGML_TYPE_IQ1_S),
    ("iq1_m", sys::GGML_TYPE_IQ1_M),
    ("iq2_xxs", sys::GGML_TYPE_IQ2_XXS),
    ("iq2_xs", sys::GGML_TYPE_IQ2_XS),
    ("iq2_s", sys::GGML_TYPE_IQ2_S),
    ("iq3_xxs", sys::GGML_TYPE_IQ3_XXS),
    ("iq3_s", sys::GGML_TYPE_IQ3_S),
    ("f32", sys::GGML_TYPE_F32),
];
/// Two of the longest blocks.
const BLOCKS: i64 = 512;

/// Rows of blocks in which any bytes are, except for numbers that are not finite: the same on all machines, as no quantizer would promise.
fn weights(format: sys::ggml_type, n_rows: i64) -> Vec<u8> {
    // SAFETY: returns numbers.
    let (row, block) = unsafe { (sys::ggml_row_size(format, BLOCKS), sys::ggml_type_size(format)) };
    let values = noise(u64::from(format) + 100, row * usize::try_from(n_rows).unwrap());
    if format == sys::GGML_TYPE_F32 {
        return bytes(&values[..values.len() / 4]);
    }
    let mut data: Vec<u8> = values.iter().map(|x| ((x + 1.0) * 127.0) as u8).collect();
    let halves: &[usize] = match format {
        sys::GGML_TYPE_F16 | sys::GGML_TYPE_BF16 => &[0],
        sys::GGML_TYPE_Q4_1 | sys::GGML_TYPE_Q5_1 | sys::GGML_TYPE_Q4_K | sys::GGML_TYPE_Q5_K => &[0, 2],
        sys::GGML_TYPE_Q2_K => &[80, 82],
        sys::GGML_TYPE_Q3_K => &[108],
        sys::GGML_TYPE_Q6_K => &[208],
        sys::GGML_TYPE_IQ1_M => &[54],
        sys::GGML_TYPE_TQ1_0 => &[52],
        sys::GGML_TYPE_TQ2_0 => &[64],
        sys::GGML_TYPE_MXFP4 | sys::GGML_TYPE_NVFP4 => &[],
        _ => &[0],
    };
    for block in data.chunks_mut(block) {
        if format == sys::GGML_TYPE_MXFP4 {
            block[0] = 120 + block[0] % 8;
        }
        for at in halves {
            // Leaves an F16 of any sign from 2^-7 to 2, or a BF16 from 2^-63 to 2.
            block[at + 1] = block[at + 1] & 0x8f | 0x20 | block[at + 1] & 0x10;
        }
    }
    data
}

fn rows(hashes: &mut Hashes) {
    for (name, format) in FORMATS {
        hashes.add(&format!("get_rows {name}"), &|ctx| {
            // SAFETY: the context is alive.
            let (table, ids, out) = unsafe {
                let table = sys::ggml_new_tensor_2d(ctx, format, BLOCKS, 7);
                let ids = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, 4);
                (table, ids, sys::ggml_get_rows(ctx, table, ids))
            };
            (vec![(table, weights(format, 7)), (ids, bytes(&[3_i32, 0, 6, 2]))], out)
        });
        hashes.add(&format!("mul_mat {name}"), &|ctx| {
            // SAFETY: the context is alive.
            let (matrix, tokens, out) = unsafe {
                let matrix = sys::ggml_new_tensor_2d(ctx, format, BLOCKS, 37);
                let tokens = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, BLOCKS, 5);
                (matrix, tokens, sys::ggml_mul_mat(ctx, matrix, tokens))
            };
            (vec![(matrix, weights(format, 37)), (tokens, bytes(&numbers(6, BLOCKS * 5)))], out)
        });
    }
    for (name, format) in &FORMATS[..N_CACHE_TYPES] {
        hashes.add(&format!("set_rows {name}"), &|ctx| {
            // SAFETY: the context is alive.
            let (cache, rows, ids, out) = unsafe {
                let cache = sys::ggml_new_tensor_2d(ctx, *format, BLOCKS, 9);
                let rows = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, BLOCKS, 4);
                let ids = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I64, 4);
                (cache, rows, ids, sys::ggml_set_rows(ctx, cache, rows, ids))
            };
            // Computed in the cache, which is read as numbers.
            let contents = weights(*format, 9);
            (
                vec![(cache, contents), (rows, bytes(&numbers(7, BLOCKS * 4))), (ids, bytes(&[8_i64, 0, 5, 1]))],
                as_floats(ctx, out),
            )
        });
    }
}

fn attention(hashes: &mut Hashes) {
    const CELLS: i64 = 512;
    for (head, softcap) in [(64, 0.0), (80, 0.0), (128, 30.0)] {
        for &(name, cache) in &FORMATS[..N_CACHE_TYPES] {
            // SAFETY: the type exists.
            if head % unsafe { sys::ggml_blck_size(cache) } != 0 {
                continue;
            }
            hashes.add(&format!("attention {head} {name}"), &|ctx| {
                let scale = 1.0 / (head as f32).sqrt();
                // SAFETY: the context is alive.
                let (q, k, v, mask, out) = unsafe {
                    let q = sys::ggml_new_tensor_4d(ctx, sys::GGML_TYPE_F32, head, 3, 4, 1);
                    let [k, v] = [(); 2].map(|()| sys::ggml_new_tensor_4d(ctx, sys::GGML_TYPE_F32, head, CELLS, 2, 1));
                    let [k_cache, v_cache] = [k, v].map(|x| sys::ggml_cast(ctx, x, cache));
                    let mask = sys::ggml_new_tensor_4d(ctx, sys::GGML_TYPE_F16, CELLS, 3, 1, 1);
                    let out = sys::ggml_flash_attn_ext(ctx, q, k_cache, v_cache, mask, scale, 0.0, softcap);
                    (q, k, v, mask, out)
                };
                let mut masked = vec![0_u16; usize::try_from(3 * CELLS).unwrap()];
                for (row, cells) in masked.chunks_mut(usize::try_from(CELLS).unwrap()).enumerate() {
                    cells[400 + row..].fill(0xfc00);
                }
                let of_cache = |seed| bytes(&noise(seed, usize::try_from(head * CELLS * 2).unwrap()));
                (
                    vec![
                        (q, bytes(&numbers(8, head * 12))),
                        (k, of_cache(9)),
                        (v, of_cache(10)),
                        (mask, bytes(&masked)),
                    ],
                    out,
                )
            });
        }
    }
}

/// Builds an operation's graph: the states with their bytes, and the result.
type RecurrentGraph = fn(*mut sys::ggml_context, &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor);

/// A recurrent operation: what its sequences are like, and its graph for some of their tokens.
struct Recurrence {
    name: &'static str,
    /// Numbers of a state, and of an output of a token.
    state: usize,
    output: usize,
    /// The most states that it returns of a sequence: the last ones, the newest first.
    n_states: usize,
    /// The result for these tokens of so many sequences, of which each begins with a state: outputs by sequence and token, then states.
    graph: RecurrentGraph,
}

/// Tokens of sequences, and the states before them.
struct Inputs<'a> {
    sequences: Range<usize>,
    tokens: Range<usize>,
    states: &'a [f32],
    n_states: usize,
}

impl Inputs<'_> {
    fn shape(&self) -> (i64, i64) {
        (i64::try_from(self.tokens.len()).unwrap(), i64::try_from(self.sequences.len()).unwrap())
    }

    /// An input of each token, which has so many numbers.
    fn of_tokens(&self, seed: u64, n: i64, of: impl Fn(f32) -> f32) -> Vec<u8> {
        let n = usize::try_from(n).unwrap();
        let token = |sequence: usize, token: usize| noise(1000 * seed + (100 * sequence + token) as u64, n);
        let all = self.sequences.clone().flat_map(|sequence| self.tokens.clone().map(move |at| (sequence, at)));
        bytes(&all.flat_map(|(sequence, at)| token(sequence, at)).map(of).collect::<Vec<f32>>())
    }
}

fn tensor(ctx: *mut sys::ggml_context, shape: [i64; 4]) -> Tensor {
    // SAFETY: the context is alive.
    unsafe { sys::ggml_new_tensor_4d(ctx, sys::GGML_TYPE_F32, shape[0], shape[1], shape[2], shape[3]) }
}

const HEADS: i64 = 3;
const HEAD: i64 = 20;
const STATE: i64 = 12;
const CHANNELS: i64 = 40;
const KERNEL: i64 = 4;

fn delta_net(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    let (n, n_seqs) = inputs.shape();
    let [q, k, v] = [(); 3].map(|()| tensor(ctx, [HEAD, HEADS, n, n_seqs]));
    let [gate, beta] = [(); 2].map(|()| tensor(ctx, [1, HEADS, n, n_seqs]));
    let state = tensor(ctx, [HEAD, HEAD, HEADS, n_seqs]);
    // SAFETY: the context is alive.
    let out = unsafe { sys::ggml_gated_delta_net(ctx, q, k, v, gate, beta, state, inputs.n_states as i64) };
    let contents = [q, k, v].into_iter().zip(1..).map(|(x, seed)| (x, inputs.of_tokens(seed, HEAD * HEADS, |x| x)));
    let mut contents: Vec<(Tensor, Vec<u8>)> = contents.collect();
    contents.push((gate, inputs.of_tokens(4, HEADS, |x| -x.abs())));
    contents.push((beta, inputs.of_tokens(5, HEADS, |x| x.abs())));
    contents.push((state, bytes(inputs.states)));
    (contents, out)
}

/// Mamba's scan if each state has a factor of its own, else Mamba-2's.
fn scan(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>, is_first: bool) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    let (n, n_seqs) = inputs.shape();
    let (head, heads, factors) = if is_first { (1, HEAD * HEADS, STATE) } else { (HEAD, HEADS, 1) };
    let x = tensor(ctx, [head, heads, n, n_seqs]);
    let dt = tensor(ctx, [heads, n, n_seqs, 1]);
    let a = tensor(ctx, [factors, heads, 1, 1]);
    let [b, c] = [(); 2].map(|()| tensor(ctx, [STATE, 1, n, n_seqs]));
    let state = tensor(ctx, [STATE, head, heads, n_seqs]);
    // SAFETY: the context is alive.
    let (ids, out) = unsafe {
        let ids = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, n_seqs);
        (ids, sys::ggml_ssm_scan(ctx, state, x, dt, a, b, c, ids, inputs.n_states as i64))
    };
    let decay: Vec<f32> = noise(6, usize::try_from(factors * heads).unwrap()).iter().map(|x| -x.abs()).collect();
    let contents = vec![
        (x, inputs.of_tokens(7, HEAD * HEADS, |x| x)),
        (dt, inputs.of_tokens(8, heads, |x| x)),
        (a, bytes(&decay)),
        (b, inputs.of_tokens(9, STATE, |x| x)),
        (c, inputs.of_tokens(10, STATE, |x| x)),
        (state, bytes(inputs.states)),
        (ids, bytes(&(0..i32::try_from(n_seqs).unwrap()).collect::<Vec<i32>>())),
    ];
    (contents, out)
}

/// The short convolution has no state of its own: it sees the tokens before.
fn convolution(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    let (n, n_seqs) = inputs.shape();
    let x = tensor(ctx, [KERNEL - 1 + n, CHANNELS, n_seqs, 1]);
    let kernel = tensor(ctx, [KERNEL, CHANNELS, 1, 1]);
    // SAFETY: the context is alive.
    let out = unsafe { sys::ggml_ssm_conv(ctx, x, kernel) };
    let before = usize::try_from(KERNEL - 1).unwrap();
    let all =
        inputs.sequences.clone().flat_map(|sequence| (0..CHANNELS as u64).map(move |channel| (sequence, channel)));
    let row = |(sequence, channel): (usize, u64)| {
        let whole = noise(1000 * sequence as u64 + channel, 64);
        whole[inputs.tokens.start..inputs.tokens.end + before].to_vec()
    };
    let contents: Vec<f32> = all.flat_map(row).collect();
    (vec![(x, bytes(&contents)), (kernel, bytes(&noise(12, 160)))], out)
}

const RECURRENCES: [Recurrence; 4] = [
    Recurrence { name: "ssm_conv", state: 0, output: CHANNELS as usize, n_states: 1, graph: convolution },
    Recurrence {
        name: "gated_delta_net",
        state: (HEAD * HEAD * HEADS) as usize,
        output: (HEAD * HEADS) as usize,
        n_states: 4,
        graph: delta_net,
    },
    Recurrence {
        name: "ssm_scan, Mamba",
        state: (STATE * HEAD * HEADS) as usize,
        output: (HEAD * HEADS) as usize,
        n_states: 1,
        graph: |ctx, inputs| scan(ctx, inputs, true),
    },
    Recurrence {
        name: "ssm_scan, Mamba-2",
        state: (STATE * HEAD * HEADS) as usize,
        output: (HEAD * HEADS) as usize,
        n_states: 4,
        graph: |ctx, inputs| scan(ctx, inputs, false),
    },
];

/// The states of RWKV. ggml's loops have no remainder for RWKV-7.
const WKV_HEAD: i64 = 64;

/// An operation of RWKV on so many inputs of each token, of which one decays the state.
fn rwkv(
    ctx: *mut sys::ggml_context,
    inputs: &Inputs<'_>,
    decay: u64,
    n_inputs: u64,
    of: impl FnOnce(&[Tensor], Tensor) -> (Tensor, Option<Tensor>),
) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    let (n, n_seqs) = inputs.shape();
    let tokens: Vec<Tensor> = (0..n_inputs).map(|_| tensor(ctx, [WKV_HEAD, HEADS, n * n_seqs, 1])).collect();
    let state = tensor(ctx, [WKV_HEAD * WKV_HEAD * HEADS, n_seqs, 1, 1]);
    let (out, bonus) = of(&tokens, state);
    let value = |seed, x: f32| if seed == decay { 0.9 + 0.1 * x } else { 0.1 * x };
    let of_tokens = |seed: u64| inputs.of_tokens(20 + seed, WKV_HEAD * HEADS, |x| value(seed, x));
    let mut contents: Vec<(Tensor, Vec<u8>)> = tokens.into_iter().zip((0..).map(of_tokens)).collect();
    contents.push((state, bytes(inputs.states)));
    contents.extend(bonus.map(|bonus| (bonus, bytes(&noise(30, (WKV_HEAD * HEADS) as usize)))));
    (contents, out)
}

fn wkv6(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    rwkv(ctx, inputs, 3, 4, |x, state| {
        let first = tensor(ctx, [WKV_HEAD, HEADS, 1, 1]);
        // SAFETY: the context is alive.
        (unsafe { sys::ggml_rwkv_wkv6(ctx, x[0], x[1], x[2], first, x[3], state) }, Some(first))
    })
}

fn wkv7(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    rwkv(ctx, inputs, 1, 6, |x, state| {
        // SAFETY: the context is alive.
        (unsafe { sys::ggml_rwkv_wkv7(ctx, x[0], x[1], x[2], x[3], x[4], x[5], state) }, None)
    })
}

fn linear_attention(ctx: *mut sys::ggml_context, inputs: &Inputs<'_>) -> (Vec<(Tensor, Vec<u8>)>, Tensor) {
    rwkv(ctx, inputs, 3, 4, |x, state| {
        // SAFETY: the context is alive.
        (unsafe { sys::ggml_gated_linear_attn(ctx, x[0], x[1], x[2], x[3], state, 0.125) }, None)
    })
}

/// The operations of RWKV, whose last bits depend on the processor's vectors.
const RWKV: [Recurrence; 3] = {
    let (state, output) = ((WKV_HEAD * WKV_HEAD * HEADS) as usize, (WKV_HEAD * HEADS) as usize);
    [
        Recurrence { name: "rwkv_wkv6", state, output, n_states: 1, graph: wkv6 },
        Recurrence { name: "rwkv_wkv7", state, output, n_states: 1, graph: wkv7 },
        Recurrence { name: "gated_linear_attn", state, output, n_states: 1, graph: linear_attention },
    ]
};

fn recurrences(hashes: &mut Hashes) {
    for Recurrence { name, state, n_states, graph, .. } in RECURRENCES {
        let states = noise(13, 2 * state);
        hashes.add(name, &|ctx| graph(ctx, &Inputs { sequences: 0..2, tokens: 0..5, states: &states, n_states }));
    }
}

/// Speculation on recurrent models rests on this: a token's output and state are the same in every batch.
#[test]
fn recurrent_operations_are_batch_invariant() {
    const N: usize = 7;
    foredraft::llama::start();
    for Recurrence { name, state, output, n_states, graph } in RECURRENCES.into_iter().chain(RWKV) {
        for n_threads in [1, 2] {
            let run = |sequences: Range<usize>, tokens: Range<usize>, states: &[f32], n_states: usize| {
                let n_outputs = sequences.len() * tokens.len() * output;
                let inputs = Inputs { sequences, tokens, states, n_states };
                let mut all = ggml::compute(n_threads, |ctx| graph(ctx, &inputs));
                let states = all.split_off(n_outputs);
                (all, states)
            };
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let first = noise(13, 2 * state);
            let mut outputs: [Vec<f32>; 2] = Default::default();
            let mut states: [Vec<Vec<f32>>; 2] = Default::default();
            for sequence in 0..2 {
                let mut before = first[sequence * state..][..state].to_vec();
                for token in 0..N {
                    let (out, after) = run(sequence..sequence + 1, token..token + 1, &before, 1);
                    outputs[sequence].extend(out);
                    before = after[..state].to_vec();
                    states[sequence].push(before.clone());
                }
                let (whole, last) = run(sequence..sequence + 1, 0..N, &first[sequence * state..][..state], n_states);
                assert_eq!(bits(&whole), bits(&outputs[sequence]), "{name}: tokens together and one by one");
                for back in 0..n_states {
                    let kept = &last[back * state..][..state];
                    assert_eq!(
                        bits(kept),
                        bits(&states[sequence][N - 1 - back]),
                        "{name}: the state {back} tokens back"
                    );
                }
            }
            let (together, _) = run(0..2, 0..N, &first, n_states);
            assert_eq!(bits(&together), bits(&outputs.concat()), "{name}: two sequences");
            assert!(together.iter().any(|value| *value != 0.0), "{name} computes something");
        }
    }
}

/// The C library's functions that this library replaces. Without it, they give what the C library gives.
fn elementary(hashes: &mut Hashes) {
    for (name, of) in [
        ("sinf", f32::sin as fn(f32) -> f32),
        ("cosf", f32::cos),
        ("tanhf", f32::tanh),
        ("expf", f32::exp),
        ("expm1f", f32::exp_m1),
        ("exp2f", f32::exp2),
        ("logf", f32::ln),
        ("log2f", f32::log2),
        ("powf", |x| x.abs().powf(-0.3)),
    ] {
        let values =
            (0..=u32::MAX).step_by(65_521).map(|bits| of(f32::from_bits(bits))).filter(|value| !value.is_nan());
        let bits = hash(values.flat_map(|value| value.to_bits().to_le_bytes()));
        writeln!(hashes.0, "{name} {bits:016x}").unwrap();
    }
}

#[test]
fn operations_do_not_depend_on_the_number_of_threads() {
    foredraft::llama::start();
    let mut hashes = Hashes(String::new());
    elementary(&mut hashes);
    norms(&mut hashes);
    activations(&mut hashes);
    rope(&mut hashes);
    softmax(&mut hashes);
    rows(&mut hashes);
    attention(&mut hashes);
    recurrences(&mut hashes);
    write("operations", &hashes.0);
}

fn write(name: &str, lines: &str) {
    if let Some(folder) = std::env::var_os("FOREDRAFT_RESULTS") {
        std::fs::write(PathBuf::from(folder).join(name), lines).expect("the folder can be written to");
    }
}

/// The completions of a model: a line with text, and a hash of tokens and probabilities, for each request.
fn completions(name: &str, init: Value, n_predict: usize) -> String {
    let engine = common::start(init);
    let mut lines = String::new();
    for (index, temperature) in [0.0, 0.8, 1.5].into_iter().enumerate() {
        let request = json!({
            "prompt": common::prompts()[index], "n_predict": n_predict, "temperature": temperature, "seed": 11 + index, "n_probs": 3,
            "return_tokens": true, "cache_prompt": false, "ignore_eos": true,
        });
        let result = |endpoint| {
            let answer = common::complete(&engine, endpoint, &request);
            (answer["content"].clone(), json!([answer["tokens"], answer["completion_probabilities"]]).to_string())
        };
        let (text, plain) = result(Plain);
        assert!(plain == result(Foredraft).1, "{name}: with drafts");
        writeln!(lines, "{name}, temperature {temperature}: {:016x} {text}", hash(plain.bytes())).unwrap();
    }
    lines
}

#[test]
fn completions_do_not_depend_on_drafts() {
    let mut lines = String::new();
    for (name, more) in [
        ("stories", json!({})),
        ("stories without flash attention", json!({"flash_attn": "off"})),
        ("stories with a Q8_0 cache", json!({"cache_type_k": "q8_0", "cache_type_v": "q8_0"})),
        ("stories with a BF16 cache", json!({"cache_type_k": "bf16", "cache_type_v": "bf16"})),
        ("stories with a cache in few bits", json!({"cache_type_k": "q5_1", "cache_type_v": "iq4_nl"})),
    ] {
        lines += &completions(name, more, 24);
    }
    let made = |file: &str| common::root().join("target/models").join(file);
    let (target, draft) = (made("smollm2-135m-q4_1.gguf"), made("smollm2-far-q4_1.gguf"));
    if target.is_file() && draft.is_file() {
        let init = json!({"model": target, "model_draft": draft, "n_ctx": 256, "warmup": false});
        lines += &completions("SmolLM2", init, 12);
    }
    write("completions", &lines);
}
