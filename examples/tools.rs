//! Lets a model call two tools, one after the other, and then answer, in Rust, with the library linked as a crate.
//!
//!     cargo run --release --example tools -- [model.gguf]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "examples may panic")]

use std::error::Error;

use foredraft::Function;
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

fn call(name: &str, arguments: &Value) -> String {
    let city = arguments["city"].as_str().unwrap_or_default();
    match name {
        "weather" => format!("12 degrees and rain in {city}"),
        _ => format!("ten o'clock in {city}"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "models/stories-target.gguf".to_owned());
    let engine = JsonEngine::new();
    engine.load(json!({"model": model, "n_ctx": 2048}).to_string().as_bytes())?;

    let city = json!({"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo"]}}, "required": ["city"]});
    let names = ["weather", "time"];
    let tools = names.map(|name| json!({"type": "function", "function": {"name": name, "parameters": city}}));
    let mut messages =
        vec![json!({"role": "user", "content": "How is the weather in Oslo, and what time is it there?"})];
    let ask = |messages: &[Value], choice: Value| {
        let request = json!({"messages": messages, "tools": tools, "tool_choice": choice, "n_predict": 80}).to_string();
        engine.call(Function::Complete, Ok(request.as_bytes()))
    };
    // A large model chooses by itself: "auto".
    for name in names {
        let answer = ask(&messages, json!({"type": "function", "function": {"name": name}}))?;
        messages.push(answer["message"].clone());
        for made in answer["message"]["tool_calls"].as_array().into_iter().flatten() {
            let function = &made["function"];
            let arguments = serde_json::from_str(function["arguments"].as_str().unwrap_or_default())?;
            let name = function["name"].as_str().unwrap_or_default();
            let result = call(name, &arguments);
            println!("called {name}: {result}");
            messages.push(json!({"role": "tool", "tool_call_id": made["id"], "name": name, "content": result}));
        }
    }
    println!("{}", ask(&messages, json!("none"))?["message"]["content"].as_str().unwrap_or_default());
    engine.unload();
    Ok(())
}
