//! Measures how well n-gram caches draft a text, like llama.cpp's `llama-lookup-stats`.
//!
//!     cargo run --release --example lookup_stats -- -m model.gguf -f text.txt -lcs static.bin
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "examples may panic, and they call C functions"
)]

mod host;
mod lookup;

use lookup::{Kind, Opt, TEXT};
use serde_json::Value;

const USAGE: &str = "\
lookup_stats -m MODEL (-f FILE | -p TEXT) [-lcs FILE] [-lcd FILE] [-c N] [--draft-max N]

Drafts a text from n-gram caches, chunk after chunk of a context's length, and counts what would be accepted.

  -m, --model FILE                   the model whose tokens the text becomes
  -f, --file FILE                    the text
  -p, --prompt TEXT                  the text itself
  -lcs, --lookup-cache-static FILE   the cache of a corpus
  -lcd, --lookup-cache-dynamic FILE  the cache of earlier texts
  -c, --ctx-size N                   tokens of a chunk (the model's context)
  --draft, --draft-max N             the maximum draft length (3)";

const OPTIONS: [Opt; 4] = [
    ("-lcs", "--lookup-cache-static", "lookup_cache_static", Kind::Text),
    ("-lcd", "--lookup-cache-dynamic", "lookup_cache_dynamic", Kind::Text),
    ("-c", "--ctx-size", "n_ctx", Kind::Number),
    ("--draft", "--draft-max", "n_draft", Kind::Number),
];

fn main() {
    lookup::main("lookup_stats", || {
        let Some(request) = lookup::options(USAGE, &[&TEXT, &OPTIONS])? else { return Ok(()) };
        let answer = lookup::call("lookup_stats", request)?;
        for warning in answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            eprintln!("lookup_stats: {warning}");
        }
        let number = |key: &str| answer[key].as_f64().unwrap_or(0.0);
        // In the format of llama-lookup-stats.
        println!("n_draft      = {}", answer["n_draft"]);
        println!("n_predict    = {}", answer["n_predict"]);
        println!("n_drafted    = {}", answer["n_drafted"]);
        println!("t_draft_flat = {:.2} ms", number("t_draft_flat_ms"));
        println!(
            "t_draft      = {:.2} ms, {:.2} us per token, {:.2} tokens per second",
            number("t_draft_ms"),
            number("us_per_token"),
            number("tokens_per_second")
        );
        println!("n_accept     = {}", answer["n_accept"]);
        println!("accept       = {:.3}%", 100.0 * number("accept_rate"));
        Ok(())
    });
}
