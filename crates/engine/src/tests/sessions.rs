//! A session can be loaded while cells wait to be moved or copied.

use super::{Setup, TestEngine, request};
use crate::Request;
use crate::request::{SessionJob, SessionWork};
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 3, near: 4.0, far: 2.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn drafted(slot: usize, length: usize, n_predict: usize) -> Request {
    let sampling = sampling::SamplingSettings { temperature: 0.0, ..sampling::SamplingSettings::default() };
    let prompt: Vec<Token> = (0..length).map(|n| FakeModel::FIRST + (n % 3) as Token).collect();
    let settings = Settings { sources: vec![DrafterKind::Draft], adaptive: Adaptive::Auto, ..Settings::default() };
    let mut request = request(prompt, n_predict, sampling);
    request.options.slot = Some(slot);
    request.speculative = Some(settings);
    request
}

/// Loads the session after each number of steps, while another slot's context shifts repeatedly and its inaccurate draft is
/// rarely used.
#[test]
fn session_can_be_loaded_between_a_shift_and_its_decode() {
    let setup = Setup {
        ctx_shift: true,
        draft: Some(FakeModel { seed: 8, ..FAKE_MODEL }),
        draft_cost: 50,
        ..Setup::plain(FAKE_MODEL, 3, 24, 32)
    };
    for n_steps in 0..24 {
        let mut engine = TestEngine::new(&setup);
        engine.submit(vec![drafted(2, 9, 4)]);
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let (reply, saved) = crossbeam_channel::bounded(1);
        let job = |slot, work| SessionJob { slot, after: u64::MAX, work, claim: Default::default() };
        engine.scheduler.session_jobs.push_back(job(2, SessionWork::Save(reply)));
        engine.step();
        let saved = saved.recv().unwrap().unwrap();
        let n_tokens = saved.target.tokens.len();
        let n_draft = saved.draft.as_ref().map(|draft| draft.tokens.len());
        let long = engine.submit(vec![drafted(0, 9, 120)]);
        for _ in 0..n_steps {
            engine.step();
        }
        let (reply, put_in) = crossbeam_channel::bounded(1);
        engine.scheduler.session_jobs.push_back(job(1, SessionWork::Load(Box::new(saved), reply)));
        engine.step();
        let restored = put_in.recv().unwrap().unwrap();
        assert_eq!((restored.n_tokens, Some(restored.n_draft)), (n_tokens, n_draft), "after {n_steps} steps");
        assert!(long.phase() != crate::Phase::Finished, "{n_steps} steps are within the long text");
        while !engine.scheduler.is_idle() {
            engine.step();
        }
    }
}
