//! A session is put in whatever waits to be moved or copied in the contexts.

use super::{Setup, Stage, request};
use crate::engine::Request;
use crate::engine::command::{SessionJob, SessionWork};
use crate::llama::Token;
use crate::llama::fake::FakeModel;
use crate::sampling;
use crate::speculative::{Adaptive, DrafterKind, Settings};

const VOICE: FakeModel =
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

/// While another slot's context shifts, over and over, and a bad draft is seldom asked: after each number of steps.
#[test]
fn a_session_is_put_in_between_a_shift_and_its_evaluation() {
    let setup = Setup {
        ctx_shift: true,
        draft: Some(FakeModel { seed: 8, ..VOICE }),
        draft_cost: 50,
        ..Setup::plain(VOICE, 3, 24, 32)
    };
    for n_steps in 0..24 {
        let mut stage = Stage::new(&setup);
        stage.submit(vec![drafted(2, 9, 4)]);
        while !stage.scheduler.is_idle() {
            stage.step();
        }
        let (reply, saved) = crossbeam_channel::bounded(1);
        let job = |slot, work| SessionJob { slot, after: u64::MAX, work };
        stage.scheduler.session_jobs.push_back(job(2, SessionWork::Save(reply)));
        stage.step();
        let saved = saved.recv().unwrap().unwrap();
        let n_tokens = saved.target.tokens.len();
        let n_draft = saved.draft.as_ref().map(|draft| draft.tokens.len());
        let long = stage.submit(vec![drafted(0, 9, 120)]);
        for _ in 0..n_steps {
            stage.step();
        }
        let (reply, put_in) = crossbeam_channel::bounded(1);
        stage.scheduler.session_jobs.push_back(job(1, SessionWork::Load(Box::new(saved), reply)));
        stage.step();
        let restored = put_in.recv().unwrap().unwrap();
        assert_eq!((restored.n_tokens, Some(restored.n_draft)), (n_tokens, n_draft), "after {n_steps} steps");
        assert!(long.phase() != crate::engine::Phase::Finished, "{n_steps} steps are within the long text");
        while !stage.scheduler.is_idle() {
            stage.step();
        }
    }
}
