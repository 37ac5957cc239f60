//! Attention on CPUs: the kernel computes what attention is defined as, no result depends on a batch, and the status has `init`'s choice.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod common;
mod ggml;

use std::sync::Arc;

use common::Endpoint::{Foredraft, Plain};
use common::{complete, model, start};
use foredraft::llama::{Batch, Context, ContextParams, FlashAttn, Model, ModelParams, ThreadPool};
use ggml::noise;
use llama_cpp_sys_2 as sys;
use serde_json::json;

/// Attention of some heads over some cells.
#[derive(Debug, Clone, Copy)]
struct Shape {
    n_key: usize,
    n_value: usize,
    n_head: usize,
    n_head_kv: usize,
    n_tokens: usize,
    n_cells: usize,
    n_streams: usize,
    softcap: f32,
    max_bias: f32,
    has_sinks: bool,
    /// The type of keys and values.
    cache: sys::ggml_type,
}

const PLAIN: Shape = Shape {
    n_key: 64,
    n_value: 64,
    n_head: 6,
    n_head_kv: 2,
    n_tokens: 1,
    n_cells: 512,
    n_streams: 1,
    softcap: 0.0,
    max_bias: 0.0,
    has_sinks: false,
    cache: sys::GGML_TYPE_F16,
};

/// The types of caches, beside F32, which llama.cpp converts for attention.
const CACHES: [sys::ggml_type; 8] = [
    sys::GGML_TYPE_F16,
    sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q5_1,
    sys::GGML_TYPE_IQ4_NL,
];

/// Numbers in a type of caches.
fn encoded(kind: sys::ggml_type, values: &[f32]) -> Vec<u8> {
    let n = values.len() as i64;
    // SAFETY: the type exists; the array gets as many bytes as numbers of it take.
    unsafe {
        let mut data = vec![0_u8; sys::ggml_row_size(kind, n)];
        sys::ggml_quantize_chunk(kind, values.as_ptr(), data.as_mut_ptr().cast(), 0, 1, n, std::ptr::null());
        data
    }
}

/// The numbers that a cache holds.
fn decoded(kind: sys::ggml_type, values: &[f32]) -> Vec<f32> {
    let (data, mut numbers) = (encoded(kind, values), vec![0.0; values.len()]);
    // SAFETY: the traits are constant, and the arrays have these sizes.
    unsafe {
        let to_float = (*sys::ggml_get_type_traits(kind)).to_float.expect("a type of caches");
        to_float(data.as_ptr().cast(), numbers.as_mut_ptr(), numbers.len() as i64);
    }
    numbers
}

/// The input of attention. Each array has a stream's rows together; a row is a token's or a cell's heads.
struct Input {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// 0 or minus infinity for each token and cell.
    mask: Vec<f32>,
    sinks: Vec<f32>,
}

impl Input {
    fn new(shape: &Shape) -> Input {
        // Rounds to numbers that F16 holds exactly.
        let coarse = |values: Vec<f32>| values.into_iter().map(|x| (x * 512.0).round() / 512.0).collect::<Vec<f32>>();
        let n_cells = shape.n_cells * shape.n_streams * shape.n_head_kv;
        let q = noise(1, shape.n_key * shape.n_head * shape.n_tokens * shape.n_streams);
        let hidden = noise(4, shape.n_tokens * shape.n_cells * shape.n_streams);
        let rows = hidden.chunks(shape.n_cells).enumerate();
        let mask = rows.flat_map(|(row, cells)| {
            // Later tokens see more cells; some in between are another sequence's, and a whole block is.
            let seen = shape.n_cells - 40 + (row % shape.n_tokens).min(30);
            let is_seen = move |cell: usize, x: f32| cell < seen && x > -0.9 && !(128..200).contains(&cell);
            cells.iter().enumerate().map(move |(cell, x)| if is_seen(cell, *x) { 0.0 } else { f32::NEG_INFINITY })
        });
        Input {
            q: q.iter().map(|x| x * 4.0).collect(),
            k: coarse(noise(2, shape.n_key * n_cells)),
            v: coarse(noise(3, shape.n_value * n_cells)),
            mask: mask.collect(),
            sinks: noise(5, shape.n_head),
        }
    }

