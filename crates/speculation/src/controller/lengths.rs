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

/// More neighbours than these are not looked at together for a longer length.
const MAX_NEIGHBOURS: usize = 16;
/// With more slots in a run, none gets a length of its own where a step decodes rectangles.
const MAX_RAISED: usize = 64;
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

/// Slots that are decoded together, and the drafts that they can choose from.
struct SlotRun<'a> {
    prices: &'a Prices<'a>,
    options: &'a [DraftOptions],
    slots: Range<usize>,
    /// The loss of the drafts that are decoded in any case.
    certain_loss: f64,
    /// The highest probability that the first token of a draft is right.
    first_acceptance: f64,
}

impl<'a> SlotRun<'a> {
    fn new(prices: &'a Prices<'a>, options: &'a [DraftOptions], slots: Range<usize>) -> SlotRun<'a> {
        let mut run = SlotRun { prices, options, slots, certain_loss: 0.0, first_acceptance: 0.0 };
        run.certain_loss = prices.loss(run.slots.clone(), |slot| run.share(slot, 0));
        run.first_acceptance = run.all_options().map(|options| options.sure).fold(0.0, f64::max);
        run
    }

    fn slots(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        self.slots.clone()
    }

    fn all_options(&self) -> impl Iterator<Item = &'a DraftOptions> {
        let options = self.options;
        self.slots().filter_map(move |slot| options.get(slot))
    }

    fn longest(&self) -> usize {
        self.all_options().map(DraftOptions::longest).max().unwrap_or(0)
    }

    /// The tokens of a length for all that a slot decodes. Where filler costs as much as drafts, or would have to be rejected at a cost, it gets its
    /// draft alone.
    fn share(&self, slot: usize, length: usize) -> usize {
        let share = self.prices.share(slot, length);
        let options = self.options.get(slot);
        match self.prices.costs.split().is_rectangular() && !self.prices.costs.repeats() {
            true => share.max(options.map_or(0, DraftOptions::least)),
            false => options.and_then(|options| options.best(share).draft).map_or(0, |(_, n)| n),
        }
    }

    /// The value of a length for all, in tokens.
    fn value(&self, length: usize) -> f64 {
        let worth = |slot: usize| {
            self.options.get(slot).map_or(0.0, |options| options.worth(self.prices, slot, self.share(slot, length)))
        };
        let cost = self.prices.cost(self.slots.clone(), |slot| self.share(slot, length));
        self.slots().map(worth).sum::<f64>() - self.prices.rate * cost
    }

    /// Whether these lengths, at most `longest`, may lose what they can lose.
    fn may_lose(&self, longest: usize, length: impl Fn(usize) -> usize) -> bool {
        let loss = self.prices.loss(self.slots.clone(), length) - self.certain_loss;
        self.prices.may_lose(loss, longest, self.first_acceptance)
    }

    /// The best length for all, and its value.
    fn best_for_all(&self) -> (usize, f64) {
        let mut best = (0, self.value(0));
        for length in 1..=self.longest() {
            let value = self.value(length);
            if value > best.1 && self.may_lose(length, |slot| self.share(slot, length)) {
                best = (length, value);
            }
        }
        best
    }

    /// Fits the length of each slot to the batch that the others make.
    fn fit_each(&self, lengths: &mut [usize]) {
        let prices = self.prices;
        for slot in std::iter::repeat_n(self.slots(), ROUNDS).flatten() {
            let n_tokens: usize = self.slots().map(|slot| prices.n_tokens(slot)).sum();
            let n_drafted = lengths.iter().sum::<usize>();
            let of_others = |other: usize| lengths.get(other).copied().filter(|_| other != slot).unwrap_or(0);
            let loss_of_others = prices.loss(self.slots.clone(), of_others) - self.certain_loss;
            let options = self.options.get(slot).filter(|options| options.fixed.is_none());
            let Some((options, place)) = options.zip(lengths.get_mut(slot)) else { continue };
            let batch = n_tokens + n_drafted - *place;
            let mut best = (0, 0.0);
            for length in 1..=options.longest().min(prices.share(slot, usize::MAX)) {
                let cost = prices.costs.v(batch + length) - prices.costs.v(batch);
                let cost = cost + prices.attention_of_more(slot, length);
                let gain = options.worth(prices, slot, length) - prices.rate * cost;
                let loss = (loss_of_others + cost).max(prices.least_lost) + prices.most_repeated(length);
                if gain > best.1 && prices.may_lose(loss, length, self.first_acceptance) {
                    best = (length, gain);
                }
            }
            *place = options.best(best.0).draft.map_or(0, |(_, n)| n);
        }
    }

