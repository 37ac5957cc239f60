//! Decisions among choices: as probable as each choice alone, whatever runs beside them, and nothing of them stays in a slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{MODEL, Setup, TestEngine, request};
use crate::decision::{Question, Questions};
use crate::{DecisionScores, Event, Outcome, Phase, Request, RequestHandle, Stop};
use foredraft_llama::Token;
use foredraft_llama::fake::{FakeModel, Fault, mix};
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel = FakeModel { seed: 11, n_words: 6, near: 3.0, far: 2.0, noise: 0.0, ends: 0, floor: -9.0 };

fn word(n: u64) -> Token {
    FakeModel::FIRST + (n % 6) as Token
}

fn prompt(length: u64, seed: u64) -> Vec<Token> {
    (0..length).map(|at| word(mix(seed ^ mix(at)))).collect()
}

/// Choices of one to five tokens, some of which share a prefix.
fn choices(n: u64, seed: u64) -> Vec<Vec<Token>> {
    let mut all: Vec<Vec<Token>> = Vec::new();
    for index in 0.. {
        let hash = mix(seed ^ mix(index + 1000));
        let tokens: Vec<Token> = (0..=hash % 5).map(|at| word(mix(hash ^ at) % (2 + at))).collect();
        if !all.contains(&tokens) {
            all.push(tokens);
        }
        if all.len() as u64 == n || index > 500 {
            break;
        }
    }
    all
}

fn question(tokens: Vec<Token>, choices: &[Vec<Token>], temperature: f32) -> Question {
    Question { name: "choices".to_owned(), tokens, choices: choices.to_vec(), temperature }
}

fn asking(prompt: Vec<Token>, questions: Questions) -> Request {
    Request { questions: Some(questions), ..request(prompt, 1, SamplingSettings::default()) }
}

fn decision(prompt: Vec<Token>, choices: &[Vec<Token>], temperature: f32) -> Request {
    asking(prompt, Arc::from([question(Vec::new(), choices, temperature)]))
}

/// The log-probability of a choice after a prompt, by one row after the other.
fn logprob_alone(prompt: &[Token], choice: &[Token], temperature: f64) -> f64 {
    let vocab = MODEL.vocab();
    let mut seen: Vec<u64> = prompt.iter().map(|token| FakeModel::token_hash(*token, &[])).collect();
    let mut sum = 0.0;
    for token in choice {
        let row = FAKE_MODEL.logits(&seen, vocab.n_tokens(), vocab.eos().unwrap());
        let weights: Vec<f64> = row.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
        sum += (weights[*token as usize] / weights.iter().sum::<f64>()).ln();
        seen.push(FakeModel::token_hash(*token, &[]));
    }
    sum
}

fn outcome(handle: &RequestHandle) -> (Outcome, String) {
    assert_eq!(handle.phase(), Phase::Finished);
    let mut text = String::new();
    for (_, event) in handle.take(Duration::ZERO).0 {
        match event {
            Event::Update(update) => text.push_str(&update.text),
            Event::Finished(outcome) => {
                text.push_str(&outcome.text);
                return (*outcome, text);
            }
            Event::Progress(_) | Event::Restarted { .. } => {}
        }
    }
    panic!("it has no end")
}

fn check(handle: &RequestHandle, prompt: &[Token], choices: &[Vec<Token>], temperature: f32) {
    let scale = if temperature > 0.0 { f64::from(temperature) } else { 1.0 };
    let expected: Vec<f64> = choices.iter().map(|choice| logprob_alone(prompt, choice, scale)).collect();
    let total: f64 = expected.iter().map(|logprob| logprob.exp()).sum();
    let (outcome, text) = outcome(handle);
    assert_eq!(outcome.stop, Stop::Eos);
    let scores = outcome.decisions.first().expect("a decision");
    for (index, expected) in expected.iter().enumerate() {
        assert!((scores.logprobs[index] - expected).abs() < 1e-6, "{index}: {} {expected}", scores.logprobs[index]);
        assert!((scores.probs[index] - expected.exp() / total).abs() < 1e-6, "{index}");
    }
    let best = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    assert!(expected[scores.choice] > best - 1e-6);
    let chosen: Vec<u8> = choices[scores.choice].iter().flat_map(|token| MODEL.vocab().text(*token).to_vec()).collect();
    assert_eq!(text.as_bytes(), chosen);
}

