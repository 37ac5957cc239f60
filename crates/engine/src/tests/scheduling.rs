//! Scheduling is fair: running, preempted and queued requests all advance, whatever others do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Setup, TestEngine, request};
use crate::request::PromptState;
use crate::scheduler::NextWork;
use crate::{Event, Phase, Prepared, Request, RequestHandle, RequestOptions, Stop};
use foredraft_base::error::Error;
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

/// Its outputs are repetitive.
const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 2, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn greedy(prompt: Vec<Token>, n_predict: usize) -> Request {
    request(prompt, n_predict, sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() })
}

fn repeating(length: usize, start: usize) -> Vec<Token> {
    (start..start + length).map(|n| FakeModel::FIRST + (n % 2) as Token).collect()
}

/// The long drafts of the first requests would fill the batch.
#[test]
fn every_request_advances_in_every_step_despite_long_drafts() {
    const N: usize = 8;
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, N, 250, 32));
    let speculative = Some(Settings {
        sources: vec![DrafterKind::NgramCache, DrafterKind::Suffix],
        adaptive: Adaptive::Fixed,
        n_max: 60,
        n_max_text: 60,
        ..Settings::default()
    });
    for start in 1..N {
        engine.submit(vec![Request { speculative: speculative.clone(), ..greedy(repeating(10, start), 220) }]);
    }
    let tokens = |engine: &TestEngine, slot: usize| {
        let task = engine.scheduler.pool.slots[slot].task.as_ref().filter(|task| task.completion.has_begun());
        task.map(|task| task.tokens.len())
    };
    let generating = |engine: &TestEngine| (0..N).filter(|slot| tokens(engine, *slot).is_some()).count();
    for _ in 0..3 {
        engine.step();
    }
    // One more request arrives later, and its prompt is decoded beside the others.
    let late = engine.submit(vec![greedy(repeating(60, 1), 5)]);
    let (mut most, mut beside) = (0, 0);
    while !engine.scheduler.is_idle() {
        beside += usize::from(late.phase() == Phase::Prompt && generating(&engine) == N - 1);
        assert!(beside < 8, "the late request's prompt must be decoded meanwhile");
        let before: Vec<_> = (0..N).map(|slot| tokens(&engine, slot)).collect();
        engine.step();
        for (slot, before) in before.into_iter().enumerate() {
            let (Some(before), Some(after)) = (before, tokens(&engine, slot)) else { continue };
            assert!(after > before, "slot {slot} did not advance from {before} tokens");
            most = most.max(after - before);
        }
    }
    assert!(most > 8 && beside > 1, "the test needs long drafts: {most}, {beside}");
}

/// Where contexts shift, only a request that asks for it ends with its context.
#[test]
fn completion_until_the_context_is_full_does_not_shift() {
    let setup = Setup { ctx_shift: true, ..Setup::plain(FAKE_MODEL, 2, 60, 32) };
    let outcome = |handle: &RequestHandle| {
        let finished = |(_, event)| if let Event::Finished(outcome) = event { Some(outcome) } else { None };
        handle.wait().into_iter().find_map(finished).expect("it has finished")
    };
    let run = |ends_when_full: bool| {
        let mut engine = TestEngine::new(&setup);
        let mut request = greedy(repeating(10, 0), 200);
        request.options = RequestOptions { n_predict: Some(200), ends_when_full, ..request.options };
        let handle = engine.submit(vec![request]);
        while handle.phase() != Phase::Finished {
            engine.step();
        }
        outcome(&handle)
    };
    let (shifted, ended) = (run(false), run(true));
    assert_eq!((shifted.n_predicted, shifted.stop), (200, Stop::Limit));
    assert_eq!((ended.n_predicted, ended.stop, ended.truncated), (50, Stop::Limit, true));
}

