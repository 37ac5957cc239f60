//! `make bench`: the overhead of the engine, and the gain of speculation.
//!
//!     make bench                                     the shipped pair, and the enlarged SmolLM2 with two drafts
//!     make bench ARGS="target.gguf draft.gguf [5]"   another pair, 5 repetitions (3 by default)
//!
//! All numbers are medians of interleaved repetitions, so that other load on the machine affects every column. The library is measured
//! as a host uses it: as a shared library, through JSON.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic, and they call C functions"
)]

mod bare;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/host/mod.rs"]
mod host;
#[path = "../texts/mod.rs"]
mod texts;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bare::Bare;
use common::{Args, SPINNING, median, yes};
use host::{Cost, Host, Pair, Result};
use serde_json::{Value, json};
use texts::{RECORD, SNAIL, STORY};

/// The settings of speculation.
const WAYS: [(&str, &str); 6] = [
    ("adaptive", r#"{"type": "draft", "adaptive": true}"#),
    ("heuristic", r#"{"type": "draft", "adaptive": "heuristic"}"#),
    ("n_max 2", r#"{"type": "draft", "adaptive": false, "n_max": 2}"#),
    ("n_max 3", r#"{"type": "draft", "adaptive": false, "n_max": 3}"#),
    ("n_max 7", r#"{"type": "draft", "adaptive": false, "n_max": 7}"#),
    ("match 3", r#"{"type": "draft", "adaptive": false, "n_max": 3, "verify": "match"}"#),
];

/// Kinds of text, with prompt and temperature, from easy to impossible to draft.
const TEXTS: [(&str, &str, f64); 4] =
    [("story", STORY, 0.0), ("record", RECORD, 0.0), ("story at 1", SNAIL, 1.0), ("noise", SNAIL, 5.0)];

const N_PREDICT: usize = 96;

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<()> {
    let args = Args::new().rest()?;
    let repetitions = args.get(2).map_or(Ok(3), |text| text.parse())?;
    let host = Host::open()?;
    for pair in common::pairs(&args, false) {
        println!("## {} ({}; {})\n", pair.name, pair.target.display(), pair.about);
        host.load(&pair.target, &pair.draft)?;
        let status = host.call("poll_system_status", &Value::Null)?;
        println!("{}\n", status["system_info"].as_str().unwrap_or_default());
        plain(&host, &pair, repetitions)?;
        speculation(&host, repetitions)?;
        latency(&host)?;
    }
    Ok(())
}

/// Plain decoding against the bare loop.
fn plain(host: &Host, pair: &Pair, repetitions: usize) -> Result<()> {
    let threads = i32::try_from(std::thread::available_parallelism()?.get())?;
    let mut bare = Bare::load(&pair.target, 512, threads)?;
    let prompt = "Once upon a time there was a child named Tom.";
    let ids = host.call("tokenize", &json!({"text": prompt}))?["ids"].clone();
    let ids: Vec<i32> = serde_json::from_value(ids)?;
    let request = json!({
        "prompt": prompt, "n_predict": N_PREDICT, "temperature": 0, "top_k": 0, "top_p": 1, "repeat_penalty": 1, "ignore_eos": true,
        "cache_prompt": false, "return_tokens": true,
    });
    let mut noise = request.clone();
    noise["temperature"] = json!(5);
    let (mut bares, mut greedy, mut noisy, mut same) = (Vec::new(), Vec::new(), Vec::new(), true);
    for repetition in 0..=3 * repetitions {
        // Waits until the other side's idle threads have stopped spinning.
        std::thread::sleep(SPINNING);
        let (tokens, time) = bare.generate(&ids, N_PREDICT)?;
        std::thread::sleep(SPINNING);
        let response = ask(host, &request)?;
        same &= response["tokens"] == json!(tokens);
        noise["seed"] = json!(repetition);
        let of_noise = ask(host, &noise)?;
        if repetition > 0 {
            // All times are from the first token to the last.
            let speed = |seconds: f64| (N_PREDICT - 1) as f64 / seconds;
            let of = |response: &Value| speed(response["timings"]["predicted_ms"].as_f64().unwrap_or(f64::NAN) / 1e3);
            bares.push(speed(time.as_secs_f64()));
            greedy.push(of(&response));
            noisy.push(of(&of_noise));
        }
    }
    let (bares, greedy, noisy) = (median(bares), median(greedy), median(noisy));
    println!(
        "bare loop           {bares:9.1} tokens/s   (llama_decode and argmax, the same library, threads and model)"
    );
    println!("plain, greedy       {greedy:9.1} tokens/s   ratio {:.3}, same tokens: {}", greedy / bares, yes(same));
    println!("plain, noise        {noisy:9.1} tokens/s   ratio {:.3}\n", noisy / bares);
    Ok(())
}

/// A completion that cannot use previous completions as drafts.
fn ask(host: &Host, request: &Value) -> Result<Value> {
    host.call("lookup_cache", &json!({"action": "clear", "cache": "dynamic"}))?;
    host.call("get_completion", request)
}

/// All settings of speculation on all kinds of text.
fn speculation(host: &Host, repetitions: usize) -> Result<()> {
    println!("tokens/s; in brackets the ratio to plain, the share of drafted tokens accepted, and tokens per step\n");
    print!("{:12}", "");
    TEXTS.iter().for_each(|(name, ..)| print!("{name:>34}"));
    println!();
    let mut rows: Vec<String> = Vec::new();
    rows.push(format!("{:12}", "plain"));
    rows.extend(WAYS.iter().map(|(name, _)| format!("{name:12}")));
    for (_, prompt, temperature) in TEXTS {
        let mut runs: Vec<Vec<Cost>> = vec![Vec::new(); rows.len()];
        for repetition in 0..=repetitions {
            let ways = std::iter::once("false").chain(WAYS.iter().map(|(_, way)| *way));
            for (runs, way) in runs.iter_mut().zip(ways) {
                let request = json!({
                    "prompt": prompt, "n_predict": N_PREDICT, "ignore_eos": true, "temperature": temperature, "top_k": 0,
                    "top_p": 1, "repeat_penalty": 1, "seed": repetition, "speculative": serde_json::from_str::<Value>(way)?,
                });
                let response = ask(host, &request)?;
                if repetition > 0 {
                    runs.push(Cost::of(&response)); // the first run is a warm-up
                }
            }
        }
        let costs: Vec<Cost> = runs.into_iter().map(by_speed).collect();
        for (row, cost) in rows.iter_mut().zip(&costs) {
            let speed = format!("{:.1}", cost.speed());
            let ratio = cost.speed() / costs.first().map_or(f64::NAN, Cost::speed);
            let more = format!("({ratio:.2}, {}, {:.2})", cost.acceptance(), cost.tokens_per_step());
            let more = if cost.tokens_per_step().is_finite() { more } else { String::new() };
            row.push_str(&format!("{:>34}", format!("{speed} {more}")));
        }
    }
    println!("{}\n", rows.join("\n"));
    Ok(())
}

/// Polls without updates, and the time from a cancel to the end of the request.
fn latency(host: &Host) -> Result<()> {
    let id = host.call("async_completion_init", &json!({"prompt": "Once", "n_predict": 1}))?["id"].clone();
    while host.call("async_completion_poll", &json!({"id": id, "timeout_ms": 1000}))?["finished"] != true {}
    let polls = 100_000;
    let time = host.empty_polls(polls)?;
    println!("empty poll          {:9.2} us", time.as_secs_f64() * 1e6 / f64::from(polls));

    // A long prompt, cancelled at different times; then a generation.
    let words = "Once upon a time there was a child named Tom. ".repeat(44);
    for (name, prompt, wait_for) in
        [("in a prompt", words.as_str(), "prompt"), ("generating", "Once upon a time", "generating")]
    {
        let mut times = Vec::new();
        for repetition in 0..20 {
            let request = json!({"prompt": prompt, "ignore_eos": true, "cache_prompt": false, "n_predict": -1});
            let id = host.call("async_completion_init", &request)?["id"].clone();
            let command = json!({"id": id});
            while host.call("async_completion_poll", &command)?["state"] != wait_for {}
            std::thread::sleep(Duration::from_millis(5 + 7 * repetition));
            let state = host.call("async_completion_poll", &command)?["state"].clone();
            let start = Instant::now();
            host.call("async_completion_cancel", &command)?;
            let patient = json!({"id": id, "timeout_ms": 10_000});
            while host.call("async_completion_poll", &patient)?["finished"] != true {}
            if state == wait_for {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let worst = times.iter().copied().fold(0.0, f64::max);
        println!("cancel {name:12} {:9.2} ms   (the longest of {}: {worst:.2} ms)", median(times.clone()), times.len());
    }
    println!();
    Ok(())
}

fn by_speed(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
    costs.swap_remove(costs.len() / 2)
}
