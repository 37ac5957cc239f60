//! How many tokens each slot of a step decodes after its own: its draft, and filler.
//!
//! A step brings one token for each slot that generates and one more for each accepted drafted token. With A the product of the
//! acceptances up to a token and S the tokens that the engine makes in the time of one plain forward pass, lengths gain the
//! sum of their A and cost S times what the step costs more ([`Rate`](super::policy::Rate) has more on this). With a
//! KV buffer for each sequence the cost of a step depends on the lengths of all its slots (see
//! [`BatchSplit`](super::batch_split::BatchSplit)): equal lengths are one forward pass, so slots with a shorter draft, or none,
//! get filler where that costs less than another pass.

use std::ops::Range;

use super::prices::Prices;
use crate::MAX_DRAFT;

/// The best draft for a slot with at most so many tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gain {
    /// Tokens to expect of it.
    pub expected: f64,
    /// The drafter, by its number, and how many tokens of its draft; `None`: no draft.
    pub draft: Option<(usize, usize)>,
    /// The probability that all of these tokens are right.
    pub all: f64,
}

/// The drafts that a slot can choose from.
#[derive(Debug, Default)]
pub struct DraftOptions {
    /// The best of at most 0, 1, ... tokens.
    gains: Vec<Gain>,
    /// The draft that is decoded at any cost, because it was drawn or has a fixed length: its drafter and its number of tokens.
    fixed: Option<(usize, usize)>,
    /// The tokens to expect of the best draft from the history alone, for the rate of copied text.
    of_text: Vec<f64>,
    /// The highest probability that the first token of one of them is right.
    sure: f64,
}

impl DraftOptions {
    /// Forgets all of them, keeping the memory.
    pub fn clear(&mut self) {
        self.gains.clear();
        self.of_text.clear();
        (self.fixed, self.sure) = (None, 0.0);
    }

    /// Drafter `index` has a draft; `sure`: for each of its tokens the probability that it and all before it are right. Not to be
    /// used with fewer than `n_min` tokens. `of_text`: it costs nothing to make it again.
    pub fn offer(&mut self, index: usize, n_min: usize, sure: impl Iterator<Item = f64>, of_text: bool) {
        if self.gains.is_empty() {
            self.gains.push(Gain::default());
            self.of_text.push(0.0);
        }
        let mut expected = 0.0;
        for (n, sure) in (1..).zip(sure) {
            expected += sure;
            if n == 1 {
                self.sure = self.sure.max(sure);
            }
            let last = self.gains.last().copied().unwrap_or_default();
            if self.gains.len() <= n {
                self.gains.push(last);
                self.of_text.push(self.of_text.last().copied().unwrap_or(0.0));
            }
            if n >= n_min {
                for gain in self.gains.iter_mut().skip(n).filter(|gain| gain.expected < expected) {
                    *gain = Gain { expected, draft: Some((index, n)), all: sure };
                }
                if of_text {
                    self.of_text.iter_mut().skip(n).for_each(|best| *best = best.max(expected));
                }
            }
        }
    }

    /// All `n` tokens of drafter `index` are decoded, whatever else is there.
    pub fn fix(&mut self, index: usize, n: usize) {
        self.fixed = Some((index, n));
    }

    /// The best draft of at most `n` tokens.
    pub fn best(&self, n: usize) -> Gain {
        if let Some((index, n)) = self.fixed {
            return Gain { expected: 0.0, draft: Some((index, n)), all: 1.0 };
        }
        self.gains.get(n).or(self.gains.last()).copied().unwrap_or_default()
    }

    /// The value of the best draft of at most `n` tokens to a slot, in tokens.
    pub(super) fn worth(&self, prices: &Prices<'_>, slot: usize, n: usize) -> f64 {
        let Gain { expected, draft, all } = self.best(n);
        prices.worth(slot, draft.map_or(0, |(_, n)| n), expected, all)
    }

    pub(super) fn of_text(&self, n: usize) -> f64 {
        self.of_text.get(n).or(self.of_text.last()).copied().unwrap_or(0.0)
    }

    pub(super) fn least(&self) -> usize {
        self.fixed.map_or(0, |(_, n)| n)
    }

    pub(super) fn longest(&self) -> usize {
        self.gains.len().saturating_sub(1).max(self.least())
    }
}

/// More slots than these are not looked at together for lengths beyond those of all others.
const WIDEST: usize = 16;
/// Times that each slot's length is looked at again, beside the others'.
const ROUNDS: usize = 2;

