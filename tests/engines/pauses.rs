//! Pauses of an engine: its threads leave the processor and go on, requests wait, and an engine that is never resumed still ends.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::library::{Engine, INVALID_ENGINE, LIBRARY, config, endless, exclusive, with_draft};

const INVALID_REQUEST: i32 = 3;

/// The CPU time of this process so far.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// Waits until this process does next to nothing for a while. The threads need some time to notice a pause, more on a machine that is busy.
pub fn assert_asleep(what: &str) {
    const WATCHED: Duration = Duration::from_millis(400);
    let begin = Instant::now();
    loop {
        let before = cpu_time();
        std::thread::sleep(WATCHED);
        let used = cpu_time() - before;
        if used < WATCHED / 10 {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {used:?} of {WATCHED:?}");
    }
}

/// A prompt whose decode takes long enough for a pause in its middle: one batch of the whole context.
fn long_prompt() -> Value {
    let text = "Once upon a time there was a little girl who had a red ball. ".repeat(110);
    json!({"prompt": text, "n_predict": 3, "temperature": 0, "return_tokens": true, "cache_prompt": false})
}

fn large_batches() -> Value {
    json!({"n_ctx": 2048, "n_batch": 2048, "n_ubatch": 2048, "n_threads": 2, "n_threads_batch": 2})
}

pub fn story(seed: u64) -> Value {
    json!({"prompt": "Once upon a time there was", "n_predict": 40, "seed": seed, "return_tokens": true, "ignore_eos": true})
}

/// The fields of a completion that a pause must not change.
fn tokens(last: &Value) -> Value {
    json!([last["tokens_predicted"], last["stop_type"], last["tokens_evaluated"]])
}

pub fn complete(engine: &Engine, request: &Value) -> (String, Value) {
    let (text, last) = engine.drain(engine.submit(request));
    assert_eq!(last["success"], true, "{last}");
    (text, tokens(&last))
}

pub fn ends_soon<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < Duration::from_secs(30), "{what}: {:?}", begin.elapsed());
    result
}

#[test]
fn decode_sleeps_in_its_middle_and_goes_on_there() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", large_batches());
    let request = long_prompt();
    let begin = Instant::now();
    let expected = complete(&engine, &request);
    let unpaused = begin.elapsed();
    // At several places of the decode, and perhaps before or after it: then earlier ones follow.
    let mut n_inside = 0;
    for round in 1..=20 {
        for part in 1..6 {
            let id = engine.submit(&request);
            std::thread::sleep(unpaused * part / 6 / round);
            engine.pause();
            assert_asleep("a decode");
            assert_eq!(engine.status()["paused"], true);
            n_inside += usize::from(engine.status()["slots"][0]["state"] == "prompt");
            engine.resume();
            let (text, last) = engine.drain(id);
            assert_eq!((text, tokens(&last)), expected);
        }
        if n_inside > 0 {
            break;
        }
    }
    assert!(n_inside > 0, "no pause was in a decode of {unpaused:?}");
    assert_eq!(engine.status()["paused"], false);
}

#[test]
fn completions_do_not_depend_on_pauses() {
    let _guard = exclusive();
    for (more, request) in [
        (with_draft(), json!({"n_threads": 2})),
        (with_draft(), json!({"n_parallel": 3, "n_threads": 2})),
        (json!({}), json!({"n_threads": 1})),
    ] {
        let mut more = more;
        more.as_object_mut().expect("an object").extend(request.as_object().expect("an object").clone());
        let engine = Engine::loaded("target", more);
        let expected: Vec<_> = (0..6).map(|seed| complete(&engine, &story(seed))).collect();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    engine.pause();
                    std::thread::sleep(Duration::from_micros(300));
                    engine.resume();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            for _ in 0..2 {
                let ids: Vec<u64> = (0..6).map(|seed| engine.submit(&story(seed))).collect();
                for (id, expected) in ids.iter().zip(&expected) {
                    let (text, last) = engine.drain(*id);
                    assert_eq!((text, tokens(&last)), *expected);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn pauses_are_counted() {
    let engine = Engine::new();
    let refused = || assert_eq!(LIBRARY.resume(engine.handle), INVALID_REQUEST);
    refused();
    (0..3).for_each(|_| engine.pause());
    for _ in 0..3 {
        assert_eq!(engine.status()["paused"], true);
        engine.resume();
    }
    refused();
    assert_eq!(engine.status()["paused"], false);
    let freed = Engine::new().handle;
    assert_eq!((LIBRARY.pause(freed), LIBRARY.resume(freed)), (INVALID_ENGINE, INVALID_ENGINE));
    // From several threads.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    engine.pause();
                    engine.resume();
                }
            });
        }
    });
    refused();
}

