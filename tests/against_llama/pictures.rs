//! Pictures give the rows, tokens and logits that llama.cpp's mtmd gives with the same files.

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foredraft::api::{Function, JsonEngine};
use foredraft::llama::{
    Batch, BatchInput, Bitmap, Context, ContextParams, CutMedia, Interrupt, MediaPiece, MediaRows, Model, ModelParams,
    PauseGate, Projector, ProjectorParams, ThreadPool, ThreadPriority, ThreadSettings, WeightType, kernel_calls,
    kernels_are_used, replacements,
};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::Requests;
use crate::common::mutations::damage;
use crate::common::pictures::{HEIGHT, WIDTH, base64, bmp, chat, pixels, png, png_of, rgb8};
use crate::common::root;
use crate::common::sounds::sound;
use crate::common::tiny_models::{
    TensorType, delta_net, delta_net_mtp, hybrid, mtp_layers, projectors, qwen_vl, sliding_window, with_tokens,
};
use crate::common::{complete, drain, model, n, start, submit, with};

const THREADS: i32 = 2;

/// What a prompt has for mtmd.
pub enum Medium<'a> {
    Pixels(&'a [u8]),
    /// The file of a sound.
    Sound(&'a [u8]),
}

fn bitmap(seed: u32) -> Bitmap {
    Bitmap::from_pixels(WIDTH, HEIGHT, 3, pixels(seed)).expect("a bitmap")
}

pub fn load(path: &str) -> Arc<Model> {
    Arc::new(Model::load(&ModelParams::new(path), |_| true).expect("a model"))
}

fn params(path: &str) -> ProjectorParams {
    ProjectorParams {
        source: path.into(),
        weights: WeightType::AsInFile,
        n_threads: THREADS,
        min_tokens: None,
        max_tokens: None,
    }
}

pub fn projector(model: &Arc<Model>, path: &str) -> Projector {
    Projector::load(model, &params(path)).expect("a projector")
}

fn rows(projector: &Projector, picture: &CutMedia) -> Vec<f32> {
    let stop: foredraft::llama::StopSignal = Arc::new(|| false);
    projector.encode(picture, &PauseGate::default(), &threads(), &stop).expect("rows")
}

pub fn threads() -> Arc<ThreadPool> {
    Arc::new(ThreadPool::new(THREADS).expect("threads"))
}

fn context_params() -> ContextParams {
    ContextParams { n_ctx: Some(512), n_batch: 64, n_ubatch: 64, ..ContextParams::default() }
}

fn context(model: &Arc<Model>) -> Context {
    context_of(model, &context_params())
}

fn context_of(model: &Arc<Model>, params: &ContextParams) -> Context {
    let interrupt = Arc::new(Interrupt::new(Arc::new(PauseGate::default())));
    Context::new(model, params, &threads(), &interrupt).expect("a context")
}

/// The logits after a text, a picture and a text. `step`: the rows in a decode, where they are causal.
pub fn logits(model: &Arc<Model>, projector: &Projector, picture: &CutMedia, step: usize) -> Vec<f32> {
    logits_in(&mut context(model), projector, picture, step, |_| ())
}

/// The same in sequence 0 of a context. `between` is called after each decode of rows.
fn logits_in(
    context: &mut Context,
    projector: &Projector,
    picture: &CutMedia,
    step: usize,
    mut between: impl FnMut(&mut Context),
) -> Vec<f32> {
    let (model, mut batch, mut position) = (Arc::clone(context.model()), Batch::new(), 0);
    let rows = rows(projector, picture);
    let mut rest = rows.as_slice();
    let decode = |context: &mut Context, batch: &mut Batch| {
        context.decode(batch).expect("a decode");
        batch.clear();
    };
    let before = model.vocab().tokenize(b"Tom saw ", true, false).expect("tokens");
    let after = model.vocab().tokenize(b" and said", false, false).expect("tokens");
    let mut pieces = vec![MediaPiece::Tokens(before)];
    pieces.extend(picture.pieces().iter().cloned());
    pieces.push(MediaPiece::Tokens(after));
    let n_pieces = pieces.len();
    for (at, piece) in pieces.into_iter().enumerate() {
        match piece {
            MediaPiece::Tokens(tokens) => {
                for (index, token) in tokens.iter().enumerate() {
                    batch.push(*token, position + index, 0, at + 1 == n_pieces && index + 1 == tokens.len());
                }
                position += tokens.len();
                if at + 1 < n_pieces {
                    decode(context, &mut batch);
                }
            }
            MediaPiece::Rows(MediaRows { n: mut left, places, n_positions, is_non_causal }) => {
                let (all, first) = (left, position);
                while left > 0 {
                    let n = if is_non_causal { left } else { left.min(step) };
                    let (own, others) = rest.split_at(n * projector.n_embd());
                    let input = if is_non_causal { BatchInput::NonCausalRows } else { BatchInput::Rows };
                    let done = all - left;
                    let (places, at) =
                        places.get(done..done + n).map_or((&[][..], first + done), |places| (places, first));
                    batch.push_rows(input, &vec![-1; n], own, places, at, 0);
                    decode(context, &mut batch);
                    between(context);
                    (left, rest) = (left - n, others);
                }
                position = first + n_positions;
            }
        }
    }
    assert!(rest.is_empty(), "all rows are decoded");
    let last = batch.len() - 1;
    context.decode(&batch).expect("a decode");
    context.logits(last).expect("logits").to_vec()
}

/// What llama.cpp's mtmd gives for the same.
pub fn logits_of_mtmd(path: &str, mmproj: &str, medium: &Medium, n_vocab: usize) -> Vec<f32> {
    greedy_of_mtmd(path, mmproj, ("Tom saw <__media__> and said", false), medium, n_vocab, 0).0
}

/// The logits after a text with a picture, and the most probable tokens that follow it, as mtmd gives them. `is_template`: control tokens are
/// parsed.
pub fn greedy_of_mtmd(
    path: &str,
    mmproj: &str,
    (text, is_template): (&str, bool),
    medium: &Medium,
    n_vocab: usize,
    n_tokens: usize,
) -> (Vec<f32>, Vec<sys::llama_token>) {
    let (path, mmproj) = (CString::new(path).expect("no NUL"), CString::new(mmproj).expect("no NUL"));
    // SAFETY: all that is passed lives during the calls, the row is copied before the context is freed, and everything is freed once.
    unsafe {
        let model = sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params());
        let mut params = sys::mtmd_context_params_default();
        (params.n_threads, params.use_gpu) = (THREADS, false);
        let projector = sys::mtmd_init_from_file(mmproj.as_ptr(), model, params);
        assert!(!projector.is_null());
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max) = (512, 64, 64, 1);
        (params.n_threads, params.n_threads_batch) = (THREADS, THREADS);
        let context = sys::llama_init_from_model(model, params);
        let bitmap = match medium {
            Medium::Pixels(pixels) => sys::mtmd_bitmap_init(WIDTH, HEIGHT, pixels.as_ptr()),
            Medium::Sound(file) => {
                let options = sys::mtmd_helper_init_opt_default();
                sys::mtmd_helper_bitmap_init_from_buf(projector, file.as_ptr(), file.len(), false, options).bitmap
            }
        };
        assert!(!bitmap.is_null());
        let input = sys::mtmd_input_text {
            text: text.as_ptr().cast(),
            text_len: text.len(),
            add_special: true,
            parse_special: is_template,
        };
        let chunks = sys::mtmd_input_chunks_init();
        assert_eq!(sys::mtmd_tokenize(projector, chunks, &raw const input, &raw const bitmap as *mut _, 1), 0);
        let mut n_past = 0;
        assert_eq!(sys::mtmd_helper_eval_chunks(projector, context, chunks, 0, 0, 64, true, &raw mut n_past), 0);
        let row = || std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), n_vocab).to_vec();
        let (logits, mut tokens) = (row(), Vec::new());
        while tokens.len() < n_tokens {
            let row = row();
            let best = (0..n_vocab).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).expect("a token");
            tokens.push(sys::llama_token::try_from(best).expect("small"));
            let mut last = tokens[tokens.len() - 1];
            assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(&raw mut last, 1)), 0);
        }
        sys::mtmd_input_chunks_free(chunks);
        sys::mtmd_bitmap_free(bitmap);
        sys::llama_free(context);
        sys::mtmd_free(projector);
        sys::llama_model_free(model);
        (logits, tokens)
    }
}

