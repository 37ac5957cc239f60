//! Engine handles: valid, freed, invalid and NULL, used from one thread and from many.

use std::ffi::c_void;
use std::thread;

use serde_json::{Value, json};

use crate::c_functions::ENGINE_FUNCTIONS;
use crate::library::{Engine, Handle, INVALID_ENGINE, LIBRARY, Library, config, endless, exclusive};

/// Asserts that every function that takes an engine refuses this handle.
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
fn every_function_refuses_freed_and_invalid_handles() {
    let _guard = exclusive();
    let freed = Engine::loaded("draft", json!({}));
    let handle = freed.handle;
    drop(freed);
    is_refused_everywhere(&LIBRARY, handle);
    // Values that a host could pass by mistake: its own memory, small numbers, the largest one, neighbours of a real handle.
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
    assert_eq!(engine.status()["state"], "uninitialized", "the real engine is unchanged");
}

#[test]
fn handles_are_never_reused() {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let handle = LIBRARY.new_handle();
        assert!(seen.insert(handle as usize), "{handle:?} was used before");
        assert!((handle as usize) < 1 << 53, "a double must represent it exactly");
        LIBRARY.free_handle(handle);
    }
}

/// NULL means the default engine, which the old server's functions use; freeing it does nothing.
#[test]
#[cfg(feature = "rpcserver")]
fn null_means_the_default_engine() {
    use std::ffi::{CStr, CString, c_char};
    use std::ptr::null_mut;

    let _guard = exclusive();
    type Old = extern "C" fn(*const c_char) -> *const c_char;
    let status = || {
        let answer = LIBRARY.function::<extern "C" fn() -> *mut c_char>("poll_system_status")();
        // SAFETY: a NUL-terminated string from the library.
        let value: Value = serde_json::from_slice(unsafe { CStr::from_ptr(answer) }.to_bytes()).expect("JSON");
        LIBRARY.function::<extern "C" fn(*mut c_char)>("foredraft_string_free")(answer);
        value
    };
    assert_eq!(LIBRARY.load(null_mut(), &config("draft", json!({"model_alias": "the default one"}))), 0);
    assert_eq!(status()["model_alias"], "the default one");
    // Until then the number of bytes falls between two calls.
    while status()["pending_panel_bytes"] != 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
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
fn engines_can_be_created_and_freed_from_many_threads() {
    let _guard = exclusive();
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

/// Every call that runs while the engine is freed returns a result or an error.
#[test]
fn freeing_an_engine_in_use_ends_its_calls_cleanly() {
    let _guard = exclusive();
    for _ in 0..5 {
        let engine = Engine::loaded("draft", json!({"n_parallel": 2, "warmup": false}));
        let handle = engine.handle as usize;
        thread::scope(|scope| {
            let asking: Vec<_> =
                (0..4).map(|_| scope.spawn(move || LIBRARY.call(handle as Handle, "complete", &endless()))).collect();
            engine.wait_until_generating();
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

/// Bytes allocated by Rust and C++ and not freed.
#[cfg(target_os = "linux")]
fn allocated() -> usize {
    // SAFETY: `mallinfo2` only reads counters.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[test]
#[cfg(target_os = "linux")]
fn creating_and_freeing_engines_leaks_no_memory() {
    let _guard = exclusive();
    let round = |n: usize| {
        let engine = Engine::new();
        if n.is_multiple_of(50) {
            engine.load("draft", json!({"warmup": false}));
            assert_eq!(engine.call("complete", &json!({"prompt": "Tom", "n_predict": 2}))["success"], true);
        }
        engine.status();
    };
    // The first loads fill the allocator's caches.
    (0..1000).for_each(round);
    let before = allocated();
    // With so many engines, the caches of threads, which change by some KiB, do not count.
    const ENGINES: usize = 4000;
    (0..ENGINES).for_each(round);
    let grown = allocated().saturating_sub(before) / ENGINES;
    eprintln!("{grown} bytes more an engine");
    assert!(grown < 64, "{grown} bytes more an engine");
}
