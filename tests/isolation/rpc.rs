//! RPC servers of an isolated engine: silent ones block nothing, and one that dies takes no completion with it.

use std::time::Duration;

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::{Endpoint, complete, model, start as start_local, text, with};
use crate::process::{at_next_update, drain, start, submit, until_found};
use crate::rpc_server::{Fault, FaultyServer, address, serve};

#[test]
fn completion_survives_the_death_of_one_of_two_servers() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 200, "temperature": 0, "ignore_eos": true});
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, &request)["content"].clone();
    until_found("a request that runs when its server dies", || {
        let there = [address(), address()];
        let [first, _second] = [serve(&there[0]), serve(&there[1])];
        let engine = start(json!({"n_ctx": 512, "rpc": there.join(","), "n_gpu_layers": 99, "fallback": true}));
        let died = at_next_update(&engine, move || drop(first));
        let id = submit(&engine, &request);
        died.recv().expect("an update");
        let updates = drain(&engine, id);
        assert_eq!(json!(text(&updates)), expected);
        assert_eq!(updates.last().expect("an end")["stop_type"], "limit");
        if updates.iter().all(|update| update.get("engine").is_none()) {
            return None;
        }
        let isolation = &engine.status()["isolation"];
        assert!(isolation["n_restarts"].as_u64() >= Some(1), "{isolation}");
        assert!(isolation["deaths"].to_string().contains("is left out now"), "{isolation}");
        Some(())
    });
}

/// Loads with a server that answers the test of it, and nothing afterwards; then unloads, and loads without it.
fn unloads_and_loads_beside_a_silent_server(more: Value) {
    let there = address();
    let _server = serve(&there);
    let silent = FaultyServer::in_front_of(&there);
    let init = with(&json!({"model": model("target"), "log_level": "none", "n_threads": 1}), more);
    let engine = JsonEngine::new();
    // The answers to the test have some 150 bytes.
    silent.set(Fault::Silence, 300);
    let with_server = with(&init, json!({"rpc": silent.address, "n_gpu_layers": 99, "rpc_timeout_ms": 0}));
    engine.load_async(with_server.to_string().as_bytes());
    while silent.passed() < 300 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(engine.status()["state"], "loading", "{}", engine.status());
    engine.unload();
    engine.load(init.to_string().as_bytes()).expect("the next load");
}

#[test]
fn silent_server_blocks_neither_unload_nor_the_next_load() {
    let program = env!("CARGO_BIN_EXE_foredraft-engine");
    unloads_and_loads_beside_a_silent_server(json!({"isolate": true, "isolate_path": program}));
}

#[test]
fn silent_server_does_not_block_an_engine_in_this_process() {
    unloads_and_loads_beside_a_silent_server(json!({}));
}
