//! The host's process: exiting at any time, logging to stderr, forking, small stacks.

use std::ffi::c_void;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::c_api::{
    assert_works, call, command, error_of, exclusive, load, load_async, loaded, set_log_callback, set_update_callback,
    status, submit, unload, wait_for_state, wait_until,
};

/// The child's exit status, which no failure produces.
const EXITED: i32 = 42;

/// Runs one of the ignored tests below in a child process.
fn run_child(name: &str, how: &str) -> Output {
    Command::new(std::env::current_exe().expect("the test binary has a path"))
        .args(["--exact", &format!("process::{name}"), "--include-ignored", "--nocapture"])
        .env("FOREDRAFT_HOSTILE_PROCESS", how)
        // Freed memory is overwritten, so that a read after free fails.
        .env("MALLOC_PERTURB_", "165")
        .output()
        .expect("the child starts")
}

#[test]
fn host_can_exit_at_any_time() {
    let after = (0..8).map(|n| format!("{} ms after it begins to load", n * n * 5));
    let others = ["while it generates", "while it loads again", "when it is idle", "after unload", "inside a callback"];
    let others = others.map(str::to_owned);
    for how in others.into_iter().chain(after) {
        let child = run_child("child_exits_while_the_library_is_busy", &how);
        assert_eq!(
            child.status.code(),
            Some(EXITED),
            "{how}: {}: {}",
            child.status,
            String::from_utf8_lossy(&child.stderr)
        );
    }
}

#[test]
#[ignore = "run by host_can_exit_at_any_time"]
fn child_exits_while_the_library_is_busy() {
    extern "C" fn linger() {
        std::thread::sleep(Duration::from_millis(700));
    }
    // Registered first, so it runs last, like the destructors of the host's globals.
    // SAFETY: `linger` is a function of this program.
    assert_eq!(unsafe { libc::atexit(linger) }, 0);
    let how = std::env::var("FOREDRAFT_HOSTILE_PROCESS").expect("set by the parent");
    let _guard = exclusive();
    let command = command(json!({"n_threads": 2})).to_string();
    assert_eq!(load(Some(b"-m /nowhere.gguf")), 1, "a failed load changes nothing");
    if let Some((ms, _)) = how.split_once(" ms ") {
        load_async(Some(command.as_bytes()));
        std::thread::sleep(Duration::from_millis(ms.parse().expect("a number")));
        std::process::exit(EXITED);
    }
    assert_eq!(load(Some(command.as_bytes())), 0, "{}", status());
    match how.as_str() {
        "while it generates" => {
            let endless =
                json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "speculative": {"type": "auto"}});
            let id = submit(&endless);
            wait_for_state(id, "generating");
        }
        "while it loads again" => load_async(Some(command.as_bytes())),
        "after unload" => unload(),
        "inside a callback" => {
            static ENTERED: AtomicBool = AtomicBool::new(false);
            // Acts as a callback that waits for the thread that exits.
            extern "C" fn stay(_id: u64, _user: *mut c_void) {
                ENTERED.store(true, Ordering::SeqCst);
                loop {
                    std::thread::park();
                }
            }
            set_update_callback(Some(stay), 0);
            submit(&json!({"prompt": "Once", "n_predict": 9}));
            wait_until("the callback", || ENTERED.load(Ordering::SeqCst));
        }
        _ => assert_works(),
    }
    std::process::exit(EXITED);
}

#[test]
fn log_goes_to_stderr_without_a_callback() {
    let child = run_child("child_logs_a_failed_load", "");
    let [out, err] = [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(child.status.success(), "{out}{err}");
    assert!(err.contains("/nowhere.gguf") && !out.contains("/nowhere.gguf"), "{out}{err}");
}

#[test]
#[ignore = "run by log_goes_to_stderr_without_a_callback"]
fn child_logs_a_failed_load() {
    let _guard = exclusive();
    set_log_callback(None, 0);
    assert_eq!(load(Some(br#"{"model": "/nowhere.gguf", "log_level": "info"}"#)), 1);
}

#[test]
fn forked_child_has_no_model() {
    let _guard = loaded(json!({}));
    assert_works();
    // SAFETY: this test is about the child's calls; the child ends by `_exit` or its alarm.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let checked = std::panic::catch_unwind(|| {
            // SAFETY: no handler is set, so the alarm kills a child that hangs.
            unsafe { libc::alarm(600) };
            for name in ["complete", "submit", "tokenize"] {
                let (code, error) = error_of(name, &json!({"prompt": "a", "text": "a"}));
                assert!(code == "not_initialized" && error.contains("forked"), "{name}: {error}");
            }
            assert_eq!(status()["state"], "failed");
            assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 8);
            unload();
        });
        // SAFETY: ends the child without running its parent's exit handlers.
        unsafe { libc::_exit(i32::from(checked.is_err())) };
    }
    let mut ended = 0;
    // SAFETY: waits for the child created above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0, "the child's exit status");
    assert_works();
}

