//! `make demo`: watches a model answer, without and with its draft, then prints what the draft saves.
//!
//!     make demo                                the shipped pair, and a target enlarged to 750 M parameters
//!     make demo ARGS="target.gguf draft.gguf"  another pair, or a target alone
//!
//! It is a host like any other: it loads the shared library, and does all through its C functions.

mod host;

use std::io::{IsTerminal, Write, stdout};

use host::{Cost, Host, Pair, Result};
use serde_json::{Value, json};

const WATCHED: &str = "Tell me a story about Karl and a badger.";
const PROMPTS: [&str; 3] = [
    WATCHED,
    "Write this as JSON. Zoë was 8 years old and lived near the garden. She carried a heavy golden boat. It was sunny. \
     Zoë met a crow. They ate cake. In the end Zoë was glad.",
    "Count from 7 to 19.",
];

/// Who may have proposed a token, and the colour (an SGR number) that its text gets. Names that are not here get the last one.
const COLOURS: [(&str, u8); 5] = [("target", 39), ("draft", 32), ("ngram-cache", 36), ("suffix", 35), ("", 33)];

fn main() {
    if let Err(error) = demo() {
        eprintln!("demo: {error}");
        std::process::exit(1);
    }
}

fn demo() -> Result<()> {
    let host = Host::open()?;
    let pairs = host::pairs(&std::env::args().skip(1).collect::<Vec<_>>());
    let largest = pairs.last().ok_or("models/ has no models")?;
    host.init(&largest.target, &largest.draft)?;
    println!("{WATCHED}\n\nThe target alone ({}):\n", largest.name);
    watch(&host, json!(false))?;
    let colours = if colourful() { ", each token in the colour of who proposed it" } else { "" };
    let with = if largest.draft.as_os_str().is_empty() { "speculation" } else { "its draft" };
    println!("\nWith {with}{colours}:\n");
    watch(&host, json!(true))?;

    println!(
        "\n{:18}{:>10}{:>12}{:>10}{:>10}{:>13}{:>11}",
        "target", "plain", "with draft", "speed-up", "accepted", "tokens/step", "same text"
    );
    for pair in &pairs {
        compare(&host, pair)?;
    }
    println!(
        "Plain and with draft in tokens a second; a step is one evaluation of the target, which is all that plain"
    );
    println!("generation does for a token. {} prompts, greedy.", PROMPTS.len());
    Ok(())
}

fn request(prompt: &str, speculative: Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": prompt }], "temperature": 0, "repeat_penalty": 1, "n_predict": 160,
        "return_tokens": true, "speculative": speculative,
    })
}

/// Prints an answer while it is being generated.
fn watch(host: &Host, speculative: Value) -> Result<()> {
    let id = host.call("async_completion_init", &request(WATCHED, speculative))?["id"].clone();
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

/// Whether stdout is a terminal on which colours are welcome (https://no-color.org).
fn colourful() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text whose every token is printed in the colour of its source.
struct Coloured {
    /// All tokens so far.
    tokens: Vec<Value>,
    /// Their text, as far as it is printed.
    printed: String,
    /// The concatenated contents, which must be the same.
    content: String,
    /// How many tokens each source proposed, in the order of [`COLOURS`].
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

    /// Prints what an update adds. One token may be a part of a character: then it is printed with the token that completes it.
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

    /// The text of all tokens. Some vocabularies leave out the space that a text begins with, so it is read behind its first token.
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

    /// Ends the text; says which colour stood for whom and how many tokens came from there.
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

/// One line of the table: the same prompts without and with speculation.
fn compare(host: &Host, pair: &Pair) -> Result<()> {
    host.init(&pair.target, &pair.draft)?;
    let (mut plain, mut speculative, mut same) = (Cost::default(), Cost::default(), 0);
    host.call("speculative_completion", &request("Count from 1 to 9.", json!(true)))?; // warms both up
    for prompt in PROMPTS {
        let alone = host.call("get_completion", &request(prompt, json!(false)))?;
        let drafted = host.call("speculative_completion", &request(prompt, json!(true)))?;
        plain.add(&Cost::of(&alone));
        speculative.add(&Cost::of(&drafted));
        same += usize::from(alone["content"] == drafted["content"]);
    }
    println!(
        "{:18}{:>10.1}{:>12.1}{:>9.2}x{:>10}{:>13.2}{:>11}",
        pair.name,
        plain.speed(),
        speculative.speed(),
        speculative.speed() / plain.speed(),
        speculative.acceptance(),
        speculative.tokens_per_step(),
        format!("{same} of {}", PROMPTS.len()),
    );
    Ok(())
}
