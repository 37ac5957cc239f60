//! A host that exits while several engines work.

use std::process::Command;

use serde_json::json;

use crate::library::{Engine, LIBRARY, config, endless, exclusive, with_draft};

/// How the child exits; nothing else does so.
const EXITED: i32 = 42;

#[test]
fn a_host_may_exit_while_several_engines_work() {
    for _ in 0..3 {
        let child = Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", "exit::exit_while_engines_work", "--include-ignored", "--nocapture"])
            // glibc then overwrites freed memory, so that a late read of it shows.
            .env("MALLOC_PERTURB_", "165")
            .output()
            .expect("a test can be started");
        assert_eq!(child.status.code(), Some(EXITED), "{}: {}", child.status, String::from_utf8_lossy(&child.stderr));
    }
}

#[test]
#[ignore = "run by a_host_may_exit_while_several_engines_work"]
fn exit_while_engines_work() {
    let _exclusive = exclusive();
    let engines = [Engine::loaded("target", with_draft()), Engine::loaded("draft", json!({"n_parallel": 2}))];
    for engine in &engines {
        engine.submit(&endless());
    }
    for engine in &engines {
        engine.wait_until_generating();
    }
    assert_eq!(LIBRARY.load(std::ptr::null_mut(), &config("draft", json!({}))), 0);
    let loading = Engine::new();
    LIBRARY.load_async(loading.handle, &config("target", json!({})));
    std::process::exit(EXITED);
}