    /// The definition, in F64.
    fn expected(&self, shape: &Shape) -> Vec<f64> {
        let Shape { n_key, n_value, n_head, n_head_kv, n_tokens, n_cells, .. } = *shape;
        let mut out = Vec::new();
        let n_log2 = 1 << n_head.ilog2();
        let (keys, values) = (decoded(shape.cache, &self.k), decoded(shape.cache, &self.v));
        for (stream, token, head) in (0..shape.n_streams)
            .flat_map(|stream| (0..n_tokens).flat_map(move |token| (0..n_head).map(move |head| (stream, token, head))))
        {
            let slope = match (shape.max_bias > 0.0, head < n_log2) {
                (false, _) => 1.0,
                (true, true) => (-f64::from(shape.max_bias) / n_log2 as f64 * (head + 1) as f64).exp2(),
                (true, false) => {
                    (-f64::from(shape.max_bias) / 2.0 / n_log2 as f64 * (2 * (head - n_log2) + 1) as f64).exp2()
                }
            };
            let row = |values: &[f32], n: usize, n_rows: usize, of: usize, head: usize, n_heads: usize| {
                let at = ((stream * n_rows + of) * n_heads + head) * n;
                values[at..at + n].iter().map(|x| f64::from(*x)).collect::<Vec<f64>>()
            };
            let q = row(&self.q, n_key, n_tokens, token, head, n_head);
            let kv = head / (n_head / n_head_kv);
            let scores: Vec<f64> = (0..n_cells)
                .map(|cell| {
                    let k = row(&keys, n_key, n_cells, cell, kv, n_head_kv);
                    let score = q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() / (n_key as f64).sqrt();
                    let cap = f64::from(shape.softcap);
                    let score = if cap > 0.0 { cap * (score / cap).tanh() } else { score };
                    score + slope * f64::from(self.mask[(stream * n_tokens + token) * n_cells + cell])
                })
                .collect();
            let sink = shape.has_sinks.then(|| f64::from(self.sinks[head]));
            let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
            let mut sum = vec![0.0; n_value];
            for (cell, score) in scores.iter().enumerate() {
                let v = row(&values, n_value, n_cells, cell, kv, n_head_kv);
                sum.iter_mut().zip(&v).for_each(|(sum, v)| *sum += (score - most).exp() / total * v);
            }
            out.extend(sum);
        }
        out
    }

    /// Computes attention with ggml, or its replacement, and so many threads.
    fn computed(&self, shape: &Shape, n_threads: i32) -> Vec<f32> {
        let Shape { n_key, n_value, n_head, n_head_kv, n_tokens, n_cells, n_streams, .. } = *shape;
        let [n_key, n_value, n_head, n_head_kv] = [n_key, n_value, n_head, n_head_kv].map(|n| n as i64);
        let [n_tokens, n_cells, n_streams] = [n_tokens, n_cells, n_streams].map(|n| n as i64);
        ggml::compute(n_threads, |ctx| {
            // SAFETY: the context is alive, and the tensors have the shapes of attention.
            unsafe {
                let tensor = |kind, a, b, c| sys::ggml_new_tensor_4d(ctx, kind, a, b, c, n_streams);
                let q = tensor(sys::GGML_TYPE_F32, n_key, n_head, n_tokens);
                let k = tensor(shape.cache, n_key, n_head_kv, n_cells);
                let v = tensor(shape.cache, n_value, n_head_kv, n_cells);
                let mask = tensor(sys::GGML_TYPE_F16, n_cells, n_tokens, 1);
                let sinks = sys::ggml_new_tensor_1d(ctx, sys::GGML_TYPE_F32, n_head);
                let heads_apart = |tensor| sys::ggml_permute(ctx, tensor, 0, 2, 1, 3);
                let scale = 1.0 / (n_key as f32).sqrt();
                let (pq, pk, pv) = (heads_apart(q), heads_apart(k), heads_apart(v));
                let out = sys::ggml_flash_attn_ext(ctx, pq, pk, pv, mask, scale, shape.max_bias, shape.softcap);
                if shape.has_sinks {
                    sys::ggml_flash_attn_ext_add_sinks(out, sinks);
                }
                sys::ggml_prec_set_acc(out, sys::GGML_PREC_F32);
                let floats = [(q, &self.q), (sinks, &self.sinks)].map(|(tensor, values)| (tensor, ggml::bytes(values)));
                let others = [(k, &self.k), (v, &self.v), (mask, &self.mask)];
                let others = others.map(|(tensor, values)| (tensor, encoded((*tensor).type_, values)));
                (floats.into_iter().chain(others).collect(), out)
            }
        })
    }
}

