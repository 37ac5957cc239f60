//! The probabilities of a prompt's tokens are those of its prefixes, whatever the steps were.

use std::collections::BTreeMap;

use super::{MODEL, Setup, TestEngine, request};
use crate::{Event, Outcome, Phase, PromptProbs, Request, RequestHandle, RequestOptions};
use foredraft_llama::Token;
use foredraft_llama::fake::{FakeModel, Fault};
use foredraft_sampling as sampling;
use foredraft_sampling::{SamplingSettings, TokenProbs};

const FAKE_MODEL: FakeModel = FakeModel { seed: 5, n_words: 4, near: 3.0, far: 2.0, noise: 0.5, ends: 0, floor: -20.0 };

fn scored(length: usize, n_predict: usize) -> Request {
    let prompt = (0..length).map(|n| FakeModel::FIRST + (n * n % 4) as Token).collect();
    let mut request = request(prompt, n_predict, SamplingSettings { temperature: 0.0, ..SamplingSettings::default() });
    request.options = RequestOptions { prompt_probs: Some(2), ..request.options };
    request
}

/// The probabilities by the fake model's own logits.
fn expected(setup: &Setup, prompt: &[Token]) -> PromptProbs {
    let hashes: Vec<u64> = prompt.iter().map(|token| FakeModel::token_hash(*token, &[])).collect();
    let vocab = MODEL.vocab();
    let of = |at: usize| -> TokenProbs {
        let row = setup.target.logits(&hashes[..at], vocab.n_tokens(), vocab.eos().unwrap());
        sampling::token_probs(&row, prompt[at], 2)
    };
    PromptProbs { first: prompt[0], others: (1..prompt.len()).map(of).collect() }
}

fn outcome(engine: &mut TestEngine, handle: &RequestHandle) -> Outcome {
    while handle.phase() != Phase::Finished {
        engine.step();
    }
    let finished = |(_, event)| if let Event::Finished(outcome) = event { Some(*outcome) } else { None };
    handle.wait().into_iter().find_map(finished).expect("it has finished")
}

#[test]
fn prompt_is_scored_whatever_is_cached_and_however_it_is_divided() {
    for (length, n_ubatch) in [(1, 32), (2, 32), (20, 8), (150, 32), (200, 64)] {
        let setup = Setup::plain(FAKE_MODEL, 2, 250, n_ubatch);
        let mut engine = TestEngine::new(&setup);
        for n_predict in [0, 3] {
            // The second time the whole prompt is in a slot's cache.
            let request = scored(length, n_predict);
            let prompt = request.prompt.clone();
            let handle = engine.submit(vec![request]);
            let outcome = outcome(&mut engine, &handle);
            assert_eq!(outcome.prompt_probs, Some(expected(&setup, &prompt)), "{length} tokens");
            assert_eq!((outcome.prompt.n_cached, outcome.n_predicted), (0, n_predict));
        }
        let plain =
            Request { options: RequestOptions { prompt_probs: None, ..scored(1, 1).options }, ..scored(length, 1) };
        let handle = engine.submit(vec![plain]);
        assert_eq!(outcome(&mut engine, &handle).prompt_probs, None);
    }
}

/// An interrupted decode keeps no cell whose probability was lost.
#[test]
fn interrupted_decodes_lose_no_probabilities() {
    let faults = BTreeMap::from([(0, Fault::Aborted(0)), (2, Fault::Aborted(1)), (3, Fault::Aborted(0))]);
    let setup = Setup { target_faults: faults, ..Setup::plain(FAKE_MODEL, 1, 250, 32) };
    let mut engine = TestEngine::new(&setup);
    let request = scored(180, 2);
    let prompt = request.prompt.clone();
    let handle = engine.submit(vec![request]);
    assert_eq!(outcome(&mut engine, &handle).prompt_probs, Some(expected(&setup, &prompt)));
}

/// Two requests that share the cells: one is preempted, and its prompt decoded again.
#[test]
fn preempted_requests_are_scored_completely() {
    let setup = Setup { kv_unified: true, ..Setup::plain(FAKE_MODEL, 4, 250, 32) };
    let mut engine = TestEngine::new(&setup);
    let handles: Vec<_> = (0..3).map(|_| engine.submit(vec![scored(120, 40)])).collect();
    let prompt = scored(120, 40).prompt;
    for handle in handles {
        assert_eq!(outcome(&mut engine, &handle).prompt_probs, Some(expected(&setup, &prompt)));
    }
}
