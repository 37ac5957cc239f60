//! A step, up to its evaluation, allocates nothing, but for what grows with the text and then becomes twice as large.

use super::{Setup, Stage, request};
use crate::counting::allocations;
use crate::llama::Token;
use crate::llama::fake::FakeModel;
use crate::sampling;
use crate::speculative::{Adaptive, DrafterKind, Settings};

const VOICE: FakeModel =
    FakeModel { seed: 7, n_words: 3, near: 4.0, far: 2.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const TEXT_SOURCES: [DrafterKind; 6] = [
    DrafterKind::NgramCache,
    DrafterKind::NgramSimple,
    DrafterKind::NgramMapK,
    DrafterKind::NgramMapK4v,
    DrafterKind::NgramMod,
    DrafterKind::Suffix,
];
/// Steps until all memory has been used once.
const FIRST: usize = 30;
/// The text is four times as long at the end: so often something may become twice as large, and so often more for each drafter.
const GROWS: usize = 8;
const GROWS_FOR_EACH: usize = 3;

#[test]
fn planning_drafting_and_filling_the_batch_allocate_nothing() {
    let cases = TEXT_SOURCES.iter().map(|source| vec![*source]).chain([vec![], TEXT_SOURCES.to_vec()]);
    for (sources, adaptive) in
        cases.flat_map(|sources| [Adaptive::Auto, Adaptive::Fixed].map(|way| (sources.clone(), way)))
    {
        let mut stage = Stage::new(&Setup::plain(VOICE, 2, 250, 32));
        for seed in 0..2 {
            let sampling =
                sampling::SamplingSettings { temperature: 0.0, seed, ..sampling::SamplingSettings::default() };
            let prompt: Vec<Token> = (0..60).map(|n| FakeModel::FIRST + (n + seed as Token) % 3).collect();
            let settings = Settings { sources: sources.clone(), adaptive, ..Settings::default() };
            let speculative = Some(settings).filter(|settings| !settings.sources.is_empty());
            stage.submit(vec![crate::engine::Request { speculative, ..request(prompt, 180, sampling) }]);
        }
        let (mut steps, mut allocating, mut drafted) = (0, 0, 0);
        while !stage.scheduler.is_idle() {
            stage.advance();
            let scheduler = &mut stage.scheduler;
            let allocated = allocations(|| {
                scheduler.make_space();
                scheduler.balance();
                scheduler.schedule();
                scheduler.draft();
                scheduler.fill_batch();
            });
            steps += 1;
            allocating += usize::from(steps > FIRST && allocated > 0);
            drafted += (0..2).map(|slot| scheduler.drafters.drafted(slot).len()).sum::<usize>();
        }
        assert!(steps > 2 * FIRST && drafted > 0, "{sources:?}: {steps} steps, {drafted} tokens drafted");
        let most = GROWS + GROWS_FOR_EACH * sources.len();
        assert!(allocating <= most, "{sources:?} {adaptive:?}: {allocating} of {steps} steps allocate");
    }
}
