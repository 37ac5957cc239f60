//! The candidate list: the tokens that may still be sampled, once they are few enough to be listed.

use std::cmp::Ordering;

use super::math::{exp, gap};
use super::noise::{BLOCK, GumbelNoise, NoisyArgmax};
use foredraft_base::{Token, TokenData};

/// Orders larger logits first and equal logits by token id. A total order if no logit is NaN.
///
/// Compares single integers, because sorts are several times faster without a branch. The high half is the float's bits,
/// flipped so that larger floats are smaller integers; the low half is the token.
pub(super) fn best_first(a: &TokenData, b: &TokenData) -> Ordering {
    let rank = |item: &TokenData| {
        // Adding 0 turns -0 into 0: they are equal but have different bits.
        let bits = (item.logit + 0.0).to_bits();
        let descending = if bits >> 31 == 0 { !bits & !(1 << 31) } else { bits };
        (u64::from(descending) << 32) | u64::from(item.id as u32)
    };
    rank(a).cmp(&rank(b))
}

/// A list of candidates. Each has a logit above -inf; `p` is valid only after [`Candidates::softmax`].
#[derive(Debug, Default)]
pub(super) struct Candidates {
    items: Vec<TokenData>,
    /// Whether the items are in the order of [`best_first`].
    sorted: bool,
    /// Number of tokens of probability 0 that llama.cpp would still have in its list: banned ones, and those masked by a
    /// stage that does not truncate. They count for `min_keep` and for the dynamic temperature's maximum entropy.
    masked: usize,
}

impl Candidates {
    /// An empty list with memory for `n_vocab` candidates.
    pub(super) fn new(n_vocab: usize) -> Self {
        Candidates { items: Vec::with_capacity(n_vocab), sorted: false, masked: 0 }
    }

    /// Empties the list.
    pub(super) fn clear(&mut self) {
        self.refill(false, |_| {});
    }

    /// Empties the list and lets `fill` add to it. `sorted`: `fill` adds in the order of [`best_first`].
    pub(super) fn refill(&mut self, sorted: bool, fill: impl FnOnce(&mut Vec<TokenData>)) {
        self.items.clear();
        fill(&mut self.items);
        self.sorted = sorted;
        self.masked = 0;
    }

    pub(super) fn items(&self) -> &[TokenData] {
        &self.items
    }

    /// Number of candidates with a probability above 0.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of candidates that llama.cpp would count.
    pub(super) fn size(&self) -> usize {
        self.items.len() + self.masked
    }

    pub(super) fn set_masked(&mut self, masked: usize) {
        self.masked = masked;
    }

    /// Lets `change` edit logits; candidates whose logit becomes -inf or NaN are masked. `keeps_order`: the remaining
    /// candidates are still in their previous order.
    pub(super) fn edit_logits<R>(&mut self, keeps_order: bool, change: impl FnOnce(&mut [TokenData]) -> R) -> R {
        let before = self.items.len();
        let result = change(&mut self.items);
        self.items.retain(|item| item.logit > f32::NEG_INFINITY);
        self.masked += before - self.items.len();
        self.sorted &= keeps_order;
        result
    }

    /// The largest logit; -inf if there is no candidate.
    pub(super) fn max(&self) -> f32 {
        match self.items.first() {
            Some(first) if self.sorted => first.logit,
            _ => self.items.iter().fold(f32::NEG_INFINITY, |max, item| max.max(item.logit)),
        }
    }

    /// Sorts by [`best_first`].
    pub(super) fn sort(&mut self) {
        if !self.sorted {
            self.items.sort_unstable_by(best_first);
            self.sorted = true;
        }
    }

    /// Keeps the first `n` in the current order, and as many masked ones as llama.cpp would keep behind them.
    pub(super) fn truncate(&mut self, n: usize) {
        self.masked = self.masked.min(n.saturating_sub(self.items.len()));
        self.items.truncate(n);
    }

    /// Keeps the candidates for which `keep` is true; drops the others and the masked ones.
    pub(super) fn retain(&mut self, keep: impl FnMut(&TokenData) -> bool) {
        self.items.retain(keep);
        self.masked = 0;
    }

    /// Keeps the `k` best, and at least one.
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

    /// Keeps the most probable one; the others become masked.
    pub(super) fn keep_argmax(&mut self) {
        let size = self.size();
        self.keep_best(1);
        self.masked = size - self.items.len();
    }

    /// Sets every `p` to `of(logit)`: a sort key, for example.
    pub(super) fn set_p(&mut self, of: impl Fn(f32) -> f32) {
        for item in &mut self.items {
            item.p = of(item.logit);
        }
    }

    /// Sets every `p` so that they sum to 1, and returns ln Σ exp(logit - max).
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

    /// Keeps a prefix in the order of `compare`: up to and including the first candidate for which `enough` is true, but
    /// at least `min_keep`; all if `enough` is never true. Calls `enough` once per candidate, in order. `best_first`:
    /// `compare` is the order of [`best_first`].
    ///
    /// Sorts only a few times what it keeps, so a short prefix of a vocabulary needs no full sort.
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
    pub(super) fn draw(&self, noise: &GumbelNoise) -> Option<Token> {
        let max = self.max();
        let mut best = NoisyArgmax::new();
        for item in &self.items {
            let Ok(index) = usize::try_from(item.id) else { continue };
            // One hash, without a logarithm, rules out most tokens.
            if let Some(shared) = noise.block_above(index / BLOCK, best.lead_over(item.logit, max)) {
                best.offer(NoisyArgmax::score(item.logit, max, noise.gumbel_in(shared, index)), item.id);
            }
        }
        best.token()
    }
}

#[cfg(test)]
mod tests;
