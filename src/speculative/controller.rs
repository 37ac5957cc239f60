//! How many tokens each slot of a step decodes behind its own: its draft, and filler.
//!
//! A step brings one token for each slot that generates and one more for each drafted token that is right. With A the product of
//! the acceptances up to a token and S the tokens that the engine makes in the time of one plain forward pass, lengths gain the
//! sum of their A and cost S times what the step costs more ([`Rate`](super::policy::Rate) has more on this). With a KV buffer
//! for each sequence what a step costs depends on the lengths of all its slots (see [`BatchSplit`]): equal lengths are one
//! forward pass, so slots with a shorter draft, or none, get filler where that costs less than another pass.
//!
//! Everything here is plain data and pure functions of it; [`Drafters`](super::Drafters) owns it.
//!
//! [`BatchSplit`]: super::BatchSplit

use std::ops::Range;

use super::calibration::Bias;
use super::{Costs, MAX_DRAFT};

/// A slot in a step, as far as its batch is concerned. The default one takes no part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSlot {
    /// Tokens of its context that are decoded in any case.
    pub n_tokens: usize,
    /// Whether the step brings a token for it: not while more of its prompt is left.
    pub generates: bool,
    /// Most tokens that can be decoded behind those.
    pub room: usize,
}

/// The best draft for a slot with at most so many tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gain {
    /// Tokens to expect of it.
    pub expected: f64,
    /// The drafter, by its number, and how many tokens of its draft; `None`: no draft.
    pub draft: Option<(usize, usize)>,
}

/// The drafts that a slot can choose from.
#[derive(Debug, Default)]
pub struct Candidates {
    /// The best of at most 0, 1, ... tokens.
    gains: Vec<Gain>,
    /// What is decoded whatever it costs: a draft that was drawn, or of a fixed length.
    fixed: Option<(usize, usize)>,
    /// Of a drafter that looks at the text alone: the tokens to expect of the best such draft, for the rate of copied text.
    of_text: Vec<f64>,
}

impl Candidates {
    /// Forgets all of them, keeping the memory.
    pub fn clear(&mut self) {
        self.gains.clear();
        self.of_text.clear();
        self.fixed = None;
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
            let last = self.gains.last().copied().unwrap_or_default();
            if self.gains.len() <= n {
                self.gains.push(last);
                self.of_text.push(self.of_text.last().copied().unwrap_or(0.0));
            }
            if n >= n_min {
                for gain in self.gains.iter_mut().skip(n).filter(|gain| gain.expected < expected) {
                    *gain = Gain { expected, draft: Some((index, n)) };
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
            return Gain { expected: 0.0, draft: Some((index, n)) };
        }
        self.gains.get(n).or(self.gains.last()).copied().unwrap_or_default()
    }

    fn of_text(&self, n: usize) -> f64 {
        self.of_text.get(n).or(self.of_text.last()).copied().unwrap_or(0.0)
    }

    fn least(&self) -> usize {
        self.fixed.map_or(0, |(_, n)| n)
    }

    fn longest(&self) -> usize {
        self.gains.len().saturating_sub(1).max(self.least())
    }
}

/// What a model is expected to draft for a slot.
#[derive(Debug, Clone, Copy)]
pub struct Prospect {
    /// The probability that a token is right, and the most that it may be.
    pub acceptance: f64,
    /// See `acceptance`.
    pub optimistic: f64,
    /// Shorter drafts are of no use, longer ones not possible.
    pub lengths: (usize, usize),
}

impl Prospect {
    /// Of a request with this bias.
    pub fn of(bias: &Bias, lengths: (usize, usize)) -> Prospect {
        Prospect { acceptance: bias.mean(), optimistic: bias.optimistic_mean(), lengths }
    }

    /// The tokens to expect of a draft of `n`.
    pub fn expected(&self, n: usize) -> f64 {
        geometric(self.acceptance, n.min(self.lengths.1))
    }
}

/// Whether a model should draft, and how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// What the best lengths gain without it and with it, in tokens.
    pub without: f64,
    /// See `without`.
    pub with: f64,
    /// The best length with it.
    pub length: usize,
    /// Of the other lengths that would be better than `length` if they cost as little as they may, the one that costs least to try.
    pub doubted: Hope,
    /// Of the lengths that would be better than no model if costs were as low and acceptance as high as they may be, the same.
    pub hopeful: Hope,
}

