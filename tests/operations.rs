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
mod ggml;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::ptr::null_mut;

use foredraft::api::Endpoint::{Completion, Speculative};
use ggml::{Tensor, bytes, noise};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

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

const FORMATS: [(&str, sys::ggml_type); 16] = [
    ("f16", sys::GGML_TYPE_F16),
    ("bf16", sys::GGML_TYPE_BF16),
    ("q8_0", sys::GGML_TYPE_Q8_0),
    ("q4_0", sys::GGML_TYPE_Q4_0),
    ("q4_1", sys::GGML_TYPE_Q4_1),
    ("q5_0", sys::GGML_TYPE_Q5_0),
    ("q5_1", sys::GGML_TYPE_Q5_1),
    ("iq4_nl", sys::GGML_TYPE_IQ4_NL),
    ("mxfp4", sys::GGML_TYPE_MXFP4),
    ("q2_k", sys::GGML_TYPE_Q2_K),
    ("q3_k", sys::GGML_TYPE_Q3_K),
    ("q4_k", sys::GGML_TYPE_Q4_K),
    ("q5_k", sys::GGML_TYPE_Q5_K),
    ("q6_k", sys::GGML_TYPE_Q6_K),
    ("iq4_xs", sys::GGML_TYPE_IQ4_XS),
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
        sys::GGML_TYPE_MXFP4 => &[],
        _ => &[0],
    };
    for block in data.chunks_mut(block) {
        if format == sys::GGML_TYPE_MXFP4 {
            block[0] = 120 + block[0] % 8;
        }
        for at in halves {
            // Of any sign, about 1e-3 to 2.
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
    for (name, format) in &FORMATS[..6] {
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
        for (name, cache) in [("f16", sys::GGML_TYPE_F16), ("bf16", sys::GGML_TYPE_BF16), ("q8_0", sys::GGML_TYPE_Q8_0)]
        {
            if head % 32 != 0 && cache == sys::GGML_TYPE_Q8_0 {
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

fn recurrences(hashes: &mut Hashes) {
    hashes.add("ssm_conv", &|ctx| {
        // SAFETY: the context is alive.
        let (x, kernel, out) = unsafe {
            let x = sys::ggml_new_tensor_3d(ctx, sys::GGML_TYPE_F32, 4 - 1 + 5, 40, 1);
            let kernel = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, 4, 40);
            (x, kernel, sys::ggml_ssm_conv(ctx, x, kernel))
        };
        (vec![(x, bytes(&numbers(11, 320))), (kernel, bytes(&numbers(12, 160)))], out)
    });
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
        let (text, plain) = result(Completion);
        assert!(plain == result(Speculative).1, "{name}: with drafts");
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