#[test]
fn attention_is_what_it_is_defined_as() {
    foredraft::llama::start();
    for shape in [
        PLAIN,
        Shape { n_tokens: 2, ..PLAIN },
        Shape { n_tokens: 7, n_cells: 256, ..PLAIN },
        Shape { n_tokens: 70, n_cells: 768, ..PLAIN },
        Shape { n_head: 14, n_tokens: 20, n_cells: 600, has_sinks: true, ..PLAIN },
        Shape { n_head: 5, n_head_kv: 1, n_cells: 600, ..PLAIN },
        Shape { n_key: 32, n_value: 32, n_head: 8, n_head_kv: 8, n_tokens: 3, ..PLAIN },
        Shape { n_key: 80, n_value: 80, n_head: 4, n_head_kv: 1, ..PLAIN },
        // No multiples of a vector's numbers.
        Shape { n_key: 40, n_value: 20, n_tokens: 3, ..PLAIN },
        Shape { n_key: 72, n_value: 72, n_head: 4, n_head_kv: 4, n_tokens: 5, ..PLAIN },
        Shape { n_key: 192, n_value: 128, n_head: 5, n_head_kv: 5, n_tokens: 5, ..PLAIN },
        Shape { n_key: 256, n_value: 256, n_head: 4, n_head_kv: 1, n_cells: 1280, ..PLAIN },
        // As many cells as tokens, where there is no cache.
        Shape { n_cells: 41, n_tokens: 41, n_head_kv: 6, ..PLAIN },
        Shape { n_cells: 67, n_tokens: 9, has_sinks: true, ..PLAIN },
        Shape { n_cells: 501, n_tokens: 2, softcap: 2.0, ..PLAIN },
        Shape { n_tokens: 4, n_streams: 3, ..PLAIN },
        Shape { softcap: 2.0, n_tokens: 2, ..PLAIN },
        Shape { max_bias: 8.0, n_tokens: 2, ..PLAIN },
        Shape { has_sinks: true, n_tokens: 2, ..PLAIN },
    ]
    .into_iter()
    .chain(CACHES.into_iter().flat_map(|cache| {
        let in_cache = Shape { cache, n_cells: 300, ..PLAIN };
        // Values of 96 numbers end in a part of the registers' sums.
        [1, 2, 3, 9].map(|n_tokens| Shape { n_tokens, ..in_cache }).into_iter().chain([Shape {
            n_key: 128,
            n_value: 96,
            n_head: 5,
            n_head_kv: 1,
            ..in_cache
        }])
    })) {
        let input = Input::new(&shape);
        let expected = input.expected(&shape);
        for n_threads in [1, 2, 3] {
            let computed = input.computed(&shape, n_threads);
            let furthest = expected.iter().zip(&computed).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
            // ggml's own kernel sums up in F16.
            let most = if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) { 2e-5 } else { 5e-3 };
            assert!(furthest < most, "{shape:?}, {n_threads} threads: {furthest}");
        }
    }
}

/// Where our kernel computes: rows are computed together, and several times one after the other while their keys are in a cache.
#[test]
fn rows_beside_change_no_bit() {
    foredraft::llama::start();
    if !foredraft::llama::kernels_are_used() {
        return;
    }
    for (n_head, cache) in [1, 2, 3, 4, 5, 6, 7, 8, 12].into_iter().zip(CACHES.into_iter().cycle()) {
        let all = Shape { n_head, n_head_kv: 1, n_tokens: 23, n_cells: 700, cache, ..PLAIN };
        let input = Input::new(&all);
        let of_all: Vec<Vec<f32>> = [1, 2, 3].iter().map(|n| input.computed(&all, *n)).collect();
        assert!(of_all.iter().all(|computed| computed == &of_all[0]), "{n_head} heads, threads");
        let alone = Shape { n_tokens: 1, ..all };
        let (row, n_query) = (all.n_value * n_head, all.n_key * n_head);
        for token in [0, 7, 22] {
            let of_token = Input {
                q: input.q[token * n_query..][..n_query].to_vec(),
                k: input.k.clone(),
                v: input.v.clone(),
                mask: input.mask[token * all.n_cells..][..all.n_cells].to_vec(),
                sinks: input.sinks.clone(),
            };
            for n_threads in [1, 2] {
                let computed = of_token.computed(&alone, n_threads);
                assert!(
                    computed == of_all[0][token * row..][..row],
                    "{n_head} heads, token {token}, {n_threads} threads"
                );
            }
        }
    }
}