fn setups() -> Vec<Setup> {
    let plain = |n_parallel| Setup::plain(FAKE_MODEL, n_parallel, 200, 32);
    vec![
        plain(1),
        Setup { padding: false, ..plain(1) },
        Setup { max_invariant_tokens: usize::MAX, ..plain(1) },
        Setup { max_invariant_tokens: 4, ..plain(1) },
        plain(3),
        Setup { max_invariant_tokens: 4, ..plain(3) },
        Setup { kv_unified: true, ..plain(3) },
        Setup { kv_unified: true, max_invariant_tokens: usize::MAX, ..plain(3) },
        Setup { kv_unified: true, n_ctx: 90, padding: false, ..plain(2) },
        // The branches of these have no space in a batch beside the last token.
        Setup { n_ubatch: 4, ..plain(1) },
    ]
}

/// The step of a test engine asserts after each step that every slot has the cells of its bookkeeping, and no branch is left.
#[test]
fn decisions_equal_the_choices_alone_beside_other_requests() {
    for (number, setup) in setups().into_iter().enumerate() {
        for seed in 0..6_u64 {
            let mut engine = TestEngine::new(&setup);
            let temperature = [0.0, 0.5, 1.0, 1.7][seed as usize % 4];
            let settings = Settings {
                sources: vec![DrafterKind::NgramCache, DrafterKind::Suffix],
                adaptive: Adaptive::Fixed,
                ..Settings::default()
            };
            let other = Request {
                speculative: Some(settings),
                ..request(prompt(12, 77), 30, SamplingSettings { temperature: 0.0, ..SamplingSettings::default() })
            };
            let beside = engine.submit(vec![other.clone()]);
            let mut decisions = Vec::new();
            for n in [1, 2, 10, 40] {
                let (prompt, choices) = (prompt(5 + 9 * (n % 4), seed ^ n), choices(n, seed ^ n));
                let handle = engine.submit(vec![decision(prompt.clone(), &choices, temperature)]);
                decisions.push((handle, prompt, choices));
            }
            let mut steps = 0;
            while !engine.scheduler.is_idle() {
                engine.step();
                steps += 1;
                assert!(steps < 2000, "setup {number}");
            }
            for (handle, prompt, choices) in &decisions {
                check(handle, prompt, choices, temperature);
            }
            // Decisions change neither the requests beside them, nor those that follow in their slots.
            let expected = super::reference::reference_output(&setup, &other);
            let after = engine.submit(vec![other]);
            while !engine.scheduler.is_idle() {
                engine.step();
            }
            for handle in [&beside, &after] {
                assert_eq!(outcome(handle).1.as_bytes(), expected.text, "setup {number}");
            }
        }
    }
}

#[test]
fn single_tokens_need_no_pass_and_longer_choices_one_together_or_each() {
    let steps = |engine: &mut TestEngine, n_prompt: u64, choices: Vec<Vec<Token>>| {
        let prompt = prompt(n_prompt, 3);
        let handle = engine.submit(vec![decision(prompt.clone(), &choices, 1.0)]);
        let before = engine.scheduler.pool.context.fake().n_decodes();
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        check(&handle, &prompt, &choices, 1.0);
        engine.scheduler.pool.context.fake().n_decodes() - before
    };
    let single = || (0..6).map(|n| vec![word(n)]).collect();
    let longer = || (0..5).map(|first| (0..=3).map(|at| word(first + at)).collect()).collect();
    // Where logits do not depend on the places of cells, choices are branches.
    for (max_invariant_tokens, n_cached, n_long, n_short) in [(62, 5, 6, 6), (usize::MAX, 1, 2, 1)] {
        let setup = Setup { max_invariant_tokens, ..Setup::plain(FAKE_MODEL, 1, 200, 64) };
        let mut engine = TestEngine::new(&setup);
        assert_eq!(steps(&mut engine, 60, single()), 1, "single tokens need only the prompt");
        assert_eq!(steps(&mut engine, 60, longer()), n_cached, "the prompt is in the cache");
        engine.scheduler.pool.clear_cache(0);
        assert_eq!(steps(&mut engine, 60, longer()), n_long, "the prompt, and the choices");
        engine.scheduler.pool.clear_cache(0);
        assert_eq!(steps(&mut engine, 20, longer()), n_short, "a short prompt and the choices");
    }
}

