//! Records traces for the controller's simulator (`crates/speculation/src/tests/simulator`): the outputs of a target, and the drafts of draft models at
//! each token.
//!
//!     cargo run --release --example record_traces -- TARGET.gguf NEAR_DRAFT.gguf FAR_DRAFT.gguf crates/speculation/traces [TASK]
//!
//! With a TASK (`editing-2`), records only that one. All tasks take 8 minutes on two cores.
//!
//! The committed traces come from the models that `scripts/models.sh` creates: SmolLM2-135M enlarged to 830 M parameters (Q8_0) as
//! the target, SmolLM2-135M (Q4_1) as the near draft, and the same without block 12 as the far draft. Each file is one
//! completion, as text:
//!
//! | line | meaning |
//! | --- | --- |
//! | `temperature T` | 0 or the temperature of the target |
//! | `prompt IDS`, `output IDS` | token ids |
//! | `near DRAFT`, `far DRAFT` | for each token of the output, the draft model's choice after the correct tokens |
//!
//! A DRAFT has one item for each token. If the draft model's choice equals the token of the output, it is two hexadecimal digits: the draft's
//! probability of its choice times 255. Otherwise it is a `-`, the same two digits, and the probabilities of the tokens that the draft model
//! would have drafted after its wrong one. Draft and target share the noise of `coupled` sampling.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "examples may panic")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foredraft::error::Result;
use foredraft::llama::{Batch, Context, ContextParams, DecodeError, Interrupt, Model, ModelParams, ThreadPool, Token};
use foredraft::sampling::{Sampler, SamplingSettings as Settings};

const N_CTX: u32 = 2048;
/// The maximum number of tokens of an output.
const N_PREDICT: usize = 224;
/// The number of tokens drafted after a wrong one.
const TAIL: usize = 12;

const FILE: &str = r#"import json
import sys


class Inventory:
    """Keeps how many pieces of each product are in the store."""

    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        with open(self.path) as file:
            self.items = json.load(file)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.items, file, indent=2)

    def add(self, name, count):
        if count < 0:
            raise ValueError("count must not be negative")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if self.items.get(name, 0) < count:
            raise ValueError("not enough pieces of " + name)
        self.items[name] -= count
        if self.items[name] == 0:
            del self.items[name]

    def total(self):
        return sum(self.items.values())

    def report(self):
        for name in sorted(self.items):
            print(name, self.items[name])
        print("total", self.total())


def main():
    inventory = Inventory(sys.argv[1])
    inventory.load()
    if sys.argv[2] == "add":
        inventory.add(sys.argv[3], int(sys.argv[4]))
    elif sys.argv[2] == "remove":
        inventory.remove(sys.argv[3], int(sys.argv[4]))
    inventory.report()
    inventory.save()


if __name__ == "__main__":
    main()
"#;

const LETTER: &str = "Dear Mr. Brown, I am writing because the washing machine that I bought in your shop three weeks ago has \
    stopped working. It makes a loud noise when it starts and then nothing happens. I have called your service twice, but nobody \
    came. I would like you to send a technician this week or to give me my money back. I still have the receipt and the box. \
    Please call me in the evening. Yours sincerely, Anna Miller";

/// Name and user message. The second half is held out when the controller is tuned.
fn tasks() -> Vec<(&'static str, String)> {
    let code = |what: &str| format!("{what}\n\n```python\n{FILE}```");
    vec![
        ("question-1", "Why is the sky blue, and why is it red in the evening?".into()),
        ("story-1", "Write a short story about a lighthouse keeper who finds a letter in a bottle.".into()),
        (
            "code-1",
            "Write a Python class for a bank account with methods to deposit, withdraw and print the balance.".into(),
        ),
        ("rewriting-1", format!("Rewrite this letter so that it is more polite:\n\n{LETTER}")),
        ("editing-1", code("Rename the class Inventory to Stock in this file and print the whole file again.")),
        (
            "question-2",
            "What is the difference between a virus and a bacterium, and which of them do antibiotics help against?"
                .into(),
        ),
        ("story-2", "Tell me a story about two brothers who build a boat and sail to an unknown island.".into()),
        (
            "code-2",
            "Write a JavaScript function that reads a CSV string and returns an array of objects, with an example."
                .into(),
        ),
        ("rewriting-2", format!("Correct the spelling of this letter and repeat it:\n\n{LETTER}")),
        ("editing-2", code("Add type hints to this file. Answer with the complete file.")),
    ]
}

fn chat(user: &str) -> String {
    format!(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n\
         {user}<|im_end|>\n<|im_start|>assistant\n"
    )
}

/// A model that reads a text and chooses what follows.
struct Reader {
    context: Context,
    batch: Batch,
    /// The tokens in its cache.
    n_past: usize,
}

impl Reader {
    fn new(path: &Path, threads: &Arc<ThreadPool>, n_threads: i32) -> Result<Reader> {
        let model = Arc::new(Model::load(&ModelParams::new(path), |_| true)?);
        let params =
            ContextParams { n_ctx: Some(N_CTX), n_threads, n_threads_batch: n_threads, ..ContextParams::default() };
        let context = Context::new(&model, &params, threads, &Arc::new(Interrupt::default()))?;
        Ok(Reader { context, batch: Batch::new(), n_past: 0 })
    }