/// Models with a projector each.
fn kinds() -> [(String, String); 6] {
    [
        (sliding_window(), projectors::gemma3()),
        (sliding_window(), projectors::lfm2()),
        (qwen_vl("2"), projectors::qwen("2")),
        (qwen_vl("2"), projectors::qwen("2.5")),
        (qwen_vl("3"), projectors::qwen("3")),
        (delta_net(), projectors::qwen("2")),
    ]
}

/// Those, and one whose pictures are cut into squares between tags.
fn kinds_with_squares() -> impl Iterator<Item = (String, String)> {
    let squares = (with_tokens(&projectors::TAGS_OF_IDEFICS3), projectors::idefics3(32));
    kinds().into_iter().chain([squares])
}

#[test]
fn logits_after_a_picture_are_those_of_mtmd() {
    for (path, mmproj) in kinds_with_squares() {
        let model = load(&path);
        let projector = projector(&model, &mmproj);
        let picture = projector.cut(&bitmap(7)).expect("a picture");
        let expected = logits_of_mtmd(&path, &mmproj, &Medium::Pixels(&pixels(7)), model.vocab().n_tokens());
        for step in [64, 3] {
            let found = logits(&model, &projector, &picture, step);
            assert!(found.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits()), "{mmproj}, step {step}");
        }
        let other = projector.cut(&bitmap(8)).expect("a picture");
        assert_ne!(logits(&model, &projector, &other, 64), expected, "{mmproj}: the picture is seen");
    }
}

#[test]
fn rows_of_a_position_are_summed_in_the_order_of_their_places() {
    if !replacements().cell_order {
        return;
    }
    for (path, mmproj) in [(qwen_vl("2"), projectors::qwen("2")), (qwen_vl("3"), projectors::qwen("3"))] {
        let model = load(&path);
        let projector = projector(&model, &mmproj);
        let picture = projector.cut(&bitmap(7)).expect("a picture");
        let n_rows = rows(&projector, &picture).len() / projector.n_embd();
        let expected = logits(&model, &projector, &picture, 64);
        for step in [1, 2, n_rows / 2] {
            let params = ContextParams { n_seq_max: 2, kv_unified: true, ..context_params() };
            let mut context = context_of(&model, &params);
            let mut batch = Batch::new();
            // Another sequence has the first cells. When it is gone, later rows come before earlier ones.
            for first in (0..300).step_by(50) {
                (first..first + 50).for_each(|position| _ = batch.push(17, position, 1, false));
                context.decode(&batch).expect("a decode");
                batch.clear();
            }
            let mut n_decodes = 0;
            let found = logits_in(&mut context, &projector, &picture, step, |context| {
                n_decodes += 1;
                if n_decodes == 1 {
                    context.truncate(1, 0);
                }
            });
            assert!(n_decodes > 1);
            assert!(found.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits()), "{mmproj}, step {step}");
        }
    }
}

