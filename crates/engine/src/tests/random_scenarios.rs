//! Random scenarios: requests with all kinds of speculation arrive and are cancelled, in contexts that are too small for them.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use proptest::prelude::*;

use super::TestEngine;
use super::reference::{ReferenceOutput, reference_output};
use super::scenario::{Scenario, SessionCopy, scenarios};
use crate::request::{SessionJob, SessionWork};
use crate::session::Session;
use crate::{Comparison, Event, Outcome, Phase, Request, RequestHandle, Stop};
use foredraft_base::error::Result;
use foredraft_llama::Token;

/// A completion that is being generated.
struct Running {
    request: Request,
    expected: ReferenceOutput,
    cancelled: bool,
    tokens: Vec<Token>,
    text: String,
    /// Whether decodes of the draft may fail.
    draft_fails: bool,
}

impl Running {
    /// Checks the end of a completion. `now`: a decode has failed in this step; `ever`: in this or an earlier step.
    fn check_end(&self, outcome: &Outcome, (now, ever): (bool, bool)) {
        let Running { request, expected, .. } = self;
        assert_eq!(outcome.n_predicted, self.tokens.len(), "tokens counted and tokens sent");
        let draws = request.speculative.as_ref().is_some_and(|settings| settings.verify.draws());
        if let (Some(stats), true) = (&outcome.speculation, request.compare && request.speculative.is_some())
            && matches!(outcome.stop, Stop::Eos | Stop::Word(_) | Stop::Limit)
        {
            let skipped = matches!(stats.comparison, Some(Comparison::Skipped(_)));
            let may_skip = self.cancelled || ever || request.options.n_cache_reuse > 0;
            let equal = stats.comparison == Some(Comparison::Done(None));
            assert!(equal || draws || (skipped && may_skip), "{:?}", stats.comparison);
        }
        match &outcome.stop {
            Stop::Cancelled => assert!(self.cancelled, "the request was not cancelled"),
            Stop::Error(error) => {
                let as_expected = matches!(&expected.stop, Stop::Error(expected) if expected.code() == error.code());
                assert!(now || (as_expected && self.tokens == expected.tokens), "{error}");
            }
            stop if !draws => {
                assert_eq!(self.tokens, expected.tokens, "the output");
                assert_eq!(stop, &expected.stop);
                // A token may be a single byte of a character.
                assert_eq!(self.text, String::from_utf8_lossy(&expected.text));
            }
            _ => {}
        }
        let stats = outcome.speculation.as_ref();
        assert_eq!(stats.is_some(), request.speculative.is_some(), "only speculating requests get statistics");
        assert!(stats.is_none_or(|stats| stats.n_accepted <= stats.n_drafted));
        // The draft's context is as large as the target's, so the text must fit.
        let why = stats.and_then(|stats| stats.disabled.as_deref()).unwrap_or_default();
        assert!(self.draft_fails || !why.contains("context"), "{why}");
    }

    fn receive(&mut self, event: Event, disturbed: (bool, bool)) {
        let (tokens, text) = match &event {
            Event::Update(update) => (&update.tokens, &update.text),
            Event::Progress(_) | Event::Restarted { .. } => return,
            Event::Finished(outcome) => (&outcome.tokens, &outcome.text),
        };
        self.tokens.extend(tokens.iter().map(|token| token.token));
        self.text.push_str(text);
        let draws = self.request.speculative.as_ref().is_some_and(|settings| settings.verify.draws());
        assert!(
            draws || self.expected.tokens.starts_with(&self.tokens),
            "{:?} must be a prefix of {:?}",
            self.tokens,
            self.expected.tokens
        );
        if let Event::Finished(outcome) = &event {
            self.check_end(outcome, disturbed);
        }
    }
}

/// Far more than any scenario takes.
const MAX_STEPS: usize = 4000;

fn run(scenario: &Scenario) {
    let mut engine = TestEngine::new(&scenario.setup);
    let mut handles: Vec<(Arc<RequestHandle>, Option<usize>, Vec<Running>)> = Vec::new();
    let mut saves: Vec<Receiver<Result<Session>>> = Vec::new();
    let mut saved = None;
    let all_failures = engine.failures_left();
    let last =
        scenario.requests.iter().map(|planned| planned.step).chain(scenario.sessions.iter().map(|copy| copy.step));
    let last = last.max().unwrap_or(0);
    for step in 0.. {
        if step > last && engine.scheduler.is_idle() {
            break;
        }
        assert!(step < MAX_STEPS, "the scenario does not end");
        for planned in scenario.requests.iter().filter(|planned| planned.step == step) {
            let requests = planned.requests(scenario);
            let running = |request: &Request| Running {
                expected: reference_output(&scenario.setup, request),
                request: request.clone(),
                cancelled: false,
                tokens: Vec::new(),
                text: String::new(),
                draft_fails: !scenario.setup.draft_faults.is_empty(),
            };
            let running = requests.iter().map(running).collect();
            handles.push((engine.submit(requests), planned.cancel.map(|later| step + later), running));
        }
        for (handle, _, running) in handles.iter_mut().filter(|(_, cancel, _)| *cancel == Some(step)) {
            handle.cancel();
            running.iter_mut().for_each(|text| text.cancelled = true);
        }
        for SessionCopy { slot, saves: is_save, .. } in scenario.sessions.iter().filter(|copy| copy.step == step) {
            let work = match (is_save, &saved) {
                (true, _) => {
                    let (reply, answer) = crossbeam_channel::bounded(1);
                    saves.push(answer);
                    SessionWork::Save(reply)
                }
                (false, Some(session)) => {
                    SessionWork::Load(Box::new(Session::clone(session)), crossbeam_channel::bounded(1).0)
                }
                (false, None) => continue,
            };
            engine.scheduler.session_jobs.push_back(SessionJob {
                slot: *slot,
                after: u64::MAX,
                work,
                claim: Default::default(),
            });
        }
        let failures = engine.failures_left();
        engine.step();
        // A cancelled request ends with the current step.
        let cancelled = handles.iter().filter(|(_, cancel, _)| *cancel == Some(step));
        cancelled.for_each(|(handle, ..)| assert_eq!(handle.phase(), Phase::Finished, "step {step}"));
        let left = engine.failures_left();
        for session in saves.iter().filter_map(|answer| answer.try_recv().ok()?.ok()) {
            saved = Some(session);
        }
        for (handle, _, running) in &mut handles {
            for (index, event) in handle.take(Duration::ZERO).0 {
                running[index].receive(event, (left < failures, left < all_failures));
            }
        }
    }
    assert!(handles.iter().all(|(handle, ..)| handle.phase() == Phase::Finished), "all requests must have finished");
}

proptest! {
    #![proptest_config(ProptestConfig {
        // PROPTEST_CASES raises the number.
        cases: 4 * ProptestConfig::default().cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn outputs_match_the_reference_in_random_scenarios(scenario in scenarios()) {
        run(&scenario);
    }
}
