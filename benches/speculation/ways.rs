//! The compared configurations ("ways" to generate a text): this library through the C ABI, and llama.cpp through its functions.

use serde_json::{Value, json};

use super::common::SPINNING;
use super::host::{Cost, Host, Result};
use super::peer::{Models, Request};
use super::texts::Text;

/// A configuration.
#[derive(Debug, Clone)]
pub struct Way {
    pub name: String,
    pub role: Role,
    how: How,
}

/// The kind of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Plain decoding.
    Plain { ours: bool },
    /// This library with `adaptive` lengths.
    Adaptive,
    /// Drafts of a fixed length by the draft model.
    Fixed { ours: bool, n_max: usize },
    /// This library with the rule `match`, to compare the acceptance.
    Match { n_max: usize },
    /// This library with another verification rule.
    Verify,
    /// A history drafter.
    Ngram { ours: bool, kind: Kind },
}

/// A history drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One of llama.cpp's five drafters.
    Rule,
    /// `ngram-cache` with a static cache.
    Static,
    /// This library's `suffix` and `auto`.
    General,
}

#[derive(Debug, Clone)]
enum How {
    /// The `speculative` object of a request.
    Ours(Value),
    Theirs(Request),
}

impl Way {
    pub fn ours(name: impl Into<String>, role: Role, speculative: Value) -> Way {
        Way { name: name.into(), role, how: How::Ours(speculative) }
    }

    /// Returns whether it is a configuration of this library.
    pub fn is_ours(&self) -> bool {
        matches!(self.how, How::Ours(_))
    }

    pub fn theirs(name: impl Into<String>, role: Role, request: Request) -> Way {
        Way { name: name.into(), role, how: How::Theirs(request) }
    }

    /// This library's answer to a prompt.
    fn respond(&self, host: &Host, task: &Task, prompt: &[i32], seed: u32) -> Result<Value> {
        let How::Ours(speculative) = &self.how else { return Err("llama.cpp's ways answer otherwise".into()) };
        host.call("get_completion", &request(task, prompt, seed, speculative))
    }
}

/// Clears the caches of previous completions, which would predict the next text. llama.cpp's side also starts without them.
fn forget(host: &Host) -> Result<()> {
    host.call("lookup_cache", &json!({"action": "clear", "cache": "dynamic"}))?;
    Ok(())
}

/// The results of a configuration.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// The fastest run of each text, because other load can only slow a run down. `adaptive` and `auto` depend on measured times and can draft
    /// differently in each run, so for them it is also the luckiest run.
    fastest: Vec<Cost>,
    /// The outputs of the last runs.
    pub tokens: Vec<Vec<i32>>,
    /// Why there is no result.
    pub missing: Option<String>,
}

impl Row {
    /// Records a run.
    fn add(&mut self, text: usize, cost: Cost, tokens: Vec<i32>) {
        match self.fastest.get_mut(text) {
            Some(fastest) if cost.speed() <= fastest.speed() => (),
            Some(fastest) => *fastest = cost,
            None => self.fastest.push(cost),
        }
        match self.tokens.get_mut(text) {
            Some(last) => *last = tokens,
            None => self.tokens.push(tokens),
        }
    }

    /// The sum over all texts, each with its fastest run.
    pub fn cost(&self) -> Cost {
        let mut sum = Cost::default();
        self.fastest.iter().for_each(|cost| sum.add(cost));
        sum
    }

    /// Tokens per second. NaN: no result.
    pub fn speed(&self) -> f64 {
        self.cost().speed()
    }
}

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub n_predict: usize,
    pub prompts: usize,
    /// The number of texts sampled for each prompt.
    pub seeds: usize,
    pub repetitions: usize,
}

/// A kind of text, with tokenized prompts, at one temperature.
#[derive(Clone)]
pub struct Task<'a> {
    pub text: &'a Text,
    pub prompts: Vec<Vec<i32>>,
    pub temperature: f64,
    pub amount: Amount,
}

impl Task<'_> {
    /// The same with about `n` runs of each configuration: with other seeds if the text is sampled, else with the same texts.
    pub fn with_runs(&self, n: usize) -> Self {
        let each = n.div_ceil(self.prompts.len().max(1)).max(1);
        let (seeds, repetitions) = if self.temperature > 0.0 { (each, 1) } else { (1, each) };
        Task { amount: Amount { seeds, repetitions, ..self.amount }, ..self.clone() }
    }
}

/// A text to generate.
pub struct Written {
    prompt: Vec<i32>,
    seed: u32,
    /// The text that llama.cpp's side has to generate. `None`: its own samples.
    tokens: Option<Vec<i32>>,
}

