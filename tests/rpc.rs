//! Remote devices through ggml's RPC servers: present, missing, silent, slow, and disappearing.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod common;
#[path = "common/rpc_server.rs"]
mod rpc_server;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::Endpoint::{Foredraft, Plain};
use common::{complete, drain, start, submit, text};
use foredraft::api::JsonEngine;
use rpc_server::{Fault, FaultyServer, address, serve};
use serde_json::{Value, json};

fn content(answer: &Value) -> String {
    answer["content"].as_str().expect("a text").to_owned()
}

fn refused(engine: &JsonEngine, init: &Value) -> String {
    let error = engine.load(init.to_string().as_bytes()).expect_err("no server answers");
    error.message().to_owned()
}

#[test]
fn rpc_servers_may_be_silent_slow_or_disappear() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 48, "temperature": 0});
    let expected = content(&complete(&start(json!({})), Plain, &request));

    // No server, a server that never answers, and one that closes the connection after its first message.
    let base = json!({"model": common::model("target"), "n_threads": 1, "log_level": "none"});
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at_silent, at_closing) = (silent.local_addr().expect("bound"), closing.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for mut stream in closing.incoming().flatten() {
            let mut hello = [0; 33];
            let _ = stream.read_exact(&mut hello);
            let _ = stream.write_all(&[&28_u64.to_le_bytes()[..], &[7, 0], &[0; 26]].concat());
        }
    });
    // And a server that never finishes an answer.
    let slow = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_slow = slow.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut stream in slow.incoming().flatten() {
            let _ = stream.write_all(&28_u64.to_le_bytes());
            while stream.write_all(&[0]).is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    });
    for there in [address(), at_silent.to_string(), at_closing.to_string(), at_slow.to_string()] {
        let error = refused(&JsonEngine::new(), &common::with(&base, json!({"rpc": there})));
        assert!(error.starts_with("rpc: the server at ") && error.contains("does not respond"), "{error}");
    }
    drop(silent);
    // Servers with other versions of the protocol: also an older one, whose greeting is shorter.
    for (hello, version) in [(vec![4_u8; 28], "4.4.4"), (vec![3, 6, 1], "3.6.1")] {
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = other.local_addr().expect("bound").to_string();
        std::thread::spawn(move || {
            for mut stream in other.incoming().flatten() {
                let _ = stream.write_all(&[&(hello.len() as u64).to_le_bytes()[..], &hello].concat());
            }
        });
        let error = refused(&JsonEngine::new(), &common::with(&base, json!({"rpc": there})));
        let expected = format!(
            "rpc: the server at {there:?} is refused: its protocol has the version {version}, and this library's "
        );
        let ours = error.strip_prefix(&expected).unwrap_or_else(|| panic!("{error}"));
        let numbers: Result<Vec<u8>, _> = ours.split('.').map(str::parse).collect();
        assert!(numbers.is_ok_and(|numbers| numbers.len() == 3), "{error}");
    }

    let there = address();
    let server = serve(&there);
    for _ in 0..2 {
        let engine = start(json!({"rpc": there, "n_gpu_layers": 99}));
        let devices = engine.status()["devices"].as_array().expect("devices").clone();
        // Servers of other tests stay registered.
        let remote = devices.iter().find(|device| device["description"] == *there);
        assert!(remote.is_some_and(|device| device["memory_total"].as_u64() > Some(0)), "{devices:?}");
        assert!(remote.is_some_and(|device| device["name"].as_str().is_some_and(|name| name.starts_with("RPC"))));
        assert_eq!(content(&complete(&engine, Plain, &request)), expected);
        let answer = complete(&engine, Foredraft, &request);
        assert_eq!(content(&answer), expected);
        assert!(answer["speculative"]["n_steps"].as_u64() > Some(0), "{answer}");
        let id = submit(&engine, Plain, &request);
        assert_eq!(text(&drain(&engine, Plain, id)), expected);
        engine.unload();
    }
    drop(server);

    // The server is gone: an init that names it fails, and one that does not name it succeeds.
    let error = refused(&JsonEngine::new(), &common::with(&base, json!({"rpc": there})));
    assert!(error.starts_with("rpc: the server at ") && error.contains("does not respond"), "{error}");
    for more in [json!({}), json!({"devices": "none"}), json!({"devices": ["CPU"]})] {
        let engine = start(more.clone());
        assert_eq!(content(&complete(&engine, Plain, &request)), expected, "{more}");
    }
}

