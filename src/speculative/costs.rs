//! What evaluations cost on this machine with these models, measured while they run.

use std::time::Duration;

use super::MAX_DRAFT;

/// Target batches of up to this many tokens are told apart; beyond, cost is taken to grow as before.
pub const MAX_MEASURED: usize = MAX_DRAFT + 1;

/// v(n), the cost of a target batch of n tokens, and c, that of a drafted token, both in evaluations of one token by
/// the target. One for all requests.
///
/// On CPUs v climbs in steps and may even fall from one n to the next (with Q4_0 four tokens can cost less than two), so it is a table
/// and not a line. What slows down all evaluations alike (a longer context, a busy machine) goes into one factor,
/// so that sizes that are seldom used stay comparable with those in use.
///
/// llama.cpp keeps the graph of the last batch and builds it anew for one of another size. With small models that takes as long as
/// a token more, so it is told apart from what the size itself costs.
#[derive(Debug)]
pub struct Costs {
    /// Seconds for a target batch of 1, 2, ... tokens, at `scale` 1; 0 where none was seen.
    target: Vec<f64>,
    /// v(0), v(1), ... by these: looked up often, and computed where one of them changes.
    v: Vec<f64>,
    /// Whether one token and two cost the same.
    padded: bool,
    /// Tokens of a prompt's batch, larger than the table's, and its seconds at `scale` 1: where costs beyond the table lead to.
    bulk: Option<(usize, f64)>,
    /// How slow the machine is now, against the table.
    scale: f64,
    /// Seconds for one drafted token, at `scale` 1; 0: none was seen.
    draft: f64,
    /// The size of the last batch.
    last: usize,
    /// Seconds more for a batch of another size, at `scale` 1, and how many such were seen.
    change: f64,
    changes: usize,
}

/// Weight of a new measurement: in the factor that all sizes share, in a size's own entry, in the draft's.
const FRESH_SCALE: f64 = 0.2;
const FRESH_ENTRY: f64 = 0.1;
const FRESH_DRAFT: f64 = 0.2;
const FRESH_CHANGE: f64 = 0.05;
/// A single slow evaluation (the machine did something else) must not count for many.
const MOST_SLOWER: f64 = 2.0;
/// Until measured: each further token of a batch costs this part of the first.
const GUESSED_SLOPE: f64 = 0.15;
/// Until measured: a drafted token costs this part of a target's evaluation.
const GUESSED_DRAFT: f64 = 0.1;

impl Default for Costs {
    fn default() -> Self {
        let guess = |n| if n == 0 { 0.0 } else { 1.0 + GUESSED_SLOPE * (n - 1) as f64 };
        let v = (0..=MAX_MEASURED).map(guess).collect();
        let target = vec![0.0; MAX_MEASURED];
        Costs { target, v, padded: false, bulk: None, scale: 1.0, draft: 0.0, last: 0, change: 0.0, changes: 0 }
    }
}

impl Costs {
    /// A target batch of `n` generated or drafted tokens, and no prompt, took `time`. Returns what such a batch costs, in evaluations
    /// of one token.
    pub fn saw_target(&mut self, n: usize, time: Duration) -> f64 {
        let (time, n) = (time.as_secs_f64() / self.scale, self.evaluated(n));
        let changed = self.last != n;
        let change = if changed { self.change } else { 0.0 };
        self.last = n;
        if let Some(entry) = n.checked_sub(1).and_then(|index| self.target.get_mut(index)) {
            if *entry <= 0.0 {
                *entry = (time - change).max(time / 2.0);
            } else {
                let expected = *entry + change;
                let slower = (time / expected).min(MOST_SLOWER) - 1.0;
                self.scale *= 1.0 + FRESH_SCALE * slower;
                *entry *= 1.0 + FRESH_ENTRY * slower;
                if changed {
                    // The first say most: nothing is known before them.
                    self.changes += 1;
                    let fresh = FRESH_CHANGE.max(1.0 / (self.changes + 2) as f64);
                    self.change = (change + fresh * slower * expected).max(0.0);
                }
            }
            self.update();
        }
        self.v(n) + change / self.one()
    }

    /// A target batch of `n` tokens, of prompts and others.
    pub fn saw_mixed(&mut self, n: usize) {
        self.last = n;
    }

    /// How many tokens are evaluated for `n`.
    fn evaluated(&self, n: usize) -> usize {
        if self.padded { n.max(2) } else { n }
    }