/// The two sides.
pub struct Sides<'a> {
    host: &'a Host,
    models: &'a mut Models,
    /// Whether this library generated the last text. `None`: unknown.
    before: Option<bool>,
}

impl<'a> Sides<'a> {
    pub fn new(host: &'a Host, models: &'a mut Models) -> Self {
        Sides { host, models, before: None }
    }

    /// Runs all configurations, interleaved, so that other load affects all of them.
    pub fn measure(&mut self, task: &Task, ways: &[Way]) -> Result<Vec<Row>> {
        let mut rows = vec![Row::default(); ways.len()];
        let texts = self.texts(task)?;
        for repetition in 0..task.amount.repetitions {
            // In another order each time, so that no configuration always follows the same one.
            let mut order: Vec<_> = ways.iter().zip(&mut rows).enumerate().collect();
            order.sort_by_key(|(at, (way, _))| {
                let place = (at + repetition) * (2 * repetition + 1) % ways.len();
                (way.is_ours() == (repetition % 2 == 0), place, *at)
            });
            for (_, (way, row)) in order {
                if row.missing.is_some() {
                    continue;
                }
                if let Err(error) = self.all_texts(&texts, task, way, row) {
                    row.missing = Some(error.to_string());
                }
            }
        }
        Ok(rows)
    }

    /// The texts to generate. Above temperature 0, this library's plain output, because the other side's random numbers would give another text.
    pub fn texts(&self, task: &Task) -> Result<Vec<Written>> {
        // Greedy texts do not depend on the seed.
        let by_chance = task.temperature > 0.0;
        let seeds = if by_chance { task.amount.seeds } else { 1 };
        let texts = task.prompts.iter().flat_map(|prompt| (0..seeds).map(move |_| prompt.clone()));
        let plain = Way::ours("plain", Role::Plain { ours: true }, json!(false));
        texts
            .zip(1..)
            .map(|(prompt, seed)| {
                let tokens = match by_chance {
                    true => {
                        let answer = plain.respond(self.host, task, &prompt, seed)?;
                        Some(serde_json::from_value(answer["tokens"].clone())?)
                    }
                    false => None,
                };
                Ok(Written { prompt, seed, tokens })
            })
            .collect()
    }

    /// The same texts in each repetition.
    fn all_texts(&mut self, texts: &[Written], task: &Task, way: &Way, row: &mut Row) -> Result<()> {
        for (at, text) in texts.iter().enumerate() {
            let (cost, tokens) = self.generate(task, way, text)?;
            row.add(at, cost, tokens);
        }
        Ok(())
    }

    /// Runs one text.
    pub fn generate(&mut self, task: &Task, way: &Way, text: &Written) -> Result<(Cost, Vec<i32>)> {
        // Waits until the other side's idle threads have stopped spinning.
        if self.before.replace(way.is_ours()) != Some(way.is_ours()) {
            std::thread::sleep(SPINNING);
        }
        match &way.how {
            How::Ours(_) => {
                forget(self.host)?;
                let response = way.respond(self.host, task, &text.prompt, text.seed)?;
                Ok((Cost::of(&response), serde_json::from_value(response["tokens"].clone())?))
            }
            How::Theirs(request) => {
                // Rejection sampling draws its own tokens.
                let given = text.tokens.clone().filter(|_| !request.probabilistic);
                let request = Request {
                    n_predict: given.as_ref().map_or(task.amount.n_predict, Vec::len),
                    text: given,
                    temperature: task.temperature as f32,
                    seed: text.seed,
                    ignore_eos: task.text.endless,
                    ..request.clone()
                };
                let (tokens, outcome) = self.models.generate(&text.prompt, &request)?;
                let cost = Cost {
                    tokens: outcome.n_tokens as f64,
                    ms: outcome.seconds * 1e3,
                    steps: outcome.n_steps as f64,
                    drafted: outcome.n_drafted as f64,
                    accepted: outcome.n_accepted as f64,
                    draft_ms: f64::NAN,
                    verify_ms: f64::NAN,
                };
                Ok((cost, tokens))
            }
        }
    }
}

fn request(task: &Task, prompt: &[i32], seed: u32, speculative: &Value) -> Value {
    json!({
        "prompt": prompt, "n_predict": task.amount.n_predict, "temperature": task.temperature, "seed": seed, "top_k": 0,
        "top_p": 1, "min_p": 0, "repeat_penalty": 1, "ignore_eos": task.text.endless, "cache_prompt": false,
        "return_tokens": true, "speculative": speculative,
    })
}