#[test]
fn smaller_weights_give_what_a_file_of_them_gives() {
    let path = sliding_window();
    let model = load(&path);
    let (large, small) = (projectors::wide(TensorType::F16), projectors::wide(TensorType::Q8_0));
    let quantizing = ProjectorParams { weights: WeightType::Q8_0, ..params(&large) };
    let made = Projector::load(&model, &quantizing).expect("a projector");
    let of = |projector: &Projector| {
        let picture = projector.cut(&bitmap(7)).expect("a picture");
        // The calls are counted by threads, and an encode has one of its own, which asks.
        let n_products = Arc::new(Mutex::new(0));
        let counting: foredraft::llama::StopSignal = Arc::new({
            let n_products = Arc::clone(&n_products);
            move || {
                *n_products.lock().expect("no panic") = kernel_calls().products;
                false
            }
        });
        projector.encode(&picture, &PauseGate::default(), &threads(), &counting).expect("rows");
        let n_products = *n_products.lock().expect("no panic");
        (logits(&model, projector, &picture, 64), n_products)
    };
    let n_vocab = model.vocab().n_tokens();
    let (of_large, _) = of(&projector(&model, &large));
    assert_eq!(of_large, logits_of_mtmd(&path, &large, &Medium::Pixels(&pixels(7)), n_vocab));
    let (of_made, n_products) = of(&made);
    let is_available = cfg!(all(target_os = "linux", target_env = "gnu"));
    assert_eq!(made.weight_type() == WeightType::Q8_0, is_available);
    if is_available {
        assert_eq!(of_made, logits_of_mtmd(&path, &small, &Medium::Pixels(&pixels(7)), n_vocab));
        assert_ne!(of_made, of_large);
        // Six matrices in each of two layers, and two of the projection.
        assert!(n_products >= 14 || !kernels_are_used(), "{n_products} products of our kernels");
    }
    // Whole files of smaller weights stay as they are.
    let quantizing = ProjectorParams { weights: WeightType::Q8_0, ..params(&small) };
    assert_eq!(Projector::load(&model, &quantizing).expect("a projector").weight_type(), WeightType::AsInFile);
    let answer = |mmproj: &str, weights: &str| {
        let engine = with_eyes(mmproj, json!({"mmproj_weights": weights}));
        let status = engine.status();
        (
            complete(&engine, Foredraft, &chat(&[rgb8(3)]))["tokens"].clone(),
            status["mmproj"]["weights"].clone(),
            status["warnings"].to_string(),
        )
    };
    if is_available {
        let (tokens, weights, _) = answer(&large, "q8_0");
        assert_eq!((tokens, weights), (answer(&small, "file").0, json!("q8_0")));
    }
    let (_, weights, warnings) = answer(&small, "q8_0");
    assert_eq!(weights, "file");
    assert!(warnings.contains("mmproj_weights: not used, because"), "{warnings}");
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn projectors_come_from_descriptors_and_memory() {
    use std::os::fd::AsRawFd as _;
    let mmproj = projectors::wide(TensorType::F16);
    let bytes = std::fs::read(&mmproj).expect("the file");
    let padded = [vec![7; 100], bytes.clone(), vec![7; 50]].concat();
    let path = std::env::temp_dir().join(format!("foredraft-padded-projector-{}", std::process::id()));
    std::fs::write(&path, &padded).expect("the file");
    let (whole, part) =
        (std::fs::File::open(&mmproj).expect("the file"), std::fs::File::open(&path).expect("the file"));
    let ask = |source: &Value, more: Value| {
        let engine = start(with(
            &json!({"model": sliding_window(), "model_draft": null, "n_ctx": 512, "n_batch": 64, "n_ubatch": 64, "mmproj": source}),
            more,
        ));
        (complete(&engine, Foredraft, &chat(&[rgb8(3)]))["tokens"].clone(), engine.status()["mmproj"]["path"].clone())
    };
    let expected = ask(&json!(mmproj), json!({})).0;
    let smaller = ask(&json!(mmproj), json!({"mmproj_weights": "q8_0"})).0;
    for source in [
        json!({"path": mmproj}),
        json!({"fd": whole.as_raw_fd()}),
        json!({"fd": part.as_raw_fd(), "offset": 100, "length": bytes.len()}),
        json!({"address": bytes.as_ptr() as u64, "length": bytes.len()}),
    ] {
        let (found, name) = ask(&source, json!({}));
        assert_eq!(found, expected, "{source}");
        assert!(name.as_str().is_some_and(|name| !name.is_empty()), "{source}: {name}");
        assert_eq!(ask(&source, json!({"mmproj_weights": "q8_0"})).0, smaller, "{source}");
    }
    let init = |source: Value| json!({"model": sliding_window(), "model_draft": null, "mmproj": source}).to_string();
    for (source, expected) in [
        (json!({"fd": part.as_raw_fd()}), "mmproj: file descriptor"),
        (json!({"address": 4096, "length": 1000}), "mmproj: 1000 bytes of memory at 0x1000"),
        (json!({"address": bytes.as_ptr() as u64, "length": 1000}), "mmproj: 1000 bytes of memory"),
        (json!({"fd": 1_000_000}), "mmproj: file descriptor 1000000"),
        (json!({}), "mmproj: expected one of"),
    ] {
        let error = JsonEngine::new().load(init(source.clone()).as_bytes());
        let message = error.expect_err("it is refused").message().to_owned();
        assert!(message.contains(expected), "{source}: {message}");
    }
    std::fs::remove_file(path).expect("the file");
}

#[test]
fn an_encode_ends_when_it_is_stopped() {
    let model = load(&sliding_window());
    let projector = projector(&model, &projectors::gemma3());
    let picture = projector.cut(&bitmap(1)).expect("a picture");
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let asked = Arc::new(asked);
    let signal: foredraft::llama::StopSignal = Arc::new({
        let asked = Arc::clone(&asked);
        move || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 1
    });
    let pauses = Arc::new(PauseGate::default());
    let error = projector.encode(&picture, &pauses, &threads(), &signal).expect_err("it is stopped");
    assert_eq!(error.code().as_str(), "cancelled");
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 2, "before the encode, and within it");
    assert!(!rows(&projector, &picture).is_empty(), "a later encode is whole");
}

#[test]
fn an_encode_asks_after_each_operation_and_sleeps_in_a_pause() {
    if !replacements().barrier {
        return;
    }
    let model = load(&sliding_window());
    let projector = projector(&model, &projectors::gemma3());
    let picture = projector.cut(&bitmap(1)).expect("a picture");
    let (pauses, n_asked) = (Arc::new(PauseGate::default()), Arc::new(AtomicUsize::new(0)));
    let (reached, is_reached) = std::sync::mpsc::sync_channel(1);
    let signal: foredraft::llama::StopSignal = Arc::new({
        let (pauses, n_asked) = (Arc::clone(&pauses), Arc::clone(&n_asked));
        move || {
            if n_asked.fetch_add(1, Ordering::Relaxed) == 5 {
                pauses.set(1);
                reached.send(()).expect("the test waits");
            }
            false
        }
    });
    let encoded = std::thread::scope(|scope| {
        let encode = scope.spawn(|| projector.encode(&picture, &pauses, &threads(), &signal).expect("rows"));
        is_reached.recv().expect("the encode asks");
        std::thread::sleep(Duration::from_millis(50));
        // Each thread asks once more before it sleeps, and when it wakes for no reason.
        let n_in_pause = n_asked.load(Ordering::Relaxed);
        assert!((6..=20).contains(&n_in_pause), "{n_in_pause}");
        pauses.set(0);
        encode.join().expect("rows")
    });
    assert!(n_asked.load(Ordering::Relaxed) > 40, "{n_asked:?} questions");
    assert_eq!(encoded, rows(&projector, &picture));
}

#[cfg(target_os = "linux")]
#[test]
fn an_encode_has_the_priority_of_the_engines_threads() {
    let model = load(&sliding_window());
    let projector = projector(&model, &projectors::gemma3());
    let picture = projector.cut(&bitmap(1)).expect("a picture");
    let policies = |priority| {
        let settings = ThreadSettings { priority, ..ThreadSettings::default() };
        let threads = ThreadPool::with_settings(THREADS, &[settings], None).expect("threads");
        let found = Arc::new(Mutex::new(Vec::new()));
        let signal: foredraft::llama::StopSignal = Arc::new({
            let found = Arc::clone(&found);
            move || {
                let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
                let after_name = stat.rsplit_once(") ").expect("a name").1;
                found.lock().expect("no panic").push(after_name.split(' ').nth(38).map(str::to_owned));
                false
            }
        });
        projector.encode(&picture, &PauseGate::default(), &threads, &signal).expect("rows");
        let mut found = std::mem::take(&mut *found.lock().expect("no panic"));
        found.dedup();
        found
    };
    // SCHED_OTHER and SCHED_BATCH.
    assert_eq!(policies(ThreadPriority::Normal), [Some("0".to_owned())]);
    assert_eq!(policies(ThreadPriority::Low), [Some("3".to_owned())]);
}

#[test]
fn projectors_that_do_not_fit_are_errors() {
    let model_of_text = load(&sliding_window());
    let refused = |path: &str| match Projector::load(&model_of_text, &params(path)) {
        Ok(_) => panic!("{path} is loaded"),
        Err(error) => error.message().to_owned(),
    };
    let cases = [
        (projectors::idefics3(48), "mismatch between text model (n_embd = 32) and mmproj (n_embd = 48)"),
        (projectors::without_heads(), "clip.vision.attention.head_count is 0"),
        (model("draft"), "is not a multimodal projector (mmproj)"),
        ("/no/such/file.gguf".to_owned(), "/no/such/file.gguf"),
    ];
    for (path, expected) in cases {
        let message = refused(&path);
        assert!(message.starts_with("mmproj: ") && message.contains(expected), "{message}");
    }
    // The vocabulary lacks `<global-img>` and others.
    let projector = projector(&model_of_text, &projectors::idefics3(32));
    let error = projector.cut(&bitmap(1)).expect_err("no tags");
    assert!(error.message().contains("vocabulary lacks the tags"), "{}", error.message());
}

