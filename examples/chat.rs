//! A chat that prints each answer while it is being generated, in Rust, with the library linked as a crate.
//!
//!     cargo run --release --example chat -- ["a message" [target.gguf [draft.gguf]]]
//!
//! Without a message, it reads messages from stdin, one per line, and keeps the conversation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "examples may panic")]

use std::error::Error;
use std::io::{Write, stdin, stdout};

use foredraft::api::{Endpoint, Engine};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sends a message, prints the answer while it arrives, and adds both to the conversation.
fn turn(engine: &Engine, messages: &mut Vec<Value>, message: &str) -> Result<()> {
    messages.push(json!({"role": "user", "content": message}));
    let request = json!({"messages": messages, "temperature": 0, "n_predict": 200}).to_string();
    let queued = engine.with_loaded(|loaded| loaded.submit(Endpoint::Speculative, request.as_bytes()))?;
    let command = json!({"id": queued["id"], "timeout_ms": 1000}).to_string();
    let (mut text, mut last) = (String::new(), Value::Null);
    loop {
        let reply = engine.with_loaded(|loaded| loaded.poll(Endpoint::Speculative, Some(command.as_bytes())))?;
        for update in reply["completion_updates"].as_array().into_iter().flatten() {
            let content = update["content"].as_str().unwrap_or_default();
            print!("{content}");
            stdout().flush()?;
            text += content;
            last = update.clone();
        }
        if reply["finished"] == true {
            break;
        }
    }
    println!();
    if let Some(error) = last["error"].as_str() {
        return Err(error.into());
    }
    eprintln!(
        "[{} tokens, {:.1} tokens/s, accept_rate {:.2}]",
        last["tokens_predicted"],
        last["timings"]["predicted_per_second"].as_f64().unwrap_or(0.0),
        last["speculative"]["accept_rate"].as_f64().unwrap_or(0.0)
    );
    messages.push(json!({"role": "assistant", "content": text}));
    Ok(())
}

fn main() {
    if let Err(error) = chat() {
        eprintln!("chat: {error}");
        std::process::exit(1);
    }
}

fn chat() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (model, draft) = match &args[..] {
        [_, model, draft, ..] => (&model[..], &draft[..]),
        [_, model] => (&model[..], ""),
        _ => ("models/stories-target.gguf", "models/stories-draft.gguf"),
    };

    let engine = Engine::new();
    engine.load(json!({"model": model, "model_draft": draft}).to_string().as_bytes())?;
    let mut messages = Vec::new();
    match args.first() {
        Some(message) => turn(&engine, &mut messages, message)?,
        None => {
            for line in stdin().lines() {
                turn(&engine, &mut messages, &line?)?;
            }
        }
    }
    engine.unload();
    Ok(())
}
