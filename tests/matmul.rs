//! Products of quantized weights with tokens on CPUs: they match the formats' definitions, and a token's result does not depend on other tokens.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod ggml;

use ggml::noise;
use llama_cpp_sys_2 as sys;

const FORMATS: [sys::ggml_type; 28] = [
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q5_1,
    sys::GGML_TYPE_IQ4_NL,
    sys::GGML_TYPE_MXFP4,
    sys::GGML_TYPE_NVFP4,
    sys::GGML_TYPE_Q2_K,
    sys::GGML_TYPE_Q3_K,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_IQ4_XS,
    sys::GGML_TYPE_Q1_0,
    sys::GGML_TYPE_Q2_0,
    sys::GGML_TYPE_TQ1_0,
    sys::GGML_TYPE_TQ2_0,
    sys::GGML_TYPE_IQ1_S,
    sys::GGML_TYPE_IQ1_M,
    sys::GGML_TYPE_IQ2_XXS,
    sys::GGML_TYPE_IQ2_XS,
    sys::GGML_TYPE_IQ2_S,
    sys::GGML_TYPE_IQ3_XXS,
    sys::GGML_TYPE_IQ3_S,
    sys::GGML_TYPE_F16,
    sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_F32,
];
const FLOATS: [sys::ggml_type; 3] = [sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16, sys::GGML_TYPE_F32];
/// Weights in a row: an odd number of the longest blocks.
const WIDTH: usize = 768;
/// Rows that are quantized. More are the same again, because i-quants take long to find.
const MOST_DIFFERENT: usize = 160;

/// Weights of a format.
struct Weights {
    format: sys::ggml_type,
    width: usize,
    n_rows: usize,
    data: Vec<u8>,
}

/// Where a block of a format whose blocks may have any bytes has the high bits of its scale.
fn high_byte_of_scale(format: sys::ggml_type) -> Option<usize> {
    match format {
        sys::GGML_TYPE_IQ1_S => Some(1),
        sys::GGML_TYPE_IQ1_M => Some(55),
        sys::GGML_TYPE_TQ1_0 => Some(53),
        sys::GGML_TYPE_TQ2_0 => Some(65),
        _ => None,
    }
}

impl Weights {
    fn new(format: sys::ggml_type, n_rows: usize) -> Weights {
        Weights::with_width(format, WIDTH, n_rows)
    }

    fn with_width(format: sys::ggml_type, width: usize, n_rows: usize) -> Weights {
        let n_different = n_rows.min(MOST_DIFFERENT);
        if let Some(high) = high_byte_of_scale(format) {
            // Scales are below 2. To quantize weights of IQ1 would take half a minute, and would give no 3 in TQ2_0.
            // SAFETY: both return what a format is.
            let (row, block) = unsafe { (sys::ggml_row_size(format, width as i64), sys::ggml_type_size(format)) };
            let different = noise(u64::from(format), n_different * row);
            let mut data: Vec<u8> = different.iter().map(|x| ((x + 1.0) * 128.0) as u8).collect();
            data.chunks_mut(block).for_each(|block| block[high] &= 0x3f);
            let data = data.into_iter().cycle().take(row * n_rows).collect();
            return Weights { format, width, n_rows, data };
        }
        let values = noise(u64::from(format) + 1, n_different * width);
        // SAFETY: both return what a format is.
        let (row_size, needs_importance) =
            unsafe { (sys::ggml_row_size(format, width as i64), sys::ggml_quantize_requires_imatrix(format)) };
        let mut data = vec![0_u8; row_size * n_different];
        let importance = needs_importance.then(|| vec![1.0_f32; width]);
        // SAFETY: the arrays have these sizes.
        let written = unsafe {
            let (rows, width) = (n_different as i64, width as i64);
            sys::ggml_quantize_chunk(
                format,
                values.as_ptr(),
                data.as_mut_ptr().cast(),
                0,
                rows,
                width,
                importance.as_ref().map_or(std::ptr::null(), |of_columns| of_columns.as_ptr()),
            )
        };
        assert_eq!(written, data.len());
        let data = data.into_iter().cycle().take(row_size * n_rows).collect();
        Weights { format, width, n_rows, data }
    }