#[test]
fn cut_projectors_are_errors() {
    let bytes = std::fs::read(projectors::gemma3()).expect("the file");
    let model = load(&sliding_window());
    let folder = std::env::temp_dir().join(format!("foredraft-cut-projectors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("cut.gguf");
    for length in (0..bytes.len()).step_by(bytes.len() / 40) {
        std::fs::write(&path, &bytes[..length]).expect("the file");
        assert!(Projector::load(&model, &params(&path.to_string_lossy())).is_err(), "{length} bytes");
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn files_of_pictures_are_bounded_before_they_are_read() {
    let rgb = pixels(3);
    for file in [bmp(WIDTH, HEIGHT, &rgb), png(WIDTH, HEIGHT, &rgb)] {
        let read = Bitmap::from_file(&file).expect("a picture");
        assert_eq!((read.width(), read.height(), read.bytes()), (WIDTH, HEIGHT, rgb.as_slice()));
    }
    let png = |width: u32, height: u32| {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        file.extend(width.to_be_bytes().into_iter().chain(height.to_be_bytes()));
        file.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
        file
    };
    let jpeg = |width: u16, height: u16| {
        let mut file = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08".to_vec();
        file.extend(height.to_be_bytes().into_iter().chain(width.to_be_bytes()));
        file.extend([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
        file
    };
    let cases = [
        (png(100_000, 100_000), "expected 1 to 64000000 pixels"),
        (png(0, 4), "expected 1 to"),
        (png(2001, 10), "times the other"),
        (png(4, 4), "is damaged"),
        (jpeg(60_000, 60_000), "expected 1 to 64000000 pixels"),
        (bmp(1, 1, &[1, 2, 3])[..20].to_vec(), "expected a PNG"),
        (b"GIF89a\xff\xff\xff\xff".to_vec(), "expected 1 to 64000000 pixels"),
        (b"RIFF\x04\0\0\0WAVE".to_vec(), "expected a PNG"),
        (Vec::new(), "expected a PNG"),
    ];
    for (file, expected) in cases {
        let error = Bitmap::from_file(&file).expect_err(expected);
        assert!(error.message().contains(expected), "{}", error.message());
    }
    for (width, height, n) in [(0, 1, 0), (2, 2, 11), (u32::MAX, u32::MAX, 3), (201, 1, 603)] {
        assert!(Bitmap::from_pixels(width, height, 3, vec![0; n]).is_err(), "{width} x {height}");
    }
}

#[test]
fn files_that_take_more_than_their_pixels_are_errors() {
    // A literal, matches of 258 bytes at distance 1, and the end, with the fixed codes: 13 bits for 258 bytes.
    let bomb = |n: usize| {
        let codes = std::iter::repeat_n([(0b1100_0101, 8), (0, 5)], n).flatten();
        let all = [(1, 1), (0b10, 2), (0b0011_0000, 8)].into_iter().chain(codes).chain([(0, 7)]);
        // Codes begin with their highest bit.
        let bits: Vec<u8> = all
            .flat_map(|(code, length): (u32, u32)| (0..length).rev().map(move |at| (code >> at & 1) as u8))
            .collect();
        let bytes = bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit));
        [vec![0x78, 1], bytes.collect(), vec![0; 4]].concat()
    };
    let black = Bitmap::from_file(&png_of(86, 258, &bomb(259))).expect("as many bytes as its lines have");
    assert!(black.bytes().iter().all(|byte| *byte == 0));
    for (width, height, n) in [(1, 1, 1000), (86, 258, 2000), (1000, 1000, 1_000_000)] {
        let error = Bitmap::from_file(&png_of(width, height, &bomb(n))).expect_err("it inflates to more");
        assert!(error.message().contains("are not those of its size"), "{}", error.message());
    }
    let jpeg = jpeg();
    assert_eq!(Bitmap::from_file(&jpeg).expect("a picture").width(), 24);
    let at = jpeg.windows(2).position(|bytes| bytes == [0xff, 0xda]).expect("a scan");
    let end = at + 2 + jpeg[at + 2..].windows(2).position(|bytes| bytes[0] == 0xff && bytes[1] > 0).expect("its end");
    let scans = [&jpeg[..at], &jpeg[at..end].repeat(101), &jpeg[end..]].concat();
    assert!(Bitmap::from_file(&scans).expect_err("101 scans").message().contains("are not those of its size"));
}

/// A progressive JPEG file of 24 x 16 pixels.
fn jpeg() -> Vec<u8> {
    std::fs::read(root().join("tests/data/picture.jpg")).expect("the file")
}

#[test]
fn damaged_files_of_pictures_end_as_errors_or_pictures() {
    let bmp = bmp(WIDTH, HEIGHT, &pixels(3));
    let files = [(bmp[..200].to_vec(), 64), (bmp, 64), (png(8, 8, &pixels(3)[..192]), 300), (jpeg(), 1000)];
    damage("files of pictures", &files, 12_000, |damaged| {
        if let Ok(bitmap) = Bitmap::from_file(damaged) {
            assert_eq!(bitmap.bytes().len(), (bitmap.width() * bitmap.height() * 3) as usize);
        }
    });
}

#[test]
fn pictures_of_unusual_sizes_are_seen_or_refused() {
    for kind in kinds() {
        let engine = of_kind(&kind, json!({"image_max_tokens": 64}));
        for (width, height) in [(1, 1), (1, 2), (2, 1), (200, 1), (1, 200), (3, 600), (1500, 11), (1024, 1024)] {
            let pixels: Vec<u8> = (0..width * height * 3).map(|at: u32| (at * 7 % 251) as u8).collect();
            let picture = json!({"type": "image", "width": width, "height": height, "format": "rgb8", "address": pixels.as_ptr() as u64});
            let answer = engine.complete_as(Foredraft, chat(&[picture]).to_string().as_bytes());
            let seen = answer.as_ref().is_ok_and(|answer| {
                answer["success"] == true && answer["tokens"].as_array().is_some_and(|all| all.len() == 24)
            });
            // LFM2 cuts large pictures into pieces between tags, which the vocabulary does not have.
            let expected = if kind.1.contains("lfm2") { "tags" } else { "tokens" };
            let why =
                answer.as_ref().map_or_else(|error| error.message().to_owned(), |answer| answer["error"].to_string());
            assert!(seen || why.contains(expected), "{kind:?}, {width} x {height}: {why}");
            assert!(seen || (width, height) != (1, 1), "{kind:?}: {why}");
        }
    }
}

pub fn of_kind((model, mmproj): &(String, String), more: Value) -> JsonEngine {
    with_eyes(mmproj, with(&json!({"model": model}), more))
}

pub fn with_eyes(mmproj: &str, more: Value) -> JsonEngine {
    let init = json!({"model": sliding_window(), "model_draft": null, "mmproj": mmproj, "n_ctx": 512, "n_batch": 64, "n_ubatch": 64});
    start(with(&init, more))
}

pub fn refused(engine: &JsonEngine, request: &Value) -> String {
    let answer = engine.complete_as(Foredraft, request.to_string().as_bytes());
    let answer = answer.map_or_else(|error| error.message().to_owned(), |answer| answer["error"].to_string());
    assert_ne!(answer, "null", "it is not refused");
    answer
}

#[test]
fn chats_with_a_picture_have_the_tokens_of_mtmd() {
    for kind in kinds_with_squares() {
        let (path, mmproj) = &kind;
        let n_vocab = load(path).vocab().n_tokens();
        let engine = of_kind(&kind, json!({}));
        let status = engine.status();
        assert_eq!((&status["mmproj"]["vision"], &status["mmproj"]["audio"]), (&json!(true), &json!(false)));
        for seed in 1..6 {
            let request = chat(&[rgb8(seed)]);
            let rendered = engine.with_loaded(|loaded| loaded.apply_template(request.to_string().as_bytes()));
            let shown = rendered.expect("a prompt");
            let rendered = shown["prompt"].as_str().expect("a text").to_owned();
            assert_eq!(rendered.matches("<__media__>").count(), 1, "{rendered}");
            let answer = complete(&engine, Foredraft, &request);
            let (_, expected) =
                greedy_of_mtmd(path, mmproj, (&rendered, true), &Medium::Pixels(&pixels(seed)), n_vocab, 24);
            assert_eq!(answer["tokens"], json!(expected), "{mmproj}, picture {seed}");
            let stats = &answer["prompt_stats"];
            assert_eq!(n(&stats["total_prompt_tokens"]), n(&answer["tokens_evaluated"]), "{answer}");
            assert_eq!(shown["n_tokens"], answer["tokens_evaluated"], "{shown}");
            assert!(n(&answer["tokens_evaluated"]) > 30, "the rows are counted");
        }
    }
}

#[test]
fn a_picture_gives_the_same_new_cached_beside_others_and_drafted() {
    for kind in kinds_with_squares() {
        let mmproj = &kind.1;
        let fresh = |more: Value| of_kind(&kind, more);
        let request = with(&chat(&[rgb8(1), rgb8(2)]), json!({"temperature": 0.9, "seed": 3, "repeat_penalty": 1.2}));
        let expected = complete(&fresh(json!({"image_cache_mb": 0})), Foredraft, &request)["tokens"].clone();
        let engine = fresh(json!({"n_parallel": 3}));
        let cached = with(&request, json!({"cache_prompt": true}));
        for (what, request) in [
            ("new", &request),
            ("its rows in memory", &request),
            ("in the slot", &cached),
            ("drafted", &with(&cached, json!({"speculative": {"type": "auto", "adaptive": false, "n_max": 4}}))),
            ("drafted anew", &with(&request, json!({"speculative": {"type": "suffix", "adaptive": false}}))),
            ("compared", &with(&request, json!({"speculative": {"compare": true}}))),
        ] {
            let answer = complete(&engine, Foredraft, request);
            assert_eq!(answer["tokens"], expected, "{mmproj}: {what}");
            if what == "in the slot" {
                let all = n(&answer["tokens_evaluated"]);
                assert_eq!(n(&answer["timings"]["cache_n"]), all - 1, "a later question decodes its own tokens alone");
            }
        }
        let others = (0..2).map(|seed| {
            let text = json!({"prompt": "Tom had a red hat. Mia", "n_predict": 120, "seed": seed, "ignore_eos": true});
            submit(&engine, Foredraft, &text)
        });
        let others: Vec<u64> = others.collect();
        let id = submit(&engine, Foredraft, &request);
        let updates = drain(&engine, Foredraft, id);
        let tokens: Vec<Value> =
            updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
        assert_eq!(json!(tokens), expected, "{mmproj}: beside others");
        others.into_iter().for_each(|id| drop(drain(&engine, Foredraft, id)));
        let other = with(&chat(&[rgb8(1), rgb8(4)]), json!({"temperature": 0.9, "seed": 3, "cache_prompt": true}));
        let alone = complete(&fresh(json!({})), Foredraft, &other);
        let after = complete(&engine, Foredraft, &other);
        assert_eq!(after["tokens"], alone["tokens"], "{mmproj}: the first picture is in the slot");
        assert!(n(&after["timings"]["cache_n"]) > 10, "{after}");
    }
}

#[test]
fn pictures_come_as_files_data_and_memory() {
    let engine = with_eyes(&projectors::gemma3(), json!({}));
    let expected = complete(&engine, Foredraft, &chat(&[rgb8(5)]))["tokens"].clone();
    let file = bmp(WIDTH, HEIGHT, &pixels(5));
    let path = std::env::temp_dir().join(format!("foredraft-picture-{}.bmp", std::process::id()));
    std::fs::write(&path, &file).expect("the file");
    let rgba: Vec<u8> = pixels(5).chunks(3).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 77]).collect();
    let raw = |format: &str, pixels: &[u8]| json!({"type": "image", "width": WIDTH, "height": HEIGHT, "format": format, "address": pixels.as_ptr() as u64});
    let rgb = pixels(5);
    for picture in [
        json!({"type": "image_url", "image_url": {"url": format!("data:image/bmp;base64,{}", base64(&file)), "detail": "low"}}),
        json!({"type": "image_url", "image_url": path}),
        json!({"type": "image_url", "image_url": {"url": format!("file://{}", path.display())}}),
        raw("rgb8", &rgb),
        raw("rgba8", &rgba),
    ] {
        assert_eq!(
            complete(&engine, Foredraft, &chat(std::slice::from_ref(&picture)))["tokens"],
            expected,
            "{picture}"
        );
    }
    std::fs::remove_file(path).expect("the file");
}

#[test]
fn pictures_that_cannot_be_shown_are_errors() {
    let engine = with_eyes(&projectors::gemma3(), json!({}));
    let picture = |more: Value| with(&rgb8(1), more);
    let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let part = "messages[1].content[1]";
    for (picture, expected) in [
        (picture(json!({"width": 0})), format!("{part}.width")),
        (picture(json!({"width": 41})), format!("{part}: expected")),
        (picture(json!({"format": "bgr"})), format!("{part}.format")),
        (picture(json!({"format": null})), format!("{part}.format")),
        (picture(json!({"base64": null})), format!("{part}: expected either base64 or address")),
        (picture(json!({"base64": null, "address": 0})), format!("{part}: address")),
        (picture(json!({"base64": null, "address": 4096})), format!("{part}: address")),
        (picture(json!({"base64": "*"})), format!("{part}: expected base64")),
        (picture(json!({"width": 64_000_000, "height": 64_000_000})), format!("{part}: ")),
        (url("https://example.com/a.png"), format!("{part}.image_url.url")),
        (url("data:image/png,abc"), format!("{part}.image_url.url")),
        (url("data:image/png;base64,AAAA"), format!("{part}: expected a PNG")),
        (url("/no/such/file.png"), format!("{part}: cannot be read")),
        (json!({"type": "image_url"}), format!("{part}.image_url.url")),
        (json!({"type": "input_audio", "input_audio": {}}), format!("{part}.input_audio: expected either")),
        (sound(1), format!("{part}: the mmproj file has no encoder of sounds")),
    ] {
        let message = refused(&engine, &chat(std::slice::from_ref(&picture)));
        assert!(message.contains(&expected), "{picture}: {message}");
    }
    let in_system = json!({"messages": [{"role": "system", "content": [rgb8(1)]}, {"role": "user", "content": "a"}]});
    assert!(refused(&engine, &in_system).contains("messages[0].content[0]: expected text"));
    let all: Vec<Value> = (0..1000).map(|_| rgb8(1)).collect();
    assert!(refused(&engine, &chat(&all)).contains("expected at most 32 pictures"));
    let most = complete(&engine, Foredraft, &chat(&all[..8]));
    assert!(n(&most["tokens_evaluated"]) > 100);
    let full = refused(&engine, &with(&chat(&all[..32]), json!({"on_overflow": "error"})));
    assert!(full.contains("512"), "{full}");
    let message = refused(&engine, &with(&chat(&[rgb8(1)]), json!({"prompt_logprobs": 1})));
    assert!(message.contains("picture"), "{message}");
    let blind = start(json!({}));
    assert!(refused(&blind, &chat(&[rgb8(1)])).contains("load its projector with mmproj"));
    let marks = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "\u{fdef}0\u{fdef}"}, rgb8(1)]}], "n_predict": 1});
    assert!(refused(&engine, &marks).contains("U+FDEF"));
    assert_eq!(complete(&engine, Plain, &json!({"prompt": "Tom", "n_predict": 1}))["success"], true);
}

