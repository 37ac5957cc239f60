//! `speculative.compare`: a text that was generated with speculation is generated once more without, a host's own check.
//!
//! The second run begins in the slot where the first one has ended, with as much of the cache as that one found, so that the
//! same tokens are evaluated in the same batches: what differs then, differs by speculation. It tells nobody its text, teaches
//! the drafters nothing, and ends at the first token that differs. However it ends, the first run is the answer.

use std::time::Instant;

use super::command::Submission;
use super::event::{Outcome, Stop};
use super::request::{Options, Request};
use super::request_handle::TextSink;
use super::scheduler::BatchScheduler;
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::sampling;

/// Where the texts of both runs begin to differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The generated token, counted from 0.
    pub index: usize,
    /// In the run without speculation, how much higher there the logit of its own token is than that of the other run's.
    /// `None`: one of the texts has ended before.
    pub logit_gap: Option<f32>,
}

/// What became of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Comparison {
    /// Both runs came to their ends; `None`: with the same tokens.
    Done(Option<Difference>),
    /// The second run did not, and why.
    Skipped(String),
}

/// What a comparison needs of a task.
pub(super) enum Compare {
    /// The run with speculation.
    First {
        /// What it has generated.
        tokens: Vec<Token>,
        /// The request without speculation.
        again: Box<Request>,
    },
    /// The run without.
    Second(Box<Second>),
}

/// The run without speculation.
pub(super) struct Second {
    /// What the first run has generated.
    expected: Vec<Token>,
    /// Whether the run ends with the last of them: the clock may have ended the first one, and would not do so at the same token.
    limited: bool,
    /// How many of them came.
    n_equal: usize,
    difference: Option<Difference>,
    /// The answer.
    first: Outcome,
}

impl Compare {
    /// What the first run of a request needs.
    pub(super) fn first(request: &Request) -> Option<Compare> {
        let compares = request.compare && request.speculative.is_some();
        compares.then(|| Compare::First { tokens: Vec::new(), again: Box::new(request.clone()) })
    }

    pub(super) fn is_second(&self) -> bool {
        matches!(self, Compare::Second(_))
    }

    /// A token goes into the text; tells whether the text may end with it, because nothing more is to be learnt.
    pub(super) fn generated(&mut self, token: Token) -> bool {
        match self {
            Compare::First { tokens, .. } => tokens.push(token),
            Compare::Second(second) => return second.is_done(),
        }
        false
    }

    /// The target has chosen a token from `logits`.
    pub(super) fn sampled(&mut self, token: Token, logits: &[f32]) {
        let Compare::Second(second) = self else { return };
        let expected = second.expected.get(second.n_equal).copied();
        if expected == Some(token) {
            second.n_equal += 1;
            return;
        }
        let logit = |token: Token| logits.get(usize::try_from(token).ok()?).copied();
        let logit_gap = expected.and_then(|expected| Some(logit(token)? - logit(expected)?));
        second.difference.get_or_insert(Difference { index: second.n_equal, logit_gap });
    }
}

/// What a second run begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Tokens of the prompt that the first run found in the cache.
    n_cached: usize,
    /// Whether they cannot be made again: they came from a file, or were moved to where they are.
    only_there: bool,
}

impl Found {
    /// As much of a prompt as may be taken from the cache.
    pub(super) fn of(self, prompt: &[Token]) -> &[Token] {
        prompt.get(..self.n_cached).unwrap_or(prompt)
    }

    /// Refuses a beginning with `reused` tokens in the cache that is not the first run's.
    pub(super) fn check(self, reused: usize) -> Result<()> {
        if reused == self.n_cached || !self.only_there {
            return Ok(());
        }
        Err(Error::invalid("what the first run found in the cache is no longer there"))
    }
}

impl Second {
    /// Whether nothing more is to be learnt.
    fn is_done(&self) -> bool {
        self.difference.is_some() || (self.limited && self.n_equal == self.expected.len())
    }

    /// The answer, when the run ends for this reason.
    fn answer(mut self, stop: Stop) -> Outcome {
        // A text that ends earlier.
        let shorter = self.n_equal < self.expected.len();
        let end = shorter.then_some(Difference { index: self.n_equal, logit_gap: None });
        let skipped = |why: &str| Comparison::Skipped(format!("the run without speculation {why}"));
        let comparison = match stop {
            Stop::Eos | Stop::Word(_) | Stop::Limit => Comparison::Done(self.difference.or(end)),
            Stop::Timeout => skipped("was not done in time"),
            Stop::Cancelled => skipped("was cancelled"),
            Stop::Error(error) => skipped(&format!("failed: {}", error.message())),
        };
        if let Some(stats) = &mut self.first.speculation {
            stats.comparison = Some(comparison);
        }
        self.first
    }
}

impl BatchScheduler {
    /// A run of a comparison has ended in the slot `index`: the first one, upon which the second begins, or that one.
    pub(super) fn compare(
        &mut self,
        index: usize,
        compare: Compare,
        sink: TextSink,
        outcome: Outcome,
        deadline: Option<Instant>,
    ) {
        let (expected, mut request) = match compare {
            Compare::Second(second) => return self.outbox.end(sink, second.answer(outcome.stop)),
            Compare::First { tokens, again } => (tokens, *again),
        };
        if !matches!(outcome.stop, Stop::Eos | Stop::Word(_) | Stop::Limit) {
            self.outbox.end(sink, outcome);
            return;
        }
        let limited = request.options.t_max_predict.take().is_some() && outcome.stop == Stop::Limit;
        let only_there = outcome.session_load.is_some() || request.options.n_cache_reuse > 0;
        let found = Found { n_cached: outcome.prompt.n_cached, only_there };
        let again = Request {
            compare: false,
            speculative: None,
            prompt_of: None,
            sampling: sampling::SamplingSettings { n_probs: 0, ..request.sampling },
            options: Options {
                session_load: None,
                session_save: None,
                seed_position: Some(outcome.seed_position),
                n_cache_reuse: 0,
                progress: false,
                post_sampling_probs: false,
                ..request.options
            },
            ..request
        };
        let second = Second { expected, limited, n_equal: 0, difference: None, first: outcome };
        let found = Some(found);
        let submission = Submission { request: again, is_prepared: true, sink: sink.clone(), deadline, found };
        let begun = self.begin(index, submission);
        match (begun, self.slots.get_mut(index).and_then(|slot| slot.task.as_mut())) {
            (Ok(()), Some(task)) => task.compare = Some(Compare::Second(Box::new(second))),
            (Err(error), _) => self.outbox.end(sink, second.answer(Stop::Error(error))),
            (Ok(()), None) => self.outbox.end(sink, second.answer(Stop::Cancelled)),
        }
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
