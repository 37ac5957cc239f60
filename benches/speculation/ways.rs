//! Ways to generate the same: ours through the C ABI, llama.cpp's through its own functions; and what each costs.

use std::time::Duration;

use serde_json::{Value, json};

use super::common::median;
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
}

/// What came of a way.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// For each repetition, all prompts together.
    costs: Vec<Cost>,
    /// What was written in the last one, each prompt's.
    pub tokens: Vec<Vec<i32>>,
    /// Why there is nothing.
    pub missing: Option<String>,
}

impl Row {
    /// All repetitions together.
    pub fn cost(&self) -> Cost {
        let mut sum = Cost::default();
        self.costs.iter().for_each(|cost| sum.add(cost));
        sum
    }

    /// How often it was run.
    pub fn repetitions(&self) -> usize {
        self.costs.len()
    }

    /// Tokens a second in one repetition.
    pub fn speed_in(&self, repetition: usize) -> Option<f64> {
        self.costs.get(repetition).map(Cost::speed)
    }

    /// Tokens a second, the median of all repetitions but this one; of all, where it is the only one.
    pub fn speed_without(&self, repetition: usize) -> f64 {
        let others = self.costs.iter().enumerate().filter(|(index, _)| *index != repetition || self.costs.len() == 1);
        median(others.map(|(_, cost)| cost.speed()).collect())
    }

    /// Tokens a second, the median; NaN where there is nothing.
    pub fn speed(&self) -> f64 {
        median(self.costs.iter().map(Cost::speed).collect())
    }
}

/// How much to generate.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub n_predict: usize,
    pub prompts: usize,
    pub repetitions: usize,
}

/// A text with its prompts in tokens, at one temperature.
pub struct Task<'a> {
    pub text: &'a Text,
    pub prompts: Vec<Vec<i32>>,
    pub temperature: f64,
    pub amount: Amount,
}

/// How long idle threads of a pool spin at most, before they sleep.
const SPINNING: Duration = Duration::from_millis(400);

/// The two sides.
pub struct Sides<'a> {
    pub host: &'a Host,
    pub models: &'a mut Models,
}

impl Sides<'_> {
    /// All ways, taking turns: a disturbance of the machine hits all of them.
    pub fn measure(&mut self, task: &Task, ways: &[Way]) -> Vec<Row> {
        let mut rows = vec![Row::default(); ways.len()];
        let mut before = None;
        for repetition in 0..task.amount.repetitions {
            for turn in 0..ways.len() {
                // Nobody always follows the same one.
                let at = (turn + repetition * 5) % ways.len();
                let (Some(way), Some(row)) = (ways.get(at), rows.get_mut(at)) else { continue };
                if row.missing.is_none() {
                    // Threads of the other side spin for a while.
                    if before.replace(way.is_ours()).is_some_and(|ours| ours != way.is_ours()) {
                        std::thread::sleep(SPINNING);
                    }
                    match self.all_prompts(task, way, repetition) {
                        Ok((cost, tokens)) => {
                            row.costs.push(cost);
                            row.tokens = tokens;
                        }
                        Err(error) => row.missing = Some(error.to_string()),
                    }
                }
            }
        }
        rows
    }

    fn all_prompts(&mut self, task: &Task, way: &Way, repetition: usize) -> Result<(Cost, Vec<Vec<i32>>)> {
        let (mut cost, mut texts) = (Cost::default(), Vec::new());
        for (prompt, seed) in task.prompts.iter().zip(100 * repetition + 1..) {
            let (one, tokens) = self.generate(task, way, prompt, u32::try_from(seed)?)?;
            cost.add(&one);
            texts.push(tokens);
        }
        Ok((cost, texts))
    }

    /// One text.
    pub fn generate(&mut self, task: &Task, way: &Way, prompt: &[i32], seed: u32) -> Result<(Cost, Vec<i32>)> {
        match &way.how {
            How::Ours(speculative) => {
                self.forget()?;
                let response = self.host.call("get_completion", &request(task, prompt, seed, speculative))?;
                Ok((Cost::of(&response), serde_json::from_value(response["tokens"].clone())?))
            }
            How::Theirs(request) => {
                let request = Request {
                    n_predict: task.amount.n_predict,
                    temperature: task.temperature as f32,
                    seed,
                    ignore_eos: task.text.endless,
                    ..request.clone()
                };
                let (tokens, outcome) = self.models.generate(prompt, &request)?;
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

    /// What the last text taught would give this one away; llama.cpp's side starts anew for each, too.
    fn forget(&self) -> Result<()> {
        self.host.call("lookup_cache", &json!({"action": "clear", "cache": "dynamic"}))?;
        Ok(())
    }
}

fn request(task: &Task, prompt: &[i32], seed: u32, speculative: &Value) -> Value {
    json!({
        "prompt": prompt, "n_predict": task.amount.n_predict, "temperature": task.temperature, "seed": seed, "top_k": 0,
        "top_p": 1, "min_p": 0, "repeat_penalty": 1, "ignore_eos": task.text.endless, "cache_prompt": false,
        "return_tokens": true, "speculative": speculative,
    })
}
