//! A step does not allocate before its decode, except when a buffer that grows with the context doubles.

use super::{Setup, TestEngine, request};
use crate::counting::allocations;
use crate::scheduler::BatchScheduler;
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 3, near: 4.0, far: 2.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const HISTORY_DRAFTERS: [DrafterKind; 2] = [DrafterKind::NgramCache, DrafterKind::Suffix];
/// Steps until every buffer has been used.
const WARM_UP_STEPS: usize = 30;
/// The context grows to four times its length, so some buffers double: this often in all, and this often more for each drafter.
const GROWTHS: usize = 8;
const GROWTHS_PER_DRAFTER: usize = 3;

#[test]
fn planning_a_step_does_not_allocate() {
    let cases = HISTORY_DRAFTERS.iter().map(|source| vec![*source]).chain([vec![], HISTORY_DRAFTERS.to_vec()]);
    for (sources, adaptive) in
        cases.flat_map(|sources| [Adaptive::Auto, Adaptive::Fixed].map(|way| (sources.clone(), way)))
    {
        let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 2, 250, 32));
        for seed in 0..2 {
            let sampling =
                sampling::SamplingSettings { temperature: 0.0, seed, ..sampling::SamplingSettings::default() };
            let prompt: Vec<Token> = (0..60).map(|n| FakeModel::FIRST + (n + seed as Token) % 3).collect();
            let settings = Settings { sources: sources.clone(), adaptive, ..Settings::default() };
            let speculative = Some(settings).filter(|settings| !settings.sources.is_empty());
            engine.submit(vec![crate::Request { speculative, ..request(prompt, 180, sampling) }]);
        }
        let (mut steps, mut allocating, mut drafted) = (0, 0, 0);
        while !engine.scheduler.is_idle() {
            engine.advance();
            let BatchScheduler { pool, step, .. } = &mut engine.scheduler;
            let allocated = allocations(|| step.make_plan(pool));
            steps += 1;
            allocating += usize::from(steps > WARM_UP_STEPS && allocated > 0);
            drafted += engine.scheduler.step.plan.slots.iter().map(|slot| slot.draft.tokens.len()).sum::<usize>();
        }
        assert!(steps > 2 * WARM_UP_STEPS && drafted > 0, "{sources:?}: {steps} steps, {drafted} tokens drafted");
        let most = GROWTHS + GROWTHS_PER_DRAFTER * sources.len();
        assert!(allocating <= most, "{sources:?} {adaptive:?}: {allocating} of {steps} steps allocate");
    }
}
