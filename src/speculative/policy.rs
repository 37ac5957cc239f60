//! How much to draft: the length of the next draft from what the last ones brought and cost.

use std::time::Duration;

use super::{Adaptive, MAX_DRAFT, Settings};

/// Evaluations of up to this many tokens are told apart; beyond, cost is taken to grow as before.
const MAX_TOKENS: usize = MAX_DRAFT + 1;

/// What evaluations cost on this machine with these models, measured while they run. One for all requests.
#[derive(Debug)]
pub struct Costs {
    /// Seconds for a target batch of 1, 2, ... tokens; 0 where none was seen.
    target: Vec<f64>,
    /// Seconds for one drafted token.
    draft: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs { target: vec![0.0; MAX_TOKENS], draft: 0.0 }
    }
}

/// Weight of a new measurement.
const FRESH: f64 = 0.2;
/// Until measured: each further token of a batch costs this part of the first.
const GUESSED_SLOPE: f64 = 0.15;
/// Until measured: a drafted token costs this part of a target's evaluation.
const GUESSED_DRAFT: f64 = 0.1;

fn blend(old: &mut f64, new: f64) {
    // A single slow evaluation (the machine did something else) must not count for many.
    *old = if *old == 0.0 { new } else { *old + FRESH * (new.min(4.0 * *old) - *old) };
}

impl Costs {
    /// A target batch of `n` generated or drafted tokens, and no prompt, took `time`.
    pub fn saw_target(&mut self, n: usize, time: Duration) {
        if let Some(cost) = n.checked_sub(1).and_then(|index| self.target.get_mut(index)) {
            blend(cost, time.as_secs_f64());
        }
    }

    /// Drafting `n` tokens, one after the other, took `time`.
    pub fn saw_draft(&mut self, n: usize, time: Duration) {
        if n > 0 {
            blend(&mut self.draft, time.as_secs_f64() / n as f64);
        }
    }

    /// v(n): what a batch of `n` tokens costs, in evaluations of one. Between measured sizes a straight line; beyond,
    /// the line of the last ones goes on.
    pub fn v(&self, n: usize) -> f64 {
        let one = self.target.first().copied().unwrap_or(0.0);
        if n <= 1 || one <= 0.0 {
            return 1.0 + GUESSED_SLOPE * (n.max(1) - 1) as f64;
        }
        let known = |n: usize| {
            let cost = self.target.get(n - 1).copied().filter(|cost| *cost > 0.0)?;
            Some((n as f64, cost / one))
        };
        let (below, above) = ((1..=n.min(MAX_TOKENS)).rev().find_map(known), (n..=MAX_TOKENS).find_map(known));
        let (x0, y0) = below.unwrap_or((1.0, 1.0));
        match above {
            Some((x1, y1)) if x1 > x0 => y0 + (y1 - y0) * (n as f64 - x0) / (x1 - x0),
            Some((_, y1)) => y1,
            None => y0 + GUESSED_SLOPE.max((y0 - 1.0) / x0) * (n as f64 - x0),
        }
    }

    /// c: what a drafted token costs, in evaluations of one token by the target.
    pub fn c(&self) -> f64 {
        match self.target.first() {
            Some(one) if *one > 0.0 && self.draft > 0.0 => self.draft / one,
            _ => GUESSED_DRAFT,
        }
    }
}

/// The draft length of one request.
#[derive(Debug)]
pub struct Length {
    adaptive: Adaptive,
    n_max: usize,
    current: usize,
    /// Drafted tokens accepted, and drafts rejected somewhere, both fading.
    accepted: f64,
    rejected: f64,
    /// While drafting does not pay: steps until the next try, and tries in vain since it last did.
    until_try: usize,
    in_vain: u32,
    /// Whether the draft being checked is such a try.
    trying: bool,
}