/// A steady stream of small requests, each of which would fit.
#[test]
fn preempted_and_waiting_requests_are_not_overtaken() {
    let mut engine = TestEngine::new(&Setup { kv_unified: true, ..Setup::plain(FAKE_MODEL, 8, 120, 32) });
    // Together they need more cells than there are, so one is preempted.
    let handles: Vec<_> = [0, 1].map(|start| engine.submit(vec![greedy(repeating(30, start), 60)])).into();
    for _ in 0..4 {
        engine.step();
    }
    let large = engine.submit(vec![greedy(repeating(100, 3), 10)]);
    let (mut preempted, mut steps, mut later) = (0, 0, Vec::new());
    while large.phase() != Phase::Finished || handles.iter().any(|handle| handle.phase() != Phase::Finished) {
        if engine.scheduler.queue.len() < 4 {
            later.push(engine.submit(vec![greedy(repeating(8, 5), 12)]));
        }
        engine.step();
        preempted += engine.scheduler.pool.running().filter(|(_, task)| task.is_preempted).count();
        steps += 1;
        assert!(
            steps < 1000,
            "{:?} {:?}",
            large.phase(),
            handles.iter().map(|handle| handle.phase()).collect::<Vec<_>>()
        );
    }
    assert!(preempted > 0, "a request must have been preempted");
    assert!(later.len() >= 4);
}

#[test]
fn token_unknown_to_the_draft_disables_only_its_own_request() {
    let known = usize::try_from(FakeModel::FIRST).unwrap() + 2;
    let setup = Setup {
        draft: Some(FAKE_MODEL),
        draft_cost: 5,
        draft_vocab: Some(known),
        ..Setup::plain(FAKE_MODEL, 2, 250, 32)
    };
    let mut engine = TestEngine::new(&setup);
    let speculative =
        Some(Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Fixed, ..Settings::default() });
    engine.submit(vec![Request { speculative: speculative.clone(), ..greedy(repeating(20, 0), 220) }]);
    for _ in 0..3 {
        engine.step();
    }
    // Further from the end than the draft's batch is long.
    let foreign = [&[FakeModel::FIRST + 2], &*repeating(80, 0)].concat();
    engine.submit(vec![Request { speculative, ..greedy(foreign, 100) }]);
    for _ in 0..6 {
        engine.step();
    }
    let why = |first: Token| {
        let mut running = engine.scheduler.pool.running().filter(|(_, task)| task.tokens.first() == Some(&first));
        let speculation = running.next().and_then(|(_, task)| task.speculation.as_ref());
        speculation.map(|speculation| speculation.stats.disabled.clone())
    };
    assert_eq!(why(FakeModel::FIRST), Some(None), "it goes on drafting");
    assert_eq!(why(FakeModel::FIRST + 2), Some(Some("the draft has no token 302".to_owned())));
}

/// Queues a request whose prompt is not known yet.
fn submit_unprepared(engine: &mut TestEngine, request: Request) -> Arc<RequestHandle> {
    let handle = engine.submit(vec![Request { prompt: Arc::default(), ..request }]);
    let long = Instant::now() + Duration::from_secs(3600);
    engine.scheduler.queue.back_mut().expect("it waits").prompt = PromptState::Awaited(long);
    handle
}

fn prepare(engine: &mut TestEngine, handle: &RequestHandle, prompt: Vec<Token>) {
    let prepared = Ok(Prepared { prompts: vec![prompt.into()], media: Vec::new(), questions: None, prediction: None });
    engine.scheduler.set_prompts(handle.id(), &prepared);
}

fn ended(handle: &RequestHandle) -> String {
    assert_eq!(handle.phase(), Phase::Finished);
    format!("{:?}", handle.take(Duration::ZERO).0)
}

#[test]
fn a_request_whose_prompt_is_prepared_keeps_its_place() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 2, 100, 32));
    let first = submit_unprepared(&mut engine, greedy(Vec::new(), 4));
    let [second, third] = [5, 7].map(|start| engine.submit(vec![greedy(repeating(8, start), 4)]));
    // One slot is kept for it; those behind it share the other.
    while second.phase() != Phase::Finished {
        engine.step();
        assert_eq!((first.phase(), third.phase()), (Phase::Queued, Phase::Queued));
    }
    prepare(&mut engine, &first, repeating(40, 0));
    engine.step();
    assert!(first.phase() != Phase::Queued && third.phase() != Phase::Queued, "both slots are free");
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    assert!(ended(&first).contains("n_total: 40"));
}

