//! The scheduler alone delivers the changes of steps, after the step.

use std::time::Duration;

use super::{Setup, TestEngine, request};
use crate::{Comparison, Event, Phase, Request, Stop};
use foredraft_base::error::Code;
use foredraft_llama::Token;
use foredraft_llama::fake::{FakeModel, Fault};
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::{DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 3, near: 4.0, far: 2.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn greedy(n_predict: usize) -> Request {
    let prompt: Vec<Token> = (0..10).map(|n| FakeModel::FIRST + n % 3).collect();
    request(prompt, n_predict, SamplingSettings { temperature: 0.0, ..SamplingSettings::default() })
}

#[test]
fn nothing_is_visible_before_a_step_is_delivered() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 2, 100, 32));
    let (goes_on, ends) = (engine.submit(vec![greedy(8)]), {
        // With another beginning, for which it does not wait.
        let Request { prompt, .. } = greedy(1);
        engine.submit(vec![Request { prompt: prompt[1..].into(), ..greedy(1) }])
    });
    engine.scheduler.prepare();
    engine.scheduler.step(&engine.interrupt);
    for handle in [&goes_on, &ends] {
        let (events, phase) = handle.take(Duration::ZERO);
        assert!(events.is_empty() && phase == Phase::Prompt, "{events:?} {phase:?}");
    }
    assert_eq!(engine.scheduler.pool.running().count(), 1, "a host that learns of the end finds the slot free");
    let mut changed = Vec::new();
    engine.scheduler.deliver(&mut changed);
    changed.sort_unstable();
    assert_eq!(changed, [goes_on.id(), ends.id()]);
    assert_eq!((goes_on.phase(), ends.phase()), (Phase::Generating, Phase::Finished));
    let (events, _) = goes_on.take(Duration::ZERO);
    assert!(matches!(events.as_slice(), [(0, Event::Update(_))]), "{events:?}");
    let (events, _) = ends.take(Duration::ZERO);
    assert!(matches!(events.as_slice(), [(0, Event::Finished(_))]), "{events:?}");
    changed.clear();
    engine.scheduler.deliver(&mut changed);
    assert!(changed.is_empty(), "each event is delivered once");
}

#[test]
fn a_cancelled_request_ends_before_the_next_decode() {
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 1, 100, 32));
    let (runs, waits) = (engine.submit(vec![greedy(80)]), engine.submit(vec![greedy(80)]));
    engine.step();
    assert!(!runs.cancel() && waits.cancel());
    let n_decodes = engine.scheduler.pool.context.fake().n_decodes();
    let mut changed = Vec::new();
    engine.scheduler.prepare();
    engine.scheduler.deliver(&mut changed);
    assert_eq!(engine.scheduler.pool.context.fake().n_decodes(), n_decodes);
    assert_eq!((runs.phase(), waits.phase()), (Phase::Finished, Phase::Finished));
    changed.sort_unstable();
    assert_eq!(changed, [runs.id(), waits.id()], "the host is called for both");
}

/// The session is saved when the first run has ended, and its answer comes after the second run.
#[test]
fn a_compared_request_saves_its_session_and_answers_once() {
    let path = std::env::temp_dir().join(format!("foredraft-delivery-{}.session", std::process::id()));
    let mut engine = TestEngine::new(&Setup::plain(FAKE_MODEL, 1, 100, 32));
    let mut asks = Request {
        compare: true,
        speculative: Some(Settings { sources: vec![DrafterKind::Suffix], ..Settings::default() }),
        ..greedy(12)
    };
    asks.options.session_save = Some(path.clone());
    let handle = engine.submit(vec![asks]);
    let (mut ends, mut existed) = (Vec::new(), false);
    for _ in 0..60 {
        engine.step();
        existed |= path.exists() && ends.is_empty() && handle.phase() != Phase::Finished;
        for (_, event) in handle.take(Duration::ZERO).0 {
            ends.extend(if let Event::Finished(outcome) = event { Some(outcome) } else { None });
        }
    }
    std::fs::remove_file(&path).expect("the session was saved");
    assert!(existed, "the second run begins after the session was saved");
    let [outcome] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!((&outcome.stop, outcome.n_predicted), (&Stop::Limit, 12));
    assert!(outcome.session_save.as_ref().is_some_and(Result::is_ok), "{:?}", outcome.session_save);
    let stats = outcome.speculation.as_ref().expect("it speculates");
    assert_eq!(stats.comparison, Some(Comparison::Done(None)));
}

/// The host can try again with less at once.
#[test]
fn requests_whose_logits_have_no_memory_end_as_such() {
    for (fault, code) in [(Fault::NoMemory, Code::ResourceExhausted), (Fault::Failed(0), Code::ModelError)] {
        let setup = Setup { target_faults: [(0, fault)].into(), ..Setup::plain(FAKE_MODEL, 2, 100, 32) };
        let mut engine = TestEngine::new(&setup);
        let handles = [engine.submit(vec![greedy(4)]), engine.submit(vec![greedy(4)])];
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let stops = handles.map(|handle| match handle.take(Duration::ZERO).0.pop() {
            Some((0, Event::Finished(outcome))) => outcome.stop,
            other => panic!("{other:?}"),
        });
        // The second one waited for the first one's prompt.
        assert!(matches!(&stops[0], Stop::Error(error) if error.code() == code), "{stops:?}");
        assert!(matches!(&stops[1], Stop::Limit), "{stops:?}");
    }
}
