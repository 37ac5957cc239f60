//! Priorities: higher requests preempt lower ones, whose outputs stay the same, and none starves.

use std::sync::Arc;
use std::time::Duration;

use super::reference::reference_output;
use super::{Setup, TestEngine, output, request};
use crate::{Phase, Request, RequestHandle, Stop};
use foredraft_llama::fake::{FakeModel, mix};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 5, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn at_priority(priority: i32, seed: u64, length: usize, n_predict: usize) -> Request {
    let prompt = (0..length as u64).map(|at| FakeModel::FIRST + (mix(seed * 1000 + at) % 5) as Token).collect();
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.9 };
    let sampling =
        sampling::SamplingSettings { temperature, seed: seed as u32, ..sampling::SamplingSettings::default() };
    let mut request = request(prompt, n_predict, sampling);
    request.options.priority = priority;
    request
}

fn drafting(request: Request) -> Request {
    let sources = vec![DrafterKind::Draft, DrafterKind::Suffix];
    Request {
        speculative: Some(Settings { sources, adaptive: Adaptive::Fixed, n_max: 4, ..Settings::default() }),
        ..request
    }
}

fn run_until_idle(engine: &mut TestEngine) {
    for step in 0.. {
        if engine.scheduler.is_idle() {
            return;
        }
        assert!(step < 20_000, "the engine must end all requests");
        engine.step();
    }
}

fn slots_setup(n_parallel: usize) -> Setup {
    Setup { draft: Some(FAKE_MODEL), draft_cost: 5, ..Setup::plain(FAKE_MODEL, n_parallel, 120, 32) }
}

#[test]
fn a_storm_of_500_requests_has_the_outputs_of_requests_alone() {
    let setups = [
        (500, slots_setup(4)),
        (100, Setup { kv_unified: true, ..slots_setup(4) }),
        (100, Setup { rollback: Rollback::Recent(6), padding: false, ..slots_setup(4) }),
        (100, Setup { rollback: Rollback::Never, padding: false, ..slots_setup(4) }),
        (100, Setup { ctx_shift: true, n_ctx: 40, ..slots_setup(4) }),
    ];
    for (number, (n_requests, setup)) in setups.iter().enumerate() {
        let mut engine = TestEngine::new(setup);
        let mut all: Vec<(Request, Arc<RequestHandle>)> = Vec::new();
        for step in 0.. {
            // As many as the slots can serve, in bursts.
            let n_new = if step % 50 == 0 { 12 } else { usize::from(step % 4 == 0) };
            for seed in (all.len() as u64..*n_requests).take(n_new) {
                let random = mix(seed + 77) as usize;
                let priority = (random % 21) as i32 - 10;
                let mut next = at_priority(priority, seed, 3 + random / 32 % 20, 1 + random / 1024 % 30);
                let deadline = Duration::from_millis(random as u64 / 8192 % 500 + 1);
                next.options.deadline = (random / 4096).is_multiple_of(2).then_some(deadline);
                next.options.slot = (random / 16384).is_multiple_of(20).then_some(random / 512 % 4);
                let next = if (random / 65536).is_multiple_of(2) { drafting(next) } else { next };
                all.push((next.clone(), engine.submit(vec![next])));
            }
            if all.len() as u64 == *n_requests && engine.scheduler.is_idle() {
                break;
            }
            assert!(step < 20_000, "the engine must end all requests");
            engine.step();
        }
        let mut n_preempted = 0;
        for (index, (request, handle)) in all.iter().enumerate() {
            let (tokens, outcome) = output(handle);
            let expected = reference_output(setup, request);
            assert_eq!((tokens, outcome.stop), (expected.tokens, expected.stop), "setup {number}, request {index}");
            assert_eq!(outcome.timings.deadline_missed.is_some(), request.options.deadline.is_some());
            n_preempted += outcome.timings.n_preempted;
        }
        assert!(n_preempted > *n_requests as usize / 20, "setup {number}: the test needs preemptions: {n_preempted}");
    }
}