    /// Decodes the `tokens` that are not in the cache, and returns the logits after the last one.
    fn read(&mut self, tokens: &[Token]) -> std::result::Result<&mut [f32], DecodeError> {
        let mut row = 0;
        while self.n_past < tokens.len() {
            self.batch.clear();
            let end = tokens.len().min(self.n_past + 256);
            for (position, token) in tokens.iter().enumerate().take(end).skip(self.n_past) {
                row = self.batch.push(*token, position, 0, position + 1 == tokens.len());
            }
            self.context.decode(&self.batch)?;
            self.n_past = end;
        }
        self.context.logits(row).ok_or_else(|| DecodeError::Failed(foredraft::Error::model("no logits")))
    }

    /// Keeps the first `n` tokens.
    fn cut(&mut self, n: usize) {
        self.context.truncate(0, n);
        self.n_past = self.n_past.min(n);
    }
}

fn probability(logits: &[f32], token: Token) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    usize::try_from(token).ok().and_then(|index| logits.get(index)).map_or(0.0, |logit| (logit - most).exp() / sum)
}

/// The draft's choice after `text`, and its probability.
fn choose(reader: &mut Reader, sampler: &mut Sampler, text: &[Token], position: usize) -> Result<(Token, u8)> {
    let logits = reader.read(text).map_err(failed)?;
    let token = sampler.sample(logits, text, position)?;
    Ok((token, (probability(logits, token) * 255.0).round() as u8))
}

fn failed(error: DecodeError) -> foredraft::error::Error {
    foredraft::error::Error::model(format!("{error:?}"))
}

/// The draft's choice at each token of the output.
fn draft(reader: &mut Reader, settings: &Settings, prompt: &[Token], output: &[Token]) -> Result<String> {
    let model = Arc::clone(reader.context.model());
    let target = Sampler::new(settings, &*model, None)?;
    let (mut line, mut text) = (String::new(), prompt.to_vec());
    reader.cut(0);
    for (position, actual) in output.iter().enumerate() {
        let mut sampler = target.for_draft(false);
        let (mut token, p) = choose(reader, &mut sampler, &text, position)?;
        let known = text.len();
        if token == *actual {
            let _ = write!(line, " {p:02x}");
        } else {
            let _ = write!(line, " -{p:02x}");
            for ahead in 1..=TAIL {
                if model.vocab().is_eog(token) {
                    break;
                }
                text.push(token);
                let (next, p) = choose(reader, &mut sampler, &text, position + ahead)?;
                let _ = write!(line, "{p:02x}");
                token = next;
            }
        }
        text.truncate(known);
        reader.cut(known);
        text.push(*actual);
    }
    Ok(line)
}

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [target, near, far, folder, only @ ..] = &arguments[..] else {
        eprintln!("record_traces TARGET.gguf NEAR_DRAFT.gguf FAR_DRAFT.gguf FOLDER [TASK]");
        std::process::exit(2);
    };
    let n_threads = std::thread::available_parallelism().map_or(1, |n| i32::try_from(n.get()).unwrap_or(1));
    let threads = Arc::new(ThreadPool::new(n_threads)?);
    let mut target = Reader::new(target, &threads, n_threads)?;
    let mut drafts =
        [("near", Reader::new(near, &threads, n_threads)?), ("far", Reader::new(far, &threads, n_threads)?)];
    let model = Arc::clone(target.context.model());
    let is_wanted = |task: &str| only.is_empty() || only.iter().any(|only| only.as_os_str() == task);
    for (number, (task, user)) in tasks().into_iter().enumerate().filter(|(_, (task, _))| is_wanted(task)) {
        for temperature in [0.0_f32, 0.7] {
            let settings = Settings {
                temperature,
                repeat_penalty: 1.0,
                seed: 100 + u32::try_from(number).unwrap_or(0),
                ..Settings::default()
            };
            let mut sampler = Sampler::new(&settings, &*model, None)?;
            let prompt = model.vocab().tokenize(chat(&user).as_bytes(), true, true)?;
            let mut text = prompt.clone();
            target.cut(0);
            for position in 0..N_PREDICT {
                let logits = target.read(&text).map_err(failed)?;
                let token = sampler.sample(logits, &text, position)?;
                sampler.accept(token)?;
                text.push(token);
                if model.vocab().is_eog(token) {
                    break;
                }
            }
            let output = text.get(prompt.len()..).unwrap_or(&[]);
            let ids = |tokens: &[Token]| tokens.iter().map(|token| format!(" {token}")).collect::<String>();
            let mut trace = format!("temperature {temperature}\nprompt{}\noutput{}\n", ids(&prompt), ids(output));
            for (name, reader) in &mut drafts {
                let _ = writeln!(trace, "{name}{}", draft(reader, &settings, &prompt, output)?);
            }
            let kind = if temperature > 0.0 { "sampled" } else { "greedy" };
            let path = folder.join(format!("{task}-{kind}.txt"));
            let write = std::fs::write(&path, trace);
            write.map_err(|error| foredraft::error::Error::model(format!("{}: {error}", path.display())))?;
            eprintln!("{}: {} tokens", path.display(), output.len());
        }
    }
    Ok(())
}
