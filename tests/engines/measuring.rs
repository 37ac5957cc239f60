//! After a load the engine measures what decodes cost while it has nothing else to do, and gives way to its host.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::library::{Engine, exclusive, with_draft};
use crate::pauses::{assert_asleep, complete, cpu_time, ends_soon, story};

/// The load has no time to measure what the engine measures later: decodes come in intervals of 40 ms.
fn slowly() -> Value {
    json!({"frame_budget": {"busy_ms": 2, "per_ms": 40}})
}

/// The CPU time of all threads but this one so far.
fn time_of_others() -> Duration {
    let mut own = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `own` is writable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut own) }, 0);
    let own = Duration::new(own.tv_sec.unsigned_abs(), u32::try_from(own.tv_nsec).expect("below a second"));
    cpu_time().saturating_sub(own)
}

/// Waits until the engine has used more time.
fn assert_works(what: &str) {
    let (begin, before) = (Instant::now(), time_of_others());
    while time_of_others().saturating_sub(before) < Duration::from_millis(1) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_engine_measures_unless_it_is_paused() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", slowly());
    assert_works("it measures what the load left");
    engine.pause();
    assert_asleep("a paused engine");
    engine.resume();
    assert_works("it goes on after the pause");
    assert_eq!(engine.status()["slots"][0]["n_past"], 0);
    ends_soon("an unload", || drop(engine));
}

#[test]
fn requests_and_sessions_that_interrupt_the_measurements_have_the_same_results() {
    let _guard = exclusive();
    let without = json!({"warmup": false});
    let path = std::env::temp_dir().join(format!("foredraft-measuring-{}.session", std::process::id()));
    let session = json!({"id_slot": 0, "filename": path});
    let mut request = story(1);
    request["id_slot"] = json!(0);
    for more in [json!({}), json!({"n_parallel": 16, "n_ctx": 4096}), with_draft()] {
        let settings = |others: &Value| {
            let mut settings = more.clone();
            settings.as_object_mut().expect("an object").extend(others.as_object().expect("an object").clone());
            settings
        };
        let engine = Engine::loaded("target", settings(&without));
        let expected = complete(&engine, &request);
        assert_eq!(engine.call("session_save", &session)["success"], true);
        for pause in [0, 2, 15] {
            let engine = Engine::loaded("target", settings(&json!({})));
            std::thread::sleep(Duration::from_millis(pause));
            assert_eq!(complete(&engine, &request), expected);
            let engine = Engine::loaded("target", settings(&json!({})));
            std::thread::sleep(Duration::from_millis(pause));
            let loaded = engine.call("session_load", &session);
            assert_eq!(loaded["success"], true, "{loaded}");
            assert!(engine.status()["slots"][0]["n_past"].as_u64() > Some(40), "{}", engine.status());
            let again = complete(&engine, &request);
            assert_eq!(again.0, expected.0);
        }
    }
    std::fs::remove_file(path).expect("it was saved");
}
