//! Pictures give the rows, tokens and logits that llama.cpp's mtmd gives with the same files.

use std::ffi::CString;
use std::sync::Arc;

use foredraft::llama::{
    Batch, BatchInput, Bitmap, Context, ContextParams, Interrupt, Model, ModelParams, PauseGate, Picture, PicturePiece,
    Projector, ProjectorParams, ThreadPool,
};
use llama_cpp_sys_2 as sys;

use crate::common::model;
use crate::common::tiny_models::{projectors, sliding_window};

const THREADS: i32 = 2;
const WIDTH: u32 = 40;
const HEIGHT: u32 = 24;

fn pixels(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..WIDTH * HEIGHT * 3).map(|_| next()).collect()
}

fn bitmap(seed: u32) -> Bitmap {
    Bitmap::from_rgb(WIDTH, HEIGHT, &pixels(seed)).expect("a bitmap")
}

fn load(path: &str) -> Arc<Model> {
    Arc::new(Model::load(&ModelParams::new(path), |_| true).expect("a model"))
}

fn params(path: &str) -> ProjectorParams {
    ProjectorParams { path: path.into(), n_threads: THREADS, min_tokens: None, max_tokens: None }
}

fn projector(model: &Arc<Model>, path: &str) -> Projector {
    Projector::load(model, &params(path)).expect("a projector")
}

fn rows(projector: &Projector, picture: &Picture) -> Vec<f32> {
    let stop: foredraft::llama::StopSignal = Arc::new(|| false);
    projector.encode(picture, &stop).expect("rows")
}

fn context(model: &Arc<Model>) -> Context {
    let params = ContextParams { n_ctx: Some(512), n_batch: 64, n_ubatch: 64, ..ContextParams::default() };
    let threads = Arc::new(ThreadPool::new(THREADS).expect("threads"));
    let interrupt = Arc::new(Interrupt::new(Arc::new(PauseGate::default())));
    Context::new(model, &params, &threads, &interrupt).expect("a context")
}

/// The logits after a text, a picture and a text. `step`: the rows in a decode, where they are causal.
fn logits(model: &Arc<Model>, projector: &Projector, picture: &Picture, step: usize) -> Vec<f32> {
    let (mut context, mut batch, mut position) = (context(model), Batch::new(), 0);
    let rows = rows(projector, picture);
    let mut rest = rows.as_slice();
    let mut decode = |batch: &mut Batch| {
        context.decode(batch).expect("a decode");
        batch.clear();
    };
    let before = model.vocab().tokenize(b"Tom saw ", true, false).expect("tokens");
    let after = model.vocab().tokenize(b" and said", false, false).expect("tokens");
    let mut pieces = vec![PicturePiece::Tokens(before)];
    pieces.extend(picture.pieces().iter().cloned());
    pieces.push(PicturePiece::Tokens(after));
    let n_pieces = pieces.len();
    for (at, piece) in pieces.into_iter().enumerate() {
        match piece {
            PicturePiece::Tokens(tokens) => {
                for (index, token) in tokens.iter().enumerate() {
                    batch.push(*token, position + index, 0, at + 1 == n_pieces && index + 1 == tokens.len());
                }
                position += tokens.len();
                if at + 1 < n_pieces {
                    decode(&mut batch);
                }
            }
            PicturePiece::Rows(mut left) => {
                while left > 0 {
                    let n = if projector.is_non_causal() { left } else { left.min(step) };
                    let (own, others) = rest.split_at(n * projector.n_embd());
                    let input = if projector.is_non_causal() { BatchInput::NonCausalRows } else { BatchInput::Rows };
                    batch.push_rows(input, &vec![-1; n], own, position, 0);
                    decode(&mut batch);
                    (position, left, rest) = (position + n, left - n, others);
                }
            }
        }
    }
    assert!(rest.is_empty(), "all rows are decoded");
    let last = batch.len() - 1;
    context.decode(&batch).expect("a decode");
    context.logits(last).expect("logits").to_vec()
}