#[test]
fn requests_of_a_paused_engine_wait_and_end() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", json!({"n_parallel": 2, "n_threads": 2, "embedding": true}));
    let running = [engine.submit(&endless()), engine.submit(&endless())];
    engine.wait_until_generating();
    engine.pause();
    assert_asleep("two requests");
    let waiting: Vec<u64> = (0..3).map(|seed| engine.submit(&story(seed))).collect();
    let late = engine.submit(&json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "timeout_ms": 100}));
    // A request ends at its time, also while all slots are busy and the engine sleeps in a decode.
    let (_, last) = ends_soon("a timeout", || engine.drain(late));
    assert_eq!(last["stop_type"], "timeout", "{last}");
    for id in running.iter().chain(&waiting[..1]) {
        let answer = engine.call("cancel", &json!({"id": id}));
        assert_eq!(answer["cancelled"], true, "{answer}");
        let (_, last) = ends_soon("a cancel", || engine.drain(*id));
        assert_eq!(last["stop_type"], "cancelled", "{last}");
    }
    // Now there are free slots. Requests still wait.
    assert_asleep("waiting requests");
    for id in &waiting[1..] {
        let answer = engine.call("poll", &json!({"id": id, "timeout_ms": 20}));
        assert_eq!((&answer["finished"], &answer["completion_updates"]), (&json!(false), &json!([])), "{answer}");
    }
    // On a machine that is busy, a request can end before it runs.
    let is_running = |timeout_ms: u64| {
        let limited = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "timeout_ms": timeout_ms});
        let running = engine.submit(&limited);
        engine.resume();
        let polled = || engine.call("poll", &json!({"id": running, "timeout_ms": 1000}));
        let begins = |answer: &Value| answer["finished"] == true || answer["completion_updates"] != json!([]);
        while !begins(&polled()) {}
        engine.pause();
        let is_running = engine.call("poll", &json!({"id": running}))["finished"] == false;
        let (_, last) = ends_soon("a timeout of a running request", || engine.drain(running));
        is_running && last["stop_type"] == "timeout"
    };
    assert!([300, 1200, 5000, 20_000].into_iter().any(is_running), "a pause holds the end of a running request");
    let embedding = std::thread::scope(|scope| {
        let asked = scope.spawn(|| engine.call("embed", &json!({"content": "a red ball"})));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!asked.is_finished(), "embeddings wait, too");
        engine.resume();
        asked.join().expect("an answer")
    });
    assert_eq!(embedding["success"], true, "{embedding}");
    for (id, seed) in waiting[1..].iter().zip(1..) {
        let (text, last) = engine.drain(*id);
        assert_eq!((text, tokens(&last)), complete(&engine, &story(seed)));
    }
}

#[test]
fn a_cancel_ends_a_request_though_an_embedding_is_paused() {
    let _guard = exclusive();
    let mut settings = large_batches();
    settings["embedding"] = json!(true);
    let engine = Engine::loaded("target", settings);
    let content = long_prompt()["prompt"].clone();
    let expected = engine.call("embed", &json!({"content": content, "truncate": true}))["embedding"].clone();
    let id = engine.submit(&endless());
    engine.wait_until_generating();
    // On a machine that is fast it has ended by then: earlier pauses follow.
    let mut delay = Duration::from_millis(40);
    let mut is_paused_inside = false;
    while !is_paused_inside {
        assert!(delay > Duration::ZERO, "no pause was in an embedding");
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| engine.call("embed", &json!({"content": content, "truncate": true})));
            std::thread::sleep(delay);
            engine.pause();
            assert_asleep("an embedding");
            is_paused_inside = !asked.is_finished();
            if is_paused_inside {
                assert_eq!(engine.call("cancel", &json!({"id": id}))["cancelled"], true);
                ends_soon("a cancel", || engine.drain(id));
                assert!(!asked.is_finished());
            }
            engine.resume();
            assert_eq!(asked.join().expect("an answer")["embedding"], expected);
        });
        delay /= 2;
    }
}

#[test]
fn an_engine_that_is_never_resumed_unloads_and_loads() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", large_batches());
    // In its prompt, or later where that takes less.
    let mut request = long_prompt();
    request["n_predict"] = json!(-1);
    request["ignore_eos"] = json!(true);
    let id = engine.submit(&request);
    std::thread::sleep(Duration::from_millis(20));
    engine.pause();
    assert_asleep("a decode");
    ends_soon("an unload", || LIBRARY.unload(engine.handle));
    let (_, last) = ends_soon("a cancelled request", || engine.drain(id));
    assert_eq!(last["stop_type"], "cancelled", "{last}");
    assert_eq!(engine.status()["paused"], true, "an unload ends no pause");
    // A load waits for the host.
    LIBRARY.load_async(engine.handle, &config("target", json!({})));
    assert_asleep("a load");
    assert_eq!(engine.status()["state"], "loading");
    ends_soon("an aborted load", || LIBRARY.unload(engine.handle));
    assert_eq!(engine.status()["state"], "uninitialized");
    LIBRARY.load_async(engine.handle, &config("target", json!({})));
    engine.resume();
    while engine.status()["state"] == "loading" {
        std::thread::sleep(Duration::from_millis(5));
    }
    complete(&engine, &story(1));
    engine.submit(&endless());
    engine.pause();
    ends_soon("a free", move || drop(engine));
}

