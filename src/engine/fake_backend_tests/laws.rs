//! Rules that keep the distribution alone: how often each short text comes, beside how often the script alone says it.
//!
//! Of n independent texts, k begin with a prefix of probability p. By Chernoff's bound n·KL(k/n, p) is above x with a
//! probability of at most 2·exp(-x), for each prefix; so the largest of all
//! is an exact test at any size, and blind to nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{MODEL, Setup, Stage, request};
use crate::engine::{Event, Request};
use crate::llama::Token;
use crate::llama::fake::FakeModel;
use crate::sampling;
use crate::speculative::{Adaptive, DrafterKind, Settings, Verify};

/// Probabilities of texts, or how often they came.
type Law = BTreeMap<Vec<Token>, f64>;

/// Tokens of each text: more than a draft has.
const LEN: usize = 4;
/// A false alarm is less probable than this.
const NEVER: f64 = 1e-10;

const TARGET: FakeModel =
    FakeModel { seed: 5, n_words: 4, near: 2.0, far: 3.0, noise: 0.0, ends: 9, floor: f32::NEG_INFINITY };
const DRAFT: FakeModel = FakeModel { noise: 3.0, ..TARGET };

fn prompt() -> Vec<Token> {
    (0..6).map(|n| FakeModel::FIRST + n * n % 4).collect()
}

/// What `voice` alone says at this temperature.
fn law(voice: FakeModel, temperature: f64) -> Law {
    let vocab = MODEL.vocab();
    let (mut law, mut open) = (Law::new(), vec![(Vec::new(), 1.0)]);
    while let Some((text, weight)) = open.pop() {
        if text.len() == LEN || text.last().is_some_and(|token| vocab.is_eog(*token)) {
            law.insert(text, weight);
            continue;
        }
        let seen: Vec<u64> = prompt().iter().chain(&text).map(|token| FakeModel::sight(*token, &[])).collect();
        let row = voice.logits(&seen, vocab.n_tokens(), vocab.eos().unwrap());
        let powers: Vec<(Token, f64)> =
            (0..).zip(row.iter().map(|logit| (f64::from(*logit) / temperature).exp())).collect();
        let sum: f64 = powers.iter().map(|(_, power)| power).sum();
        for (token, power) in powers.into_iter().filter(|(_, power)| *power > 0.0) {
            open.push(([&text[..], &[token]].concat(), weight * power / sum));
        }
    }
    law
}

/// The weight of each beginning.
fn beginnings(law: &Law) -> Law {
    let mut all = Law::new();
    for (text, weight) in law {
        (1..=text.len()).for_each(|len| *all.entry(text[..len].to_vec()).or_insert(0.0) += weight);
    }
    all
}

