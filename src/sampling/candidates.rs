//! The tokens that are still in the running, once they are few enough to be listed.

use std::cmp::Ordering;

use super::math::{exp, gap};
use super::noise::{BLOCK, Best, Noise};
use crate::llama::{Token, TokenData};

/// Larger logits first; of equal logits, lower tokens first. Total where no logit is NaN.
///
/// Compares one integer, since sorts are several times faster without a branch: the bits of a float, flipped so that
/// larger floats are smaller integers, above the token.
pub(super) fn best_first(a: &TokenData, b: &TokenData) -> Ordering {
    let rank = |item: &TokenData| {
        // Adding 0 turns -0, which is equal to 0 but has other bits, into 0.
        let bits = (item.logit + 0.0).to_bits();
        let descending = if bits >> 31 == 0 { !bits & !(1 << 31) } else { bits };
        (u64::from(descending) << 32) | u64::from(item.id as u32)
    };
    rank(a).cmp(&rank(b))
}

/// A list of candidates. Each has a logit above -inf; `p` means something after [`Candidates::softmax`] only.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    items: Vec<TokenData>,
    /// Whether the items are in the order of [`best_first`].
    sorted: bool,
    /// Tokens of probability 0 that llama.cpp would still carry in its list (banned, or masked by a stage that cuts
    /// nothing off). They count in `min_keep` and in the dynamic temperature's greatest possible entropy.
    masked: usize,
}

impl Candidates {
    /// With memory for a vocabulary of that size.
    pub(super) fn new(n_vocab: usize) -> Self {
        Candidates { items: Vec::with_capacity(n_vocab), sorted: false, masked: 0 }
    }

    /// Empties the list.
    pub(super) fn clear(&mut self) {
        self.refill(false, |_| {});
    }

    /// Empties the list and lets `fill` add to it; `sorted` says in which order it will be.
    pub(super) fn refill(&mut self, sorted: bool, fill: impl FnOnce(&mut Vec<TokenData>)) {
        self.items.clear();
        fill(&mut self.items);
        self.sorted = sorted;
        self.masked = 0;
    }

    pub(super) fn items(&self) -> &[TokenData] {
        &self.items
    }

    /// How many have a probability.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many llama.cpp would count.
    pub(super) fn size(&self) -> usize {
        self.items.len() + self.masked
    }

    pub(super) fn set_masked(&mut self, masked: usize) {
        self.masked = masked;
    }

    /// Lets `change` alter logits; a candidate whose logit becomes -inf or NaN is masked. `keeps_order`: whether those
    /// that stay are still in the order that they had.
    pub(super) fn change<R>(&mut self, keeps_order: bool, change: impl FnOnce(&mut [TokenData]) -> R) -> R {
        let before = self.items.len();
        let result = change(&mut self.items);
        self.items.retain(|item| item.logit > f32::NEG_INFINITY);
        self.masked += before - self.items.len();
        self.sorted &= keeps_order;
        result
    }

    /// The largest logit; -inf when there is no candidate.
    pub(super) fn max(&self) -> f32 {
        match self.items.first() {
            Some(first) if self.sorted => first.logit,
            _ => self.items.iter().fold(f32::NEG_INFINITY, |max, item| max.max(item.logit)),
        }
    }

    /// Puts them in the order of [`best_first`].
    pub(super) fn sort(&mut self) {
        if !self.sorted {
            self.items.sort_unstable_by(best_first);
            self.sorted = true;
        }
    }

    /// Keeps the first `n` as they lie, and as many of the masked as llama.cpp would keep behind them.
    pub(super) fn truncate(&mut self, n: usize) {
        self.masked = self.masked.min(n.saturating_sub(self.items.len()));
        self.items.truncate(n);
    }

    /// Keeps those for which `keep` says so; the others, and the masked, are cut off.
    pub(super) fn retain(&mut self, keep: impl FnMut(&TokenData) -> bool) {
        self.items.retain(keep);
        self.masked = 0;
    }

    /// Keeps the `k` best, at least one.
    pub(super) fn keep_best(&mut self, k: usize) {
        let k = k.max(1);
        if !self.sorted && self.items.len() > k {
            self.items.select_nth_unstable_by(k - 1, best_first);
            self.truncate(k);
            self.sort();
        } else {
            self.truncate(k);
        }
    }

    /// Leaves the most probable one alone; the others become masked.
    pub(super) fn keep_argmax(&mut self) {
        let size = self.size();
        self.keep_best(1);
        self.masked = size - self.items.len();
    }

    /// Replaces every `p` by what `of` makes of the logit: a score to order by, for example.
    pub(super) fn set_p(&mut self, of: impl Fn(f32) -> f32) {
        for item in &mut self.items {
            item.p = of(item.logit);
        }
    }

    /// Fills in every `p`, which sum to 1, and returns ln Σ exp(logit - max).
    pub(super) fn softmax(&mut self) -> f64 {
        let max = self.max();
        let mut sum = 0.0;
        for item in &mut self.items {
            item.p = exp(gap(item.logit, max));
            sum += f64::from(item.p);
        }
        let scale = 1.0 / sum;
        for item in &mut self.items {
            item.p = (f64::from(item.p) * scale) as f32;
        }
        sum.ln()
    }

    /// The entropy of the softmax in nats.
    pub(super) fn entropy(&self) -> f64 {
        let max = self.max();
        let (sum, weighted) = self.items.iter().fold((0.0, 0.0), |(sum, weighted), item| {
            let gap = gap(item.logit, max);
            let weight = f64::from(exp(gap));
            (sum + weight, if weight > 0.0 { weighted + weight * f64::from(gap) } else { weighted })
        });
        f64::ln(sum) - weighted / sum
    }

    /// Keeps the first few in the order of `compare`: up to the one at which `enough`, asked about each in turn, says
    /// yes, but at least `min_keep`; all of them when it never does. `best_first`: whether that is the order.
    ///
    /// Sorts no more than a few times what it keeps, so a short prefix of a vocabulary costs no full sort.
    pub(super) fn keep_prefix(
        &mut self,
        best_first: bool,
        min_keep: usize,
        compare: impl Fn(&TokenData, &TokenData) -> Ordering,
        mut enough: impl FnMut(&TokenData) -> bool,
    ) {
        self.sorted = best_first;
        let (mut done, mut step) = (0, 256);
        while let Some(rest) = self.items.get_mut(done..).filter(|rest| !rest.is_empty()) {
            if step < rest.len() {
                rest.select_nth_unstable_by(step - 1, &compare);
            }
            let here = step.min(rest.len());
            let front = rest.get_mut(..here).unwrap_or_default();
            front.sort_unstable_by(&compare);
            for item in front.iter() {
                done += 1;
                if enough(item) && done >= min_keep {
                    return self.truncate(done);
                }
            }
            step *= 4;
        }
        self.truncate(done.max(min_keep));
    }

    /// The argmax of logit + G: a draw from the softmax.
    pub(super) fn draw(&self, noise: &Noise) -> Option<Token> {
        let max = self.max();
        let mut best = Best::new();
        for item in &self.items {
            let Ok(index) = usize::try_from(item.id) else { continue };
            // Most tokens cannot win, which costs a hash to tell, and no logarithm.
            if let Some(shared) = noise.block_above(index / BLOCK, best.lead_over(item.logit, max)) {
                best.offer(Best::score(item.logit, max, noise.gumbel_in(shared, index)), item.id);
            }
        }
        best.token()
    }
}

#[cfg(test)]
#[path = "candidates_tests.rs"]
mod tests;
