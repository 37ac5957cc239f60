//! One decode of the target verifies the drafts of all slots, and one decode of the draft model drafts a token for each of them.

use super::{Setup, TestEngine, request};
use crate::engine::Request;
use crate::llama::Token;
use crate::llama::fake::{FakeModel, decodes};
use crate::sampling;
use crate::speculative::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 2, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const N_MAX: usize = 4;

/// Runs `n_slots` requests together, asserts the number of decodes in each step, and returns the average tokens per step.
fn tokens_a_step(n_slots: usize) -> f64 {
    let setup = Setup { draft: Some(FAKE_MODEL), draft_cost: 1, ..Setup::plain(FAKE_MODEL, n_slots, 250, 32) };
    let mut engine = TestEngine::new(&setup);
    let settings =
        Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Fixed, n_max: N_MAX, ..Settings::default() };
    for start in 0..n_slots {
        let prompt = (start..start + 10).map(|n| FakeModel::FIRST + (n % 2) as Token).collect();
        let greedy = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
        engine.submit(vec![Request { speculative: Some(settings.clone()), ..request(prompt, 150, greedy) }]);
    }
    let said = |engine: &TestEngine| -> usize {
        engine.scheduler.slots.iter().filter_map(|slot| slot.task.as_ref()).map(|task| task.tokens.len()).sum()
    };
    // The steps in which the prompts are decoded and the draft model catches up.
    (0..3).for_each(|_| engine.step());
    let (mut steps, begun) = (0, said(&engine));
    while said(&engine) < n_slots * 120 {
        let (all, target) = (decodes(), engine.scheduler.context.fake().n_decodes());
        engine.step();
        let target = engine.scheduler.context.fake().n_decodes() - target;
        assert_eq!(target, 1, "{n_slots} slots, step {steps}");
        // The last drafted token is decoded together with the first of the next step.
        assert_eq!(decodes() - all - target, N_MAX, "{n_slots} slots, step {steps}");
        steps += 1;
    }
    (said(&engine) - begun) as f64 / f64::from(steps)
}

#[test]
fn all_slots_share_each_decode() {
    let [alone, together] = [1, 4].map(tokens_a_step);
    // Draft and target are identical, so every draft is accepted.
    assert_eq!([alone, together], [5.0, 20.0]);
}