/// Where our kernel computes: no cell of another sequence, whatever is in it, and no number of them changes a row.
#[test]
fn hidden_cells_between_change_no_bit() {
    foredraft::llama::start();
    if !foredraft::llama::kernels_are_used() {
        return;
    }
    for shape in [
        Shape { n_cells: 320, ..PLAIN },
        Shape { n_cells: 320, n_tokens: 5, has_sinks: true, ..PLAIN },
        Shape { n_cells: 320, n_tokens: 3, n_key: 40, n_value: 20, softcap: 2.0, n_streams: 2, ..PLAIN },
        Shape { n_cells: 320, n_tokens: 3, cache: sys::GGML_TYPE_Q5_1, ..PLAIN },
    ] {
        let near = Input::new(&shape);
        // The same cells, each behind some that no row sees and that hold anything.
        let apart = Shape { n_cells: 1280, ..shape };
        let places: Vec<usize> = noise(6, shape.n_cells)
            .iter()
            .scan(0, |at, x| {
                *at += 1 + ((x + 1.0) * 1.4) as usize;
                Some(*at)
            })
            .collect();
        assert!(places.last() < Some(&apart.n_cells), "{places:?}");
        let spread = |values: &[f32], size: usize, hidden: f32| {
            let mut all = Vec::new();
            for stream in values.chunks(shape.n_cells * size) {
                let mut cells = vec![hidden; apart.n_cells * size];
                for (place, cell) in places.iter().zip(stream.chunks(size)) {
                    cells[place * size..(place + 1) * size].copy_from_slice(cell);
                }
                all.extend(cells);
            }
            all
        };
        for hidden in [0.0, -300.0, f32::NAN] {
            let far = Input {
                q: near.q.clone(),
                k: spread(&near.k, shape.n_key * shape.n_head_kv, hidden),
                v: spread(&near.v, shape.n_value * shape.n_head_kv, hidden),
                mask: spread(&near.mask, 1, f32::NEG_INFINITY),
                sinks: near.sinks.clone(),
            };
            for n_threads in [1, 2] {
                let (expected, computed) = (near.computed(&shape, n_threads), far.computed(&apart, n_threads));
                assert!(expected == computed, "{shape:?}, {hidden}, {n_threads} threads");
            }
        }
    }
}

/// A row that sees what is not a number has no result, and the others have theirs.
#[test]
fn a_value_that_is_not_a_number_stays_in_the_rows_that_see_it() {
    foredraft::llama::start();
    if !foredraft::llama::kernels_are_used() {
        return;
    }
    for (n_tokens, is_key) in [(4, false), (4, true), (40, false), (40, true)] {
        let shape = Shape { n_head: 2, n_tokens, n_cells: 512, ..PLAIN };
        let expected = Input::new(&shape).computed(&shape, 2);
        let mut damaged = Input::new(&shape);
        let cell = 301;
        let (values, size) = if is_key { (&mut damaged.k, shape.n_key) } else { (&mut damaged.v, shape.n_value) };
        values[cell * size * shape.n_head_kv..][..size * shape.n_head_kv].fill(f32::NAN);
        // The second token alone sees the cell.
        for token in 0..shape.n_tokens {
            damaged.mask[token * shape.n_cells + cell] = if token == 1 { 0.0 } else { f32::NEG_INFINITY };
        }
        let mut hidden = Input::new(&shape);
        hidden.mask.clone_from(&damaged.mask);
        let (hidden, computed) = (hidden.computed(&shape, 2), damaged.computed(&shape, 2));
        let row = shape.n_value * shape.n_head;
        assert_eq!(computed.len(), expected.len());
        for (token, (expected, computed)) in hidden.chunks(row).zip(computed.chunks(row)).enumerate() {
            if token == 1 {
                assert!(computed.iter().all(|x| x.is_nan()), "key {is_key}");
            } else {
                assert!(expected == computed, "key {is_key}, token {token}");
            }
        }
    }
}