/// The only slot goes to the next request, and then to the late one.
#[test]
fn a_request_whose_preparation_takes_long_holds_no_others() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 1, 100, 32));
    let first = submit_unprepared(&mut engine, greedy(Vec::new(), 4));
    let [second, third] = [5, 7].map(|start| engine.submit(vec![greedy(repeating(8, start), 4)]));
    engine.step();
    assert_eq!(second.phase(), Phase::Queued);
    engine.scheduler.queue[0].prompt = PromptState::Awaited(Instant::now());
    engine.step();
    assert_eq!(engine.scheduler.queue[0].prompt, PromptState::Late);
    assert_eq!((first.phase(), third.phase()), (Phase::Queued, Phase::Queued));
    prepare(&mut engine, &first, repeating(40, 0));
    while first.phase() != Phase::Finished {
        engine.step();
        assert_eq!(third.phase(), Phase::Queued, "it has kept its place in the queue");
    }
    assert_eq!(second.phase(), Phase::Finished);
}

#[test]
fn a_slot_that_an_unprepared_request_asks_for_is_kept() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 3, 100, 32));
    let mut asks = greedy(Vec::new(), 4);
    asks.options.slot = Some(0);
    let first = submit_unprepared(&mut engine, asks.clone());
    asks.prompt = repeating(8, 5).into();
    let same_slot = engine.submit(vec![asks]);
    for _ in 0..3 {
        engine.step();
    }
    assert_eq!(same_slot.phase(), Phase::Queued);
    prepare(&mut engine, &first, repeating(8, 0));
    engine.step();
    assert!(first.phase() != Phase::Queued);
    assert_eq!(same_slot.phase(), Phase::Queued);
}

#[test]
fn unprepared_requests_end_by_deadline_cancel_and_error() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 1, 100, 32));
    let [late, cancelled, failed] = [0, 1, 2].map(|_| submit_unprepared(&mut engine, greedy(Vec::new(), 4)));
    let until = match engine.scheduler.queue[0].prompt {
        PromptState::Awaited(until) => until,
        other => panic!("{other:?}"),
    };
    assert_eq!(engine.scheduler.next_work(), NextWork::At(until), "the engine sleeps until a prompt comes or is late");
    let deadline = Instant::now();
    engine.scheduler.queue[0].deadline = Some(deadline);
    assert_eq!(engine.scheduler.next_work(), NextWork::At(deadline), "or until the first deadline");
    engine.step();
    assert!(ended(&late).contains("stop: Timeout"));
    assert!(cancelled.cancel(), "nothing of it runs");
    engine.scheduler.set_prompts(failed.id(), &Err(Error::invalid("no such token")));
    engine.step();
    assert!(ended(&cancelled).contains("stop: Cancelled"));
    assert!(ended(&failed).contains("no such token"));
    assert!(engine.scheduler.is_idle() && engine.scheduler.next_work() == NextWork::AfterCommand);
    // With something to do it does not sleep.
    submit_unprepared(&mut engine, greedy(Vec::new(), 4));
    engine.scheduler.queue[0].request.prompt = repeating(8, 0).into();
    engine.scheduler.queue[0].prompt = PromptState::Known;
    assert_eq!(engine.scheduler.next_work(), NextWork::Now);
}

/// The engine counts more cells than there are, as it would if something that it does not know took some.
#[test]
fn requests_advance_where_decodes_find_fewer_cells_than_were_counted() {
    let mut engine = TestEngine::new(&Setup { kv_unified: true, ..Setup::plain(FAKE_MODEL, 2, 100, 64) });
    engine.scheduler.pool.shared_cells = Some(200);
    let requests: Vec<_> = (0..2).map(|start| engine.submit(vec![greedy(repeating(40, start), 40)])).collect();
    for _ in 0..1000 {
        engine.step();
    }
    for request in requests {
        assert_eq!(super::output(&request).1.n_predicted, 40);
    }
}
