//! Questions about a whole row of logits, answered from the largest logit of each block of it.
//!
//! The one unavoidable pass over the row finds those maxima; after that, finding the argmax, the k largest, all above
//! a threshold, or the winner of a draw looks into the few blocks that can matter. NaN and -inf are no candidates.

use super::candidates::{Candidates, best_first};
use super::math::{exp, gap};
use super::noise::{BLOCK, Best, Noise};
use crate::llama::{Token, TokenData};

/// How many values are compared at once: a multiple of every CPU's vector width.
const LANES: usize = 16;

/// Sums over the row leave out blocks whose logits are all this far below the maximum: together they are less than
/// one part in 10^10.
const NEGLIGIBLE: f32 = -36.0;

/// The range of floats is counted in this many bins: eight for each power of two.
const N_BINS: usize = 1 << (32 - BIN_SHIFT);
/// The low bits of a float that its bin does not see.
const BIN_SHIFT: u32 = 20;

/// The bits of a float as an integer of the same order. -0 comes right before 0.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The float that [`ordered`] makes `key` of.
fn from_ordered(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// The largest of `values`; -inf when there is none. NaN is passed over.
pub(super) fn max_of(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (max, value) in lanes.iter_mut().zip(chunk) {
            *max = if *value > *max { *value } else { *max };
        }
    }
    let larger = |max: f32, value: &f32| if *value > max { *value } else { max };
    rest.iter().fold(lanes.iter().fold(f32::NEG_INFINITY, larger), larger)
}

/// Calls `found(index, value)` for the values that are at least `threshold` and above -inf, in order. Runs over the
/// others many at a time.
fn for_each_above(values: &[f32], threshold: f32, mut found: impl FnMut(usize, f32)) {
    for (start, chunk) in (0..).step_by(LANES).zip(values.chunks(LANES)) {
        if max_of(chunk) >= threshold {
            for (index, &value) in (start..).zip(chunk) {
                if value >= threshold && value > f32::NEG_INFINITY {
                    found(index, value);
                }
            }
        }
    }
}

/// Sums of `term(logit)` in `f32` lanes over one block.
fn sum_of(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in lanes.iter_mut().zip(chunk) {
            *sum += term(*value);
        }
    }
    let (quads, _) = lanes.as_chunks::<4>();
    let whole: f64 = quads.iter().map(|[a, b, c, d]| f64::from((a + b) + (c + d))).sum();
    whole + rest.iter().map(|value| f64::from(term(*value))).sum::<f64>()
}

/// Σ exp(logit - max) over a row, in one pass. 0 for an empty row.
pub(super) fn sum_exp(logits: &[f32], max: f32) -> f64 {
    logits.chunks(BLOCK).map(|block| sum_of(block, |logit| exp(gap(logit, max)))).sum()
}

/// Memory that [`Blocks`] works in.
#[derive(Debug, Default)]
pub(super) struct BlockScratch {
    maxima: Vec<f32>,
    ranks: Vec<f32>,
    counts: Vec<u32>,
}

impl BlockScratch {
    /// For rows of `n_vocab` logits.
    pub(super) fn new(n_vocab: usize) -> Self {
        let n_blocks = n_vocab.div_ceil(BLOCK);
        BlockScratch {
            maxima: Vec::with_capacity(n_blocks),
            ranks: Vec::with_capacity(n_blocks),
            counts: Vec::with_capacity(N_BINS),
        }
    }
}

/// A row of logits, divided by a temperature, with the largest logit of each block.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    logits: &'a [f32],
    /// Of the logits as they are, before the temperature.
    maxima: &'a [f32],
    max: f32,
    temperature: f32,
    ranks: &'a mut Vec<f32>,
    counts: &'a mut Vec<u32>,
}

