//! Pauses reach the engine's process.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{start as start_local, text};
use crate::process::{drain, is_alive, kill, pid, poll, start, submit};

fn story() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 200, "seed": 5, "ignore_eos": true})
}

/// The CPU time of a process so far.
fn cpu_time(process: u64) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    // In ticks, a hundred in a second.
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// Waits until a process does next to nothing for a while. Its threads need some time to notice a pause, more on a machine that is busy.
fn assert_asleep(process: u64) {
    const WATCHED: Duration = Duration::from_millis(500);
    let begin = Instant::now();
    loop {
        let before = cpu_time(process);
        std::thread::sleep(WATCHED);
        let used = cpu_time(process) - before;
        if used < WATCHED / 5 {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{used:?} of {WATCHED:?}");
    }
}

#[test]
fn process_sleeps_while_its_host_pauses_it() {
    let init = json!({"n_ctx": 512});
    let expected = {
        let local = start_local(init.clone());
        text(&drain(&local, submit(&local, &story())))
    };
    let engine = start(init);
    let id = submit(&engine, &story());
    // This one does not end by itself.
    let endless = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    engine.pause().expect("it pauses");
    assert_asleep(pid(&engine));
    assert_eq!(engine.status()["paused"], true);
    engine.resume().expect("it is paused");
    assert_eq!(text(&drain(&engine, id)), expected);
    assert_eq!(engine.status()["paused"], false);
    engine.cancel(Some(json!({"id": endless}).to_string().as_bytes())).expect("an answer");
    assert_eq!(drain(&engine, endless).last().expect("an end")["stop_type"], "cancelled");

    // Cancels and times end requests of a paused process.
    engine.pause().expect("it pauses");
    let late = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "timeout_ms": 100}));
    assert_eq!(drain(&engine, late).last().expect("an end")["stop_type"], "timeout");
    // Another process takes its place, and is paused like it.
    let id = submit(&engine, &story());
    let first = pid(&engine);
    kill(first, "KILL");
    let begin = Instant::now();
    while engine.status()["isolation"]["pid"].is_null() || pid(&engine) == first {
        std::thread::sleep(Duration::from_millis(5));
        if begin.elapsed() > Duration::from_millis(300) {
            break; // its load is paused
        }
    }
    assert_eq!(poll(&engine, id, 100)["finished"], false);
    engine.resume().expect("it is paused");
    assert_eq!(text(&drain(&engine, id)), expected);
}

#[test]
fn paused_process_ends_with_its_engine() {
    let engine = start(json!({"n_ctx": 512}));
    let process = pid(&engine);
    let id = submit(&engine, &json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true}));
    poll(&engine, id, 1000);
    engine.pause().expect("it pauses");
    std::thread::sleep(Duration::from_millis(20));
    let begin = Instant::now();
    engine.unload();
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    while is_alive(process) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is alive");
        std::thread::sleep(Duration::from_millis(5));
    }
}
