//! The cost of a step: its slots, and the prices of the tokens that they decode.

use std::ops::Range;

use super::costs::Costs;

/// A slot in a step, as far as its batch is concerned. The default one takes no part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSlot {
    /// Tokens of its context that are decoded in any case.
    pub n_tokens: usize,
    /// Whether the step brings a token for it: not while more of its prompt is left.
    pub generates: bool,
    /// Most tokens that can be decoded behind those.
    pub room: usize,
    /// Tokens of its context that are before those.
    pub n_past: usize,
}

/// The prices of a step, and the slots that they are for.
#[derive(Debug, Clone, Copy)]
pub struct Prices<'a> {
    /// The step's slots, by their sequence ids.
    pub slots: &'a [StepSlot],
    /// The costs of batches.
    pub costs: &'a Costs,
    /// S, the engine's tokens in the time of one plain forward pass: see `lengths`.
    pub rate: f64,
    /// The batch size that is best in the long run, if one slot alone takes part and there is such a size (see [`Costs::next`]).
    pub preferred: Option<usize>,
    /// The most that the step's drafts may cost if none of them is right, in forward passes of one token.
    pub most_lost: f64,
    /// The least that drafts cost if they are decoded and none is right, in forward passes of one token (see `losses`). 0 where losses have no limit.
    pub least_lost: f64,
}

impl Prices<'_> {
    pub(super) fn n_tokens(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.n_tokens)
    }

    pub(super) fn generates(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.generates)
    }

    fn n_past(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.n_past)
    }

    /// The cost that a slot's context adds to `more` further tokens of the slot.
    pub(super) fn attention_of_more(&self, slot: usize, more: usize) -> f64 {
        let (n, n_past) = (self.n_tokens(slot), self.n_past(slot));
        self.costs.attention(n + more, n_past) - self.costs.attention(n, n_past)
    }

    /// The tokens to expect of a draft of `n` tokens of a slot, less what it costs to decode them again after others of it were rejected, if
    /// [costs repeat](Costs::repeat). `expected` of them are right on average, and all with the probability `all`.
    pub(super) fn worth(&self, slot: usize, n: usize, expected: f64, all: f64) -> f64 {
        expected - self.rate * self.repetition(slot, n, expected, all)
    }

    /// The cost to expect in the slot's next step for decoding accepted tokens again.
    fn repetition(&self, slot: usize, n: usize, expected: f64, all: f64) -> f64 {
        let rejected = 1.0 - all;
        if !self.costs.repeats() || n == 0 || rejected <= 0.0 {
            return 0.0;
        }
        let accepted = ((expected - n as f64 * all) / rejected).max(0.0);
        let repeated = self.n_tokens(slot) + accepted.round() as usize;
        rejected * (self.costs.v(1 + repeated) - self.costs.v(1)).max(0.0)
    }

    /// The most that a draft of `n` tokens can cost in the next steps of a slot: [`Prices::worth`] has what to expect.
    pub(super) fn most_repeated(&self, n: usize) -> f64 {
        (0..self.slots.len()).map(|slot| self.repetition(slot, n, 0.0, 0.0)).fold(0.0, f64::max)
    }

    /// Whether drafts of up to `length` tokens may lose this much. `sure`: the probability that a draft's first token is right. Several tokens
    /// may lose no more than this fraction of what is left, so the less sure drafts are, the more of them must be wrong before it is gone.
    pub(super) fn may_lose(&self, loss: f64, length: usize, sure: f64) -> bool {
        loss <= self.most_lost.max(0.0) * if length > 1 { sure } else { 1.0 }
    }

    /// The cost of a step in which the slots in `range` decode `more(slot)` further tokens, if all of these are wrong, beyond that of a step
    /// in which they decode none. 0 where losses have no limit, because nothing is compared with it.
    pub(super) fn loss(&self, range: Range<usize>, more: impl Fn(usize) -> usize) -> f64 {
        if self.most_lost == f64::MAX {
            return 0.0;
        }
        let repeated: f64 = range.clone().map(|slot| self.repetition(slot, more(slot), 0.0, 0.0)).sum();
        let decodes_drafts = range.clone().any(|slot| more(slot) > 0);
        let least = if decodes_drafts { self.least_lost } else { 0.0 };
        (self.cost(range.clone(), &more) - self.cost(range, |_| 0)).max(least) + repeated
    }

    /// The mean number of tokens before those of the slots that generate.
    pub fn mean_n_past(&self) -> usize {
        mean_n_past(self.slots)
    }

    /// How much a slot gets of a length for all.
    pub(super) fn share(&self, slot: usize, length: usize) -> usize {
        self.slots.get(slot).filter(|slot| slot.generates).map_or(0, |slot| length.min(slot.room))
    }

    /// The only slot that takes part.
    pub(super) fn only(&self) -> Option<usize> {
        let mut all = (0..self.slots.len()).filter(|slot| self.n_tokens(*slot) > 0);
        all.next().filter(|_| all.next().is_none())
    }

    /// The cost of a step in which only the slots in `range` take part, each with `more(slot)` further tokens.
    pub(super) fn cost(&self, range: Range<usize>, more: impl Fn(usize) -> usize) -> f64 {
        if let Some(only) = self.only() {
            let n = self.n_tokens(only) + more(only);
            return self.costs.next(self.preferred)(n) + self.costs.attention(n, self.n_past(only));
        }
        let n_tokens = |slot: usize| match range.contains(&slot) && self.n_tokens(slot) > 0 {
            true => self.n_tokens(slot) + more(slot),
            false => 0,
        };
        self.costs.step_of(n_tokens, |slot| self.n_past(slot), self.slots.len())
    }

    /// The cost of a step of all slots in which each one that generates decodes `length` tokens more.
    pub fn cost_of_all(&self, length: usize) -> f64 {
        self.cost(0..self.slots.len(), |slot| self.share(slot, length))
    }

    /// The slots that are decoded together, whatever the lengths: see [`BatchSplit`](super::batch_split::BatchSplit).
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
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

    /// The amount by which a step with this length for all may cost less than its estimate.
    pub(super) fn uncertainty(&self, length: usize) -> f64 {
        let n_tokens = |slot: usize| match self.n_tokens(slot) {
            0 => 0,
            n => n + self.share(slot, length),
        };
        let mut uncertainty = 0.0;
        self.costs.split().for_each(n_tokens, self.slots.len(), |n| {
            uncertainty += self.costs.uncertainty(n) * (self.costs.v(n) - self.costs.v(1)).max(0.0);
        });
        uncertainty
    }
}

/// The mean number of tokens before those of the slots that generate.
pub fn mean_n_past(slots: &[StepSlot]) -> usize {
    let generating = || slots.iter().filter(|slot| slot.generates);
    generating().map(|slot| slot.n_past).sum::<usize>() / generating().count().max(1)
}