/// What llama.cpp's mtmd gives for the same.
fn logits_of_mtmd(path: &str, mmproj: &str, pixels: &[u8], n_vocab: usize) -> Vec<f32> {
    let (path, mmproj) = (CString::new(path).expect("no NUL"), CString::new(mmproj).expect("no NUL"));
    let text = "Tom saw <__media__> and said";
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
        let bitmap = sys::mtmd_bitmap_init(WIDTH, HEIGHT, pixels.as_ptr());
        let input = sys::mtmd_input_text {
            text: text.as_ptr().cast(),
            text_len: text.len(),
            add_special: true,
            parse_special: false,
        };
        let chunks = sys::mtmd_input_chunks_init();
        assert_eq!(sys::mtmd_tokenize(projector, chunks, &raw const input, &raw const bitmap as *mut _, 1), 0);
        let mut n_past = 0;
        assert_eq!(sys::mtmd_helper_eval_chunks(projector, context, chunks, 0, 0, 64, true, &raw mut n_past), 0);
        let logits = std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), n_vocab).to_vec();
        sys::mtmd_input_chunks_free(chunks);
        sys::mtmd_bitmap_free(bitmap);
        sys::llama_free(context);
        sys::mtmd_free(projector);
        sys::llama_model_free(model);
        logits
    }
}

#[test]
fn logits_after_a_picture_are_those_of_mtmd() {
    let path = sliding_window();
    let model = load(&path);
    for mmproj in [projectors::gemma3(), projectors::lfm2()] {
        let projector = projector(&model, &mmproj);
        let picture = projector.cut(&bitmap(7)).expect("a picture");
        let expected = logits_of_mtmd(&path, &mmproj, &pixels(7), model.vocab().n_tokens());
        for step in [64, 3] {
            let found = logits(&model, &projector, &picture, step);
            assert!(found.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits()), "{mmproj}, step {step}");
        }
        let other = projector.cut(&bitmap(8)).expect("a picture");
        assert_ne!(logits(&model, &projector, &other, 64), expected, "{mmproj}: the picture is seen");
    }
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
    let error = projector.encode(&picture, &signal).expect_err("it is stopped");
    assert_eq!(error.code().as_str(), "cancelled");
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 2, "before the encode, and within it");
    assert!(!rows(&projector, &picture).is_empty(), "a later encode is whole");
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

/// A BMP file of 24 bits.
fn bmp(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    file.extend((54 + row * height).to_le_bytes());
    file.extend([0; 4]);
    for number in [54, 40, width, height, 1 | 24 << 16, 0, row * height, 0, 0, 0, 0_u32] {
        file.extend(number.to_le_bytes());
    }
    for line in rgb.chunks((width * 3) as usize).rev() {
        line.chunks(3).for_each(|pixel| file.extend([pixel[2], pixel[1], pixel[0]]));
        file.resize(file.len() + (row - width * 3) as usize, 0);
    }
    file
}

#[test]
fn files_of_pictures_are_bounded_before_they_are_read() {
    let rgb = pixels(3);
    let read = Bitmap::from_file(&bmp(WIDTH, HEIGHT, &rgb)).expect("a picture");
    assert_eq!((read.width(), read.height(), read.rgb()), (WIDTH, HEIGHT, rgb.as_slice()));
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
        assert!(Bitmap::from_rgb(width, height, &vec![0; n]).is_err(), "{width} x {height}");
    }
}

#[test]
fn damaged_files_of_pictures_end_as_errors_or_pictures() {
    let file = bmp(WIDTH, HEIGHT, &pixels(3));
    let mut state = 1_u32;
    for _ in 0..3000 {
        let mut damaged = file.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (state >> 8) as usize % 64;
            damaged[at] = state as u8;
        }
        if let Ok(bitmap) = Bitmap::from_file(&damaged) {
            assert_eq!(bitmap.rgb().len(), (bitmap.width() * bitmap.height() * 3) as usize);
        }
    }
}