/// Loads with this server and completes. Returns the error, of whichever fails, or the text.
fn attempt(engine: &JsonEngine, init: &Value, request: &Value) -> Result<String, String> {
    engine.load(init.to_string().as_bytes()).map_err(|error| error.message().to_owned())?;
    let id = submit(engine, Plain, request);
    let updates = drain(engine, Plain, id);
    let last = updates.last().expect("an end");
    match last["stop_type"].as_str() {
        Some("error") => Err(last["error"].as_str().expect("a reason").to_owned()),
        _ => Ok(text(&updates)),
    }
}

/// A server that fails while a model is loaded or a request runs: an error, after which all works again.
#[test]
fn lost_server_is_an_error_at_any_moment() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0});
    let init = json!({"model": common::model("target"), "model_draft": common::model("draft"), "log_level": "none",
        "n_threads": 1, "n_gpu_layers": 99, "n_gpu_layers_draft": 99});
    let engine = JsonEngine::new();
    let expected = attempt(&engine, &init, &request).expect("it works without a server");
    engine.unload();

    let there = address();
    let _server = serve(&there);
    let faulty = FaultyServer::in_front_of(&there);
    let init = common::with(&init, json!({"rpc": faulty.address, "rpc_timeout_ms": 1000}));
    assert_eq!(attempt(&engine, &init, &request), Ok(expected.clone()));
    engine.unload();
    let before = faulty.passed();
    assert_eq!(attempt(&engine, &init, &request), Ok(expected.clone()));
    engine.unload();
    let total = faulty.passed() - before;

    for (fault, n_points) in [(Fault::Cut, 18), (Fault::Silence, 4), (Fault::Garble, 8)] {
        for point in 0..n_points {
            // How many bytes pass depends on measured times. A run that ends before its fault has one in its first half next.
            let mut left = total * point / n_points + point % 3;
            loop {
                faulty.set(fault, left);
                let answer = attempt(&engine, &init, &request);
                let is_reached = faulty.is_reached();
                let named = |error: &String| error.contains(&format!("rpc: the server at {:?}", faulty.address));
                match (&answer, fault) {
                    (Ok(text), _) if !is_reached => assert_eq!(*text, expected, "{fault:?} at {point}"),
                    // Garbled logits are a text, too.
                    (Ok(_), Fault::Garble) => {}
                    _ => assert!(answer.as_ref().is_err_and(named), "{fault:?} at {point}: {answer:?}"),
                }
                // The engine stays usable, and with the server it works again.
                faulty.set(Fault::None, 0);
                engine.unload();
                if is_reached {
                    break;
                }
                left /= 2;
                assert!(left > 0, "{fault:?} at {point} never happened");
            }
            if point % 4 == 1 {
                assert_eq!(attempt(&engine, &init, &request), Ok(expected.clone()), "{fault:?} at {point}");
            }
        }
    }
}

/// Every later request fails at once, and loading again helps.
#[test]
fn engine_without_its_server_fails_until_it_is_loaded_again() {
    let there = address();
    let server = serve(&there);
    let engine = start(json!({"rpc": there, "n_gpu_layers": 99, "log_level": "none"}));
    let id = submit(&engine, Plain, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    drop(server);
    let updates = drain(&engine, Plain, id);
    let last = updates.last().expect("an end");
    assert_eq!((&last["stop_type"], &last["code"]), (&json!("error"), &json!("model_error")), "{last}");
    assert!(last["error"].as_str().is_some_and(|error| error.contains(&there)), "{last}");
    let _server = serve(&there);
    let id = submit(&engine, Plain, &json!({"prompt": "Once", "n_predict": 2}));
    assert_eq!(drain(&engine, Plain, id).last().expect("an end")["code"], "model_error");
    engine.unload();
    let engine = start(json!({"rpc": there, "n_gpu_layers": 99}));
    complete(&engine, Plain, &json!({"prompt": "Once", "n_predict": 2}));
}