impl<'a> Blocks<'a> {
    /// Passes over the row once.
    pub(super) fn survey(logits: &'a [f32], scratch: &'a mut BlockScratch) -> Self {
        scratch.maxima.clear();
        scratch.maxima.extend(logits.chunks(BLOCK).map(max_of));
        Blocks {
            logits,
            max: max_of(&scratch.maxima),
            maxima: &scratch.maxima,
            temperature: 1.0,
            ranks: &mut scratch.ranks,
            counts: &mut scratch.counts,
        }
    }

    /// The row's length: llama.cpp's number of candidates before anything is cut.
    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    /// Whether no token has a logit above -inf.
    pub(super) fn is_empty(&self) -> bool {
        self.max == f32::NEG_INFINITY
    }

    /// The largest value.
    pub(super) fn max(&self) -> f32 {
        self.value(self.max)
    }

    /// The temperature set so far.
    pub(super) fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Divides every logit by `temperature` (above 0) from now on, instead of a temperature set before.
    pub(super) fn set_temperature(&mut self, temperature: f32) {
        self.temperature = temperature;
    }

    fn value(&self, logit: f32) -> f32 {
        logit / self.temperature
    }

    /// The logits of each block with their token of index 0 and their largest.
    fn iter(&self) -> impl Iterator<Item = (usize, &'a [f32], f32)> + use<'a> {
        self.logits.chunks(BLOCK).zip(self.maxima).enumerate().map(|(i, (block, max))| (i * BLOCK, block, *max))
    }

    /// The token with the largest logit; of several, the lowest.
    pub(super) fn argmax(&self) -> Option<Token> {
        if self.is_empty() {
            return None;
        }
        let (start, block, _) = self.iter().find(|(_, _, max)| *max == self.max)?;
        block.iter().position(|logit| *logit == self.max).map(|offset| (start + offset) as Token)
    }

    /// Adds the tokens whose logit before the temperature is at least `threshold` (or above -inf), by id.
    fn collect(&self, threshold: f32, out: &mut Vec<TokenData>) {
        for (start, block, _) in self.iter().filter(|(_, _, max)| *max >= threshold) {
            for_each_above(block, threshold, |offset, logit| {
                out.push(TokenData { id: (start + offset) as Token, logit: self.value(logit), p: 0.0 });
            });
        }
    }

    /// Every candidate.
    pub(super) fn all(&self, out: &mut Candidates) {
        out.refill(false, |items| self.collect(f32::NEG_INFINITY, items));
        out.set_masked(self.len() - out.len());
    }

    /// The candidates whose value is at least `threshold`.
    pub(super) fn at_least(&self, threshold: f32, out: &mut Candidates) {
        // A little lower before the division, so that its rounding cannot lose one.
        let before = threshold * self.temperature;
        let slack = if self.temperature == 1.0 || before.is_infinite() { 0.0 } else { before.abs() * 1e-6 };
        let before = before - slack;
        out.refill(false, |items| {
            self.collect(before, items);
            items.retain(|item| item.logit >= threshold);
        });
        out.set_masked(0);
    }

    /// The `k` candidates with the largest logits, largest first; of equal logits, the lowest token first.
    ///
    /// The k-th largest of the block maxima is a lower bound for the k-th largest logit, so only blocks that reach
    /// it are searched. Where k is larger than the number of blocks, the bound comes from counting how many logits are in
    /// which range.
    pub(super) fn top(&mut self, k: usize, out: &mut Candidates) {
        self.best(k, out);
        out.sort();
    }

    /// As [`Blocks::top`], in no order: who needs one of many sorts them.
    pub(super) fn best(&mut self, k: usize, out: &mut Candidates) {
        let k = k.max(1);
        self.ranks.clear();
        self.ranks.extend_from_slice(self.maxima);
        let threshold = if k <= self.ranks.len() {
            *self.ranks.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
        } else if k < self.len() {
            self.counted_bound(k)
        } else {
            f32::NEG_INFINITY
        };
        out.refill(false, |items| {
            self.collect(threshold, items);
            if items.len() > k {
                items.select_nth_unstable_by(k - 1, best_first);
                items.truncate(k);
            }
        });
        out.set_masked(k.min(self.len()) - out.len());
    }

    /// A lower bound for the k-th largest logit, not far below it.
    fn counted_bound(&mut self, k: usize) -> f32 {
        self.counts.clear();
        self.counts.resize(N_BINS, 0);
        for logit in self.logits.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
            // Adding 0 turns -0 into 0: they are equal, so they belong in the same bin.
            if let Some(count) = self.counts.get_mut((ordered(*logit + 0.0) >> BIN_SHIFT) as usize) {
                *count += 1;
            }
        }
        let mut above = 0;
        let bin = (0..1_u32 << (32 - BIN_SHIFT)).zip(self.counts.iter()).rev().find(|(_, count)| {
            above += **count as usize;
            above >= k
        });
        bin.map_or(f32::NEG_INFINITY, |(bin, _)| from_ordered(bin << BIN_SHIFT))
    }