fn load() -> Arc<Model> {
    Arc::new(Model::load(&ModelParams::new(model("target")), |_| true).expect("it loads"))
}

fn context(model: &Arc<Model>, params: &ContextParams, n_threads: i32) -> Context {
    let params = ContextParams { n_ctx: Some(640), n_threads, n_threads_batch: n_threads, ..params.clone() };
    let threads = Arc::new(ThreadPool::new(n_threads).expect("threads"));
    Context::new(model, &params, &threads, &Arc::default()).expect("it fits")
}

/// The logits of some tokens of a text that is decoded in pieces of these sizes, by turns.
fn logits(context: &mut Context, sequence: i32, sizes: &[usize]) -> Vec<Vec<f32>> {
    const LENGTH: usize = 600;
    let (mut all, mut at) = (Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let end = (at + size).min(LENGTH);
        let mut batch = Batch::new();
        for position in at..end {
            let token = i32::try_from((position * 131 + 7) % 400).expect("a token") + 3;
            batch.push(token, position, sequence, [100, 255, 290, 511, LENGTH - 1].contains(&position));
        }
        context.decode(&batch).expect("decoded");
        all.extend((0..end - at).filter_map(|index| context.logits(index).map(|row| row.to_vec())));
        at = end;
        if at == LENGTH {
            return all;
        }
    }
    unreachable!()
}

#[test]
fn logits_depend_on_no_batch_and_no_number_of_threads() {
    let model = load();
    let params = ContextParams::default();
    let mut first = context(&model, &params, 1);
    let info = foredraft::llama::system_info();
    let of_x86_64 = ["AVX2 = 1", "FMA = 1", "F16C = 1"].iter().all(|feature| info.contains(feature));
    let has_kernel = cfg!(any(target_os = "linux", all(windows, target_env = "gnu")))
        && (cfg!(target_arch = "aarch64") || of_x86_64)
        && foredraft::llama::devices().iter().all(|device| device.kind == "cpu");
    assert_eq!(first.has_own_attention(), has_kernel, "{info}");
    // Prompts of 64 and more tokens are another kernel's, where ours is not.
    let long: &[&[usize]] = if first.has_own_attention() { &[&[256], &[600], &[1, 200], &[64, 3]] } else { &[] };
    let expected = logits(&mut first, 0, &[61]);
    assert_eq!(expected.len(), 5);
    for n_threads in [1, 2, 3] {
        for sizes in [&[1][..], &[2], &[7, 1], &[4, 5, 33]].iter().chain(long) {
            let computed = logits(&mut context(&model, &params, n_threads), 0, sizes);
            assert!(expected == computed, "pieces of {sizes:?}, {n_threads} threads");
        }
    }
    let slots = ContextParams { n_seq_max: 3, ..params };
    for sequence in [0, 2] {
        assert!(expected == logits(&mut context(&model, &slots, 2), sequence, &[9, 1]), "sequence {sequence}");
    }
}

