//! Recorded completions: see `examples/record_traces.rs` for the format.

use std::path::Path;

use super::Kind;
use crate::MAX_DRAFT;
use foredraft_base::Token;

/// A draft model's choice for a token of the output.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    /// Its probability.
    pub(super) p: f32,
    /// Empty if the token is right, otherwise the probabilities of the tokens with which the draft continues.
    pub(super) tail: Vec<f32>,
    pub(super) is_right: bool,
}

/// A recorded completion.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) prompt: Vec<Token>,
    pub(super) output: Vec<Token>,
    near: Vec<Choice>,
    far: Vec<Choice>,
}

impl Trace {
    /// A completion of `n` tokens with drafts of equal confidence, right where `is_right` says so.
    pub(super) fn scripted(n: usize, is_right: impl Fn(usize) -> bool) -> Trace {
        let token = |at: usize| Token::try_from(at + 100).unwrap();
        let choice = |at: usize| {
            let is_right = is_right(at);
            Choice { p: 0.99, tail: if is_right { Vec::new() } else { vec![0.99; MAX_DRAFT] }, is_right }
        };
        let near: Vec<Choice> = (0..n).map(choice).collect();
        Trace { prompt: vec![2; 40], output: (0..n).map(token).collect(), far: near.clone(), near }
    }

    /// Its first `n` tokens.
    pub(super) fn first(&self, n: usize) -> Trace {
        let n = n.min(self.output.len());
        let of = |choices: &[Choice]| choices[..n].to_vec();
        Trace {
            prompt: self.prompt.clone(),
            output: self.output[..n].to_vec(),
            near: of(&self.near),
            far: of(&self.far),
        }
    }

    /// The draft's choice for each token of the output.
    pub(super) fn draft(&self, kind: Kind) -> &[Choice] {
        match kind {
            Kind::Near => &self.near,
            Kind::Far | Kind::Useless => &self.far,
        }
    }

    /// The number of the draft's tokens after the first `generated` ones that are right.
    pub(super) fn right(&self, kind: Kind, generated: usize) -> usize {
        let is_right = |choice: &&Choice| choice.is_right && kind != Kind::Useless;
        self.draft(kind)[generated..].iter().take_while(is_right).count()
    }
}

/// Completions of the same kind, and their temperature.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) temperature: f32,
    pub(super) traces: Vec<Trace>,
}

fn probability(hex: &str) -> f32 {
    f32::from(u8::from_str_radix(hex, 16).unwrap()) / 255.0
}

fn choice(item: &str) -> Choice {
    let wrong = item.strip_prefix('-');
    let digits = wrong.unwrap_or(item);
    let mut all = (0..digits.len()).step_by(2).map(|at| probability(&digits[at..at + 2]));
    Choice { p: all.next().unwrap(), tail: all.collect(), is_right: wrong.is_none() }
}

fn parse(text: &str) -> (f32, Trace) {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
        line.split_ascii_whitespace()
    };
    let ids = |name: &str| field(name).map(|id| id.parse().unwrap()).collect::<Vec<Token>>();
    let draft = |name: &str| field(name).map(choice).collect::<Vec<Choice>>();
    let trace = Trace { prompt: ids("prompt"), output: ids("output"), near: draft("near"), far: draft("far") };
    assert!(trace.near.len() == trace.output.len() && trace.far.len() == trace.output.len());
    (field("temperature").next().unwrap().parse().unwrap(), trace)
}

/// The tasks, greedy and sampled, and all of them mixed. `half`: 1 or 2, the prompts used for tuning the controller or the held-out ones.
/// `None`: all.
pub(super) fn tasks(half: Option<u8>) -> Vec<Task> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let read = |name: &str, kind: &str| {
        let halves = [1, 2].into_iter().filter(|own| half.is_none_or(|half| half == *own));
        // Not all prompts were recorded at both temperatures.
        let texts =
            halves.filter_map(|half| std::fs::read_to_string(folder.join(format!("{name}-{half}-{kind}.txt"))).ok());
        texts.map(|text| parse(&text)).unzip::<f32, Trace, Vec<f32>, Vec<Trace>>()
    };
    const NAMES: [&str; 5] = ["question", "story", "code", "rewriting", "editing"];
    let mut tasks = Vec::new();
    for kind in ["greedy", "sampled"] {
        let mut task = |name: &str, (temperatures, traces): (Vec<f32>, Vec<Trace>)| {
            if let Some(temperature) = temperatures.first().copied() {
                tasks.push(Task { name: format!("{name} {kind}"), temperature, traces });
            }
        };
        NAMES.iter().for_each(|name| task(name, read(name, kind)));
        let (temperatures, traces): (Vec<_>, Vec<_>) = NAMES.iter().map(|name| read(name, kind)).unzip();
        task("mixed", (temperatures.concat(), traces.into_iter().flatten().collect()));
    }
    let least = if half.is_some() { 9 } else { 12 };
    assert!(tasks.len() >= least, "{} tasks in {}", tasks.len(), folder.display());
    tasks
}
