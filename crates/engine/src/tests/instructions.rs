//! Steps whose instructions `scripts/count-instructions.sh` counts.

use super::{Setup, TestEngine, request};
use crate::Request;
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 3, near: 4.0, far: 2.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const N_SLOTS: usize = 4;
const WARM_UP_STEPS: usize = 20;
const STEPS: usize = 100;

/// Runs steps of slots that all generate with these drafters.
fn run_steps(sources: &[DrafterKind], adaptive: Adaptive) {
    let draft = sources.contains(&DrafterKind::Draft).then_some(FakeModel { noise: 0.5, ..FAKE_MODEL });
    let mut engine =
        TestEngine::new(&Setup { draft, draft_cost: 2, padding: false, ..Setup::plain(FAKE_MODEL, N_SLOTS, 1000, 64) });
    let settings = Settings { sources: sources.to_vec(), adaptive, n_max: 3, ..Settings::default() };
    for start in 0..N_SLOTS {
        let prompt: Vec<Token> = (start..start + 20).map(|n| FakeModel::FIRST + (n % 3) as Token).collect();
        let greedy = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
        let speculative = Some(settings.clone()).filter(|_| !sources.is_empty());
        engine.submit(vec![Request { speculative, ..request(prompt, 900, greedy) }]);
    }
    (0..WARM_UP_STEPS).for_each(|_| engine.advance());
    (0..STEPS).for_each(|_| counted_step(&mut engine));
    assert!(engine.scheduler.pool.slots.iter().all(|slot| slot.task.is_some()), "all slots generate to the end");
}

/// The function in which instructions are counted.
#[inline(never)]
fn counted_step(engine: &mut TestEngine) {
    engine.advance();
}

#[test]
fn counted_steps_without_drafts() {
    run_steps(&[], Adaptive::Auto);
}

#[test]
fn counted_steps_with_history_drafters() {
    run_steps(&[DrafterKind::Suffix, DrafterKind::NgramCache], Adaptive::Auto);
}

#[test]
fn counted_steps_with_a_draft_model() {
    run_steps(&[DrafterKind::Draft], Adaptive::Fixed);
}