/// Branches, beams and slots that share a cache leave a sequence's cells anywhere in it, and others between them.
#[test]
fn logits_do_not_depend_on_the_places_of_cells() {
    let model = load();
    let alone = context(&model, &ContextParams::default(), 2);
    if !alone.has_own_attention() {
        return;
    }
    let expected = logits(&mut { alone }, 0, &[61]);
    let shared = ContextParams { n_seq_max: 3, kv_unified: true, ..ContextParams::default() };
    for n_threads in [1, 2] {
        let params = ContextParams { n_ctx: Some(2048), n_threads, n_threads_batch: n_threads, ..shared.clone() };
        let threads = Arc::new(ThreadPool::new(n_threads).expect("threads"));
        let mut context = Context::new(&model, &params, &threads, &Arc::default()).expect("it fits");
        let push = |context: &mut Context, sequence: i32, positions: std::ops::Range<usize>| {
            let mut batch = Batch::new();
            for position in positions {
                let token = i32::try_from((position * 131 + 7) % 400).expect("a token") + 3;
                batch.push(token, position, sequence, true);
            }
            context.decode(&batch).expect("decoded");
            (0..batch.len()).map(|index| context.logits(index).expect("a row").to_vec()).collect::<Vec<_>>()
        };
        // Two sequences take turns, a third one is removed, and then its cells are taken, which are before the others.
        push(&mut context, 2, 0..150);
        push(&mut context, 0, 0..60);
        push(&mut context, 1, 0..90);
        push(&mut context, 0, 60..100);
        assert!(context.truncate(2, 0));
        let mut rows = Vec::new();
        for at in (100..600).step_by(20) {
            rows.extend(push(&mut context, 0, at..at + 20));
            if at == 300 {
                assert!(context.truncate(1, 40));
            }
        }
        let computed: Vec<_> = [100, 255, 290, 511, 599].iter().map(|at| rows[at - 100].clone()).collect();
        assert!(expected == computed, "{n_threads} threads");
    }
}

/// Two ways to compute the same, which round in other places.
#[test]
fn logits_with_and_without_flash_attention_are_close() {
    let model = load();
    let with = |flash_attn| {
        let mut context = context(&model, &ContextParams { flash_attn, ..ContextParams::default() }, 2);
        (context.has_flash_attention(), logits(&mut context, 0, &[61]))
    };
    let ((on, a), (off, b)) = (with(FlashAttn::On), with(FlashAttn::Off));
    assert_eq!((on, off), (true, false));
    let mean_square = |values: &mut dyn Iterator<Item = f32>| {
        let (sum, n) = values.fold((0.0, 0), |(sum, n), x| (sum + x * x, n + 1));
        sum / n as f32
    };
    let size = mean_square(&mut a.iter().flatten().copied());
    let off = mean_square(&mut a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a - b));
    let part = (off / size).sqrt();
    assert!(a != b && part < 0.05, "they differ by {part} of their size");
}

#[test]
fn the_status_tells_which_attention_was_chosen_and_by_whom() {
    for (init, flash_attn, chosen_by) in [
        (json!({}), None, None),
        (json!({"warmup": false}), None, Some("default")),
        (json!({"flash_attn": "on"}), Some(true), Some("load")),
        (json!({"flash_attn": "off"}), Some(false), Some("load")),
        (json!({"cache_type_k": "q8_0", "cache_type_k_draft": "q8_0"}), Some(true), Some("default")),
    ] {
        let engine = start(init.clone());
        let status = engine.status();
        for model in ["target", "draft"] {
            let report = &status["attention"][model];
            let told = report["flash_attn"].as_bool().expect("told");
            assert_eq!(told, flash_attn.unwrap_or(told), "{init} {report}");
            let by = report["chosen_by"].as_str().expect("told");
            assert_eq!(by, chosen_by.unwrap_or(by), "{init} {report}");
            let measured = report["measured"].as_array().expect("an array");
            assert_eq!(measured.is_empty(), by != "measurement", "{init} {report}");
            for cost in measured {
                assert!(cost["on_ms"].as_f64() > Some(0.0) && cost["off_ms"].as_f64() > Some(0.0), "{report}");
            }
            let kind = init.get("cache_type_k").cloned().unwrap_or(json!("f16"));
            assert_eq!((&report["cache_type_k"], &report["cache_type_v"]), (&kind, &json!("f16")), "{init}");
        }
    }
}

#[test]
fn the_threads_in_use_are_told() {
    let engine = start(json!({"n_threads": 2, "n_threads_batch": 2}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 60, "temperature": 0, "ignore_eos": true});
    for endpoint in [Plain, Foredraft] {
        complete(&engine, endpoint, &request);
        let now = engine.status()["n_threads_now"].as_u64();
        assert!((Some(1)..=Some(2)).contains(&now), "{now:?}");
    }
    assert_eq!(start(json!({"n_threads": 1, "n_threads_batch": 1})).status()["n_threads_now"], 1);
    assert_eq!(start(json!({"vocab_only": true})).status()["n_threads_now"], 0);
}