/// The largest n·KL over all beginnings, and the one where it is.
fn surprise(counts: &Law, law: &Law) -> (f64, Vec<Token>) {
    let n: f64 = counts.values().sum();
    let (counts, law) = (beginnings(counts), beginnings(law));
    let part = |a: f64, b: f64| if a > 0.0 { a * (a / b).ln() } else { 0.0 };
    let of = |text: &Vec<Token>| {
        let (p, seen) = (law.get(text).copied().unwrap_or(0.0).min(1.0), counts.get(text).copied().unwrap_or(0.0) / n);
        n * (part(seen, p) + part(1.0 - seen, 1.0 - p))
    };
    let texts = counts.keys().chain(law.keys()).map(|text| (of(text), text.clone()));
    texts.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

/// What a surprise must stay below.
fn bound(law: &Law) -> f64 {
    (2.0 * beginnings(law).len() as f64 / NEVER).ln()
}

/// How texts are made.
#[derive(Debug, Clone)]
struct Way {
    verify: Verify,
    n_branches: usize,
    adaptive: Adaptive,
    sources: Vec<DrafterKind>,
    temperature: f32,
}

impl Way {
    fn draft(verify: Verify, n_branches: usize) -> Way {
        Way { verify, n_branches, adaptive: Adaptive::Fixed, sources: vec![DrafterKind::Draft], temperature: 1.0 }
    }

    fn request(&self, seed: u32) -> Request {
        let sampling = sampling::SamplingSettings {
            temperature: self.temperature,
            top_k: 0,
            top_p: 1.0,
            repeat_penalty: 1.0,
            seed,
            ..sampling::SamplingSettings::default()
        };
        let speculative = Settings {
            sources: self.sources.clone(),
            n_max: if self.n_branches > 1 { 8 } else { 3 },
            p_split: 0.05,
            n_branches: self.n_branches,
            verify: self.verify,
            adaptive: self.adaptive,
            ..Settings::default()
        };
        Request { speculative: Some(speculative), ..request(prompt(), LEN, sampling) }
    }
}

/// How often each of `n` texts came, how many tokens were drafted for one on average, and how many of those were right.
fn texts(way: &Way, n: u32) -> (Law, f64, f64) {
    let mut stage = Stage::new(&Setup {
        kv_unified: true,
        padding: false,
        ctx_shift: true,
        draft: Some(DRAFT),
        draft_cost: 10,
        ..Setup::plain(TARGET, 2, 64, 32)
    });
    let (mut counts, mut drafted, mut accepted) = (Law::new(), 0, 0);
    let mut handles = Vec::new();
    for seed in 0..n {
        handles.push(stage.submit(vec![way.request(seed)]));
        while stage.scheduler.queue.len() > usize::from(seed + 1 < n) || (seed + 1 == n && !stage.scheduler.is_idle()) {
            stage.advance();
        }
    }
    for handle in handles {
        let mut text = Vec::new();
        for (_, event) in handle.take(Duration::ZERO).0 {
            text.extend(match &event {
                Event::Update(update) => update.tokens.iter().map(|token| token.token).collect::<Vec<_>>(),
                Event::Finished(outcome) => {
                    let stats = outcome.speculation.as_ref().unwrap();
                    (drafted, accepted) = (drafted + stats.n_drafted, accepted + stats.n_accepted);
                    outcome.tokens.iter().map(|token| token.token).collect()
                }
                Event::Progress(_) => Vec::new(),
            });
        }
        *counts.entry(text).or_insert(0.0) += 1.0;
    }
    (counts, f64::from(u32::try_from(drafted).unwrap()) / f64::from(n), accepted as f64 / drafted as f64)
}

/// All the ways that keep the distribution.
fn ways() -> Vec<Way> {
    let mixed = || vec![DrafterKind::Suffix, DrafterKind::NgramCache, DrafterKind::Draft];
    vec![
        Way::draft(Verify::Rejection, 1),
        Way::draft(Verify::Block, 1),
        Way::draft(Verify::Rejection, 4),
        Way { sources: mixed(), ..Way::draft(Verify::Rejection, 1) },
        Way { sources: mixed(), adaptive: Adaptive::Auto, ..Way::draft(Verify::Rejection, 3) },
        Way { sources: mixed(), adaptive: Adaptive::Auto, ..Way::draft(Verify::Block, 1) },
        Way::draft(Verify::Coupled, 1),
        Way::draft(Verify::Match, 4),
    ]
}

fn check(n: u32) {
    let law = law(TARGET, 1.0);
    assert!((law.values().sum::<f64>() - 1.0).abs() < 1e-9);
    for way in ways() {
        let (counts, drafted, accepted) = texts(&way, n);
        let (surprise, text) = surprise(&counts, &law);
        eprintln!("{way:?}: {drafted:.2} drafted, {accepted:.2} right, surprise {surprise:.1} of {:.1}", bound(&law));
        assert!(surprise < bound(&law), "{way:?}: {surprise} at {text:?}");
        assert!(drafted > 1.0 && (0.2..0.95).contains(&accepted), "{way:?}: {drafted} drafted, {accepted} right");
    }
}

#[test]
fn texts_are_distributed_as_the_script_alone_speaks() {
    check(20_000);
}

#[test]
#[ignore = "takes most of a minute: make exactness"]
fn many_texts_are_distributed_as_the_script_alone_speaks() {
    check(150_000);
}

/// What the test above would not miss.
#[test]
fn other_distributions_are_noticed() {
    let way = Way { temperature: 1.1, ..Way::draft(Verify::Rejection, 1) };
    let law = law(TARGET, 1.0);
    let (surprise, _) = surprise(&texts(&way, 20_000).0, &law);
    assert!(surprise > bound(&law), "another temperature: {surprise} of {}", bound(&law));
}
