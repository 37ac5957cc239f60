//! A chat that prints each answer while it is being generated, in Rust, with the library linked as a crate.
//!
//!     cargo run --release --example chat -- ["a message" [target.gguf [draft.gguf]]]
//!
//! Without a message, it reads messages from stdin, one per line, and keeps the conversation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "examples may panic")]

use std::error::Error;
use std::io::{Write, stdin, stdout};

use foredraft::{Config, Engine, Message, Request};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sends a message, prints the answer while it arrives, and adds both to the conversation.
fn turn(engine: &Engine, messages: &mut Vec<Message>, message: &str) -> Result<()> {
    messages.push(Message::user(message));
    let request = Request::messages(&*messages).temperature(0.0).n_predict(200);
    let mut stream = engine.stream(&request)?;
    for update in &mut stream {
        print!("{}", update?.content);
        stdout().flush()?;
    }
    println!();
    let answer = stream.finish()?;
    eprintln!(
        "[{} tokens, {:.1} tokens/s, {} of {} drafted tokens accepted]",
        answer.tokens_predicted,
        answer.fields["timings"]["predicted_per_second"].as_f64().unwrap_or(0.0),
        answer.speculative.as_ref().map_or(0, |report| report.n_accepted),
        answer.speculative.as_ref().map_or(0, |report| report.n_drafted),
    );
    messages.push(Message::assistant(answer.content));
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

    let engine = Engine::load(&Config::new(model).model_draft(draft))?;
    let mut messages = Vec::new();
    match args.first() {
        Some(message) => turn(&engine, &mut messages, message)?,
        None => {
            for line in stdin().lines() {
                turn(&engine, &mut messages, &line?)?;
            }
        }
    }
    Ok(())
}
