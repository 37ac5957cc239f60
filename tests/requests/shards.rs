//! Models split into several files by llama-gguf-split.

use std::ffi::{CStr, CString};
#[cfg(unix)]
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, model, start, with};
use foredraft::api::JsonEngine;
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

/// The type to write for the last tensor.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    AsItIs,
    Integers,
}

/// Splits the shipped target into two files in a folder `name` and returns the first.
fn split(name: &str, last: Last) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("shards").join(name);
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    let path = |n: usize| folder.join(format!("target-0000{n}-of-00002.gguf"));
    let c_path = |path: &Path| CString::new(path.to_str().expect("a path")).expect("no NUL");
    let whole = c_path(Path::new(&model("target")));
    // SAFETY: all strings are NUL-terminated, the tensors belong to `tensors`, which outlives every use, and each is freed once.
    unsafe {
        let mut tensors = std::ptr::null_mut();
        let file =
            sys::gguf_init_from_file(whole.as_ptr(), sys::gguf_init_params { no_alloc: false, ctx: &raw mut tensors });
        assert!(!file.is_null());
        let n = sys::gguf_get_n_tensors(file);
        for (part, range) in [(0_u16, 0..n / 2), (1, n / 2..n)] {
            let shard = sys::gguf_init_empty();
            if part == 0 {
                sys::gguf_set_kv(shard, file);
            }
            sys::gguf_set_val_u16(shard, c"split.no".as_ptr(), part);
            sys::gguf_set_val_u16(shard, c"split.count".as_ptr(), 2);
            sys::gguf_set_val_i32(shard, c"split.tensors.count".as_ptr(), i32::try_from(n).expect("few"));
            for tensor in range {
                let name = sys::gguf_get_tensor_name(file, tensor);
                sys::gguf_add_tensor(shard, sys::ggml_get_tensor(tensors, name));
                // A type of the same size.
                if last == Last::Integers && CStr::from_ptr(name) == c"output_norm.weight" {
                    sys::gguf_set_tensor_type(shard, name, sys::GGML_TYPE_I32);
                }
            }
            assert!(sys::gguf_write_to_file(shard, c_path(&path(usize::from(part) + 1)).as_ptr(), false));
            sys::gguf_free(shard);
        }
        sys::gguf_free(file);
        sys::ggml_free(tensors);
    }
    path(1)
}

fn second(first: &Path) -> PathBuf {
    first.with_file_name("target-00002-of-00002.gguf")
}

fn request() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "cache_prompt": true})
}

fn refused(model: &Path) -> String {
    refused_source(&json!(model))
}

fn refused_source(model: &Value) -> String {
    let init = json!({"model": model, "n_threads": 1, "log_level": "none"}).to_string();
    JsonEngine::new().load(init.as_bytes()).expect_err("it cannot be loaded").message().to_owned()
}

#[test]
fn first_shard_loads_the_whole_model() {
    let first = split("whole", Last::AsItIs);
    let of = |model: &Value| start(with(&json!({"n_ctx": 256}), json!({"model": model})));
    let (one, several) = (of(&json!(model("target"))), of(&json!(first)));
    assert_eq!(complete(&several, Plain, &request())["content"], complete(&one, Plain, &request())["content"]);

    // A session depends on the weights of both files.
    let session = first.with_file_name("a.session");
    let command = json!({"id_slot": 0, "filename": session}).to_string();
    several.with_loaded(|loaded| loaded.session_save(command.as_bytes())).expect("saved");
    drop(several);
    let load = || of(&json!(first)).with_loaded(|loaded| loaded.session_load(command.as_bytes()));
    load().expect("a session of the same model");
    let mut bytes = std::fs::read(second(&first)).expect("the file exists");
    let half = bytes.len() / 2;
    bytes[half..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(second(&first), bytes).expect("target/ is writable");
    let other = load().expect_err("of another model");
    assert!(other.message().contains("weights"), "{other}");
}

/// The first file is read with the tensors of all.
#[test]
fn draft_in_several_files_gets_smaller_weights() {
    let first = split("draft", Last::AsItIs);
    let of = |draft: &Value| {
        start(json!({"model_draft": draft, "draft_weights": "q4_0", "repack": false, "warmup": false, "n_ctx": 256}))
    };
    let (one, several) = (of(&json!(model("target"))), of(&json!(first)));
    let draft = |engine: &JsonEngine| engine.status()["draft"].clone();
    assert_eq!(draft(&several), draft(&one));
    assert_eq!(draft(&several)["weights"] == "q4_0", cfg!(all(target_os = "linux", target_env = "gnu")));
    let request = with(&request(), json!({"speculative": {"model": "draft"}, "return_tokens": true}));
    let tokens = |engine: &JsonEngine| complete(engine, Foredraft, &request)["tokens"].clone();
    assert_eq!(tokens(&several), tokens(&one));
    std::fs::remove_file(second(&first)).expect("the file exists");
    let init = json!({"model": model("target"), "model_draft": first, "draft_weights": "q4_0", "log_level": "none"});
    let error = JsonEngine::new().load(init.to_string().as_bytes()).expect_err("a file is absent");
    assert!(error.message().contains("00002-of-00002"), "{error}");
}

#[test]
fn every_shard_is_validated() {
    let first = split("integers", Last::Integers);
    let error = refused(&first);
    assert!(error.contains("00002-of-00002") && error.contains("matrix multiplication does not support"), "{error}");
    #[cfg(unix)]
    {
        // Names of the other files come from a path.
        let file = std::fs::File::open(&first).expect("the file exists");
        let error = refused_source(&json!({"fd": file.as_raw_fd()}));
        assert!(error.contains("is one of several files"), "{error}");
    }
    std::fs::write(second(&first), b"nothing").expect("target/ is writable");
    let error = refused(&first);
    assert!(error.contains("00002-of-00002") && error.contains("is not a GGUF file"), "{error}");
    std::fs::remove_file(second(&first)).expect("the file exists");
    let error = refused(&first);
    assert!(error.contains("00002-of-00002"), "{error}");
}