/// The acceptance that a request is begun with counts as much as this many tokens.
const PRIOR: (f64, f64) = (6.0, 2.0);
/// What a past step still counts after one more.
const FADE: f64 = 0.96;
/// `speculative.cpp`: longer by this after a full acceptance, and never shorter than this.
const HEURISTIC_STEP: usize = 8;
const HEURISTIC_LEAST: usize = 2;
/// Tokens drafted in a try.
const TRY: usize = 2;
/// The first try may cost this part of the steps since the last draft; after each in vain, half of that.
const TRY_COST: f64 = 0.02;
const MAX_IN_VAIN: u32 = 6;

impl Length {
    /// The length for a request with these settings.
    pub fn new(settings: &Settings) -> Length {
        Length {
            adaptive: settings.adaptive,
            n_max: settings.n_max,
            current: settings.n_max,
            accepted: PRIOR.0,
            rejected: PRIOR.1,
            until_try: 0,
            in_vain: 0,
            trying: false,
        }
    }

    /// How many tokens to draft next. `others`: tokens that other slots put into the same batch.
    pub fn next(&mut self, costs: &Costs, others: usize) -> usize {
        if self.adaptive != Adaptive::Auto {
            return self.current;
        }
        self.current = self.best(costs, others);
        self.trying = self.current == 0;
        if !self.trying {
            self.in_vain = 0;
            self.until_try = self.steps_between(costs);
            return self.current;
        }
        if self.until_try > 0 {
            self.until_try -= 1;
            return 0;
        }
        self.until_try = self.steps_between(costs);
        self.n_max.min(TRY)
    }

    /// Steps without a draft that make up for the cost of a try.
    fn steps_between(&self, costs: &Costs) -> usize {
        let cost = TRY as f64 * costs.c() + costs.v(TRY + 1) - 1.0;
        let steps = (cost / TRY_COST).clamp(16.0, 1e6) as usize;
        steps << self.in_vain
    }

    /// The length with the most expected tokens for its cost: E = 1 + α + ... + α^γ over γc + v(γ + 1).
    fn best(&self, costs: &Costs, others: usize) -> usize {
        let alpha = self.accepted / (self.accepted + self.rejected);
        let (c, without_us) = (costs.c(), if others == 0 { 0.0 } else { costs.v(others) });
        let mut best = (0, 0.0);
        let (mut expected, mut power) = (1.0, 1.0);
        for length in 0..=self.n_max {
            if length > 0 {
                power *= alpha;
                expected += power;
            }
            let cost = length as f64 * c + (costs.v(others + length + 1) - without_us).max(0.1);
            let rate = expected / cost;
            if rate > best.1 {
                best = (length, rate);
            }
        }
        best.0
    }

    /// A draft of `drafted` tokens, at least one, was checked and `accepted` of them were right.
    pub fn saw(&mut self, drafted: usize, accepted: usize) {
        let all = accepted == drafted;
        self.accepted = FADE * self.accepted + accepted as f64;
        self.rejected = FADE * self.rejected + if all { 0.0 } else { 1.0 };
        if self.trying && all {
            // The text has become easy, perhaps: look again at once.
            self.until_try = 0;
        } else if self.trying {
            self.in_vain = (self.in_vain + 1).min(MAX_IN_VAIN);
        }
        if self.adaptive == Adaptive::Heuristic {
            if !all {
                self.current = self.current.saturating_sub(1).max(HEURISTIC_LEAST.min(self.n_max));
            } else if drafted == self.current {
                self.current = (self.current + HEURISTIC_STEP).min(self.n_max);
            }
        }
    }