pub fn tokens_of(updates: &[Value]) -> Value {
    updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect()
}

#[test]
fn pictures_on_other_memories_have_the_outputs_of_a_fresh_engine() {
    let sampled = json!({"temperature": 0.9, "seed": 5, "cache_prompt": true});
    let request = |picture: u32, more: Value| with(&with(&chat(&[rgb8(picture)]), sampled.clone()), more);
    for (kind, init) in [
        ("shared cells", json!({"n_parallel": 2, "kv_unified": true})),
        ("a small window", json!({"n_parallel": 2, "swa_full": false})),
        ("a draft model", json!({"n_parallel": 2, "model_draft": model("draft")})),
        ("hybrid", json!({"model": hybrid(), "n_parallel": 2})),
        ("layers for drafts", json!({"model": mtp_layers(), "n_parallel": 2, "speculative": {"type": "mtp"}})),
        ("four numbers a position", json!({"model": qwen_vl("2"), "n_parallel": 2})),
        (
            "four numbers a position, in parts",
            json!({"model": qwen_vl("2"), "n_parallel": 2, "n_batch": 4, "n_ubatch": 4}),
        ),
        ("four numbers a position, shared cells", json!({"model": qwen_vl("2"), "n_parallel": 2, "kv_unified": true})),
        (
            "four numbers a position, a draft model",
            json!({"model": qwen_vl("2"), "n_parallel": 2, "model_draft": model("draft")}),
        ),
        ("four numbers a position, hybrid", json!({"model": delta_net(), "n_parallel": 2})),
        (
            "four numbers a position, layers for drafts",
            json!({"model": delta_net_mtp(), "n_parallel": 2, "speculative": {"type": "mtp"}}),
        ),
    ] {
        let mmproj = if kind.starts_with("four") { projectors::qwen("2") } else { projectors::lfm2() };
        let engine = with_eyes(&mmproj, init.clone());
        let fresh = || with_eyes(&mmproj, with(&init, json!({"n_parallel": 1, "kv_unified": false})));
        for picture in [1, 2, 1] {
            let request = request(picture, json!({}));
            let other = json!({"prompt": "Tom had a red hat. Mia", "n_predict": 60, "seed": picture, "ignore_eos": true,
                "return_tokens": true, "speculative": true});
            let beside = submit(&engine, Foredraft, &other);
            let id = submit(&engine, Foredraft, &with(&request, json!({"speculative": true})));
            let found = tokens_of(&drain(&engine, Foredraft, id));
            let expected = complete(&fresh(), Foredraft, &with(&request, json!({"speculative": false})));
            assert_eq!(found, expected["tokens"], "{kind}, picture {picture}");
            let expected = complete(&fresh(), Foredraft, &with(&other, json!({"speculative": false})));
            assert_eq!(
                tokens_of(&drain(&engine, Foredraft, beside)),
                expected["tokens"],
                "{kind}, beside picture {picture}"
            );
        }
    }
}