/// The default stack size of musl threads, and of koffi's worker threads for Node.
const SMALL_STACK: usize = 128 << 10;

/// The host's threads need no large stacks, neither for loading models nor for any request.
#[test]
fn functions_work_on_a_small_stack() {
    let child = run_child("child_calls_every_function_on_a_small_stack", "");
    let [out, err] = [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(child.status.success(), "{}: {out}{err}", child.status);
}

#[test]
#[ignore = "run by functions_work_on_a_small_stack"]
fn child_calls_every_function_on_a_small_stack() {
    fn on_small_stack<R: Send>(what: &str, call: impl FnOnce() -> R + Send) -> R {
        println!("{what}");
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(SMALL_STACK).spawn_scoped(scope, call);
            thread.expect("a thread").join().expect("no panic")
        })
    }
    let _guard = exclusive();
    let folder = std::env::temp_dir().join(format!("foredraft-stack-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let config = command(json!({"n_threads": 2, "embedding": true}));
    assert_eq!(on_small_stack("load", || load(Some(config.to_string().as_bytes()))), 0, "{}", status());
    let messages = json!([{"role": "user", "content": "Repeat after me: Mia has a kite."}]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "b", null]}}}, "required": ["a"]});
    let drafts = json!({"verify": "rejection", "n_branches": 3, "adaptive": false});
    for (name, request) in [
        ("tokenize", json!({"content": "Mia has a kite. ".repeat(400)})),
        ("detokenize", json!({"tokens": [300, 301, 302]})),
        ("apply_template", json!({"messages": messages})),
        ("embed", json!({"content": "Mia has a kite."})),
        ("complete", json!({"messages": messages, "n_predict": 8, "n_probs": 2})),
        (
            "complete",
            json!({"prompt": "Tom", "n_predict": 8, "grammar": "root ::= ([a-z]+ \" \")+ (\"x\" | \"y\"){0,9}"}),
        ),
        ("complete", json!({"prompt": "Tom", "n_predict": 8, "json_schema": schema})),
        ("complete", json!({"prompt": "Tom", "n_predict": 8, "n_beams": 3})),
        ("complete", json!({"prompt": "Tom", "n_predict": 8, "speculative": drafts, "session_save": path("session")})),
        ("session_save", json!({"id_slot": 0, "filename": path("session")})),
        ("session_load", json!({"id_slot": 0, "filename": path("session")})),
        ("lookup_create", json!({"text": "Mia has a kite. ".repeat(400), "output": path("cache")})),
        ("lookup_merge", json!({"inputs": [path("cache"), path("cache")], "output": path("merged")})),
        ("lookup_stats", json!({"text": "Mia has a kite. ".repeat(40), "lookup_cache_static": path("merged")})),
        ("lookup_cache", json!({"action": "load", "cache": "static", "filename": path("merged")})),
    ] {
        let answer = on_small_stack(name, || call(name, &request));
        assert_eq!(answer["success"], true, "{name} {request}: {answer}");
    }
    let id = on_small_stack("submit", || submit(&json!({"prompt": "Tom", "n_predict": 8})));
    for (name, request) in [("poll", json!({"id": id, "timeout_ms": 10_000})), ("cancel", json!({"id": id}))] {
        let answer = on_small_stack(name, || call(name, &request));
        assert_eq!(answer["success"], true, "{name} {request}: {answer}");
    }
    on_small_stack("status", status);
    on_small_stack("unload", unload);
    let flags = "-m no/such.gguf -c 512";
    assert_eq!(on_small_stack("load with flags", || load(Some(flags.as_bytes()))), 1);
    std::fs::remove_dir_all(folder).expect("the folder");
}
