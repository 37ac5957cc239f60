//! Verification rules preserve the distribution: the frequency of each short output against its exact probability.
//!
//! Let k of n independent outputs begin with a prefix of probability p. By Chernoff's bound, n·KL(k/n, p) exceeds x with a probability of
//! at most 2·exp(-x) for each prefix. So the largest of all is an exact test at any sample size, and it detects a deviation at any prefix.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{MODEL, Setup, TestEngine, request};
use crate::{Event, Request};
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings, Verify};

/// Probabilities of outputs, or their numbers of occurrences.
type Distribution = BTreeMap<Vec<Token>, f64>;

/// Tokens of each output: more than a draft has.
const LEN: usize = 4;
/// The largest probability of a false alarm.
const FALSE_ALARM: f64 = 1e-10;

const TARGET: FakeModel =
    FakeModel { seed: 5, n_words: 4, near: 2.0, far: 3.0, noise: 0.0, ends: 9, floor: f32::NEG_INFINITY };
const DRAFT: FakeModel = FakeModel { noise: 3.0, ..TARGET };

fn prompt() -> Vec<Token> {
    (0..6).map(|n| FakeModel::FIRST + n * n % 4).collect()
}

/// The exact distribution of `model`'s outputs at this temperature.
fn exact_distribution(model: FakeModel, temperature: f64) -> Distribution {
    let vocab = MODEL.vocab();
    let (mut exact, mut open) = (Distribution::new(), vec![(Vec::new(), 1.0)]);
    while let Some((text, weight)) = open.pop() {
        if text.len() == LEN || text.last().is_some_and(|token| vocab.is_eog(*token)) {
            exact.insert(text, weight);
            continue;
        }
        let seen: Vec<u64> = prompt().iter().chain(&text).map(|token| FakeModel::token_hash(*token, &[])).collect();
        let row = model.logits(&seen, vocab.n_tokens(), vocab.eos().unwrap());
        let powers: Vec<(Token, f64)> =
            (0..).zip(row.iter().map(|logit| (f64::from(*logit) / temperature).exp())).collect();
        let sum: f64 = powers.iter().map(|(_, power)| power).sum();
        for (token, power) in powers.into_iter().filter(|(_, power)| *power > 0.0) {
            open.push(([&text[..], &[token]].concat(), weight * power / sum));
        }
    }
    exact
}

/// The total weight of each prefix.
fn prefixes(exact: &Distribution) -> Distribution {
    let mut all = Distribution::new();
    for (text, weight) in exact {
        (1..=text.len()).for_each(|len| *all.entry(text[..len].to_vec()).or_insert(0.0) += weight);
    }
    all
}

/// The largest n·KL over all prefixes, and its prefix.
fn max_divergence(counts: &Distribution, exact: &Distribution) -> (f64, Vec<Token>) {
    let n: f64 = counts.values().sum();
    let (counts, exact) = (prefixes(counts), prefixes(exact));
    let part = |a: f64, b: f64| if a > 0.0 { a * (a / b).ln() } else { 0.0 };
    let of = |text: &Vec<Token>| {
        let (p, seen) =
            (exact.get(text).copied().unwrap_or(0.0).min(1.0), counts.get(text).copied().unwrap_or(0.0) / n);
        n * (part(seen, p) + part(1.0 - seen, 1.0 - p))
    };
    let texts = counts.keys().chain(exact.keys()).map(|text| (of(text), text.clone()));
    texts.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

/// The bound that the divergence must not reach.
fn threshold(exact: &Distribution) -> f64 {
    (2.0 * prefixes(exact).len() as f64 / FALSE_ALARM).ln()
}

/// How outputs are generated.
#[derive(Debug, Clone)]
struct Method {
    verify: Verify,
    n_branches: usize,
    adaptive: Adaptive,
    sources: Vec<DrafterKind>,
    temperature: f32,
}

impl Method {
    fn draft(verify: Verify, n_branches: usize) -> Method {
        Method { verify, n_branches, adaptive: Adaptive::Fixed, sources: vec![DrafterKind::Draft], temperature: 1.0 }
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

/// Generates `n` outputs. Returns how often each occurred, the drafted tokens per output, and the rate of accepted ones.
fn texts(method: &Method, n: u32) -> (Distribution, f64, f64) {
    let mut engine = TestEngine::new(&Setup {
        kv_unified: true,
        padding: false,
        ctx_shift: true,
        draft: Some(DRAFT),
        draft_cost: 10,
        ..Setup::plain(TARGET, 2, 64, 32)
    });
    let (mut counts, mut drafted, mut accepted) = (Distribution::new(), 0, 0);
    let mut handles = Vec::new();
    for seed in 0..n {
        handles.push(engine.submit(vec![method.request(seed)]));
        while engine.scheduler.queue.len() > usize::from(seed + 1 < n) || (seed + 1 == n && !engine.scheduler.is_idle())
        {
            engine.advance();
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
                Event::Progress(_) | Event::Restarted { .. } => Vec::new(),
            });
        }
        *counts.entry(text).or_insert(0.0) += 1.0;
    }
    (counts, f64::from(u32::try_from(drafted).unwrap()) / f64::from(n), accepted as f64 / drafted as f64)
}

/// All methods that must preserve the distribution.
fn methods() -> Vec<Method> {
    let mixed = || vec![DrafterKind::Suffix, DrafterKind::NgramCache, DrafterKind::Draft];
    vec![
        Method::draft(Verify::Rejection, 1),
        Method::draft(Verify::Block, 1),
        Method::draft(Verify::Rejection, 4),
        Method { sources: mixed(), ..Method::draft(Verify::Rejection, 1) },
        Method { sources: mixed(), adaptive: Adaptive::Auto, ..Method::draft(Verify::Rejection, 3) },
        Method { sources: mixed(), adaptive: Adaptive::Auto, ..Method::draft(Verify::Block, 1) },
        Method::draft(Verify::Coupled, 1),
        Method::draft(Verify::Match, 4),
    ]
}

fn check(n: u32) {
    let exact = exact_distribution(TARGET, 1.0);
    assert!((exact.values().sum::<f64>() - 1.0).abs() < 1e-9);
    for method in methods() {
        let (counts, drafted, accepted) = texts(&method, n);
        let (divergence, text) = max_divergence(&counts, &exact);
        eprintln!(
            "{method:?}: {drafted:.2} drafted, {accepted:.2} right, divergence {divergence:.1} of {:.1}",
            threshold(&exact)
        );
        assert!(divergence < threshold(&exact), "{method:?}: {divergence} at {text:?}");
        assert!(drafted > 1.0 && (0.2..0.95).contains(&accepted), "{method:?}: {drafted} drafted, {accepted} right");
    }
}

#[test]
fn outputs_follow_the_fake_models_distribution() {
    check(20_000);
}

#[test]
#[ignore = "takes most of a minute: scripts/check.sh exactness"]
fn many_outputs_follow_the_fake_models_distribution() {
    check(150_000);
}

/// The test above detects a temperature of 1.1 instead of 1.
#[test]
fn a_wrong_distribution_is_detected() {
    let method = Method { temperature: 1.1, ..Method::draft(Verify::Rejection, 1) };
    let exact = exact_distribution(TARGET, 1.0);
    let (divergence, _) = max_divergence(&texts(&method, 20_000).0, &exact);
    assert!(divergence > threshold(&exact), "another temperature: {divergence} of {}", threshold(&exact));
}
