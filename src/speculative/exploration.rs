//! When a model that does not seem to pay is tried again, and sizes of batches that do not seem to pay are measured again.
//!
//! What is known of a model's acceptance and of a size's cost grows old while they are not used, and may have been wrong from
//! the start. A trial costs what the step then gains less than the best known choice, which the prices tell beforehand. A small part
//! of the engine's time is saved up for that: so trials that cost little are frequent, dear ones are rare, and none is given up
//! for good.

use super::controller::{Hope, Outlook};

/// What is saved up for trials, in forward passes of one token.
#[derive(Debug)]
pub struct Exploration {
    credit: f64,
    /// Trials in vain since a model last paid.
    failed: i32,
    /// Steps since the last trial while a model pays.
    since: u32,
}

/// What a model does in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Rest,
    /// It drafts as long as it pays.
    Pays,
    /// It drafts so many tokens, to find out what that is worth; `verify`: they are decoded in any case.
    Explore {
        /// How many.
        length: usize,
        /// See `length`.
        verify: bool,
    },
}

/// Part of the time that trials may take; half of it after each in vain, down to `2^-MAX_FAILED`.
const SHARE: f64 = 0.005;
const MAX_FAILED: i32 = 3;
/// While a model pays, other lengths are tried in one of so many steps at most: a draft of a length that was chosen beforehand does not
/// stop where its tokens become unlikely.
const PAUSE: u32 = 16;
/// No more than this is saved up, and so much is there to begin with.
const MAX_CREDIT: f64 = 10.0;
const FIRST_CREDIT: f64 = 1.0;
const FIRST_PART: f64 = 0.25;
/// Trials that cannot pay by what is known have to be so much cheaper: only all of that can be wrong.
const HOPELESS: f64 = 4.0;
/// What a token to catch up with costs, in drafted ones.
const CATCH_UP: f64 = 0.25;
/// More tokens of a slot to catch up with are taken for so many, or else they could become dear faster than the time for them is saved up.
pub const MOST_UNREAD: usize = 64;

impl Default for Exploration {
    fn default() -> Self {
        Exploration { credit: FIRST_CREDIT, failed: 0, since: 0 }
    }
}

impl Exploration {
    /// A step cost so much.
    pub fn earn(&mut self, cost: f64) {
        self.credit = (self.credit + SHARE * 0.5_f64.powi(self.failed) * cost).min(MAX_CREDIT);
    }

    /// Decides what a model does, and pays for it. `rate`: S; `round`: the cost of a round of drafting; `unread`: the tokens of all slots
    /// that it has to catch up with; `is_new`: a request was never drafted for.
    pub fn decide(&mut self, outlook: &Outlook, rate: f64, round: f64, unread: usize, is_new: bool) -> Decision {
        let cost = |best: f64, hope: &Hope| (best - hope.known).max(0.0) / rate;
        if outlook.with > outlook.without {
            self.failed = 0;
            let hope = &outlook.doubted;
            let cost = cost(outlook.with, hope);
            self.since += 1;
            if hope.length > 0 && self.credit > cost && self.since >= PAUSE {
                (self.credit, self.since) = (self.credit - cost, 0);
                return Decision::Explore { length: hope.length, verify: true };
            }
            return Decision::Pays;
        }
        let hope = &outlook.hopeful;
        let catching_up = round * CATCH_UP * unread as f64;
        if hope.length > 0 {
            let cost = cost(outlook.without, hope) + catching_up;
            // Of the first trial of a request, most may be paid for later.
            if self.credit > if is_new { FIRST_PART * cost } else { cost } {
                return self.explore(cost, hope.length, true);
            }
        } else {
            let cost = round + catching_up;
            if self.credit > HOPELESS * cost {
                return self.explore(HOPELESS * cost, 1, false);
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
