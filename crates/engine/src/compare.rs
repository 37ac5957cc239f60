//! `speculative.compare`: generates a completion with speculation, and once more without it, so that hosts can compare.
//!
//! The second run begins in the slot where the first one has ended, with as much of the cache as the first run found, so that the
//! same tokens are decoded in the same batches: any difference is due to speculation. The second run reports nothing, teaches the
//! drafters nothing, and ends at the first token that differs. However it ends, the first run is the answer.

use super::event::{Comparison, Difference, Outcome, Stop};
use super::request::{CacheOfFirstRun, Request, RequestOptions};
use foredraft_llama::Token;
use foredraft_sampling as sampling;

/// One of the two runs of a comparison.
pub(super) enum Compare {
    /// The run with speculation.
    First {
        /// The tokens that it has generated.
        tokens: Vec<Token>,
        /// The request without speculation.
        again: Box<Request>,
    },
    /// The run without.
    Second(Box<SecondRun>),
}

/// The run without speculation.
pub(super) struct SecondRun {
    /// The tokens that the first run has generated.
    expected: Vec<Token>,
    /// Whether the run ends with the last of them: the clock may have ended the first one, and would not do so at the same token.
    limited: bool,
    /// How many of them the second run has generated.
    n_equal: usize,
    difference: Option<Difference>,
    /// The answer.
    first: Outcome,
}

impl Compare {
    /// The first run of a request that asks for a comparison.
    pub(super) fn first(request: &Request) -> Option<Compare> {
        let compares = request.compare && request.speculative.is_some();
        compares.then(|| Compare::First { tokens: Vec::new(), again: Box::new(request.clone()) })
    }

    pub(super) fn is_second(&self) -> bool {
        matches!(self, Compare::Second(_))
    }

    /// The second run of this first one, whose answer is `first`: its request, what it finds in the cache, and its comparison.
    /// `None`: the first run did not come to its end, or this is the second run.
    pub(super) fn repeat(
        self,
        first: Outcome,
    ) -> std::result::Result<(Request, CacheOfFirstRun, Compare), Box<Outcome>> {
        let Compare::First { tokens: expected, again } = self else { return Err(Box::new(first)) };
        if !matches!(first.stop, Stop::Eos | Stop::Word(_) | Stop::Limit) {
            return Err(Box::new(first));
        }
        let mut request = *again;
        let limited = request.options.t_max_predict.take().is_some() && first.stop == Stop::Limit;
        let is_irreplaceable = first.session_load.is_some() || request.options.n_cache_reuse > 0;
        let cache = CacheOfFirstRun { n_cached: first.prompt.n_cached, is_irreplaceable };
        let request = Request {
            compare: false,
            speculative: None,
            prefix: std::sync::Arc::default(),
            sampling: sampling::SamplingSettings { n_probs: 0, ..request.sampling },
            options: RequestOptions {
                session_load: None,
                session_save: None,
                seed_position: Some(first.seed_position),
                n_cache_reuse: 0,
                progress: false,
                prompt_probs: None,
                post_sampling_probs: false,
                ..request.options
            },
            ..request
        };
        let second = SecondRun { expected, limited, n_equal: 0, difference: None, first };
        Ok((request, cache, Compare::Second(Box::new(second))))
    }

    /// Whether the run ends with `token` as its next one, because the comparison is decided.
    pub(super) fn ends_with(&self, token: Token) -> bool {
        let Compare::Second(second) = self else { return false };
        let is_equal = second.expected.get(second.n_equal) == Some(&token);
        !is_equal || (second.limited && second.n_equal + 1 == second.expected.len())
    }

    /// In the second run, how much higher the logit of `token`, its next one, is than that of the first run's token; `None`: it is the
    /// same token, or the first run has none.
    pub(super) fn logit_gap(&self, token: Token, logits: &[f32]) -> Option<f32> {
        let Compare::Second(second) = self else { return None };
        let expected = second.expected.get(second.n_equal).copied().filter(|expected| *expected != token)?;
        let logit = |token: Token| logits.get(usize::try_from(token).ok()?).copied();
        Some(logit(token)? - logit(expected)?)
    }

    /// A token was committed. `logit_gap`: see [`Compare::logit_gap`].
    pub(super) fn committed(&mut self, token: Token, logit_gap: Option<f32>) {
        match self {
            Compare::First { tokens, .. } => tokens.push(token),
            Compare::Second(second) if second.expected.get(second.n_equal) == Some(&token) => second.n_equal += 1,
            Compare::Second(second) => {
                second.difference.get_or_insert(Difference { index: second.n_equal, logit_gap });
            }
        }
    }

    /// The answer, when the second run ends for this reason; `None`: this is the first run.
    pub(super) fn answer(self, stop: Stop) -> Option<Outcome> {
        match self {
            Compare::First { .. } => None,
            Compare::Second(second) => Some(second.answer(stop)),
        }
    }
}

impl SecondRun {
    /// The answer, when this run ends for this reason.
    pub(super) fn answer(mut self, stop: Stop) -> Outcome {
        // The second run may end earlier.
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

#[cfg(test)]
mod tests;
