//! Sixteen threads make random calls, including loads and unloads.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::c_api::{
    Random, assert_works, both_ways, call, call_bytes, command, drop_line, endless, exclusive, functions, load,
    load_async, set_log_callback, set_update_callback, status, unload, wait_until,
};

const THREADS: u64 = 16;
const CALLS: usize = 225;
/// The number of completions that ended normally.
static COMPLETED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn nothing(_id: u64, _user: *mut c_void) {}

/// Documents that most functions refuse.
pub const DOCUMENTS: [Option<&[u8]>; 6] =
    [None, Some(b""), Some(b"{}"), Some(b"\xFF"), Some(b"[[[["), Some(b"{\"id\":1}")];

pub fn request(random: &mut Random) -> Value {
    let mut request = json!({
        "prompt": *random.of(&["", "Once upon a time", "<|im_start|>user\nHi<|im_end|>\n", "é\u{1F600}"]),
        "n_predict": random.below(12),
        "seed": random.below(100),
        "text": "Once upon",
        "content": "Once upon",
        "tokens": [random.below(1536), random.below(1536)],
    });
    let extra = [
        json!({"grammar": "root ::= [a-z]+"}),
        json!({"grammar": "root ::= ("}),
        json!({"temperature": 0}),
        json!({"n_probs": 3}),
        json!({"stop": ["a"]}),
        json!({"timeout_ms": 1}),
        json!({"prompt": 5}),
        json!({"mirostat": 2}),
        json!({"id_slot": random.below(4)}),
        json!({"speculative": {"n_max": 4, "verify": "match", "adaptive": false}}),
        json!({"speculative": {"compare": true}}),
        json!({"speculative": {"model": "draft"}}),
        json!({"cache_prompt": false}),
        json!({"prompt": vec![1; 300]}),
        json!({"prompt": vec![1; 3000]}),
    ];
    request.as_object_mut().expect("an object").extend(random.of(&extra).as_object().expect("an object").clone());
    request
}

/// Makes one random call; the answer's form is checked by `c_api`.
fn step(random: &mut Random) {
    match random.below(300) {
        0..=1 => load_models(),
        2 => load_async(Some(command(json!({"embedding": true})).to_string().as_bytes())),
        3 => load_async(Some(b"-m /nowhere.gguf")),
        4 => unload(),
        10..=24 => drop(status()),
        5 => set_update_callback((random.below(2) == 0).then_some(nothing), 0),
        6 => set_log_callback(Some(drop_line), 0),
        25..=49 => {
            let request = random.of(&both_ways(&endless())).clone();
            if let Some(id) = call("submit", &request)["id"].as_u64() {
                call("cancel", &json!({"id": id}));
                call("poll", &json!({"id": id, "timeout_ms": 20}));
            }
        }
        50..=69 => {
            let name = *random.of(&functions().collect::<Vec<_>>());
            call_bytes(name, *random.of(&DOCUMENTS));
        }
        _ => {
            // Every third call is a completion, so that many come to an end between the loads.
            let others: Vec<&str> = functions().collect();
            let name = if random.below(3) == 0 { "complete" } else { *random.of(&others) };
            let answer = call(name, &request(random));
            if answer["stop"] == true {
                COMPLETED.fetch_add(1, Ordering::Relaxed);
            }
            // Calls without a model return at once, so without these waits hardly any calls would meet a model.
            match answer["code"].as_str() {
                Some("not_initialized") if random.below(8) == 0 => load_models(),
                Some("loading") => wait_until("the load's end", || status()["state"] != "loading"),
                _ => {}
            }
        }
    }
}

fn load_models() {
    let number = load(Some(command(json!({"n_parallel": 3})).to_string().as_bytes()));
    assert!([0, 4].contains(&number), "{number}");
}

#[test]
fn sixteen_threads_call_random_functions() {
    let _guard = exclusive();
    assert_eq!(load(Some(command(json!({"n_parallel": 2})).to_string().as_bytes())), 0);
    let threads: Vec<_> = (0..THREADS)
        .map(|seed| {
            thread::spawn(move || {
                let mut random = Random::new(seed + 1);
                (0..CALLS).for_each(|_| step(&mut random));
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    let completed = COMPLETED.load(Ordering::Relaxed);
    assert!(completed > 10, "only {completed} requests came to an end between the loads");
    set_update_callback(None, 0);
    assert_eq!(load(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_works();
}
