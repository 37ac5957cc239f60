//! Shared by lookup_create, lookup_merge and lookup_stats: options, and a call with a progress bar.
#![allow(dead_code)] // each program uses a part

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::host::{Host, Result};

/// The argument of an option.
pub enum Kind {
    /// Text, which becomes a string of the request.
    Text,
    /// A whole number.
    Number,
}

/// An option: its short and long name, and its key in the request.
pub type Opt = (&'static str, &'static str, &'static str, Kind);

/// The options for the text. `model` is removed from the request before the call.
pub const TEXT: [Opt; 3] = [
    ("-m", "--model", "model", Kind::Text),
    ("-f", "--file", "file", Kind::Text),
    ("-p", "--prompt", "text", Kind::Text),
];

/// A parsed command line.
pub struct Asked {
    /// The options by their keys in the request.
    pub request: Map<String, Value>,
    /// The other arguments.
    pub others: Vec<String>,
}

/// Reads the command line. `None`: it printed the help.
pub fn parse(usage: &str, options: &[&[Opt]]) -> Result<Option<Asked>> {
    let mut request = Map::new();
    let mut others = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "-h" || arg == "--help" {
            println!("{usage}");
            return Ok(None);
        }
        let known = options.iter().copied().flatten().find(|(short, long, ..)| arg == *short || arg == *long);
        match known {
            Some((_, _, key, kind)) => {
                let value = args.next().ok_or_else(|| format!("{arg}: a value is missing"))?;
                let value = match kind {
                    Kind::Text => Value::from(value),
                    Kind::Number => {
                        json!(value.parse::<i64>().map_err(|_| format!("{arg}: {value:?} is not a number"))?)
                    }
                };
                request.insert((*key).to_owned(), value);
            }
            None if arg.starts_with('-') => return Err(format!("unknown option {arg}; --help lists them").into()),
            None => others.push(arg),
        }
    }
    Ok(Some(Asked { request, others }))
}

/// As [`parse`], without other arguments.
pub fn options(usage: &str, options: &[&[Opt]]) -> Result<Option<Map<String, Value>>> {
    let Some(Asked { request, others }) = parse(usage, options)? else { return Ok(None) };
    match others.first() {
        Some(other) => Err(format!("{other:?} belongs to no option; --help lists them").into()),
        None => Ok(Some(request)),
    }
}

/// Loads the vocabulary of the model that the request names, calls a function, and shows its progress on stderr if that is a terminal.
pub fn call(function: &str, mut request: Map<String, Value>) -> Result<Value> {
    let host = Host::open()?;
    if let Some(model) = request.remove("model") {
        host.start(&json!({ "model": model, "vocab_only": true, "log_level": "error" }))?;
    }
    if !stderr().is_terminal() {
        return host.call(function, &Value::Object(request));
    }
    let over = AtomicBool::new(false);
    let answer = thread::scope(|scope| {
        let calling = scope.spawn(|| {
            // The error is converted to a text, because it may not be `Send`.
            let answer = host.call(function, &Value::Object(request)).map_err(|error| error.to_string());
            over.store(true, Ordering::Release);
            answer
        });
        while !over.load(Ordering::Acquire) {
            if let Ok(status) = host.status() {
                draw(&status["lookups"][0]);
            }
            thread::sleep(Duration::from_millis(50));
        }
        eprint!("\r\x1b[K");
        calling.join()
    });
    Ok(answer.map_err(|_| "the call panicked")??)
}

/// A bar of 40 characters, in eighths.
fn draw(lookup: &Value) {
    let (Some(step), Some(progress)) = (lookup["step"].as_str(), lookup["progress"].as_f64()) else { return };
    let eighths = (progress * 320.0) as usize;
    let parts = ['\0', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(parts.get(eighths % 8).filter(|part| **part != '\0'));
    eprint!("\r\x1b[K{step:>10} {bar:<40} {:3.0} %", 100.0 * progress);
    let _ = stderr().flush();
}

/// A human-readable size.
pub fn megabytes(bytes: &Value) -> String {
    format!("{:.1} MB", bytes.as_f64().unwrap_or(0.0) / 1e6)
}

/// Runs a program. An error is printed on stderr, and the exit status is 1.
pub fn main(name: &str, program: impl FnOnce() -> Result<()>) {
    if let Err(error) = program() {
        eprintln!("{name}: {error}");
        std::process::exit(1);
    }
}