    /// The dequantized weights.
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows * self.width];
        if self.format == sys::GGML_TYPE_F32 {
            // The same numbers: there is nothing to dequantize.
            return noise(u64::from(self.format) + 1, self.n_rows * WIDTH);
        }
        // SAFETY: the traits are constant, and the arrays have these sizes.
        unsafe {
            let to_float = (*sys::ggml_get_type_traits(self.format)).to_float.expect("a format of weights");
            to_float(self.data.as_ptr().cast(), values.as_mut_ptr(), values.len() as i64);
        }
        values
    }

    /// The product by ggml, or by its replacement, with `n_threads` threads: all rows of the first token, then of the next one.
    fn times(&self, tokens: &[f32], n_threads: i32) -> Vec<f32> {
        self.times_in(None, tokens, n_threads)
    }

    /// The same with the weights in another type of buffers.
    fn times_in(&self, buffers: Option<sys::ggml_backend_buffer_type_t>, tokens: &[f32], n_threads: i32) -> Vec<f32> {
        let n_tokens = tokens.len() / self.width;
        ggml::compute_in(buffers, n_threads, |ctx| {
            // SAFETY: the context is alive.
            let [weights, input] = [(self.format, self.n_rows), (sys::GGML_TYPE_F32, n_tokens)]
                .map(|(kind, rows)| unsafe { sys::ggml_new_tensor_2d(ctx, kind, self.width as i64, rows as i64) });
            // SAFETY: so are the tensors, whose shapes fit.
            let out = unsafe { sys::ggml_mul_mat(ctx, weights, input) };
            (vec![(weights, self.data.clone()), (input, ggml::bytes(tokens))], out)
        })
    }
}

