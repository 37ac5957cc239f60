//! Limits how much slower than plain decoding drafts can make the engine, whatever the estimates promise.
//!
//! Estimates of acceptance begin with a guess, and the quality of drafts changes with the text. Where several tokens cost much more than one,
//! a few wrong drafts are a noticeable part of a short request. So a step's drafts may cost no more than this account has, as if all of them
//! were wrong. It is one account for all drafters together, and its unit is a step of plain decoding. With several slots, whose drafts are rarely
//! all wrong, each has that much. Used for targets with recurrent states: elsewhere two tokens cost little more than one, and a limit made
//! good drafts of several slots up to a third slower in the simulator, because their first drafts were too short to pay.
//!
//! - It begins with an advance, and gets a fraction of the time once that fraction has paid the advance back. So all that drafts lose is at
//!   most `max(ADVANCE, SHARE * time)`, and as much more as they have gained.
//! - Verified drafts pay what they cost and get what they gain. So right drafts soon have enough for the longest ones.
//! - What they cost is the difference to a step without them. While every step has drafts, that difference is known from the load alone, which
//!   may have measured one token as slower than two (in a busy moment, or while weights had another layout). Then wrong drafts would seem to
//!   cost nothing, and no step would show that they do. So they have a least cost, which falls with each plain step that is measured.
//! - Drafts that were made but not verified are compared with the target's tokens at no cost. What they would have gained lately counts as
//!   well, so drafts that become right are verified after a few tokens, however little is left.

/// The account of an engine's drafts.
#[derive(Debug)]
pub struct LossLimit {
    /// The part that is left of the advance, of the time's share, and of what drafts have gained.
    saved: f64,
    /// The part of the advance that the time's share has not paid back.
    advance: f64,
    /// The gain that unverified drafts would have brought lately. At least 0: a cumulative sum, as in CUSUM tests.
    missed: f64,
    /// The number of plain steps that were measured lately.
    plain: f64,
}

/// The initial savings. So drafts that are always wrong cost less than a hundredth of 128 tokens.
const ADVANCE: f64 = 1.2;
/// The fraction of the time that drafts may lose in the long run.
const SHARE: f64 = 0.005;
/// The most savings: as much as the longest drafts can cost.
const MAX_SAVED: f64 = 32.0;
/// The most that unverified drafts count.
const MAX_MISSED: f64 = 4.0;
/// The least cost of a step's drafts before a plain step was measured, and the part of the measurements that remains after a step with drafts.
const LEAST: f64 = 0.25;
const REMAINING: f64 = 0.98;

impl Default for LossLimit {
    fn default() -> Self {
        LossLimit { saved: ADVANCE, advance: ADVANCE, missed: 0.0, plain: 0.0 }
    }
}

impl LossLimit {
    /// The most that the drafts of a step may lose.
    pub fn allowance(&self) -> f64 {
        (self.saved + self.missed).max(0.0)
    }

    /// The least that a step with drafts costs more than a plain one, because the costs of plain steps have hardly been measured.
    pub fn least(&self) -> f64 {
        LEAST / (1.0 + self.plain)
    }

    /// A step was measured. `is_plain`: it decoded no drafts.
    pub fn measured(&mut self, is_plain: bool) {
        self.plain = if is_plain { self.plain + 1.0 } else { REMAINING * self.plain };
    }

    /// Saves a fraction of the time of a step.
    pub fn save(&mut self, time: f64) {
        let share = SHARE * time;
        let repaid = share.min(self.advance);
        self.advance -= repaid;
        self.saved = (self.saved + share - repaid).min(MAX_SAVED);
    }

    /// A step's drafts have gained this, or lost it if it is negative.
    pub fn settle(&mut self, gain: f64) {
        // A loss refutes what unverified drafts seemed to gain.
        let refuted = self.missed.min((-gain).max(0.0));
        self.missed -= refuted;
        self.saved = (self.saved + gain + refuted).min(MAX_SAVED);
    }

    /// A draft that was not verified would have gained this, or lost it if it is negative.
    pub fn miss(&mut self, gain: f64) {
        self.missed = (self.missed + gain).clamp(0.0, MAX_MISSED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends all that it may in steps of this loss, and returns the losses until this time.
    fn spend(limit: &mut LossLimit, loss: f64, time: f64) -> f64 {
        let (mut passed, mut lost) = (0.0, 0.0);
        while passed < time {
            let spent = if limit.allowance() >= loss { loss } else { 0.0 };
            limit.save(1.0 + spent);
            limit.settle(-spent);
            (passed, lost) = (passed + 1.0 + spent, lost + spent);
        }
        lost
    }

    #[test]
    fn all_losses_together_are_at_most_the_advance_or_a_share_of_the_time() {
        for loss in [0.1, 0.3, 0.7, 1.1] {
            for time in [10.0, 128.0, 1000.0, 10_000.0] {
                let lost = spend(&mut LossLimit::default(), loss, time);
                assert!(lost <= ADVANCE.max(SHARE * (time + 2.0)), "{lost} of {time} in steps of {loss}");
            }
            assert!(spend(&mut LossLimit::default(), loss, 10_000.0) > 0.9 * SHARE * 10_000.0, "nothing is given up");
        }
    }

    #[test]
    fn gains_allow_larger_losses() {
        let mut limit = LossLimit::default();
        let before = limit.allowance();
        limit.settle(5.0);
        assert!(limit.allowance() > before + 4.0);
        (0..100).for_each(|_| limit.settle(5.0));
        assert!(limit.allowance() <= MAX_SAVED);
    }

    #[test]
    fn the_least_cost_falls_with_plain_steps_and_rises_without() {
        let mut limit = LossLimit::default();
        let first = limit.least();
        assert!(ADVANCE / first < 5.0, "few drafts that seem to cost nothing before a plain step: {first}");
        (0..50).for_each(|_| limit.measured(true));
        assert!(limit.least() < 0.01, "{}", limit.least());
        (0..500).for_each(|_| limit.measured(false));
        assert!(limit.least() > 0.9 * first, "{}", limit.least());
    }

    #[test]
    fn unverified_drafts_count_while_they_are_right() {
        let mut limit = LossLimit::default();
        limit.settle(-ADVANCE);
        assert!(limit.allowance() < 1e-9);
        (0..100).for_each(|_| limit.miss(-0.7));
        limit.miss(0.3);
        assert!((limit.allowance() - 0.3).abs() < 1e-9, "earlier wrong ones do not count against it");
        limit.miss(0.3);
        limit.settle(-0.5);
        assert!((limit.allowance() - 0.1).abs() < 1e-9, "a loss counts once");
        limit.miss(-0.7);
        assert!(limit.allowance() < 1e-9);
    }
}