#[test]
fn a_preempted_request_keeps_the_state_of_its_cells() {
    let mut engine = TestEngine::new(&slots_setup(1));
    let low = at_priority(0, 1, 60, 20);
    let first = engine.submit(vec![low.clone()]);
    (0..4).for_each(|_| engine.step());
    assert_eq!(first.phase(), Phase::Generating);
    let second = engine.submit(vec![at_priority(1, 2, 30, 3)]);
    engine.step();
    assert_eq!((second.phase(), engine.scheduler.queue_order.as_slice()), (Phase::Generating, &[first.id()][..]));
    assert_eq!(first.phase(), Phase::Generating, "it has its tokens");
    let kept = engine.scheduler.preempted[0].state.as_ref().map(|state| state.tokens.len());
    assert!(kept.is_some_and(|kept| kept > 60), "{kept:?}");
    while second.phase() != Phase::Finished {
        engine.step();
    }
    engine.scheduler.prepare();
    assert_eq!(engine.scheduler.pool.slots[0].cache.len(), kept.unwrap(), "nothing is decoded again");
    run_until_idle(&mut engine);
    assert_eq!(output(&first).0, reference_output(&slots_setup(1), &low).tokens);
}

/// Each preempts the one before it. The states of as many as there are slots are kept.
#[test]
fn a_chain_of_preemptions_is_decoded_again_where_no_more_states_are_kept() {
    let setup = slots_setup(1);
    let mut engine = TestEngine::new(&setup);
    let requests: Vec<Request> =
        (0..6).map(|priority| drafting(at_priority(priority, priority as u64, 20, 25))).collect();
    let handles: Vec<_> = requests
        .iter()
        .map(|request| {
            let handle = engine.submit(vec![request.clone()]);
            (0..3).for_each(|_| engine.step());
            handle
        })
        .collect();
    assert_eq!(engine.scheduler.preempted.len(), 5);
    assert_eq!(engine.scheduler.preempted.iter().filter(|preempted| preempted.state.is_some()).count(), 1);
    let order: Vec<u64> = handles.iter().rev().skip(1).map(|handle| handle.id()).collect();
    engine.step();
    assert_eq!(engine.scheduler.queue_order, order, "the highest one goes on first");
    run_until_idle(&mut engine);
    for (request, handle) in requests.iter().zip(&handles) {
        assert_eq!(output(handle).0, reference_output(&setup, request).tokens);
    }
}

#[test]
fn preempted_requests_end_by_cancel_and_time_limit() {
    let mut engine = TestEngine::new(&slots_setup(2));
    let low: Vec<_> = (0..2).map(|seed| engine.submit(vec![at_priority(-1, seed, 10, 80)])).collect();
    (0..4).for_each(|_| engine.step());
    let high: Vec<_> = (2..4).map(|seed| engine.submit(vec![at_priority(1, seed, 10, 60)])).collect();
    engine.step();
    assert_eq!(engine.scheduler.preempted.len(), 2);
    low[0].cancel();
    let timed = engine.scheduler.preempted.iter_mut().find(|preempted| preempted.task.sink.id() == low[1].id());
    timed.unwrap().task.deadline = Some(std::time::Instant::now());
    engine.step();
    let ([cancelled, late], running) = ([0, 1].map(|index| output(&low[index])), high[0].phase());
    assert_eq!((cancelled.1.stop, late.1.stop, running), (Stop::Cancelled, Stop::Timeout, Phase::Generating));
    assert!(!cancelled.0.is_empty() && cancelled.1.n_predicted == cancelled.0.len(), "its tokens are in the answer");
    assert_eq!(cancelled.1.timings.n_preempted, 1);
    run_until_idle(&mut engine);
}

#[test]
fn the_lowest_request_ends_beside_a_stream_of_the_highest() {
    let setup = slots_setup(2);
    let mut engine = TestEngine::new(&setup);
    let lowest = at_priority(-10, 1, 20, 40);
    let handle = engine.submit(vec![lowest.clone()]);
    let mut n_others = 0;
    while handle.phase() != Phase::Finished {
        while engine.scheduler.queue.len() < 3 {
            n_others += 1;
            assert!(n_others < 400, "it starves");
            engine.submit(vec![at_priority(10, n_others, 5, 2)]);
        }
        engine.step();
    }
    assert_eq!(output(&handle).0, reference_output(&setup, &lowest).tokens);
}