/// The product of a mixture of experts, by ggml or its replacement: for each token the rows of its experts, one after the other. The experts are
/// equal parts of the rows.
fn times_experts(
    buffers: Option<sys::ggml_backend_buffer_type_t>,
    weights: &Weights,
    n_experts: usize,
    tokens: &[f32],
    chosen: &[i32],
    n_threads: i32,
) -> Vec<f32> {
    let (n_tokens, n_rows) = (tokens.len() / WIDTH, weights.n_rows / n_experts);
    ggml::compute_in(buffers, n_threads, |ctx| {
        // SAFETY: the context is alive, and the shapes fit.
        let (experts, input, ids, out) = unsafe {
            let [width, rows, experts, tokens] = [WIDTH, n_rows, n_experts, n_tokens].map(|n| n as i64);
            let experts = sys::ggml_new_tensor_3d(ctx, weights.format, width, rows, experts);
            let input = sys::ggml_new_tensor_3d(ctx, sys::GGML_TYPE_F32, width, 1, tokens);
            let ids = sys::ggml_new_tensor_2d(ctx, sys::GGML_TYPE_I32, (chosen.len() / n_tokens) as i64, tokens);
            (experts, input, ids, sys::ggml_mul_mat_id(ctx, experts, input, ids))
        };
        (vec![(experts, weights.data.clone()), (input, ggml::bytes(tokens)), (ids, ggml::bytes(chosen))], out)
    })
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

/// A token with one number that is not zero: 127 times a weight is exact, whatever its scale.
#[test]
fn every_scale_and_number_of_nvfp4_is_what_the_format_defines() {
    foredraft::llama::start();
    const ROWS: usize = 64;
    const BLOCK: usize = 64;
    // A row is a block: 4 scales of 8 bits, so that the rows have all 256; then 64 numbers of 4 bits.
    let row = |row: u8| {
        let scales = (0..4).map(move |scale| 4 * row + scale);
        scales.chain((0..32).map(move |at: u8| at.wrapping_mul(37).wrapping_add(row.wrapping_mul(73))))
    };
    let data = (0..ROWS as u8).flat_map(row).collect();
    let weights = Weights { format: sys::GGML_TYPE_NVFP4, width: BLOCK, n_rows: ROWS, data };
    let values = weights.values();
    let tokens: Vec<f32> = (0..BLOCK * BLOCK).map(|at| if at / BLOCK == at % BLOCK { 127.0 } else { 0.0 }).collect();
    let expected: Vec<f32> = (0..BLOCK * ROWS).map(|at| 127.0 * values[at % ROWS * BLOCK + at / ROWS]).collect();
    assert!(values.iter().filter(|weight| **weight != 0.0).count() > 3000, "most weights are not zero");
    let mut layouts = vec![None];
    if foredraft::llama::kernels_are_used() {
        layouts.push(Some(ggml::extra_buffers().expect("panels")));
    }
    for buffers in layouts {
        for n_tokens in [1, 2, 5, 8, BLOCK] {
            let found: Vec<f32> =
                tokens.chunks(n_tokens * BLOCK).flat_map(|tokens| weights.times_in(buffers, tokens, 1)).collect();
            let other = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(other, None, "{n_tokens} tokens: {found:?} {expected:?}");
        }
    }
}

/// Runs this test's own process again, at each level: the sums of the level `avx2` are 16-bit numbers.
#[test]
fn largest_products_of_ternary_weights_are_exact() {
    const VARIABLE: &str = "FOREDRAFT_CPU_LEVEL";
    if std::env::var_os(VARIABLE).is_none() {
        for level in foredraft::llama::levels() {
            let mut again = std::process::Command::new(std::env::current_exe().expect("a program"));
            let again = again.args(["--exact", "largest_products_of_ternary_weights_are_exact"]);
            assert!(again.env(VARIABLE, level.as_str()).status().expect("this program starts").success(), "{level}");
        }
        return;
    }
    foredraft::llama::start();
    const ROWS: usize = 32;
    for (format, quantized) in [(sys::GGML_TYPE_TQ1_0, 52), (sys::GGML_TYPE_TQ2_0, 64)] {
        // A row has the same byte everywhere, and 1 as its scales.
        let row = |row: usize| {
            let block =
                [vec![[0x00, 0xff, 0xaa, 0x55][row % 4]; quantized], 0x3c00_u16.to_le_bytes().to_vec()].concat();
            block.repeat(WIDTH / 256)
        };
        let weights = Weights { format, width: WIDTH, n_rows: ROWS, data: (0..ROWS).flat_map(row).collect() };
        let values = weights.values();
        let sign = |token: usize, at: usize| if token % 2 == 1 && at % 4 > 1 { -127.0 } else { 127.0 };
        for n_tokens in [1, 2, 4, 7, 9, 17] {
            let tokens: Vec<f32> = (0..n_tokens * WIDTH).map(|at| sign(at / WIDTH, at % WIDTH)).collect();
            let product = |token: &[f32], row: &[f32]| row.iter().zip(token).map(|(weight, x)| weight * x).sum();
            let products = |token| values.chunks(WIDTH).map(move |row| product(token, row));
            let expected: Vec<f32> = tokens.chunks(WIDTH).flat_map(products).collect();
            for buffers in [None, foredraft::llama::kernels_are_used().then(|| ggml::extra_buffers().expect("panels"))]
            {
                assert_eq!(weights.times_in(buffers, &tokens, 1), expected, "format {format}, {n_tokens} tokens");
            }
        }
    }
}

#[test]
fn no_product_depends_on_other_tokens_or_threads() {
    foredraft::llama::start();
    let tokens = noise(7, 40 * WIDTH);
    for format in FORMATS {
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

#[test]
fn experts_compute_what_each_of_them_computes_alone() {
    foredraft::llama::start();
    const EXPERTS: usize = 5;
    const ROWS: usize = 21;
    let tokens = noise(11, 9 * WIDTH);
    // Two experts for each token; the third is never chosen.
    let chosen: Vec<i32> = (0..9).flat_map(|token| [[0, 3], [4, 1], [1, 0]][token % 3]).collect();
    for format in FORMATS {
        let weights = Weights::new(format, EXPERTS * ROWS);
        let all = weights.times(&tokens, 1);
        for n_threads in [1, 3] {
            let computed = times_experts(None, &weights, EXPERTS, &tokens, &chosen, n_threads);
            for (at, (expert, rows)) in chosen.iter().zip(computed.chunks(ROWS)).enumerate() {
                let first = at / 2 * weights.n_rows + usize::try_from(*expert).expect("an index") * ROWS;
                let expected = &all[first..first + ROWS];
                if foredraft::llama::kernels_are_used() {
                    assert!(rows == expected, "format {format}, expert {expert}: {rows:?} {expected:?}");
                } else {
                    let off = rows.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.05 * b.abs() + 0.5);
                    assert!(off, "format {format}, expert {expert}: {rows:?} {expected:?}");
                }
            }
        }
    }
}

/// Panels are another layout of the same weights.
#[test]
fn weights_in_panels_give_the_same_bits() {
    foredraft::llama::start();
    if !foredraft::llama::kernels_are_used() {
        return;
    }
    let panels = Some(ggml::extra_buffers().expect("panels"));
    for format in FORMATS.into_iter().filter(|format| !FLOATS.contains(format)) {
        // SAFETY: returns a number.
        let of_block = usize::try_from(unsafe { sys::ggml_blck_size(format) }).expect("a size");
        // Groups of blocks that are whole and not; panels that are.
        for (width, n_rows) in [(WIDTH, 37), (if of_block == 256 { 256 } else { 5 * of_block }, 32), (WIDTH, 130)] {
            let weights = Weights::with_width(format, width, n_rows);
            for n_tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 150] {
                let tokens = noise(n_tokens as u64, n_tokens * width);
                let same = weights.times(&tokens, 1) == weights.times_in(panels, &tokens, 2);
                assert!(same, "format {format}, {width} x {n_rows}, {n_tokens} tokens");
            }
        }
        // So many rows that threads share the work of a load.
        let (weights, token) = (Weights::new(format, 6011), noise(5, WIDTH));
        assert!(weights.times(&token, 1) == weights.times_in(panels, &token, 2), "format {format}: large weights");
        // Experts of whole panels and of others.
        for (n_rows, n_tokens) in [(32, 3), (40, 3), (24, 40), (21, 3)] {
            let (weights, tokens) = (Weights::new(format, 5 * n_rows), noise(17, n_tokens * WIDTH));
            let chosen: Vec<i32> = [0, 3, 4, 1, 3, 0].into_iter().cycle().take(2 * n_tokens).collect();
            let times = |buffers, n_threads| times_experts(buffers, &weights, 5, &tokens, &chosen, n_threads);
            assert!(times(None, 1) == times(panels, 2), "format {format}: experts of {n_rows} rows");
        }
    }
}

#[test]
fn rows_are_read_from_panels() {
    foredraft::llama::start();
    if !foredraft::llama::kernels_are_used() {
        return;
    }
    let chosen = [36, 0, 15, 16, 36];
    for format in
        [sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_Q3_K, sys::GGML_TYPE_Q6_K, sys::GGML_TYPE_MXFP4, sys::GGML_TYPE_NVFP4]
    {
        let weights = Weights::new(format, 37);
        let rows_in = |buffers| {
            ggml::compute_in(buffers, 2, |ctx| {
                // SAFETY: the context is alive, and the shapes fit.
                let (table, ids, out) = unsafe {
                    let table = sys::ggml_new_tensor_2d(ctx, format, WIDTH as i64, 37);
                    let ids = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_I32, chosen.len() as i64);
                    (table, ids, sys::ggml_get_rows(ctx, table, ids))
                };
                (vec![(table, weights.data.clone()), (ids, ggml::bytes(&chosen))], out)
            })
        };
        assert!(rows_in(None) == rows_in(Some(ggml::extra_buffers().expect("panels"))), "format {format}");
    }
}

/// A number that is no number must not become a plausible one, and changes no other token.
#[test]
fn not_a_number_stays_one_and_changes_no_other_token() {
    foredraft::llama::start();
    for format in FORMATS {
        let weights = Weights::new(format, 19);
        let mut tokens = noise(13, 3 * WIDTH);
        let before = weights.times(&tokens, 1);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            tokens[WIDTH + 77] = bad;
            for n_threads in [1, 2] {
                let after = weights.times(&tokens, n_threads);
                // Infinity times a weight is one, too, where weights are floats. A rounded token has no infinite numbers.
                let is_bad = |x: &f32| if FLOATS.contains(&format) { !x.is_finite() } else { x.is_nan() };
                assert!(after[19..38].iter().all(is_bad), "format {format}: {bad} gives {:?}", &after[19..38]);
                assert!(after[..19] == before[..19] && after[38..] == before[38..], "format {format}: {bad}");
            }
        }
    }
}