    /// Seconds for one token at `scale` 1; infinite when none was seen.
    fn one(&self) -> f64 {
        self.target.first().copied().filter(|one| *one > 0.0).unwrap_or(f64::INFINITY)
    }

    /// From now on a single token is always padded: see [`Drafters::guess`].
    ///
    /// [`Drafters::guess`]: super::Drafters::guess
    pub fn pad(&mut self) {
        self.padded = true;
        self.update();
    }

    /// A target batch of `n` tokens of prompts took `time`.
    pub fn saw_prompt(&mut self, n: usize, time: Duration) {
        self.saw_mixed(n);
        if n > MAX_MEASURED {
            self.bulk = Some((n, time.as_secs_f64() / self.scale));
            self.update();
        }
    }

    /// Drafting `n` tokens, one after the other, took `time`.
    pub fn saw_draft(&mut self, n: usize, time: Duration) {
        if n == 0 {
            return;
        }
        let each = time.as_secs_f64() / n as f64 / self.scale;
        let known = self.draft > 0.0;
        self.draft =
            if known { self.draft + FRESH_DRAFT * (each.min(MOST_SLOWER * self.draft) - self.draft) } else { each };
    }

    /// v(n): what a batch of `n` tokens costs, in evaluations of one; v(0) = 0. Between measured sizes a straight line;
    /// beyond, the line to what prompts cost, or where none was seen that of the last ones.
    pub fn v(&self, n: usize) -> f64 {
        self.v.get(n).copied().unwrap_or_else(|| {
            let most = self.v.last().copied().unwrap_or(1.0);
            let slope = most / self.v.len().max(1) as f64;
            most + slope * (n + 1 - self.v.len()) as f64
        })
    }