/// Decides how many tokens each slot decodes behind its own, drafted ones and filler; which they are, [`DraftOptions::best`] knows.
/// `exploring`: a length for all that is to be measured.
pub fn decide(prices: &Prices<'_>, options: &[DraftOptions], exploring: Option<usize>, lengths: &mut Vec<usize>) {
    lengths.clear();
    lengths.resize(prices.slots.len(), 0);
    let mut most_lost = prices.most_lost;
    for run in prices.runs() {
        let prices = &Prices { most_lost, ..*prices };
        decide_run(prices, options, run.clone(), exploring, lengths);
        let is_text = |slot: usize| {
            let best = options.get(slot).map(|own| own.best(lengths.get(slot).copied().unwrap_or(0)));
            let text = options.get(slot).map_or(0.0, |own| own.of_text(lengths.get(slot).copied().unwrap_or(0)));
            best.is_none_or(|best| best.expected <= text)
        };
        let drafts = run.clone().any(|slot| lengths.get(slot).is_some_and(|length| *length > 0));
        if exploring.is_none() && drafts && run.clone().all(is_text) {
            // Copied text is drafted again in the next step at no cost, so a token saves no more than its share of such steps.
            let rate = rate_of_text(prices, options, run.clone());
            if rate > prices.rate {
                decide_run(&Prices { rate, ..*prices }, options, run.clone(), None, lengths);
            }
        }
        most_lost -= prices.loss(run, |slot| lengths.get(slot).copied().unwrap_or(0));
    }
}

/// The highest rate of steps that copy text with the same length for all, of those that may lose what they can lose.
fn rate_of_text(prices: &Prices<'_>, options: &[DraftOptions], run: Range<usize>) -> f64 {
    let longest = run.clone().filter_map(|slot| options.get(slot)).map(|own| own.of_text.len()).max().unwrap_or(0);
    let brings = |slot: usize, length: usize| {
        let text = options.get(slot).map_or(0.0, |own| own.of_text(prices.share(slot, length)));
        f64::from(u8::from(prices.generates(slot))) + text
    };
    let rate = |length: usize| {
        let tokens: f64 = run.clone().map(|slot| brings(slot, length)).sum();
        tokens / prices.cost(run.clone(), |slot| prices.share(slot, length))
    };
    let sure = run.clone().filter_map(|slot| options.get(slot)).map(|own| own.sure).fold(0.0, f64::max);
    let may_be_lost =
        |length: &usize| prices.may_lose(prices.loss(run.clone(), |slot| prices.share(slot, *length)), *length, sure);
    (1..longest).filter(may_be_lost).map(rate).fold(0.0, f64::max)
}

