//! Creates an n-gram cache from a text, like llama.cpp's `llama-lookup-create`.
//!
//!     cargo run --release --example lookup_create -- -m model.gguf -f text.txt -o static.bin
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "examples may panic, and they call C functions"
)]

mod host;
mod lookup;

use lookup::{Kind, Opt, TEXT, megabytes};

const USAGE: &str = "\
lookup_create -m MODEL (-f FILE | -p TEXT) -o OUTPUT [--ngram-min N] [--ngram-max N]

Makes an n-gram cache of a text, in llama.cpp's format.

  -m, --model FILE    the model whose tokens the text becomes
  -f, --file FILE     the text
  -p, --prompt TEXT   the text itself
  -o, --output FILE   the cache; -lcs and --lookup-cache-static are llama.cpp's names for it
  --ngram-min N       the shortest n-grams: 1 to 4 (2)
  --ngram-max N       the longest (2); static caches have n-grams of 2 tokens, dynamic ones those of 1 to 4";

const OPTIONS: [Opt; 4] = [
    ("-o", "--output", "output", Kind::Text),
    ("-lcs", "--lookup-cache-static", "output", Kind::Text),
    ("--ngram-min", "--ngram-min", "ngram_min", Kind::Number),
    ("--ngram-max", "--ngram-max", "ngram_max", Kind::Number),
];

fn main() {
    lookup::main("lookup_create", || {
        let Some(request) = lookup::options(USAGE, &[&TEXT, &OPTIONS])? else { return Ok(()) };
        let answer = lookup::call("lookup_create", request)?;
        println!("tokens        = {}", answer["n_tokens"]);
        println!("n-grams       = {}", answer["n_ngrams"]);
        println!("continuations = {}", answer["n_continuations"]);
        println!("file          = {}, {}", answer["output"], megabytes(&answer["size"]));
        println!("memory        = {}", megabytes(&answer["memory"]));
        println!("time          = {:.0} ms", answer["t_ms"].as_f64().unwrap_or(0.0));
        Ok(())
    });
}