    /// [`Costs::v`] for the next batch and what it takes to come to that size and, where `preferred` is the size of the steps after it,
    /// to leave it again.
    pub fn next(&self, preferred: Option<usize>) -> impl Fn(usize) -> f64 + '_ {
        let (change, preferred) = (self.change(), preferred.map(|preferred| self.evaluated(preferred)));
        move |n| {
            let n_evaluated = self.evaluated(n);
            let changes = u8::from(n_evaluated != self.last)
                + u8::from(preferred.is_some_and(|preferred| preferred != n_evaluated));
            self.v(n) + change * f64::from(changes)
        }
    }

    /// What a batch of another size than the last one costs more, in evaluations of one token.
    pub fn change(&self) -> f64 {
        self.change / self.one()
    }

    /// Computes the v(n) anew.
    fn update(&mut self) {
        if let (true, [one, two, ..]) = (self.padded, &mut *self.target) {
            *one = *two;
        }
        let one = self.one();
        if one.is_infinite() {
            return;
        }
        let known = (1..).zip(&self.target).filter(|(_, cost)| **cost > 0.0).map(|(n, cost)| (n, cost / one));
        let bulk = self.bulk.map(|(n, cost)| (n, cost / one));
        let (mut before, mut v) = ((0, 0.0), self.v.iter_mut().enumerate().skip(1));
        for (n, cost) in known.chain(bulk) {
            let slope = (cost - before.1) / (n - before.0).max(1) as f64;
            for (at, v) in v.by_ref().take(n - before.0) {
                *v = before.1 + slope * (at - before.0) as f64;
            }
            before = (n, cost);
        }
        // Larger batches are taken to be worth no more for each token.
        let slope = GUESSED_SLOPE.max(before.1 / before.0 as f64);
        v.for_each(|(at, v)| *v = before.1 + slope * (at - before.0) as f64);
    }

    /// c: what a drafted token costs, in evaluations of one token by the target.
    pub fn c(&self) -> f64 {
        if self.draft > 0.0 { self.in_evaluations(self.draft * self.scale) } else { GUESSED_DRAFT }
    }

    /// A time in evaluations of one token by the target.
    pub fn of(&self, time: Duration) -> f64 {
        self.in_evaluations(time.as_secs_f64())
    }

    fn in_evaluations(&self, seconds: f64) -> f64 {
        let one = self.one();
        if one.is_finite() { seconds / (one * self.scale) } else { GUESSED_DRAFT }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Costs where batches took so long, in milliseconds, and a drafted token `draft_ms`.
    pub fn costs(target_ms: &[(usize, u64)], draft_ms: f64) -> Costs {
        let mut costs = Costs::default();
        for (n, ms) in target_ms {
            costs.saw_target(*n, Duration::from_millis(*ms));
        }
        costs.saw_draft(1, Duration::from_secs_f64(draft_ms / 1e3));
        costs
    }

    #[test]
    fn v_is_measured_between_and_guessed_beyond() {
        let costs = costs(&[(1, 100), (5, 200), (9, 200)], 10.0);
        for (n, expected) in [(0, 0.0), (1, 1.0), (3, 1.5), (5, 2.0), (7, 2.0), (9, 2.0)] {
            assert!((costs.v(n) - expected).abs() < 1e-9, "v({n}) = {}", costs.v(n));
        }
        assert!(costs.v(20) > 2.0);
        assert!((costs.c() - 0.1).abs() < 1e-9);
        assert!(Costs::default().v(4) > 1.0);
    }

    #[test]
    fn beyond_the_largest_size_the_prompts_tell() {
        let mut costs = costs(&[(1, 100), (8, 500)], 10.0);
        let guessed = costs.v(48);
        costs.saw_prompt(40, Duration::from_millis(1));
        assert_eq!(costs.v(48), guessed, "no more than a draft may have");
        costs.saw_prompt(208, Duration::from_millis(4500));
        assert!((costs.v(48) - 13.0).abs() < 1e-9 && costs.v(48) < guessed, "{} {guessed}", costs.v(48));
        assert_eq!(costs.v(8), 5.0);
    }

    #[test]
    fn what_slows_all_sizes_changes_no_ratio() {
        let mut costs = costs(&[(1, 100), (4, 150), (8, 300)], 10.0);
        for _ in 0..200 {
            costs.saw_target(4, Duration::from_millis(300));
        }
        assert!((costs.v(8) - 3.0).abs() < 1e-6, "{}", costs.v(8));
        assert!((costs.v(4) - 1.5).abs() < 0.6, "mostly the machine's doing: {}", costs.v(4));
        assert!((costs.c() - 0.1).abs() < 1e-9, "the machine got slower, for the draft as well: {}", costs.c());
        for _ in 0..200 {
            costs.saw_draft(1, Duration::from_millis(10));
        }
        assert!(costs.c() < 0.08, "the target got slower, not the draft: {}", costs.c());
    }

    #[test]
    fn what_a_batch_of_another_size_costs_more_is_no_sizes_own_cost() {
        let mut costs = costs(&[(1, 100), (4, 150), (8, 250)], 10.0);
        for step in 0..400 {
            let n = [1, 1, 1, 4, 4, 8][step % 6];
            let changed = step % 6 == 0 || step % 6 == 3 || step % 6 == 5;
            let time = [0, 100, 0, 0, 150, 0, 0, 0, 250][n] + if changed { 50 } else { 0 };
            costs.saw_target(n, Duration::from_millis(time));
        }
        for (n, v) in [(1, 1.0), (4, 1.5), (8, 2.5)] {
            assert!((costs.v(n) - v).abs() < 0.1, "v({n}) = {}", costs.v(n));
        }
        costs.saw_mixed(4);
        for (preferred, n, changes) in
            [(None, 4, 0.0), (None, 8, 1.0), (Some(4), 8, 2.0), (Some(8), 8, 1.0), (Some(8), 4, 1.0)]
        {
            let more = costs.next(preferred)(n) - costs.v(n);
            assert!((more - changes * 0.5).abs() < 0.1, "preferred {preferred:?}, {n}: {more}");
        }
    }

    #[test]
    fn padded_one_token_costs_what_two_do() {
        let mut costs = costs(&[(1, 100), (2, 130), (8, 260)], 10.0);
        costs.pad();
        assert_eq!((costs.v(1), costs.v(2), costs.v(8)), (1.0, 1.0, 2.0));
        costs.saw_target(1, Duration::from_millis(130));
        assert_eq!((costs.v(1), costs.v(2), costs.v(8)), (1.0, 1.0, 2.0));
        assert!((costs.v(16) - 4.0).abs() < 1e-9, "a larger batch is worth no more: {}", costs.v(16));
    }

    #[test]
    fn a_single_slow_evaluation_counts_little() {
        let mut costs = costs(&[(1, 100), (2, 120)], 10.0);
        costs.saw_target(2, Duration::from_secs(60));
        costs.saw_draft(1, Duration::from_secs(60));
        assert!(costs.v(2) < 1.4 && costs.c() < 0.15, "{} {}", costs.v(2), costs.c());
    }
}
