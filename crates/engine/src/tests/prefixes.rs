//! Requests whose prompts begin alike read the common beginning once, and wait for one that is reading it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Setup, TestEngine, request};
use crate::{Event, Outcome, Phase, Request, RequestHandle, Stop};
use foredraft_llama::fake::{FakeModel, mix};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 5, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
/// A prompt of so many tokens takes several decodes.
const N_PROMPT: usize = 200;
/// So few tokens are common to any two prompts of so few words.
const BY_CHANCE: usize = 5;

fn setup() -> Setup {
    Setup::plain(FAKE_MODEL, 4, 250, 32)
}

/// `N_PROMPT` tokens that are the same for each request with this `seed`, and `own` ones.
fn prompt(seed: u64, own: &[Token]) -> Vec<Token> {
    let word = |at: usize| FakeModel::FIRST + (mix(seed ^ at as u64) % 5) as Token;
    (0..N_PROMPT).map(word).chain(own.iter().copied()).collect()
}

fn greedy(prompt: Vec<Token>, n_predict: usize) -> Request {
    request(prompt, n_predict, SamplingSettings { temperature: 0.0, ..SamplingSettings::default() })
}

/// Requests whose prompts differ in their last token.
fn equals(n: usize, n_predict: usize) -> Vec<Request> {
    (0..n).map(|own| greedy(prompt(0, &[FakeModel::FIRST + own as Token]), n_predict)).collect()
}

fn submit_each(engine: &mut TestEngine, requests: &[Request]) -> Vec<Arc<RequestHandle>> {
    requests.iter().map(|request| engine.submit(vec![request.clone()])).collect()
}

fn run(engine: &mut TestEngine) {
    while !engine.scheduler.is_idle() {
        engine.step();
    }
}

fn outcome(handle: &RequestHandle) -> Outcome {
    assert_eq!(handle.phase(), Phase::Finished);
    let finished = |(_, event)| if let Event::Finished(outcome) = event { Some(outcome) } else { None };
    *handle.take(Duration::ZERO).0.into_iter().find_map(finished).expect("it has finished")
}

fn n_cached(handles: &[Arc<RequestHandle>]) -> Vec<usize> {
    handles.iter().map(|handle| outcome(handle).timings.cache_n).collect()
}

/// Asserts that the outputs are those of engines that have one request each.
fn assert_as_alone(setup: &Setup, requests: &[Request], handles: &[Arc<RequestHandle>]) {
    let tokens = |outcome: Outcome| outcome.tokens.iter().map(|token| token.token).collect::<Vec<_>>();
    for (request, handle) in requests.iter().zip(handles) {
        let mut engine = TestEngine::new(setup);
        let alone = engine.submit(vec![request.clone()]);
        run(&mut engine);
        assert_eq!(tokens(outcome(handle)), tokens(outcome(&alone)));
    }
}

#[test]
fn equal_prompts_at_once_are_copied_from_one_that_was_read_before() {
    let mut engine = TestEngine::new(&setup());
    engine.submit(vec![greedy(prompt(0, &[]), 1)]);
    run(&mut engine);
    for n_predict in [1, 20, 20] {
        let handles = submit_each(&mut engine, &equals(4, n_predict));
        engine.step();
        assert!(handles.iter().all(|handle| handle.phase() != Phase::Queued), "nothing is left to wait for");
        run(&mut engine);
        assert!(n_cached(&handles).iter().all(|n| *n >= N_PROMPT));
    }
}

#[test]
fn equal_prompts_at_once_are_read_by_one_and_copied_by_the_others() {
    let mut engine = TestEngine::new(&setup());
    let handles = submit_each(&mut engine, &equals(4, 10));
    engine.step();
    let waiting = handles.iter().filter(|handle| handle.phase() == Phase::Queued).count();
    assert_eq!(waiting, 3, "one of them reads");
    run(&mut engine);
    assert_eq!(n_cached(&handles), [0, N_PROMPT, N_PROMPT, N_PROMPT]);
    let mut engine = TestEngine::new(&setup());
    let handles = submit_each(&mut engine, &equals(4, 10));
    run(&mut engine);
    assert_as_alone(&setup(), &equals(4, 10), &handles);
}

/// The states of a recurrent model after a batch can be copied: here those before the last token of equal prompts.
#[test]
fn states_before_the_end_of_equal_prompts_are_copied() {
    for rollback in [Rollback::Never, Rollback::Recent(8)] {
        let setup = Setup { rollback, padding: false, ..setup() };
        let mut engine = TestEngine::new(&setup);
        let requests = vec![greedy(prompt(0, &[]), 10); 4];
        let handles = submit_each(&mut engine, &requests);
        run(&mut engine);
        let handles_again = submit_each(&mut engine, &requests);
        run(&mut engine);
        assert_as_alone(&setup, &requests, &handles_again);
        assert_eq!(n_cached(&handles), [0, N_PROMPT - 1, N_PROMPT - 1, N_PROMPT - 1], "{rollback:?}");
    }
}

#[test]
fn a_prefix_is_copied_before_the_rest_of_the_prompt_is_read() {
    let mut engine = TestEngine::new(&setup());
    let long = [FakeModel::FIRST; 40];
    let first = engine.submit(vec![greedy([&prompt(0, &[])[..100], &prompt(1, &long)[..100]].concat(), 1)]);
    let second = engine.submit(vec![greedy(prompt(0, &[])[..110].to_vec(), 1)]);
    while second.phase() == Phase::Queued {
        engine.step();
    }
    assert_eq!(first.phase(), Phase::Prompt, "the second one waits for the common beginning only");
    run(&mut engine);
    assert_eq!(n_cached(&[first, second]), [0, 100]);
}

