//! Adds up n-gram caches, like llama.cpp's `llama-lookup-merge`.
//!
//!     cargo run --release --example lookup_merge -- one.bin two.bin sum.bin
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "examples may panic, and they call C functions"
)]

mod host;
mod lookup;

use lookup::{Asked, megabytes};
use serde_json::{Map, json};

const USAGE: &str = "\
lookup_merge INPUT... OUTPUT

Adds n-gram caches of llama.cpp's format up. OUTPUT may be one of the inputs: it is replaced when all of it is written.";

fn main() {
    lookup::main("lookup_merge", || {
        let Some(Asked { others: files, .. }) = lookup::parse(USAGE, &[])? else { return Ok(()) };
        let Some((output, inputs)) = files.split_last().filter(|(_, inputs)| !inputs.is_empty()) else {
            return Err(format!("one or more inputs and an output are needed\n\n{USAGE}").into());
        };
        let request = Map::from_iter([("inputs".to_owned(), json!(inputs)), ("output".to_owned(), json!(output))]);
        let answer = lookup::call("lookup_merge", request)?;
        println!("inputs        = {}", answer["n_inputs"]);
        println!("n-grams       = {}", answer["n_ngrams"]);
        println!("continuations = {}", answer["n_continuations"]);
        println!("file          = {}, {}", answer["output"], megabytes(&answer["size"]));
        println!("time          = {:.0} ms", answer["t_ms"].as_f64().unwrap_or(0.0));
        Ok(())
    });
}