fn decide_run(
    prices: &Prices<'_>,
    options: &[DraftOptions],
    run: Range<usize>,
    exploring: Option<usize>,
    lengths: &mut [usize],
) {
    let own = |slot: usize| options.get(slot);
    let least = |slot: usize| own(slot).map_or(0, DraftOptions::least);
    let rectangular = prices.costs.split().is_rectangular();
    // Where filler costs as much as drafts, or would have to be rejected at a cost, a slot gets its draft alone.
    let share = |slot: usize, length: usize| {
        let share = prices.share(slot, length);
        let drafted = || own(slot).and_then(|own| own.best(share).draft).map_or(0, |(_, n)| n);
        if rectangular && !prices.costs.repeats() { share.max(least(slot)) } else { drafted() }
    };
    let expected = |slot: usize, length: usize| own(slot).map_or(0.0, |own| own.worth(prices, slot, length));
    let value = |length: usize| {
        let gain: f64 = run.clone().map(|slot| expected(slot, share(slot, length))).sum();
        gain - prices.rate * prices.cost(run.clone(), |slot| share(slot, length))
    };
    // Drafts that are decoded in any case lose what they lose.
    let in_any_case = prices.loss(run.clone(), |slot| share(slot, 0));
    let sure = run.clone().filter_map(own).map(|own| own.sure).fold(0.0, f64::max);
    let longest = run.clone().filter_map(own).map(DraftOptions::longest).max().unwrap_or(0);
    let (mut best, mut most) = (0, value(0));
    for length in 1..=longest {
        let value = value(length);
        let loss = || prices.loss(run.clone(), |slot| share(slot, length)) - in_any_case;
        if value > most && prices.may_lose(loss(), length, sure) {
            (best, most) = (length, value);
        }
    }
    if let Some(length) = exploring {
        best = length.min(longest);
    }
    for slot in run.clone() {
        if let Some(place) = lengths.get_mut(slot) {
            *place = share(slot, best);
        }
    }
    if exploring.is_some() || run.len() < 2 || prices.only().is_some() {
        return;
    }
    // Lengths of its own for each slot need filler, or divide the batch.
    if rectangular {
        if prices.costs.repeats() {
            return;
        }
        let pass = prices.rate * prices.costs.v(1);
        let mut others = [0; 64];
        let Some(others) = others.get_mut(..run.len()) else { return };
        for length in 0..=longest {
            for (other, slot) in others.iter_mut().zip(run.clone()) {
                *other = share(slot, length);
            }
            // Were all of every draft free.
            let all: f64 = run.clone().zip(&*others).map(|(slot, own)| more(options, slot, *own, MAX_DRAFT)).sum();
            let value = value(length);
            if value + all - pass <= most {
                continue;
            }
            let value = value + raise(prices, options, run.clone(), others);
            let own = |slot: usize| slot.checked_sub(run.start).and_then(|at| others.get(at)).copied().unwrap_or(0);
            if value > most && prices.may_lose(prices.loss(run.clone(), own) - in_any_case, MAX_DRAFT, sure) {
                most = value;
                for (slot, other) in run.clone().zip(&*others) {
                    if let Some(place) = lengths.get_mut(slot) {
                        *place = *other;
                    }
                }
            }
        }
        return;
    }
    // Each slot beside what the others take.
    for _ in 0..ROUNDS {
        for slot in run.clone() {
            let all: usize =
                run.clone().map(|slot| prices.n_tokens(slot)).sum::<usize>() + lengths.iter().sum::<usize>();
            let others = |other: usize| lengths.get(other).copied().filter(|_| other != slot).unwrap_or(0);
            let loss_of_others = prices.loss(run.clone(), others) - in_any_case;
            let Some((own, place)) = own(slot).zip(lengths.get_mut(slot)).filter(|(own, _)| own.fixed.is_none()) else {
                continue;
            };
            let beside = all - *place;
            let (mut best, mut most) = (0, 0.0);
            for length in 1..=own.longest().min(prices.share(slot, usize::MAX)) {
                let more = prices.costs.v(beside + length) - prices.costs.v(beside);
                let more = more + prices.attention_of_more(slot, length);
                let gain = own.worth(prices, slot, length) - prices.rate * more;
                let loss = (loss_of_others + more).max(prices.least_lost) + prices.most_repeated(length);
                if gain > most && prices.may_lose(loss, length, sure) {
                    (best, most) = (length, gain);
                }
            }
            *place = own.best(best).draft.map_or(0, |(_, n)| n);
        }
    }
}

/// The gain of a slot if its length is raised by `by` tokens.
fn more(options: &[DraftOptions], slot: usize, length: usize, by: usize) -> f64 {
    let own = options.get(slot).filter(|own| own.fixed.is_none());
    own.map_or(0.0, |own| own.best(length + by).expected - own.best(length).expected)
}

/// Raises the lengths of neighbours in `run` where their drafts are worth a forward pass of their own. Returns the gain.
fn raise(prices: &Prices<'_>, options: &[DraftOptions], run: Range<usize>, lengths: &mut [usize]) -> f64 {
    let more = |slot: usize, length: usize, by: usize| {
        more(options, slot, length, by.min(prices.share(slot, usize::MAX).saturating_sub(length)))
    };
    let pass = prices.rate * prices.costs.v(1);
    let mut gained = 0.0;
    loop {
        let all: f64 = run.clone().zip(&*lengths).map(|(slot, length)| more(slot, *length, MAX_DRAFT)).sum();
        if all <= pass {
            return gained;
        }
        let (mut best, mut most) = (None, 0.0);
        for begin in 0..run.len() {
            let Some(length) = lengths.get(begin).copied() else { break };
            for end in begin + 1..=run.len().min(begin + WIDEST) {
                if lengths.get(end - 1) != Some(&length) {
                    break;
                }
                let sum = |by: usize| (begin..end).map(|at| more(run.start + at, length, by)).sum::<f64>();
                if sum(MAX_DRAFT) <= pass {
                    continue;
                }
                for by in 1..=MAX_DRAFT.saturating_sub(length) {
                    let attention: f64 = (begin..end).map(|at| prices.attention_of_more(run.start + at, by)).sum();
                    let pass = prices.costs.v((end - begin) * by) + prices.costs.change();
                    let gain = sum(by) - prices.rate * (pass + attention);
                    if gain > most {
                        (best, most) = (Some((begin..end, by)), gain);
                    }
                }
            }
        }
        let Some((range, by)) = best else { return gained };
        gained += most;
        for at in range {
            if let Some(length) = lengths.get_mut(at) {
                *length = prices.share(run.start + at, *length + by);
            }
        }
    }
}