#[test]
fn pictures_are_prepared_and_their_answers_begun() {
    let wait = |engine: &JsonEngine, request: &Value| {
        let answer = call(engine, Function::Prepare, request);
        drain(engine, Foredraft, answer["id"].as_u64().expect("an id"));
    };
    for kind in kinds() {
        let fresh = || of_kind(&kind, json!({"n_parallel": 2}));
        let request = with(&chat(&[rgb8(1), rgb8(2)]), json!({"temperature": 0.9, "seed": 5, "cache_prompt": true}));
        let expected = complete(&fresh(), Foredraft, &request)["tokens"].clone();
        let named = with(&request, json!({"conversation": "of pictures"}));
        for begins in [false, true] {
            let engine = fresh();
            wait(&engine, &with(&named, json!({"begin": begins})));
            let answer = complete(&engine, Foredraft, &named);
            assert_eq!(answer["tokens"], expected, "{kind:?}, begun {begins}");
            let timings = &answer["timings"];
            assert_eq!(n(&timings["prompt_n"]), 1, "{kind:?}, begun {begins}: {timings}");
            assert_eq!(n(&timings["begun_n"]) > 20, begins, "{kind:?}: {timings}");
            // Another picture is another answer.
            let other = with(&chat(&[rgb8(1), rgb8(3)]), json!({"temperature": 0.9, "seed": 5, "cache_prompt": true}));
            wait(&engine, &with(&named, json!({"begin": begins})));
            let answer = complete(&engine, Foredraft, &with(&other, json!({"conversation": "of pictures"})));
            assert_eq!(answer["timings"]["begun_n"], 0, "{kind:?}: {}", answer["timings"]);
            assert_eq!(answer["tokens"], complete(&fresh(), Foredraft, &other)["tokens"], "{kind:?}, begun {begins}");
        }
    }
    let engine = of_kind(&kinds()[0], json!({}));
    let rgb = pixels(1);
    let at_address =
        json!({"type": "image", "width": WIDTH, "height": HEIGHT, "format": "rgb8", "address": rgb.as_ptr() as u64});
    let at_path = json!({"type": "image_url", "image_url": "/no/such/file.png"});
    for picture in [at_address, at_path] {
        let request =
            with(&chat(&[picture]), json!({"conversation": "a", "begin": true, "cache_prompt": true})).to_string();
        let error =
            engine.call(Function::Prepare, Ok(request.as_bytes())).expect_err("it may be another picture later");
        assert!(
            error.message().contains("begin: not available with pictures or sounds at a path"),
            "{}",
            error.message()
        );
    }
}