#[test]
fn cancelled_and_interrupted_decisions_leave_nothing_behind() {
    let faults = (1..40).step_by(2).map(|n| (n, Fault::Aborted(0))).chain([(8, Fault::Full)]);
    for (setup, faults) in setups()
        .into_iter()
        .flat_map(|setup| [(setup.clone(), BTreeMap::new()), (setup, faults.clone().collect::<BTreeMap<_, _>>())])
    {
        let interrupted = !faults.is_empty();
        for n_steps in 1..4 {
            let mut engine = TestEngine::new(&Setup { target_faults: faults.clone(), ..setup.clone() });
            let choices = choices(40, 5);
            let cancelled = engine.submit(vec![decision(prompt(9, 4), &choices, 1.0)]);
            let kept = engine.submit(vec![decision(prompt(9, 5), &choices, 1.0)]);
            (0..n_steps).for_each(|_| engine.step());
            cancelled.cancel();
            let mut steps = 0;
            while !engine.scheduler.is_idle() {
                engine.step();
                steps += 1;
                assert!(steps < 2000);
            }
            let (ended, _) = outcome(&cancelled);
            assert!(
                ended.stop == Stop::Cancelled && ended.decisions.is_empty() || ended.stop == Stop::Eos || interrupted
            );
            if !interrupted || setup.n_parallel == 1 && !faults.values().any(|fault| *fault == Fault::Full) {
                check(&kept, &prompt(9, 5), &choices, 1.0);
            }
        }
    }
}

/// A few tokens, and choices of one token or of several.
fn questions(n: u64) -> Vec<Question> {
    let question = |index: u64| {
        let tokens = prompt(1 + index % 7, index ^ 99);
        question(tokens, &choices(2 + index % 4, index), [0.0, 0.6, 1.0, 1.8][index as usize % 4])
    };
    (0..n).map(question).collect()
}

/// The step of a test engine asserts after each step that every slot has the cells of its bookkeeping, and no branch is left.
#[test]
fn questions_have_the_bits_of_each_alone_and_of_its_tokens_in_the_prompt() {
    for (number, setup) in setups().into_iter().enumerate() {
        let run = |prompt: Vec<Token>, questions: Vec<Question>| {
            let mut engine = TestEngine::new(&setup);
            let beside = request(self::prompt(12, 77), 30, SamplingSettings::default());
            engine.submit(vec![beside]);
            let handle = engine.submit(vec![asking(prompt, questions.into())]);
            let mut steps = 0;
            while !engine.scheduler.is_idle() {
                engine.step();
                steps += 1;
                assert!(steps < 2000, "setup {number}");
            }
            let (outcome, text) = outcome(&handle);
            assert_eq!((outcome.stop, outcome.n_predicted == 0), (Stop::Eos, text.is_empty()));
            outcome.decisions
        };
        let all = questions(20);
        let together = run(prompt(31, 5), all.clone());
        let mut reversed = run(prompt(31, 5), all.iter().rev().cloned().collect());
        reversed.reverse();
        assert_eq!(together, reversed, "setup {number}");
        for (asked, scores) in all.iter().zip(&together) {
            assert_eq!(run(prompt(31, 5), vec![asked.clone()]), std::slice::from_ref(scores), "setup {number}");
            let whole = [prompt(31, 5), asked.tokens.clone()].concat();
            let plain = run(whole, vec![Question { tokens: Vec::new(), ..asked.clone() }]);
            let same = DecisionScores { n_tokens: 0, ..scores.clone() };
            assert_eq!(plain, [same], "setup {number}: as choices after the same tokens");
        }
    }
}

/// Eight branches fit into a step. The batch of the test's context has 64 tokens.
#[test]
fn eight_questions_take_a_pass_beside_their_prompt() {
    for (n_prompt, n_question, n_asked, n_passes) in
        [(20, 2, 20, 3), (60, 7, 20, 1 + 3), (61, 6, 20, 1 + 3), (20, 2, 1, 1), (20, 5, 100, 14), (20, 5, 800, 101)]
    {
        let setup = Setup { max_invariant_tokens: usize::MAX, ..Setup::plain(FAKE_MODEL, 1, 200, 64) };
        let mut engine = TestEngine::new(&setup);
        let single: Vec<Vec<Token>> = (0..4).map(|n| vec![word(n)]).collect();
        let question = |index: u64| question(prompt(n_question, index), &single, 1.0);
        let handle = engine.submit(vec![asking(prompt(n_prompt, 3), (0..n_asked).map(question).collect())]);
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        assert_eq!(outcome(&handle).0.decisions.len() as u64, n_asked);
        assert_eq!(engine.scheduler.pool.context.fake().n_decodes(), n_passes, "{n_asked} questions");
    }
}
