//! One decode of the target verifies the drafts of all slots, and one decode of the draft model drafts a token for each of them.

use super::{Setup, TestEngine, request};
use crate::Request;
use foredraft_llama::Token;
use foredraft_llama::fake::{FakeModel, decodes, physical_batches};
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

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
    let n_tokens = |engine: &TestEngine| -> usize {
        engine.scheduler.pool.slots.iter().filter_map(|slot| slot.task.as_ref()).map(|task| task.tokens.len()).sum()
    };
    // The steps in which the prompts are decoded and the draft model catches up.
    (0..3).for_each(|_| engine.step());
    let (mut steps, begun) = (0, n_tokens(&engine));
    while n_tokens(&engine) < n_slots * 120 {
        let (all, target) = (decodes(), engine.scheduler.pool.context.fake().n_decodes());
        engine.step();
        let target = engine.scheduler.pool.context.fake().n_decodes() - target;
        assert_eq!(target, 1, "{n_slots} slots, step {steps}");
        // An odd number of tokens of each sequence has one more as padding.
        let physical = engine.scheduler.pool.context.fake().physical_batches();
        assert_eq!(physical, [n_slots * (N_MAX + 1).next_multiple_of(n_slots.min(2))], "{n_slots} slots, step {steps}");
        // The last drafted token is decoded together with the first of the next step.
        assert_eq!(decodes() - all - target, N_MAX, "{n_slots} slots, step {steps}");
        steps += 1;
    }
    (n_tokens(&engine) - begun) as f64 / f64::from(steps)
}

#[test]
fn all_slots_share_each_decode() {
    let [alone, together] = [1, 4].map(tokens_a_step);
    // Draft and target are identical, so every draft is accepted.
    assert_eq!([alone, together], [5.0, 20.0]);
}

/// llama.cpp decodes only consecutive increasing sequence ids together.
#[test]
fn slots_decode_in_one_physical_batch_whatever_the_order_of_their_requests() {
    const N: usize = 6;
    let mut engine = TestEngine::new(&Setup { padding: false, ..Setup::plain(FAKE_MODEL, N, 250, 64) });
    let greedy = || sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
    // The slots are used in other orders the longer it goes on: requests end at different times.
    for n in 0..40 {
        let prompt = (n..n + 6).map(|n| FakeModel::FIRST + (n % 2) as Token).collect();
        engine.submit(vec![request(prompt, 8 + n * 7 % 20, greedy())]);
    }
    let (mut steps, mut together) = (0, 0);
    while !engine.scheduler.is_idle() {
        engine.step();
        let generates = |at: usize| {
            engine.scheduler.pool.slots[at].task.as_ref().is_some_and(|task| task.completion.n_predicted() > 1)
        };
        if (0..N).all(generates) {
            together += 1;
            assert_eq!(engine.scheduler.pool.context.fake().physical_batches(), [N], "step {steps}");
        }
        steps += 1;
    }
    assert!(together > 20, "{together} of {steps} steps have all slots");
}

/// Where drafts are right in one slot and wrong in another, the draft model lacks two tokens of the one and one of the other.
#[test]
fn draft_and_target_decode_all_slots_in_one_physical_batch_whatever_was_accepted() {
    const N: usize = 4;
    let target = FakeModel { far: 3.0, ..FAKE_MODEL };
    let draft = Some(FakeModel { noise: 1.0, ..target });
    let mut engine =
        TestEngine::new(&Setup { padding: false, draft, draft_cost: 1, ..Setup::plain(target, N, 250, 64) });
    let settings =
        Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Fixed, n_max: N_MAX, ..Settings::default() };
    for start in 0..N {
        let prompt = (start..start + 10).map(|n| FakeModel::FIRST + (n % 2) as Token).collect();
        let greedy = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
        engine.submit(vec![Request { speculative: Some(settings.clone()), ..request(prompt, 150, greedy) }]);
    }
    (0..3).for_each(|_| engine.step());
    let lengths = |engine: &TestEngine| -> Vec<usize> {
        engine.scheduler.pool.slots.iter().map(|slot| slot.task.as_ref().map_or(0, |task| task.tokens.len())).collect()
    };
    let mut differed = 0;
    for step in 0..25 {
        let (physical, before) = (physical_batches(), lengths(&engine));
        engine.step();
        assert_eq!(physical_batches() - physical, N_MAX + 1, "step {step}");
        let gained: Vec<usize> = lengths(&engine).iter().zip(before).map(|(after, before)| after - before).collect();
        differed += usize::from(gained.contains(&(N_MAX + 1)) && gained.iter().any(|n| *n <= N_MAX));
    }
    assert!(differed > 5, "only {differed} steps in which some drafts are accepted whole and some are not");
}

/// The lengths that the controller chooses make one physical batch, also where one of the requests does not speculate.
#[test]
fn adaptive_lengths_decode_in_one_physical_batch() {
    const N: usize = 4;
    let draft = Some(FakeModel { noise: 0.5, ..FAKE_MODEL });
    let mut engine =
        TestEngine::new(&Setup { padding: false, draft, draft_cost: 2, ..Setup::plain(FAKE_MODEL, N, 250, 64) });
    // Longer drafts are worth a forward pass of their own, without the request that does not speculate.
    let settings = Settings { sources: vec![DrafterKind::Draft], n_max: 3, ..Settings::default() };
    for start in 0..N {
        let prompt = (start..start + 10).map(|n| FakeModel::FIRST + (n % 2) as Token).collect();
        let greedy = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
        let speculative = Some(settings.clone()).filter(|_| start != 2);
        engine.submit(vec![Request { speculative, ..request(prompt, 200, greedy) }]);
    }
    (0..3).for_each(|_| engine.step());
    let (mut steps, mut drafted) = (0, 0);
    while engine.scheduler.pool.slots.iter().all(|slot| slot.task.is_some()) {
        engine.step();
        steps += 1;
        let physical = engine.scheduler.pool.context.fake().physical_batches();
        assert_eq!(physical.len(), 1, "step {steps}: {physical:?}");
        drafted += physical[0] - N;
    }
    assert!(steps > 10 && drafted > 3 * steps, "{drafted} tokens drafted in {steps} steps");
}