#[test]
fn beams_after_a_picture_have_the_probabilities_of_its_answer() {
    for kind in kinds() {
        let mut n_same = 0;
        let engine = of_kind(&kind, json!({}));
        let small = of_kind(&kind, json!({"n_batch": 4, "n_ubatch": if kind.1.contains("gemma") { 64 } else { 4 }}));
        let mut answers = Vec::new();
        for seed in 1..6 {
            let request = with(&chat(&[rgb8(seed), rgb8(9)]), json!({"n_probs": 1, "n_predict": 4}));
            let greedy = complete(&engine, Foredraft, &request);
            let first = complete(&engine, Foredraft, &with(&request, json!({"n_beams": 3, "n_predict": 1})));
            assert_eq!(first["tokens"][0], greedy["tokens"][0], "{kind:?}, picture {seed}");
            let beams = with(&request, json!({"n_beams": 3}));
            let answer = complete(&engine, Foredraft, &beams);
            assert_eq!(complete(&engine, Foredraft, &beams)["tokens"], answer["tokens"], "{kind:?}, picture {seed}");
            assert_eq!(complete(&small, Foredraft, &beams)["tokens"], answer["tokens"], "{kind:?}, picture {seed}");
            assert_eq!(answer["tokens_evaluated"], greedy["tokens_evaluated"], "{kind:?}");
            // As far as both are the same, their probabilities are close: the searches' context computes with other kernels.
            let probability = |answer: &Value, at: usize| answer["completion_probabilities"][at]["logprob"].as_f64();
            for at in (0..4).take_while(|at| answer["tokens"][at] == greedy["tokens"][at]) {
                let difference = probability(&answer, at).zip(probability(&greedy, at)).map(|(x, y)| (x - y).abs());
                assert!(difference.is_some_and(|difference| difference < 0.05), "{kind:?}, {at}: {difference:?}");
                n_same += usize::from(at > 0);
            }
            answers.push(answer["tokens"].clone());
        }
        assert!(n_same > 0, "{kind:?}: no tokens after the first ones are the same");
        assert!(answers.iter().any(|answer| *answer != answers[0]), "{kind:?}: the picture is seen");
        let full = refused(&engine, &with(&chat(&vec![rgb8(1); 32]), json!({"n_beams": 2, "on_overflow": "error"})));
        assert!(full.contains("512"), "{full}");
    }
}

#[test]
fn pictures_in_conversations_decisions_and_full_contexts() {
    let target = model("target");
    let mmproj = projectors::lfm2_of(load(&target).n_embd() as u64);
    let fresh = || with_eyes(&mmproj, json!({"model": target}));
    let engine = fresh();
    let request = with(&chat(&[rgb8(1)]), json!({"temperature": 0.9, "seed": 5, "cache_prompt": true}));
    let expected = complete(&fresh(), Foredraft, &request);
    let first = ((target.clone(), mmproj.clone()), 30);
    for (kind, least) in [first, (kinds()[2].clone(), 30), (kinds()[5].clone(), 5)] {
        let engine = of_kind(&kind, json!({}));
        let expected = complete(&of_kind(&kind, json!({})), Foredraft, &request);
        for round in 0..3 {
            let named = with(&request, json!({"conversation": "of the picture"}));
            let answer = complete(&engine, Foredraft, &named);
            assert_eq!(answer["tokens"], expected["tokens"], "{kind:?}, round {round}");
            let cached = n(&answer["timings"]["cache_n"]);
            assert_eq!(cached > least, round > 0, "{kind:?}, round {round}: {}", answer["timings"]);
            complete(&engine, Foredraft, &json!({"prompt": "Tom", "n_predict": 4, "conversation": "of Tom"}));
        }
    }
    let several = complete(&engine, Foredraft, &with(&request, json!({"n_cmpl": 2})));
    assert_eq!(several["results"][0]["tokens"], expected["tokens"]);
    let choices = with(&request, json!({"choices": ["yes", "no", "perhaps"], "n_predict": null}));
    let (found, expected) = (complete(&engine, Foredraft, &choices), complete(&fresh(), Foredraft, &choices));
    assert_eq!(found["choices"], expected["choices"]);
    let small = with_eyes(&mmproj, json!({"model": target, "n_ctx": 128}));
    let full = complete(&small, Foredraft, &with(&request, json!({"n_predict": 500})));
    assert_eq!(full["stop_type"], "limit", "a context with a picture does not shift");
    // The oldest turns go with their pictures.
    let mut messages = Vec::new();
    for seed in 1..30 {
        messages.push(chat(&[rgb8(seed)])["messages"][1].clone());
        messages.push(json!({"role": "assistant", "content": "A hat."}));
    }
    messages.pop();
    let long = with(&chat(&[]), json!({"messages": messages, "n_predict": 8}));
    let answer = complete(&fresh(), Foredraft, &long);
    let dropped = n(&answer["prompt_stats"]["dropped_messages"]);
    assert!(dropped > 0 && dropped.is_multiple_of(2), "{}", answer["prompt_stats"]);
    let rest = with(&long, json!({"messages": messages[dropped..]}));
    assert_eq!(complete(&fresh(), Foredraft, &rest)["tokens"], answer["tokens"]);
}

pub fn call(engine: &JsonEngine, function: Function, request: &Value) -> Value {
    engine.call(function, Ok(request.to_string().as_bytes())).expect("an answer")
}

#[test]
fn questions_about_a_picture_have_the_probabilities_of_its_choices() {
    let (kite, red) = (
        json!({"type": "choice", "instructions": "\nWhat is on it?", "criteria": {"a kite": null, "a hat": "red"}}),
        json!({"type": "noul", "instructions": "It is red."}),
    );
    let asked = |picture: u32, questions: Value, more: Value| {
        with(&json!({"messages": chat(&[rgb8(picture)])["messages"], "questions": questions}), more)
    };
    for kind in kinds() {
        let engine = of_kind(&kind, json!({"n_parallel": 2}));
        let both = asked(1, json!({"kite": kite, "red": red}), json!({}));
        let new = call(&engine, Function::Decide, &both);
        assert_eq!(call(&engine, Function::Decide, &both)["answers"], new["answers"], "{kind:?}: cached");
        let other = call(&engine, Function::Decide, &asked(2, json!({"kite": kite}), json!({})));
        assert_ne!(other["answers"]["kite"], new["answers"]["kite"], "{kind:?}: the picture is seen");
        for (name, question) in [("kite", &kite), ("red", &red)] {
            let alone = asked(1, json!({name: question}), json!({"cache_prompt": false}));
            let alone = call(&of_kind(&kind, json!({})), Function::Decide, &alone);
            assert_eq!(alone["answers"][name], new["answers"][name], "{kind:?}: {name} alone");
        }
        let how = "Answer this question only with the letter of the best option, with the number of the best level, or with Yes or No:";
        let text = format!("\n\n{how}\n\n\nWhat is on it?\n\nA: a kite\nB: a hat (red)");
        let mut plain = chat(&[rgb8(1)]);
        let parts = plain["messages"][1]["content"].as_array_mut().expect("parts");
        parts.push(json!({"type": "text", "text": text}));
        let plain = with(&plain, json!({"choices": ["A", "B"], "temperature": 1.0, "n_predict": null}));
        let plain = complete(&of_kind(&kind, json!({})), Foredraft, &plain);
        for (index, option) in ["a kite", "a hat"].iter().enumerate() {
            assert_eq!(new["answers"]["kite"]["probabilities"][option], plain["choices"][index]["prob"], "{kind:?}");
        }
    }
}

