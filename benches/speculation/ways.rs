//! Ways to generate the same: ours through the C ABI, llama.cpp's through its own functions; and what each costs.

use serde_json::{Value, json};

use super::common::SPINNING;
use super::host::{Cost, Host, Result};
use super::peer::{Models, Request};
use super::texts::Text;

/// One way to generate.
#[derive(Debug, Clone)]
pub struct Way {
    pub name: String,
    pub role: Role,
    how: How,
}

/// What a way is in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Without speculation.
    Plain { ours: bool },
    /// Ours, choosing the length itself.
    Adaptive,
    /// Drafts of always so many tokens by the draft model.
    Fixed { ours: bool, n_max: usize },
    /// Ours with the rule `match`, to compare what is accepted.
    Match { n_max: usize },
    /// Ours with another rule.
    Verify,
    /// Drafts from the text itself.
    Ngram { ours: bool, kind: Kind },
}

/// What drafts from the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One of llama.cpp's five.
    Rule,
    /// `ngram-cache` with a static cache.
    Static,
    /// Ours that need no choice of a rule: `suffix` and `auto`.
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

    /// Whether it is ours.
    pub fn is_ours(&self) -> bool {
        matches!(self.how, How::Ours(_))
    }

    pub fn theirs(name: impl Into<String>, role: Role, request: Request) -> Way {
        Way { name: name.into(), role, how: How::Theirs(request) }
    }

    /// The answer of ours to a prompt.
    fn respond(&self, host: &Host, task: &Task, prompt: &[i32], seed: u32) -> Result<Value> {
        let How::Ours(speculative) = &self.how else { return Err("llama.cpp's ways answer otherwise".into()) };
        host.call("get_completion", &request(task, prompt, seed, speculative))
    }
}

/// What the last text taught would give the next one away; llama.cpp's side starts anew for each, too.
fn forget(host: &Host) -> Result<()> {
    host.call("lookup_cache", &json!({"action": "clear", "cache": "dynamic"}))?;
    Ok(())
}

/// What came of a way.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// For each text the fastest run: a disturbance can only slow a run down. Only `adaptive` and `auto` may draft otherwise in each run,
    /// as they follow the measured times, so theirs is also the luckiest.
    fastest: Vec<Cost>,
    /// What was written in the last runs.
    pub tokens: Vec<Vec<i32>>,
    /// Why there is nothing.
    pub missing: Option<String>,
}

impl Row {
    /// A text has been written once more.
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

    /// All texts together, each by its fastest run.
    pub fn cost(&self) -> Cost {
        let mut sum = Cost::default();
        self.fastest.iter().for_each(|cost| sum.add(cost));
        sum
    }

    /// Tokens a second; NaN where there is nothing.
    pub fn speed(&self) -> f64 {
        self.cost().speed()
    }
}

/// How much to generate.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub n_predict: usize,
    pub prompts: usize,
    /// Texts sampled after each prompt.
    pub seeds: usize,
    pub repetitions: usize,
}

/// A text with its prompts in tokens, at one temperature.
#[derive(Clone)]
pub struct Task<'a> {
    pub text: &'a Text,
    pub prompts: Vec<Vec<i32>>,
    pub temperature: f64,
    pub amount: Amount,
}

impl Task<'_> {
    /// The same with about `n` runs of each way: other texts by other seeds where there is chance, else the same ones again.
    pub fn with_runs(&self, n: usize) -> Self {
        let each = n.div_ceil(self.prompts.len().max(1)).max(1);
        let (seeds, repetitions) = if self.temperature > 0.0 { (each, 1) } else { (1, each) };
        Task { amount: Amount { seeds, repetitions, ..self.amount }, ..self.clone() }
    }
}

/// A text to write.
pub struct Written {
    prompt: Vec<i32>,
    seed: u32,
    /// What llama.cpp's side has to write; `None`: what it finds itself.
    tokens: Option<Vec<i32>>,
}

/// The two sides.
pub struct Sides<'a> {
    host: &'a Host,
    models: &'a mut Models,
    /// Whether the last text was written by ours, as far as that is known.
    before: Option<bool>,
}

impl<'a> Sides<'a> {
    pub fn new(host: &'a Host, models: &'a mut Models) -> Self {
        Sides { host, models, before: None }
    }

    /// All ways, taking turns: a disturbance of the machine hits all of them.
    pub fn measure(&mut self, task: &Task, ways: &[Way]) -> Result<Vec<Row>> {
        let mut rows = vec![Row::default(); ways.len()];
        let texts = self.texts(task)?;
        for repetition in 0..task.amount.repetitions {
            // One side after the other, in another order each time: nobody always follows the same one.
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

    /// What there is to write: above temperature 0, where the other side's noise would write another text, ours written plainly.
    pub fn texts(&self, task: &Task) -> Result<Vec<Written>> {
        // Greedy texts know no chance.
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

    /// One text.
    pub fn generate(&mut self, task: &Task, way: &Way, text: &Written) -> Result<(Cost, Vec<i32>)> {
        // Threads of the other side spin for a while.
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
                // Rejection draws tokens itself, and can be given none.
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
