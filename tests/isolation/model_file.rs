//! The model file is cut while it is mapped. The engine's process gets a SIGBUS from the missing part, never its host.

use std::fs;
use std::path::{Path, PathBuf};

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::{Endpoint, complete, model, start as start_local, text, with};
use crate::process::{at_next_update, call, drain, pid, poll, start, submit, until_found};
use crate::toolchain::folder;

/// A copy of the target model.
fn copied(name: &str) -> PathBuf {
    let path = folder("isolation").join(name);
    fs::copy(model("target"), &path).expect("target/ is writable");
    path
}

/// Removes the last two thirds of a file.
fn cut(path: &PathBuf) {
    let file = fs::File::options().write(true).open(path).expect("a file");
    file.set_len(file.metadata().expect("a file").len() / 3).expect("an own file");
}

fn request() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 300, "ignore_eos": true, "seed": 5})
}

/// Submits a request, and cuts the file once the request has text. Returns its id.
fn cut_while_running(engine: &JsonEngine, path: &Path, request: &Value) -> u64 {
    let own = path.to_path_buf();
    let is_cut = at_next_update(engine, move || cut(&own));
    let id = submit(engine, request);
    is_cut.recv().expect("an update");
    engine.set_update_hook(None);
    id
}

fn causes(updates: &[Value]) -> Vec<&Value> {
    updates.iter().filter_map(|update| update.get("engine")).map(|event| &event["cause"]).collect()
}

#[test]
fn cut_model_file_ends_the_request_and_not_the_host() {
    let path = copied("cut.gguf");
    let engine = start(json!({"model": path, "n_ctx": 512, "repack": false}));
    let endless = with(&request(), json!({"n_predict": -1}));
    let id = cut_while_running(&engine, &path, &endless);
    let updates = drain(&engine, id);
    assert_eq!(causes(&updates), ["SIGBUS"]);
    let last = updates.last().expect("an end");
    assert_eq!((&last["stop_type"], &last["code"]), (&json!("error"), &json!("model_error")), "{last}");
    // Later calls say why, and at once.
    let status = engine.status();
    assert_eq!((&status["state"], &status["isolation"]["state"]), (&json!("failed"), &json!("failed")), "{status}");
    assert!(
        status["isolation"]["deaths"][0]["cause"].as_str().is_some_and(|cause| cause.contains("SIGBUS")),
        "{status}"
    );
    let refused = engine.call(Function::Complete, Ok(request().to_string().as_bytes()));
    assert!(refused.is_err(), "{refused:?}");
    // The host loads again.
    drop(engine);
    fs::rename(copied("restored.gguf"), &path).expect("an own folder");
    let engine = start(json!({"model": path, "n_ctx": 512, "repack": false}));
    call(&engine, Function::Complete, &json!({"prompt": "Once", "n_predict": 2}));
}

#[test]
fn request_goes_on_when_the_cut_model_file_is_whole_again() {
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, &request())["content"].clone();
    until_found("a request that runs when the file is cut", || {
        let path = copied("restored-in-time.gguf");
        // A rename alone puts it in the place of the cut one, while the next processes fail to load that.
        let whole = copied("restored.gguf");
        let engine = start(json!({"model": path, "n_ctx": 512, "repack": false}));
        let first = pid(&engine);
        let id = cut_while_running(&engine, &path, &request());
        let mut updates = Vec::new();
        while causes(&updates).is_empty() {
            let answer = poll(&engine, id, 60_000);
            updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
            if answer["finished"] == true && causes(&updates).is_empty() {
                return None;
            }
        }
        fs::rename(whole, &path).expect("an own folder");
        updates.extend(drain(&engine, id));
        assert_eq!(causes(&updates), ["SIGBUS"]);
        let stop_type = &updates.last().expect("an end")["stop_type"];
        assert_eq!((json!(text(&updates)), stop_type), (expected.clone(), &json!("limit")));
        assert_ne!(pid(&engine), first);
        Some(())
    });
}

/// In the host's own process, the file must not be mapped.
#[test]
fn model_that_is_not_mapped_does_not_need_its_file() {
    let engine = |path: &PathBuf| start_local(json!({"model": path, "n_ctx": 512, "use_mmap": false}));
    let path = copied("read.gguf");
    let read = engine(&path);
    let expected = complete(&read, Endpoint::Foredraft, &request())["content"].clone();
    cut(&path);
    assert_eq!(complete(&read, Endpoint::Foredraft, &request())["content"], expected);
}
