//! Products of quantized weights with tokens on CPUs: they match the formats' definitions, and a token's result does not depend on other tokens.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

use llama_cpp_sys_2 as sys;

const FORMATS: [sys::ggml_type; 8] = [
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_F16,
];
/// Weights in a row: an odd number of the longest blocks.
const WIDTH: usize = 768;

/// Numbers between -1 and 1, the same for the same seed.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Weights of a format.
struct Weights {
    format: sys::ggml_type,
    n_rows: usize,
    data: Vec<u8>,
}

impl Weights {
    fn new(format: sys::ggml_type, n_rows: usize) -> Weights {
        let values = noise(u64::from(format) + 1, n_rows * WIDTH);
        // SAFETY: returns a number.
        let row_size = unsafe { sys::ggml_row_size(format, WIDTH as i64) };
        let mut data = vec![0_u8; row_size * n_rows];
        // SAFETY: the arrays have these sizes.
        let written = unsafe {
            let (rows, width) = (n_rows as i64, WIDTH as i64);
            sys::ggml_quantize_chunk(
                format,
                values.as_ptr(),
                data.as_mut_ptr().cast(),
                0,
                rows,
                width,
                std::ptr::null(),
            )
        };
        assert_eq!(written, data.len());
        Weights { format, n_rows, data }
    }

    /// The dequantized weights.
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows * WIDTH];
        // SAFETY: the traits are constant, and the arrays have these sizes.
        unsafe {
            let to_float = (*sys::ggml_get_type_traits(self.format)).to_float.expect("a format of weights");
            to_float(self.data.as_ptr().cast(), values.as_mut_ptr(), values.len() as i64);
        }
        values
    }

    /// The product by ggml, or by its replacement, with `n_threads` threads: all rows of the first token, then of the next one.
    fn times(&self, tokens: &[f32], n_threads: i32) -> Vec<f32> {
        let n_tokens = tokens.len() / WIDTH;
        // SAFETY: ggml's objects are freed at the end, in the order of their dependencies. The copied arrays have the tensors' sizes. ggml
        // always has a CPU backend.
        unsafe {
            let ctx = sys::ggml_init(sys::ggml_init_params {
                mem_size: 1 << 20,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            let weights = sys::ggml_new_tensor_2d(ctx, self.format, WIDTH as i64, self.n_rows as i64);
            let input = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_F32, WIDTH as i64, n_tokens as i64);
            let out = sys::ggml_mul_mat(ctx, weights, input);
            let graph = sys::ggml_new_graph(ctx);
            sys::ggml_build_forward_expand(graph, out);
            let backend = sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
            let registry = sys::ggml_backend_dev_backend_reg(sys::ggml_backend_get_device(backend));
            let set = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_set_n_threads".as_ptr());
            let set: unsafe extern "C" fn(sys::ggml_backend_t, i32) = std::mem::transmute(set);
            set(backend, n_threads);
            let buffer = sys::ggml_backend_alloc_ctx_tensors(ctx, backend);
            sys::ggml_backend_tensor_set(weights, self.data.as_ptr().cast(), 0, self.data.len());
            sys::ggml_backend_tensor_set(input, tokens.as_ptr().cast(), 0, size_of_val(tokens));
            assert_eq!(sys::ggml_backend_graph_compute(backend, graph), sys::GGML_STATUS_SUCCESS);
            let mut result = vec![0.0f32; self.n_rows * n_tokens];
            sys::ggml_backend_tensor_get(out, result.as_mut_ptr().cast(), 0, size_of_val(&*result));
            sys::ggml_backend_buffer_free(buffer);
            sys::ggml_backend_free(backend);
            sys::ggml_free(ctx);
            result
        }
    }
}

/// Tokens with whole numbers up to 127, and at least one 127 in each block of 32, so that ggml quantizes them without rounding.
fn whole_tokens(n: usize) -> Vec<f32> {
    let whole = |(at, x): (usize, f32)| if at % 32 == 5 { 127.0 } else { (x * 100.0).round() };
    noise(99, n * WIDTH).into_iter().enumerate().map(whole).collect()
}

#[test]
fn products_are_what_the_formats_define() {
    foredraft::llama::start();
    for format in FORMATS {
        for (n_rows, n_tokens) in [(16, 1), (37, 1), (37, 2), (37, 7), (130, 16), (37, 17), (16, 150)] {
            let (weights, tokens) = (Weights::new(format, n_rows), whole_tokens(n_tokens));
            let values = weights.values();
            let computed = weights.times(&tokens, 2);
            for (token, of_token) in tokens.chunks(WIDTH).zip(computed.chunks(n_rows)) {
                for (row, found) in values.chunks(WIDTH).zip(of_token) {
                    let expected: f64 = row.iter().zip(token).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let size: f64 = row.iter().zip(token).map(|(w, x)| (f64::from(*w) * f64::from(*x)).abs()).sum();
                    let off = (expected - f64::from(*found)).abs() / size;
                    assert!(off < 1e-5, "format {format}, {n_rows} rows, {n_tokens} tokens: {expected} {found}");
                }
            }
        }
    }
}

#[test]
fn no_product_depends_on_other_tokens_or_threads() {
    foredraft::llama::start();
    let tokens = noise(7, 40 * WIDTH);
    for format in FORMATS.into_iter().filter(|format| *format != sys::GGML_TYPE_F16) {
        let weights = Weights::new(format, 53);
        let all = weights.times(&tokens, 1);
        for n_threads in [1, 2, 5] {
            for (first, n) in [(0, 40), (0, 1), (3, 1), (39, 1), (5, 2), (8, 15), (20, 16), (1, 33)] {
                let some = weights.times(&tokens[first * WIDTH..(first + n) * WIDTH], n_threads);
                let expected = &all[first * weights.n_rows..(first + n) * weights.n_rows];
                let other = some.iter().zip(expected).position(|(found, expected)| found != expected);
                let tokens = first..first + n;
                assert_eq!(
                    other, None,
                    "format {format}, tokens {tokens:?}, {n_threads} threads: {some:?} {expected:?}"
                );
            }
        }
    }
}
