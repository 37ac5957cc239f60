//! Handles: made, freed, foreign and NULL, from one thread and from many.

use std::ffi::c_void;
use std::thread;

use serde_json::{Value, json};

use crate::contract::ENGINE_FUNCTIONS;
use crate::library::{Engine, Handle, INVALID_ENGINE, LIBRARY, Library, config, endless, turn};

/// Every function that takes an engine refuses this handle, and does nothing else.
fn is_refused_everywhere(library: &Library, handle: Handle) {
    let check = |name: &str, answer: &Value| {
        assert_eq!(answer["code"], "invalid_engine", "{name}: {answer}");
        assert_eq!((&answer["success"], &answer["status"]), (&json!(false), &json!(400)), "{name}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.starts_with("engine: ")), "{name}: {answer}");
    };
    for name in ENGINE_FUNCTIONS {
        let name = name.strip_prefix("foredraft_").expect("the prefix");
        for document in [None, Some("{}"), Some("not JSON"), Some(r#"{"prompt": "a", "text": "a", "id": 1}"#)] {
            check(name, &library.call_text(handle, name, document));
        }
    }
    check("status", &library.status(handle));
    assert_eq!(library.load(handle, &config("draft", json!({}))), INVALID_ENGINE);
    library.load_async(handle, &config("draft", json!({})));
    library.unload(handle);
    library.set_update_callback(handle, None, 0);
    library.free_handle(handle);
    check("status", &library.status(handle));
}

#[test]
fn freed_and_foreign_handles_are_refused_by_every_function() {
    let _turn = turn();
    let freed = Engine::loaded("draft", json!({}));
    let handle = freed.handle;
    drop(freed);
    is_refused_everywhere(&LIBRARY, handle);
    // What a host could mistake for an engine: its own memory, small numbers, the largest one, neighbours of a real handle.
    let (mut local, boxed) = (0_u64, Box::new([0_u64; 64]));
    let engine = Engine::new();
    for foreign in [
        (&raw mut local).cast::<c_void>(),
        boxed.as_ptr().cast_mut().cast(),
        1 as Handle,
        8 as Handle,
        0x1000 as Handle,
        usize::MAX as Handle,
        (engine.handle as usize + 1) as Handle,
        (engine.handle as usize + (1 << 32)) as Handle,
        (engine.handle as usize & 0xFFFF_FFFF) as Handle,
    ] {
        is_refused_everywhere(&LIBRARY, foreign);
    }
    assert_eq!(engine.status()["state"], "uninitialized", "the real one is as it was");
}

#[test]
fn handles_are_never_given_out_twice() {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let handle = LIBRARY.new_handle();
        assert!(seen.insert(handle as usize), "{handle:?} was given out before");
        assert!((handle as usize) < 1 << 53, "a double holds it");
        LIBRARY.free_handle(handle);
    }
}

/// NULL is the default engine, which the old names use; freeing it does nothing.
#[test]
#[cfg(feature = "rpcserver")]
fn null_is_the_default_engine() {
    use std::ffi::{CStr, CString, c_char};
    use std::ptr::null_mut;

    let _turn = turn();
    type Old = extern "C" fn(*const c_char) -> *const c_char;
    let status = || {
        let answer = LIBRARY.function::<extern "C" fn() -> *mut c_char>("poll_system_status")();
        // SAFETY: a NUL-terminated text of the library.
        let value: Value = serde_json::from_slice(unsafe { CStr::from_ptr(answer) }.to_bytes()).expect("JSON");
        LIBRARY.function::<extern "C" fn(*mut c_char)>("foredraft_string_free")(answer);
        value
    };
    assert_eq!(LIBRARY.load(null_mut(), &config("draft", json!({"model_alias": "the default one"}))), 0);
    assert_eq!(status()["model_alias"], "the default one");
    assert_eq!(LIBRARY.status(null_mut()), status());
    LIBRARY.free_handle(null_mut());
    assert_eq!(status()["state"], "ready");
    let request = json!({"prompt": "Tom", "n_predict": 5, "temperature": 0});
    let text = CString::new(request.to_string()).expect("no NUL");
    let old = LIBRARY.function::<Old>("get_completion")(text.as_ptr());
    // SAFETY: as above.
    let old: Value = serde_json::from_slice(unsafe { CStr::from_ptr(old) }.to_bytes()).expect("JSON");
    assert_eq!(LIBRARY.call(null_mut(), "complete", &request)["content"], old["content"]);
    LIBRARY.function::<extern "C" fn()>("deinit")();
    assert_eq!(LIBRARY.status(null_mut())["state"], "uninitialized");
}

#[test]
fn engines_made_and_freed_from_many_threads() {
    let _turn = turn();
    thread::scope(|scope| {
        for n in 0..8 {
            scope.spawn(move || {
                for round in 0..20 {
                    let engine = Engine::new();
                    match (n + round) % 4 {
                        0 => LIBRARY.load_async(engine.handle, &config("draft", json!({"warmup": false}))),
                        1 => {
                            engine.load("draft", json!({"warmup": false}));
                            engine.submit(&endless());
                        }
                        2 => assert_eq!(LIBRARY.load(engine.handle, &json!({"model": "/nowhere.gguf"})), 1),
                        _ => {
                            assert_eq!(engine.call("tokenize", &json!({"text": "a"}))["code"], "not_initialized");
                        }
                    }
                    let handle = engine.handle;
                    drop(engine);
                    assert_eq!(LIBRARY.status(handle)["code"], "invalid_engine");
                }
            });
        }
    });
}

/// Frees while others call: each call is answered, by the engine or with an error.
#[test]
fn an_engine_freed_while_others_use_it() {
    let _turn = turn();
    for _ in 0..5 {
        let engine = Engine::loaded("draft", json!({"n_parallel": 2, "warmup": false}));
        let handle = engine.handle as usize;
        thread::scope(|scope| {
            let asking: Vec<_> =
                (0..4).map(|_| scope.spawn(move || LIBRARY.call(handle as Handle, "complete", &endless()))).collect();
            while engine.status()["slots"][0]["state"] != "generating" {
                thread::yield_now();
            }
            drop(engine);
            for answer in asking {
                let answer = answer.join().expect("an answer");
                let ended = answer["stop_type"] == "cancelled";
                let refused =
                    ["invalid_engine", "not_initialized", "cancelled"].contains(&answer["code"].as_str().unwrap_or(""));
                assert!(ended || refused, "{answer}");
            }
        });
    }
}

/// Bytes that are allocated and not freed, of Rust and C++ alike.
fn allocated() -> usize {
    // SAFETY: it only counts.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[test]
fn a_thousand_engines_leave_no_memory_behind() {
    let _turn = turn();
    let round = |n: usize| {
        let engine = Engine::new();
        if n % 50 == 0 {
            engine.load("draft", json!({"warmup": false}));
            assert_eq!(engine.call("complete", &json!({"prompt": "Tom", "n_predict": 2}))["success"], true);
        }
        engine.status();
    };
    (0..200).for_each(round);
    let before = allocated();
    (0..1000).for_each(round);
    let grown = allocated().saturating_sub(before) / 1000;
    eprintln!("{grown} bytes more an engine");
    assert!(grown < 64, "{grown} bytes more an engine");
}
