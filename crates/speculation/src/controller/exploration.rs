//! Decides when to retry a model that does not seem to pay, and when to measure again the sizes of batches that do not seem to pay.
//!
//! The acceptance of a model and the cost of a size become outdated while they are not used, and may have been wrong from the start. The
//! cost of a trial is the difference to the best known choice, which is known in advance from the prices. A small fraction of the engine's
//! time is saved for trials. So cheap trials are frequent and expensive ones are rare. Where losses have a
//! limit, a trial also costs all that the model has not read, so in a long completion it may get none. But it reads the next request's prompt
//! with the target, and then a trial is cheap again.

use super::outlook::{Outlook, Trial};

/// The savings for trials, in forward passes of one token.
#[derive(Debug)]
pub struct Exploration {
    credit: f64,
    /// The number of failed trials since a model last paid.
    failed: i32,
    /// Steps since the last trial while a model pays.
    since: u32,
}

/// A model's part in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It does not draft.
    Rest,
    /// It drafts as long as it pays.
    Pays {
        /// The most tokens: more could lose more than all drafts may (see [`losses`](super::losses)).
        most: usize,
    },
    /// It drafts this number of tokens as a trial. `verify`: they are decoded in any case.
    Explore {
        /// The number of tokens.
        length: usize,
        /// See `length`.
        verify: bool,
    },
}

/// The fraction of the time for trials. Each failed one halves it, down to `2^-MAX_FAILED`.
const SHARE: f64 = 0.005;
const MAX_FAILED: i32 = 3;
/// While a model pays, other lengths are tried in at most one of this number of steps, because a draft of a fixed length does not stop at
/// improbable tokens.
const PAUSE: u32 = 16;
/// The maximum savings, and the initial ones.
const MAX_CREDIT: f64 = 10.0;
const FIRST_CREDIT: f64 = 1.0;
const FIRST_PART: f64 = 0.25;
/// The price of trials that cannot pay according to the estimates is multiplied by this, because only all of these estimates together can
/// be wrong. Those that may pay, but could lose too much, are made without it: their drafts are compared, not verified.
const UNLIKELY: f64 = 4.0;
/// The cost of a token to catch up with, in drafted ones.
const CATCH_UP: f64 = 0.12;

/// The maximum number of a slot's tokens to catch up with that count where losses have no limit. Otherwise the cost could grow faster than the
/// savings.
pub const MOST_UNREAD: usize = 64;

/// The cost for a model to read `unread` tokens, if drafting one costs `token`.
pub fn catching_up(token: f64, unread: usize) -> f64 {
    token * CATCH_UP * unread as f64
}

impl Default for Exploration {
    fn default() -> Self {
        Exploration { credit: FIRST_CREDIT, failed: 0, since: 0 }
    }
}

impl Exploration {
    /// Saves a fraction of a step's cost.
    pub fn earn(&mut self, cost: f64) {
        self.credit = (self.credit + SHARE * 0.5_f64.powi(self.failed) * cost).min(MAX_CREDIT);
    }

    /// Decides what a model does, and pays for it. `rate`: S. `round`: the cost of a round of drafting, and `catching_up`: of the tokens, of
    /// all slots, that it has not read. `is_new`: there is a request without drafts so far.
    pub fn decide(&mut self, outlook: &Outlook, rate: f64, round: f64, catching_up: f64, is_new: bool) -> Decision {
        let cost = |best: f64, trial: &Trial| (best - trial.expected).max(0.0) / rate;
        if outlook.with > outlook.without {
            self.failed = 0;
            let trial = &outlook.other_length;
            let cost = cost(outlook.with, trial);
            self.since += 1;
            if trial.length > 0 && self.credit > cost && self.since >= PAUSE {
                (self.credit, self.since) = (self.credit - cost, 0);
                return Decision::Explore { length: trial.length, verify: true };
            }
            return Decision::Pays { most: outlook.most };
        }
        let trial = &outlook.first_length;
        if trial.length > 0 {
            let cost = cost(outlook.without, trial) + catching_up;
            // Most of a request's first trial can be paid for later.
            if self.credit > if is_new { FIRST_PART * cost } else { cost } {
                return self.explore(cost, trial.length, true);
            }
        } else if outlook.fits_draft {
            let cost = (round + catching_up) * if outlook.may_pay { 1.0 } else { UNLIKELY };
            if self.credit > cost {
                return self.explore(cost, 1, false);
            }
        }
        Decision::Rest
    }

    fn explore(&mut self, cost: f64, length: usize, verify: bool) -> Decision {
        self.credit -= cost;
        self.failed = (self.failed + 1).min(MAX_FAILED);
        Decision::Explore { length, verify }
    }
}