    /// Raises the lengths of some slots beyond a length for all, which with the best of those lengths is worth `best`. (Without this, the
    /// simulator's scenarios with several slots are 1.8 % slower on average, up to 26 %.)
    fn raise_some(&self, mut best: f64, lengths: &mut [usize]) {
        let mut raised = [0; MAX_RAISED];
        let Some(raised) = raised.get_mut(..self.slots.len()) else { return };
        for length in 0..=self.longest() {
            for (raised, slot) in raised.iter_mut().zip(self.slots()) {
                *raised = self.share(slot, length);
            }
            let value = self.value(length);
            if value + self.most_to_gain(raised) - self.pass() <= best {
                continue;
            }
            let value = value + self.raise(raised);
            let of_slot = |slot: usize| slot.checked_sub(self.slots.start).and_then(|at| raised.get(at)).copied();
            if value > best && self.may_lose(MAX_DRAFT, |slot| of_slot(slot).unwrap_or(0)) {
                best = value;
                for (slot, raised) in self.slots().zip(&*raised) {
                    lengths.get_mut(slot).into_iter().for_each(|length| *length = *raised);
                }
            }
        }
    }

    /// Raises the lengths of neighbours where their drafts are worth a forward pass of their own. Returns the gain.
    fn raise(&self, lengths: &mut [usize]) -> f64 {
        let mut gained = 0.0;
        while self.most_to_gain(lengths) > self.pass() {
            let Some((neighbours, by, gain)) = self.best_raise(lengths) else { break };
            gained += gain;
            for at in neighbours {
                if let Some(length) = lengths.get_mut(at) {
                    *length = self.prices.share(self.slots.start + at, *length + by);
                }
            }
        }
        gained
    }

    /// The neighbours of one length that gain most by some more tokens, by their places in `lengths`; those tokens, and the gain.
    fn best_raise(&self, lengths: &[usize]) -> Option<(Range<usize>, usize, f64)> {
        let (prices, mut best) = (self.prices, None);
        for begin in 0..lengths.len() {
            let length = lengths.get(begin).copied()?;
            for end in begin + 1..=lengths.len().min(begin + MAX_NEIGHBOURS) {
                if lengths.get(end - 1) != Some(&length) {
                    break;
                }
                let slots = || self.slots.start + begin..self.slots.start + end;
                let gain = |by: usize| slots().map(|slot| self.gain(slot, length, by)).sum::<f64>();
                if gain(MAX_DRAFT) <= self.pass() {
                    continue;
                }
                for by in 1..=MAX_DRAFT.saturating_sub(length) {
                    let attention: f64 = slots().map(|slot| prices.attention_of_more(slot, by)).sum();
                    let pass = prices.costs.v((end - begin) * by) + prices.costs.change();
                    let gain = gain(by) - prices.rate * (pass + attention);
                    if gain > best.as_ref().map_or(0.0, |(_, _, gain)| *gain) {
                        best = Some((begin..end, by, gain));
                    }
                }
            }
        }
        best
    }

    /// The tokens to expect of `by` more than `length` for a slot.
    fn gain(&self, slot: usize, length: usize, by: usize) -> f64 {
        let by = by.min(self.prices.share(slot, usize::MAX).saturating_sub(length));
        let options = self.options.get(slot).filter(|options| options.fixed.is_none());
        options.map_or(0.0, |options| options.best(length + by).expected - options.best(length).expected)
    }

    /// The tokens to expect if all of every draft were free.
    fn most_to_gain(&self, lengths: &[usize]) -> f64 {
        self.slots().zip(lengths).map(|(slot, length)| self.gain(slot, *length, MAX_DRAFT)).sum()
    }

    /// The least cost of a forward pass, in tokens.
    fn pass(&self) -> f64 {
        self.prices.rate * self.prices.costs.v(1)
    }
}

/// Decides the lengths of a run.
fn decide_run(
    prices: &Prices<'_>,
    options: &[DraftOptions],
    slots: Range<usize>,
    exploring: Option<usize>,
    lengths: &mut [usize],
) {
    let run = SlotRun::new(prices, options, slots);
    let (best, value) = run.best_for_all();
    let for_all = exploring.map_or(best, |length| length.min(run.longest()));
    for slot in run.slots() {
        lengths.get_mut(slot).into_iter().for_each(|length| *length = run.share(slot, for_all));
    }
    if exploring.is_some() || run.slots.len() < 2 || prices.only().is_some() {
        return;
    }
    if !prices.costs.split().is_rectangular() {
        run.fit_each(lengths);
    } else if !prices.costs.repeats() {
        run.raise_some(value, lengths);
    }
}