    /// Σ exp(value - max).
    pub(super) fn sum_exp(&self) -> f64 {
        self.sum_of_gaps(exp)
    }

    /// The entropy of the softmax in nats.
    pub(super) fn entropy(&self) -> f64 {
        let weighted = self.sum_of_gaps(|gap| {
            let weight = exp(gap);
            if weight > 0.0 { weight * gap } else { 0.0 }
        });
        let sum = self.sum_exp();
        sum.ln() - weighted / sum
    }

    /// Σ term(value - max), where terms of large gaps vanish.
    fn sum_of_gaps(&self, term: impl Fn(f32) -> f32) -> f64 {
        // Finite, because the maximum's gap of 0 must stay 0.
        let (max, scale) = (self.max, (1.0 / self.temperature).min(f32::MAX));
        let near = self.iter().filter(|(_, _, largest)| gap(*largest, max) * scale > NEGLIGIBLE);
        near.map(|(_, block, _)| sum_of(block, |logit| term(gap(logit, max) * scale))).sum()
    }

    /// Mean and standard deviation of the finite values.
    pub(super) fn moments(&self) -> (f64, f64) {
        let scale = 1.0 / f64::from(self.temperature);
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (_, block, _) in self.iter() {
            count += sum_of(block, |logit| if logit.is_finite() { 1.0 } else { 0.0 });
            sum += sum_of(block, |logit| if logit.is_finite() { logit } else { 0.0 });
        }
        if count == 0.0 {
            return (0.0, 0.0);
        }
        let mean = sum / count;
        let center = mean as f32;
        for (_, block, _) in self.iter() {
            squares += sum_of(block, |logit| if logit.is_finite() { (logit - center) * (logit - center) } else { 0.0 });
        }
        (mean * scale, (squares / count).sqrt() * scale)
    }

    /// The argmax of value + G over all candidates: a draw from the softmax of the row.
    ///
    /// A block is searched only when its largest value plus its largest G can win, and of its tokens only those whose
    /// value plus that G can; which gives what looking at all of them would give.
    pub(super) fn draw(&self, noise: &Noise) -> Option<Token> {
        let max = self.max();
        let mut best = Best::new();
        // The most probable token first: it sets a score that few blocks can beat.
        let likely = self.argmax()?;
        best.offer(Best::score(max, max, noise.gumbel(likely)), likely);
        for (start, block, largest) in self.iter().filter(|(_, _, largest)| *largest > f32::NEG_INFINITY) {
            let lead = best.lead_over(self.value(largest), max);
            let Some(shared) = noise.block_above(start / BLOCK, lead) else { continue };
            let needed = best.logit_for(shared.bound(), max);
            // A little lower, because of the rounding of all this.
            let slack = if needed.is_finite() { needed.abs() * 1e-6 + 1e-9 } else { 0.0 };
            let needed = (needed - slack) * f64::from(self.temperature);
            for_each_above(block, needed as f32, |offset, logit| {
                let index = start + offset;
                best.offer(Best::score(self.value(logit), max, noise.gumbel_in(shared, index)), index as Token);
            });
        }
        best.token()
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
