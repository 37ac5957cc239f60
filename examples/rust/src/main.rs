//! Prints a completion while it is generated; then a longer one, and which kernels computed them.
#![allow(clippy::indexing_slicing, reason = "an example may panic")]

use foredraft::{Config, Engine, Request};

fn main() -> foredraft::Result<()> {
    // ANCHOR: readme
    let engine = Engine::load(&Config::new("models/stories-target.gguf").model_draft("models/stories-draft.gguf"))?;
    for update in engine.stream(&Request::prompt("Once upon a time").n_predict(40))? {
        print!("{}", update?.content);
    }
    // ANCHOR_END: readme
    let request = Request::prompt("Once upon a time").n_predict(60).temperature(0.0);
    println!("\n{}\n{}", engine.complete(&request)?.content, engine.status()["cpu"]["kernels"]);
    Ok(())
}