#[test]
fn a_load_that_is_paused_goes_on_where_it_was() {
    let _guard = exclusive();
    let plain = Engine::loaded("target", with_draft());
    let expected = complete(&plain, &story(7));
    drop(plain);
    for micros in [0, 3000, 20_000, 60_000, 150_000] {
        let engine = Engine::new();
        LIBRARY.load_async(engine.handle, &config("target", with_draft()));
        std::thread::sleep(Duration::from_micros(micros));
        engine.pause();
        assert_asleep("a load");
        engine.resume();
        while engine.status()["state"] == "loading" {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(complete(&engine, &story(7)), expected);
    }
}

#[test]
fn other_engines_go_on() {
    let _guard = exclusive();
    let (paused, other) = (Engine::loaded("target", json!({})), Engine::loaded("target", json!({})));
    let expected = complete(&other, &story(3));
    let id = paused.submit(&endless());
    paused.wait_until_generating();
    paused.pause();
    assert_eq!(ends_soon("another engine", || complete(&other, &story(3))), expected);
    assert_eq!(other.status()["paused"], false);
    paused.call("cancel", &json!({"id": id}));
    paused.drain(id);
}

/// The engine that [`pause_on_update`] pauses, as a number.
static PAUSED_BY_CALLBACK: AtomicU64 = AtomicU64::new(0);
static N_CALLBACKS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn pause_on_update(_id: u64, user: *mut c_void) {
    N_CALLBACKS.fetch_add(1, Ordering::SeqCst);
    if LIBRARY.pause(user) == 0 {
        PAUSED_BY_CALLBACK.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn callbacks_may_pause() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", json!({}));
    let expected = complete(&engine, &story(5));
    LIBRARY.set_update_callback(engine.handle, Some(pause_on_update), engine.handle as usize);
    let id = engine.submit(&story(5));
    let mut last = json!({});
    let mut text = String::new();
    let begin = Instant::now();
    while last["stop"] != true {
        assert!(begin.elapsed() < Duration::from_secs(60));
        let answer = engine.call("poll", &json!({"id": id, "timeout_ms": 10}));
        for update in answer["completion_updates"].as_array().expect("updates") {
            text += update["content"].as_str().expect("content");
            last = update.clone();
        }
        while PAUSED_BY_CALLBACK.load(Ordering::SeqCst) > 0 {
            PAUSED_BY_CALLBACK.fetch_sub(1, Ordering::SeqCst);
            engine.resume();
        }
    }
    assert!(N_CALLBACKS.load(Ordering::SeqCst) > 1);
    LIBRARY.set_update_callback(engine.handle, None, 0);
    assert_eq!((text, tokens(&last)), expected);
}

/// Random calls in random order. Each request ends, and the output of one that ends by itself is right.
#[test]
fn random_pauses_cancels_and_unloads_end_every_request() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", with_draft());
    let expected: Vec<_> = (0..4).map(|seed| complete(&engine, &story(seed))).collect();
    let seed = std::env::var("FOREDRAFT_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711_u64);
    println!("FOREDRAFT_FUZZ_SEED={seed}");
    let mut state = seed;
    let mut random = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let settings = || {
        let mut settings = with_draft();
        settings.as_object_mut().expect("an object").extend([("n_threads".into(), json!(2))]);
        settings
    };
    for _ in 0..8 {
        let mut n_pauses = 0;
        let mut live: Vec<(u64, u64)> = Vec::new();
        engine.load("target", settings());
        for _ in 0..40 {
            match random(8) {
                0 | 1 => {
                    engine.pause();
                    n_pauses += 1;
                }
                2 | 3 if n_pauses > 0 => {
                    engine.resume();
                    n_pauses -= 1;
                }
                4 | 5 => {
                    let seed = random(4);
                    live.push((engine.submit(&story(seed)), seed));
                }
                6 if !live.is_empty() => {
                    let at = usize::try_from(random(live.len() as u64)).expect("small");
                    let (id, seed) = live.swap_remove(at);
                    engine.call("cancel", &json!({"id": id}));
                    let (text, last) = ends_soon("a cancel", || engine.drain(id));
                    let is_whole = last["stop_type"] != "cancelled";
                    let (expected, _) = &expected[usize::try_from(seed).expect("small")];
                    assert!(expected.starts_with(&text) && (!is_whole || text == *expected), "{text}");
                }
                _ => std::thread::sleep(Duration::from_micros(random(3000))),
            }
        }
        if random(2) == 0 {
            ends_soon("an unload", || LIBRARY.unload(engine.handle));
        }
        (0..n_pauses).for_each(|_| engine.resume());
        for (id, seed) in live {
            let (text, last) = ends_soon("a request", || engine.drain(id));
            if last["stop_type"] != "cancelled" {
                assert_eq!((text, tokens(&last)), expected[usize::try_from(seed).expect("small")]);
            }
        }
    }
}