/// A length that may be better than is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hope {
    /// The length.
    pub length: usize,
    /// What it gains at best.
    pub hoped: f64,
    /// What it gains by what is known.
    pub known: f64,
}

impl Default for Hope {
    fn default() -> Self {
        Hope { length: 0, hoped: f64::NEG_INFINITY, known: f64::NEG_INFINITY }
    }
}

/// The prices of a step, and the slots that they are for.
#[derive(Debug, Clone, Copy)]
pub struct Prices<'a> {
    /// The step's slots, by their sequence ids.
    pub slots: &'a [StepSlot],
    /// What batches cost.
    pub costs: &'a Costs,
    /// S.
    pub rate: f64,
    /// Where one slot alone takes part: the batch size that is best in the long run, if there is one (see [`Costs::next`]).
    pub preferred: Option<usize>,
}

impl Prices<'_> {
    fn n_tokens(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.n_tokens)
    }

    fn generates(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.generates)
    }

    /// How much a slot gets of a length for all.
    fn share(&self, slot: usize, length: usize) -> usize {
        self.slots.get(slot).filter(|slot| slot.generates).map_or(0, |slot| length.min(slot.room))
    }

    /// The only slot that takes part.
    fn only(&self) -> Option<usize> {
        let mut all = (0..self.slots.len()).filter(|slot| self.n_tokens(*slot) > 0);
        all.next().filter(|_| all.next().is_none())
    }

    /// What a step costs in which the slots in `range` decode so many tokens more, and no others take part.
    fn cost(&self, range: Range<usize>, more: impl Fn(usize) -> usize) -> f64 {
        if let Some(only) = self.only() {
            return self.costs.next(self.preferred)(self.n_tokens(only) + more(only));
        }
        let n_tokens = |slot: usize| match range.contains(&slot) && self.n_tokens(slot) > 0 {
            true => self.n_tokens(slot) + more(slot),
            false => 0,
        };
        self.costs.step_of(n_tokens, self.slots.len())
    }

    /// What a step of all slots costs where each that generates decodes `length` tokens more.
    pub fn cost_of_all(&self, length: usize) -> f64 {
        self.cost(0..self.slots.len(), |slot| self.share(slot, length))
    }

    /// The slots that are decoded together, whatever the lengths: see [`BatchSplit`](super::BatchSplit).
    fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let whole = !self.costs.split().is_rectangular();
        let n = self.slots.len();
        let mut at = 0;
        std::iter::from_fn(move || {
            if whole {
                return (std::mem::replace(&mut at, n) < n).then_some(0..n);
            }
            while at < n && self.n_tokens(at) == 0 {
                at += 1;
            }
            let begin = at;
            while at < n && self.n_tokens(at) > 0 {
                at += 1;
            }
            (begin < at).then_some(begin..at)
        })
    }
}

/// More slots than these are not looked at together for lengths beyond those of all others.
const WIDEST: usize = 16;
/// Times that each slot's length is looked at again, beside the others'.
const ROUNDS: usize = 2;

/// Decides how many tokens each slot decodes behind its own, drafted ones and filler; which they are, [`Candidates::best`] knows.
/// `exploring`: a length for all that is to be measured.
pub fn decide(prices: &Prices<'_>, candidates: &[Candidates], exploring: Option<usize>, lengths: &mut Vec<usize>) {
    lengths.clear();
    lengths.resize(prices.slots.len(), 0);
    for run in prices.runs() {
        decide_run(prices, candidates, run.clone(), exploring, lengths);
        let is_text = |slot: usize| {
            let best = candidates.get(slot).map(|own| own.best(lengths.get(slot).copied().unwrap_or(0)));
            let text = candidates.get(slot).map_or(0.0, |own| own.of_text(lengths.get(slot).copied().unwrap_or(0)));
            best.is_none_or(|best| best.expected <= text)
        };
        let drafts = run.clone().any(|slot| lengths.get(slot).is_some_and(|length| *length > 0));
        if exploring.is_some() || !drafts || !run.clone().all(is_text) {
            continue;
        }
        // Copied text is drafted again in the next step at no cost, so a token saves no more than its share of such steps.
        let rate = rate_of_text(prices, candidates, run.clone());
        if rate > prices.rate {
            decide_run(&Prices { rate, ..*prices }, candidates, run, None, lengths);
        }
    }
}

