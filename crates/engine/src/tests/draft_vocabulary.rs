//! Drafts have only tokens that the draft model scores: frequent ones, and those of the request's own context.

use super::{Setup, TestEngine, request};
use crate::{Request, RequestOptions};
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

/// Its words are the tokens 300 to 305. The first four are in the group that ends with 303.
const FAKE_MODEL: FakeModel =
    FakeModel { seed: 0, n_words: 6, near: 1.0, far: 4.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const RARE: Token = 304;
const PROMPT: [Token; 2] = [FakeModel::FIRST, FakeModel::FIRST + 1];

/// Runs a request with the model of this seed, and another one beside it whose prompt has all words. Returns the first one's completion, and what was drafted for it
/// before and after its context had a rare token.
fn run(seed: u64, draft_scores: Option<usize>) -> (Vec<Token>, [Vec<Token>; 2]) {
    let model = FakeModel { seed, ..FAKE_MODEL };
    let setup = Setup { draft: Some(model), draft_cost: 1, draft_scores, ..Setup::plain(model, 2, 250, 32) };
    let mut engine = TestEngine::new(&setup);
    let settings =
        Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Fixed, n_max: 3, ..Settings::default() };
    let greedy = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
    let all = (0..6).map(|word| FakeModel::FIRST + word).collect();
    for (slot, prompt) in [PROMPT.to_vec(), all].into_iter().enumerate() {
        let plain = request(prompt, 40, greedy.clone());
        let options = RequestOptions { slot: Some(slot), ..plain.options };
        engine.submit(vec![Request { speculative: Some(settings.clone()), options, ..plain }]);
    }
    let (mut completion, mut drafted, mut is_rare) = (Vec::new(), [Vec::new(), Vec::new()], false);
    loop {
        engine.step();
        let Some(task) = engine.scheduler.pool.slots[0].task.as_ref() else { return (completion, drafted) };
        drafted[usize::from(is_rare)].extend_from_slice(&engine.scheduler.step.plan.slots[0].draft.tokens);
        completion = task.tokens.get(PROMPT.len()..).unwrap_or(&[]).to_vec();
        is_rare = completion.iter().any(|token| *token >= RARE);
    }
}

#[test]
fn tokens_that_are_not_scored_are_never_drafted() {
    let is_rare = |token: &Token| *token >= RARE;
    let (mut all, mut some, mut learned) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=12 {
        let (plain, [before, _]) = run(seed, None);
        all.extend(before);
        let (completion, [before, after]) = run(seed, Some(303));
        // Neither has the tokens of the last step, whose number depends on the draft.
        let n = completion.len().min(plain.len());
        assert_eq!(completion[..n], plain[..n]);
        some.extend(before);
        learned.extend(after);
    }
    assert!(all.iter().any(is_rare), "the model drafts rare tokens: {all:?}");
    assert!(!some.is_empty() && !some.iter().any(is_rare), "{some:?}");
    assert!(learned.iter().any(is_rare), "once the context has one: {learned:?}");
}
