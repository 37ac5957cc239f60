//! Whoever runs or waits gets on, whatever others do.

use super::{Setup, Stage, request};
use crate::engine::{Phase, Request};
use crate::llama::Token;
use crate::llama::fake::FakeModel;
use crate::sampling;
use crate::speculative::{Adaptive, DrafterKind, Settings};

/// Its texts repeat themselves.
const VOICE: FakeModel =
    FakeModel { seed: 7, n_words: 2, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn greedy(prompt: Vec<Token>, n_predict: usize) -> Request {
    request(prompt, n_predict, sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() })
}

fn repeating(length: usize, start: usize) -> Vec<Token> {
    (start..start + length).map(|n| FakeModel::FIRST + (n % 2) as Token).collect()
}

/// Long drafts of the first would fill the batch.
#[test]
fn every_text_gets_on_in_every_step_whatever_others_draft() {
    const N: usize = 8;
    let mut stage = Stage::new(&Setup::plain(VOICE, N, 250, 32));
    let speculative = Some(Settings {
        sources: vec![DrafterKind::NgramSimple, DrafterKind::Suffix],
        adaptive: Adaptive::Fixed,
        n_max: 60,
        n_max_text: 60,
        ..Settings::default()
    });
    for start in 1..N {
        stage.submit(vec![Request { speculative: speculative.clone(), ..greedy(repeating(10, start), 220) }]);
    }
    let tokens = |stage: &Stage, slot: usize| {
        let task = stage.scheduler.slots[slot].task.as_ref().filter(|task| task.is_generating());
        task.map(|task| task.tokens.len())
    };
    let generating = |stage: &Stage| (0..N).filter(|slot| tokens(stage, *slot).is_some()).count();
    for _ in 0..3 {
        stage.step();
    }
    // One more comes later, and reads its prompt beside them.
    let late = stage.submit(vec![greedy(repeating(60, 1), 5)]);
    let (mut most, mut beside) = (0, 0);
    while !stage.scheduler.is_idle() {
        beside += usize::from(late.phase() == Phase::Prompt && generating(&stage) == N - 1);
        assert!(beside < 8, "its prompt is read meanwhile");
        let before: Vec<_> = (0..N).map(|slot| tokens(&stage, slot)).collect();
        stage.step();
        for (slot, before) in before.into_iter().enumerate() {
            let (Some(before), Some(after)) = (before, tokens(&stage, slot)) else { continue };
            assert!(after > before, "slot {slot} stands still at {before} tokens");
            most = most.max(after - before);
        }
    }
    assert!(most > 8 && beside > 1, "long drafts are checked: {most}, {beside}");
}

/// A steady stream of small requests, each of which would find room.
#[test]
fn who_was_paused_and_who_waits_for_cells_is_not_overtaken() {
    let mut stage = Stage::new(&Setup { kv_unified: true, ..Setup::plain(VOICE, 8, 120, 32) });
    // Together they need more than there is, so that one is paused.
    let handles: Vec<_> = [0, 1].map(|start| stage.submit(vec![greedy(repeating(30, start), 60)])).into();
    for _ in 0..4 {
        stage.step();
    }
    let large = stage.submit(vec![greedy(repeating(100, 3), 10)]);
    let (mut paused, mut steps, mut later) = (0, 0, Vec::new());
    while large.phase() != Phase::Finished || handles.iter().any(|handle| handle.phase() != Phase::Finished) {
        if stage.scheduler.queue.len() < 4 {
            later.push(stage.submit(vec![greedy(repeating(8, 5), 12)]));
        }
        stage.step();
        paused += stage.scheduler.running().filter(|(_, task)| task.paused).count();
        steps += 1;
        assert!(
            steps < 1000,
            "{:?} {:?}",
            large.phase(),
            handles.iter().map(|handle| handle.phase()).collect::<Vec<_>>()
        );
    }
    assert!(paused > 0, "somebody was paused");
    assert!(later.len() >= 4);
}

#[test]
fn a_token_that_the_draft_does_not_know_ends_the_drafts_of_its_own_request_alone() {
    let known = usize::try_from(FakeModel::FIRST).unwrap() + 2;
    let setup =
        Setup { draft: Some(VOICE), draft_cost: 5, draft_vocab: Some(known), ..Setup::plain(VOICE, 2, 250, 32) };
    let mut stage = Stage::new(&setup);
    let speculative =
        Some(Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Fixed, ..Settings::default() });
    stage.submit(vec![Request { speculative: speculative.clone(), ..greedy(repeating(20, 0), 220) }]);
    for _ in 0..3 {
        stage.step();
    }
    // Further from the end than a batch of the draft is long.
    let foreign = [&[FakeModel::FIRST + 2], &*repeating(80, 0)].concat();
    stage.submit(vec![Request { speculative, ..greedy(foreign, 100) }]);
    for _ in 0..6 {
        stage.step();
    }
    let why = |first: Token| {
        let mut running = stage.scheduler.running().filter(|(_, task)| task.tokens.first() == Some(&first));
        let speculation = running.next().and_then(|(_, task)| task.speculation.as_ref());
        speculation.map(|speculation| speculation.stats.disabled.clone())
    };
    assert_eq!(why(FakeModel::FIRST), Some(None), "it goes on drafting");
    assert_eq!(why(FakeModel::FIRST + 2), Some(Some("the draft has no token 302".to_owned())));
}