/// The highest rate of steps that copy text with the same length for all.
fn rate_of_text(prices: &Prices<'_>, candidates: &[Candidates], run: Range<usize>) -> f64 {
    let longest = run.clone().filter_map(|slot| candidates.get(slot)).map(|own| own.of_text.len()).max().unwrap_or(0);
    let brings = |slot: usize, length: usize| {
        let text = candidates.get(slot).map_or(0.0, |own| own.of_text(prices.share(slot, length)));
        f64::from(u8::from(prices.generates(slot))) + text
    };
    let rate = |length: usize| {
        let tokens: f64 = run.clone().map(|slot| brings(slot, length)).sum();
        tokens / prices.cost(run.clone(), |slot| prices.share(slot, length))
    };
    (1..longest).map(rate).fold(0.0, f64::max)
}

fn decide_run(
    prices: &Prices<'_>,
    candidates: &[Candidates],
    run: Range<usize>,
    exploring: Option<usize>,
    lengths: &mut [usize],
) {
    let own = |slot: usize| candidates.get(slot);
    let least = |slot: usize| own(slot).map_or(0, Candidates::least);
    let rectangular = prices.costs.split().is_rectangular();
    // Where filler costs as much as drafts, a slot gets its draft alone.
    let share = |slot: usize, length: usize| {
        let share = prices.share(slot, length);
        let drafted = || own(slot).and_then(|own| own.best(share).draft).map_or(0, |(_, n)| n);
        if rectangular { share.max(least(slot)) } else { drafted() }
    };
    let expected = |slot: usize, length: usize| own(slot).map_or(0.0, |own| own.best(length).expected);
    let value = |length: usize| {
        let gain: f64 = run.clone().map(|slot| expected(slot, share(slot, length))).sum();
        gain - prices.rate * prices.cost(run.clone(), |slot| share(slot, length))
    };
    let longest = run.clone().filter_map(own).map(Candidates::longest).max().unwrap_or(0);
    let (mut best, mut most) = (0, value(0));
    for length in 1..=longest {
        let value = value(length);
        if value > most {
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
    if rectangular {
        let pass = prices.rate * prices.costs.v(1);
        let mut others = [0; 64];
        let Some(others) = others.get_mut(..run.len()) else { return };
        for length in 0..=longest {
            for (other, slot) in others.iter_mut().zip(run.clone()) {
                *other = share(slot, length);
            }
            // Were all of every draft free.
            let all: f64 = run.clone().zip(&*others).map(|(slot, own)| more(candidates, slot, *own, MAX_DRAFT)).sum();
            let value = value(length);
            if value + all - pass <= most {
                continue;
            }
            let value = value + raise(prices, candidates, run.clone(), others);
            if value > most {
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
            let Some((own, place)) = own(slot).zip(lengths.get_mut(slot)).filter(|(own, _)| own.fixed.is_none()) else {
                continue;
            };
            let beside = all - *place;
            let (mut best, mut most) = (0, 0.0);
            for length in 1..=own.longest().min(prices.share(slot, usize::MAX)) {
                let more = prices.costs.v(beside + length) - prices.costs.v(beside);
                let gain = own.best(length).expected - prices.rate * more;
                if gain > most {
                    (best, most) = (length, gain);
                }
            }
            *place = own.best(best).draft.map_or(0, |(_, n)| n);
        }
    }
}

/// What a slot gains if its length is raised by so many tokens.
fn more(candidates: &[Candidates], slot: usize, length: usize, by: usize) -> f64 {
    let own = candidates.get(slot).filter(|own| own.fixed.is_none());
    own.map_or(0.0, |own| own.best(length + by).expected - own.best(length).expected)
}

/// Raises the lengths of neighbours in `run` where their drafts are worth a forward pass of their own. Returns what that gains.
fn raise(prices: &Prices<'_>, candidates: &[Candidates], run: Range<usize>, lengths: &mut [usize]) -> f64 {
    let more = |slot: usize, length: usize, by: usize| {
        more(candidates, slot, length, by.min(prices.share(slot, usize::MAX).saturating_sub(length)))
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
                    let gain = sum(by) - prices.rate * (prices.costs.v((end - begin) * by) + prices.costs.change());
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

/// What it would bring if a model drafted for the slots for which `prospect` has one, all with the same length: `n_slots` of them.
/// `draft`: what a round of drafting costs, in tokens.
pub fn outlook(
    prices: &Prices<'_>,
    candidates: &[Candidates],
    prospect: impl Fn(usize) -> Option<Prospect>,
    draft: f64,
) -> Outlook {
    let n = prices.slots.len();
    let text = |slot: usize, length: usize| candidates.get(slot).map_or(0.0, |own| own.best(length).expected);
    let n_max = (0..n).filter_map(&prospect).map(|prospect| prospect.lengths.1).max().unwrap_or(0);
    let longest = candidates.iter().map(Candidates::longest).max().unwrap_or(0);
    let (mut without, mut with, mut best) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0);
    // For each length what it gains with the model, and what it may gain if acceptance is higher.
    let mut values = [(f64::NEG_INFINITY, f64::NEG_INFINITY); MAX_DRAFT + 1];
    for (length, value) in values.iter_mut().enumerate().take(longest.max(n_max) + 1) {
        let cost = prices.rate * prices.cost_of_all(length);
        let (mut texts, mut known, mut hoped) = (0.0, 0.0, 0.0);
        for slot in 0..n {
            let share = prices.share(slot, length);
            let text = text(slot, share);
            let modelled = |prospect: Prospect, acceptance: f64| {
                let n = share.min(prospect.lengths.1);
                if n < prospect.lengths.0 { 0.0 } else { geometric(acceptance, n) }
            };
            let prospect = prospect(slot);
            texts += text;
            known += prospect.map_or(text, |prospect| text.max(modelled(prospect, prospect.acceptance)));
            hoped += prospect.map_or(text, |prospect| text.max(modelled(prospect, prospect.optimistic)));
        }
        without = without.max(texts - cost);
        if (1..=n_max).contains(&length) {
            let cost = cost + draft * length as f64;
            *value = (known - cost, hoped - cost);
            if value.0 > with {
                (with, best) = (value.0, length);
            }
        }
    }
    let (mut doubted, mut hopeful) = (Hope::default(), Hope::default());
    for (length, (known, hoped)) in values.iter().copied().enumerate().skip(1).take(n_max) {
        let doubt = prices.rate * prices.doubt(length);
        for (hope, hoped, least) in [(&mut doubted, known + doubt, with), (&mut hopeful, hoped + doubt, without)] {
            if length != best && hoped > least && known > hope.known {
                *hope = Hope { length, hoped, known };
            }
        }
    }
    // The best length by what is known is the cheapest to try where it may pay.
    let (known, hoped) = values.get(best).copied().unwrap_or_default();
    let hoped = hoped + prices.rate * prices.doubt(best);
    if best > 0 && hoped > without && known >= hopeful.known {
        hopeful = Hope { length: best, hoped, known };
    }
    Outlook { without, with, length: best, doubted, hopeful }
}

impl Prices<'_> {
    /// By how much a step with this length for all may cost less than is known.
    fn doubt(&self, length: usize) -> f64 {
        let n_tokens = |slot: usize| match self.n_tokens(slot) {
            0 => 0,
            n => n + self.share(slot, length),
        };
        let mut doubt = 0.0;
        self.costs.split().for_each(n_tokens, self.slots.len(), |n| {
            doubt += self.costs.uncertainty(n) * (self.costs.v(n) - self.costs.v(1)).max(0.0);
        });
        doubt
    }
}

/// The tokens to expect of `n`, each right with this probability if those before it were.
fn geometric(acceptance: f64, n: usize) -> f64 {
    (0..n).fold((0.0, 1.0), |(sum, sure), _| (sum + sure * acceptance, sure * acceptance)).0
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
