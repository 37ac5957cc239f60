//! A large tokenized text, generated once.

use std::fs;
use std::process::Command;
use std::time::SystemTime;

use serde_json::json;

use super::super::common;
use super::super::host::{Host, Result, root};

/// The number of documents of `models/corpus.py`, and a seed that was not used for training.
const DOCUMENTS: &str = "50000";
const SEED: &str = "20260701";
const END: &str = "<|endoftext|>\n";
/// The number of documents that are tokenized in one call.
const AT_ONCE: usize = 500;

/// More than 5 million tokens of the vocabulary of `host`, which has the shipped target. `models/corpus.py` generates them, and they are kept in
/// `target/bench/corpus.i32` (little-endian) until the Python program or the model changes.
pub fn tokens(host: &Host) -> Result<Vec<i32>> {
    let path = common::folder()?.join("corpus.i32");
    let script = root().join("models/corpus.py");
    let changed = |path| fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let sources = [script.clone(), root().join("models/stories-target.gguf")];
    if sources.iter().all(|source| changed(source) < changed(&path)) {
        let bytes = fs::read(&path)?;
        return Ok(bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect());
    }

    eprintln!("making {} (half a minute, once)", path.display());
    let output = Command::new("python3").arg(&script).args([DOCUMENTS, SEED]).output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let mut tokens = Vec::new();
    let documents: Vec<&str> = text.split_inclusive(END).collect();
    for documents in documents.chunks(AT_ONCE) {
        tokens.extend(tokenize(host, &documents.concat())?);
    }
    // Renamed when complete, because the benchmark can be stopped here.
    let part = path.with_extension("part");
    fs::write(&part, tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>())?;
    fs::rename(&part, &path)?;
    Ok(tokens)
}

fn tokenize(host: &Host, text: &str) -> Result<Vec<i32>> {
    let answer = host.call("tokenize", &json!({ "text": text, "add_special": false }))?;
    Ok(serde_json::from_value(answer["ids"].clone())?)
}