#[test]
fn a_request_goes_on_alone_if_the_one_that_reads_is_cancelled() {
    let mut engine = TestEngine::new(&setup());
    let handles = submit_each(&mut engine, &equals(4, 10));
    engine.step();
    handles[0].cancel();
    engine.step();
    let read = outcome(&handles[0]).n_cached;
    assert!(read > 0 && read < N_PROMPT, "it is cancelled in the middle of its prompt: {read}");
    assert_eq!(handles[1].phase(), Phase::Prompt, "the next one reads");
    run(&mut engine);
    assert_eq!(n_cached(&handles[1..]), [read, N_PROMPT, N_PROMPT]);
}

#[test]
fn waiting_for_a_prefix_ends_with_the_deadline_and_by_cancelling() {
    let mut engine = TestEngine::new(&setup());
    let handles = submit_each(&mut engine, &equals(4, 10));
    engine.step();
    engine.scheduler.queue[0].deadline = Some(Instant::now());
    assert!(handles[2].cancel(), "nothing of it runs");
    engine.step();
    assert_eq!((outcome(&handles[1]).stop, outcome(&handles[2]).stop), (Stop::Timeout, Stop::Cancelled));
    run(&mut engine);
    assert_eq!(n_cached(&[Arc::clone(&handles[0]), Arc::clone(&handles[3])]), [0, N_PROMPT]);
}

/// Each kind of request that cannot use a copy begins at once.
#[test]
fn requests_that_reuse_nothing_do_not_wait() {
    let plain = greedy(prompt(0, &[]), 1);
    let option = |change: fn(&mut Request)| {
        let mut request = plain.clone();
        change(&mut request);
        request
    };
    let others = [
        option(|request| request.options.cache_prompt = false),
        option(|request| request.lora = vec![0.5]),
        option(|request| request.options.prompt_probs = Some(0)),
        greedy(prompt(1, &[]), 1),
        // The copy of a cache would cost more than so short a beginning.
        greedy([&prompt(0, &[])[..10], &prompt(1, &[])[..100]].concat(), 1),
    ];
    for other in others {
        let mut engine = TestEngine::new(&setup());
        engine.submit(vec![plain.clone()]);
        let handle = engine.submit(vec![other]);
        engine.step();
        assert!(handle.phase() != Phase::Queued);
        run(&mut engine);
        assert!(outcome(&handle).timings.cache_n < BY_CHANCE);
    }
    let shares = Setup { kv_unified: true, ..Setup::plain(FAKE_MODEL, 4, 1000, 32) };
    let mut engine = TestEngine::new(&shares);
    let handles = submit_each(&mut engine, &equals(4, 1));
    engine.step();
    assert!(handles.iter().all(|handle| handle.phase() != Phase::Queued), "slots that share cells copy nothing");
}

/// The draft model has a KV cache of its own.
#[test]
fn the_cache_of_the_draft_model_is_copied_as_well() {
    let mut engine = TestEngine::new(&Setup { draft: Some(FAKE_MODEL), draft_cost: 10, ..setup() });
    let sources = vec![DrafterKind::Draft];
    let speculative = Some(Settings { sources, adaptive: Adaptive::Fixed, ..Settings::default() });
    let request = |own: usize| Request { speculative: speculative.clone(), ..equals(2, 10)[own].clone() };
    engine.submit(vec![request(0)]);
    run(&mut engine);
    let mut asks = request(1);
    asks.options.slot = Some(1);
    engine.submit(vec![asks]);
    engine.scheduler.prepare();
    assert_eq!(engine.scheduler.pool.slots[1].cache.len(), N_PROMPT);
    let draft = engine.scheduler.pool.drafters.save(1);
    assert_eq!(draft.map(|draft| draft.tokens.len()), Some(N_PROMPT));
}

/// Cells that a shift has moved depend on the tokens that it has dropped.
#[test]
fn moved_cells_are_not_copied() {
    let mut engine = TestEngine::new(&Setup { ctx_shift: true, ..setup() });
    let mut shifts = greedy(prompt(0, &[]), 60);
    shifts.options.n_keep = Some(50);
    shifts.options.slot = Some(0);
    engine.submit(vec![shifts]);
    run(&mut engine);
    let rest = engine.scheduler.pool.slots[0].cache.to_vec();
    let mut asks = greedy(rest.clone(), 1);
    asks.options.slot = Some(1);
    let handle = engine.submit(vec![asks]);
    run(&mut engine);
    let n_kept = n_cached(&[handle])[0];
    assert!((50..50 + BY_CHANCE).contains(&n_kept), "{n_kept} of {} tokens were copied", rest.len());
}

/// Later requests do not take the slot of one that waits, so that it does not starve.
#[test]
fn later_requests_do_not_overtake_one_that_waits_for_a_prefix() {
    let mut engine = TestEngine::new(&Setup { n_parallel: 2, ..setup() });
    let [first, second] = [0, 1].map(|_| engine.submit(vec![greedy(prompt(0, &[]), 10)]));
    let third = engine.submit(vec![greedy(prompt(1, &[]), 10)]);
    engine.step();
    assert_eq!((second.phase(), third.phase()), (Phase::Queued, Phase::Queued));
    while second.phase() == Phase::Queued {
        assert_eq!(third.phase(), Phase::Queued);
        engine.step();
    }
    run(&mut engine);
    assert_eq!(n_cached(&[first, second]), [0, N_PROMPT - 1]);
    assert!(outcome(&third).timings.cache_n < BY_CHANCE);
}