    /// The length in use.
    pub fn current(&self) -> usize {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(target_ms: &[(usize, u64)], draft_ms: f64) -> Costs {
        let mut costs = Costs::default();
        for (n, ms) in target_ms {
            costs.saw_target(*n, Duration::from_millis(*ms));
        }
        costs.saw_draft(1, Duration::from_secs_f64(draft_ms / 1e3));
        costs
    }

    fn settings(adaptive: Adaptive, n_max: usize) -> Settings {
        Settings { adaptive, n_max, ..Settings::default() }
    }

    #[test]
    fn v_is_measured_between_and_guessed_beyond() {
        let costs = costs(&[(1, 100), (5, 200), (9, 200)], 10.0);
        for (n, expected) in [(1, 1.0), (3, 1.5), (5, 2.0), (7, 2.0), (9, 2.0)] {
            assert!((costs.v(n) - expected).abs() < 1e-9, "v({n}) = {}", costs.v(n));
        }
        assert!(costs.v(20) > 2.0);
        assert!((costs.c() - 0.1).abs() < 1e-9);
        assert!(Costs::default().v(4) > 1.0);
    }

    #[test]
    fn the_heuristic_is_that_of_speculative_cpp() {
        let mut length = Length::new(&settings(Adaptive::Heuristic, 30));
        let none = Costs::default();
        length.current = 10;
        let steps = [(10, 10, 18), (18, 18, 26), (26, 26, 30), (30, 3, 29), (29, 28, 28), (7, 7, 28), (28, 0, 27)];
        for (drafted, accepted, expected) in steps {
            length.saw(drafted, accepted);
            assert_eq!(length.next(&none, 0), expected, "after {accepted} of {drafted}");
        }
        for _ in 0..100 {
            length.saw(5, 0);
        }
        assert_eq!(length.next(&none, 0), 2, "never below two");
    }

    #[test]
    fn a_fixed_length_stays() {
        let mut length = Length::new(&settings(Adaptive::Fixed, 5));
        length.saw(5, 0);
        assert_eq!(length.next(&Costs::default(), 0), 5);
    }

    #[test]
    fn drafts_grow_where_checking_is_free_and_end_where_it_is_not() {
        let free = costs(&[(1, 100), (17, 101)], 0.1);
        let dear = costs(&[(1, 100), (2, 200), (17, 1700)], 50.0);
        let mut length = Length::new(&settings(Adaptive::Auto, 16));
        for _ in 0..50 {
            let n = length.next(&free, 0);
            length.saw(n, n);
        }
        assert_eq!(length.next(&free, 0), 16);
        assert_eq!(length.next(&dear, 0), 0, "even a sure token costs more than it saves");
    }

    #[test]
    fn where_it_does_not_pay_it_is_tried_ever_more_rarely() {
        let dear = costs(&[(1, 100), (2, 190), (17, 1700)], 50.0);
        let mut length = Length::new(&settings(Adaptive::Auto, 16));
        let mut tries = Vec::new();
        for step in 0..100_000 {
            let n = length.next(&dear, 0);
            if n > 0 {
                tries.push(step);
                length.saw(n, 0);
            }
        }
        // A try drafts two tokens: 2 * 0.5 + v(3) - 1 is about 3 evaluations, to be made up for by 50 times as many steps.
        let gaps: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps[0] > 100, "{gaps:?}");
        assert!(gaps[1..5].iter().zip(&gaps).all(|(gap, before)| *gap > before * 3 / 2), "{gaps:?}");
        assert!(tries.len() > 6, "{tries:?}");
    }

    #[test]
    fn when_the_text_becomes_easy_it_is_noticed() {
        let fair = costs(&[(1, 100), (2, 130), (17, 500)], 20.0);
        let mut length = Length::new(&settings(Adaptive::Auto, 16));
        for _ in 0..400 {
            let n = length.next(&fair, 0);
            if n > 0 {
                length.saw(n, 0);
            }
        }
        assert_eq!(length.best(&fair, 0), 0, "hard text");
        let easy: usize = (0..1000)
            .map(|_| {
                let n = length.next(&fair, 0);
                if n > 0 {
                    length.saw(n, n);
                }
                n
            })
            .sum();
        assert!(easy > 4000, "{easy}");
    }
}