#[test]
fn pictures_are_counted_and_shown_where_prompts_are() {
    let engine = with_eyes(&projectors::lfm2(), json!({}));
    let request = with(&chat(&[rgb8(1), rgb8(2)]), json!({"cache_prompt": true}));
    let messages = |pictures: &[Value]| json!({"messages": chat(pictures)["messages"]});
    let tokens = |request: &Value| call(&engine, Function::Tokenize, request);
    let all = tokens(&messages(&[rgb8(1), rgb8(2)]));
    let answer = complete(&engine, Foredraft, &request);
    assert_eq!(all["length"], answer["tokens_evaluated"], "{all}");
    let ids: Vec<i64> = all["ids"].as_array().expect("ids").iter().filter_map(Value::as_i64).collect();
    assert_eq!(ids.len(), n(&all["length"]));
    let rows: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] < 0).collect();
    assert!(rows.len() > 20 && rows.iter().all(|at| all["tokens"][at] == "" && all["pieces"][at] == ""), "{all}");
    assert_eq!(tokens(&messages(&[rgb8(1), rgb8(2)])), all, "the same pictures have the same numbers");
    let other = tokens(&messages(&[rgb8(1), rgb8(3)]));
    assert_eq!(other["length"], all["length"]);
    let same: Vec<bool> = rows.iter().map(|at| other["ids"][at] == all["ids"][at]).collect();
    assert_eq!(same, [vec![true; rows.len() / 2], vec![false; rows.len() / 2]].concat(), "{other}");
    let with_pieces = tokens(&with(&messages(&[rgb8(1)]), json!({"with_pieces": true})));
    assert_eq!(with_pieces["tokens"][rows[0]], json!({"id": ids[rows[0]], "piece": ""}));
    // Text alone, and both.
    let plain = json!({"messages": [{"role": "user", "content": "Tom had a red hat."}]});
    let prompt = call(&engine, Function::ApplyTemplate, &plain)["prompt"].clone();
    assert_eq!(tokens(&plain)["ids"], tokens(&json!({"text": prompt}))["ids"]);
    let both = with(&plain, json!({"text": "Tom"})).to_string();
    let both = engine.call(Function::Tokenize, Ok(both.as_bytes())).expect_err("either").message().to_owned();
    assert!(both.contains("either text or messages"), "{both}");
    let stats = &answer["prompt_stats"];
    assert_eq!((&stats["total_prompt_tokens"], &stats["n_to_eval"]), (&all["length"], &all["length"]), "{stats}");
    let text = |stats: &Value, part: &str| stats[part].as_str().expect("a text").to_owned();
    let prompt = call(&engine, Function::ApplyTemplate, &messages(&[rgb8(1), rgb8(2)]))["prompt"].clone();
    let shown = text(stats, "to_eval");
    let without_tags = shown.replace("<|image_start|>", "").replace("<|image_end|>", "");
    assert!(without_tags.ends_with(prompt.as_str().expect("a text")), "{shown:?} {prompt}");
    let again = complete(&engine, Foredraft, &request);
    let stats = &again["prompt_stats"];
    assert_eq!(n(&stats["n_cached"]) + n(&stats["n_to_eval"]), ids.len(), "{stats}");
    assert_eq!(text(stats, "cached") + &text(stats, "to_eval"), shown, "{stats}");
}

#[test]
fn saved_pictures_go_on_in_other_engines() {
    let folder = std::env::temp_dir().join(format!("foredraft-saved-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let request =
        |pictures: &[Value]| with(&chat(pictures), json!({"temperature": 0.9, "seed": 5, "cache_prompt": true}));
    let (seen, other) = (request(&[rgb8(1), rgb8(2)]), request(&[rgb8(1), rgb8(4)]));
    for (index, kind) in kinds().iter().enumerate() {
        let path = |name: &str| folder.join(format!("{index}-{name}"));
        let fresh = |request: &Value| complete(&of_kind(kind, json!({})), Foredraft, request)["tokens"].clone();
        let (expected, expected_other) = (fresh(&seen), fresh(&other));
        let file = |name: &str| json!({"id_slot": 0, "filename": path(name)});
        let first = of_kind(kind, json!({}));
        // A saved sliding window does not go back behind an answer.
        let named = with(&seen, json!({"session_save": path("request"), "conversation": "a", "n_predict": 1}));
        assert_eq!(complete(&first, Foredraft, &named)["tokens"][0], expected[0], "{kind:?}");
        call(&first, Function::SessionSave, &file("slot"));
        call(&first, Function::Conversation, &json!({"action": "save", "conversation": "a", "filename": path("talk")}));
        let most = n(&complete(&first, Foredraft, &named)["timings"]["cache_n"]);
        assert!(most > 5, "{kind:?}: {most}");
        for has_seen in [false, true] {
            for name in ["slot", "request", "talk"] {
                let engine = of_kind(kind, json!({}));
                if has_seen {
                    // The pictures get other numbers than in the engine before.
                    complete(&engine, Foredraft, &request(&[rgb8(9), rgb8(2)]));
                }
                let more = match name {
                    "slot" => {
                        call(&engine, Function::SessionLoad, &file(name));
                        json!({})
                    }
                    "request" => json!({"session_load": path(name)}),
                    _ => {
                        let load = json!({"action": "load", "conversation": "b", "filename": path(name)});
                        call(&engine, Function::Conversation, &load);
                        json!({"conversation": "b"})
                    }
                };
                let answer = complete(&engine, Foredraft, &with(&seen, more));
                assert_eq!(answer["tokens"], expected, "{kind:?}, {name}");
                assert_eq!(n(&answer["timings"]["cache_n"]), most, "{kind:?}, {name}: {}", answer["timings"]);
                let answer = complete(&engine, Foredraft, &other);
                assert_eq!(answer["tokens"], expected_other, "{kind:?}, {name}: another picture");
            }
        }
        let on_disk = || of_kind(kind, json!({"cache_dir": path("conversations"), "cache_ram_mb": 0}));
        complete(&on_disk(), Foredraft, &with(&seen, json!({"conversation": "a", "n_predict": 1})));
        let answer = complete(&on_disk(), Foredraft, &with(&seen, json!({"conversation": "a"})));
        assert_eq!(answer["tokens"], expected, "{kind:?}, on disk");
        assert_eq!(n(&answer["timings"]["cache_n"]), most, "{kind:?}, on disk: {}", answer["timings"]);
    }
    // With another projector, the same pixels are another picture; without one, there are none.
    let load = json!({"id_slot": 0, "filename": folder.join("0-slot")});
    let engine = of_kind(&kinds()[1], json!({}));
    call(&engine, Function::SessionLoad, &load);
    let answer = complete(&engine, Foredraft, &seen);
    assert_eq!(answer["tokens"], complete(&of_kind(&kinds()[1], json!({})), Foredraft, &seen)["tokens"]);
    let blind = start(json!({"model": kinds()[0].0, "model_draft": null, "n_ctx": 512, "n_batch": 64, "n_ubatch": 64}));
    let refused = blind.call(Function::SessionLoad, Ok(load.to_string().as_bytes())).expect_err("no eyes");
    assert!(refused.message().contains("without mmproj"), "{}", refused.message());
    std::fs::remove_dir_all(folder).expect("the folder");
}
