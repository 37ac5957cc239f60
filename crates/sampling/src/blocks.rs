//! Queries on a whole row of logits, answered with the help of each block's largest logit.
//!
//! One pass over the row finds those maxima. After that, the argmax, the k largest, all logits above a threshold and the
//! result of a draw are found in the few blocks that can contain them. Tokens with a logit of NaN or -inf are not
//! candidates.

use super::candidates::{Candidates, best_first};
use super::math::{exp, gap};
use super::noise::{BLOCK, GumbelNoise, NoisyArgmax};
use foredraft_base::{Token, TokenData};

/// Values compared at once: a multiple of every CPU's vector width.
const LANES: usize = 16;

/// Sums over the row skip blocks whose logits are all this far below the maximum. Skipped blocks together contribute
/// less than one part in 10^10.
const NEGLIGIBLE: f32 = -36.0;

/// Bins of the histogram over the range of floats: eight per power of two.
const N_BINS: usize = 1 << (32 - BIN_SHIFT);
/// Low bits of a float that are dropped to get its bin.
const BIN_SHIFT: u32 = 20;

/// Maps a float to an integer with the same order. -0 comes right before 0.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The inverse of [`ordered`].
fn from_ordered(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// The largest of `values`; -inf if there is none. Ignores NaN.
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

/// Calls `found(index, value)` in order for the values that are at least `threshold` and above -inf. Skips the others
/// [`LANES`] at a time.
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

/// Sum of `term(value)` over one block, in `f32` lanes.
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

/// Scratch buffers of [`BlockMaxima`].
#[derive(Debug, Default)]
pub(super) struct BlockScratch {
    maxima: Vec<f32>,
    ranks: Vec<f32>,
    counts: Vec<u32>,
}

impl BlockScratch {
    /// Buffers for rows of `n_vocab` logits.
    pub(super) fn new(n_vocab: usize) -> Self {
        let n_blocks = n_vocab.div_ceil(BLOCK);
        BlockScratch {
            maxima: Vec::with_capacity(n_blocks),
            ranks: Vec::with_capacity(n_blocks),
            counts: Vec::with_capacity(N_BINS),
        }
    }
}

/// A row of logits with the largest logit of each block. The values of the row are its logits divided by a temperature.
#[derive(Debug)]
pub(super) struct BlockMaxima<'a> {
    logits: &'a [f32],
    /// Maxima of the logits before the division by the temperature.
    maxima: &'a [f32],
    max: f32,
    temperature: f32,
    ranks: &'a mut Vec<f32>,
    counts: &'a mut Vec<u32>,
}

impl<'a> BlockMaxima<'a> {
    /// Scans the row once.
    pub(super) fn scan(logits: &'a [f32], scratch: &'a mut BlockScratch) -> Self {
        scratch.maxima.clear();
        scratch.maxima.extend(logits.chunks(BLOCK).map(max_of));
        BlockMaxima {
            logits,
            max: max_of(&scratch.maxima),
            maxima: &scratch.maxima,
            temperature: 1.0,
            ranks: &mut scratch.ranks,
            counts: &mut scratch.counts,
        }
    }

    /// The row's length: llama.cpp's number of candidates before any truncation.
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

    /// Divides every logit by `temperature` (above 0) from now on. Replaces a temperature set earlier.
    pub(super) fn set_temperature(&mut self, temperature: f32) {
        self.temperature = temperature;
    }

    fn value(&self, logit: f32) -> f32 {
        logit / self.temperature
    }

    /// For each block: its first token, its logits and its largest logit.
    fn iter(&self) -> impl Iterator<Item = (usize, &'a [f32], f32)> + use<'a> {
        self.logits.chunks(BLOCK).zip(self.maxima).enumerate().map(|(i, (block, max))| (i * BLOCK, block, *max))
    }

    /// The token with the largest logit; the lowest token id among equals.
    pub(super) fn argmax(&self) -> Option<Token> {
        if self.is_empty() {
            return None;
        }
        let (start, block, _) = self.iter().find(|(_, _, max)| *max == self.max)?;
        block.iter().position(|logit| *logit == self.max).map(|offset| (start + offset) as Token)
    }

    /// Appends, in order of token id, the tokens whose logit before the temperature is at least `threshold` and above
    /// -inf.
    fn collect(&self, threshold: f32, out: &mut Vec<TokenData>) {
        for (start, block, _) in self.iter().filter(|(_, _, max)| *max >= threshold) {
            for_each_above(block, threshold, |offset, logit| {
                out.push(TokenData { id: (start + offset) as Token, logit: self.value(logit), p: 0.0 });
            });
        }
    }

    /// Lists every candidate.
    pub(super) fn list_all(&self, out: &mut Candidates) {
        out.refill(false, |items| self.collect(f32::NEG_INFINITY, items));
        out.set_masked(self.len() - out.len());
    }

    /// Lists the candidates whose value is at least `threshold`.
    pub(super) fn at_least(&self, threshold: f32, out: &mut Candidates) {
        // A slightly lower threshold before the division, so that rounding cannot drop a candidate.
        let before = threshold * self.temperature;
        let slack = if self.temperature == 1.0 || before.is_infinite() { 0.0 } else { before.abs() * 1e-6 };
        let before = before - slack;
        out.refill(false, |items| {
            self.collect(before, items);
            items.retain(|item| item.logit >= threshold);
        });
        out.set_masked(0);
    }

    /// Lists the `k` candidates with the largest logits, largest first; equal logits by token id.
    ///
    /// The k-th largest block maximum is a lower bound for the k-th largest logit, so only blocks that reach it are
    /// searched. If k is larger than the number of blocks, the bound comes from a histogram of the logits.
    pub(super) fn top_k(&mut self, k: usize, out: &mut Candidates) {
        self.top_k_unsorted(k, out);
        out.sort();
    }

    /// As [`BlockMaxima::top_k`], but the candidates are not sorted.
    pub(super) fn top_k_unsorted(&mut self, k: usize, out: &mut Candidates) {
        let k = k.max(1);
        self.ranks.clear();
        self.ranks.extend_from_slice(self.maxima);
        let threshold = if k <= self.ranks.len() {
            *self.ranks.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
        } else if k < self.len() {
            self.histogram_bound(k)
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

    /// A close lower bound for the k-th largest logit, from a histogram.
    fn histogram_bound(&mut self, k: usize) -> f32 {
        self.counts.clear();
        self.counts.resize(N_BINS, 0);
        for logit in self.logits.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
            // Adding 0 turns -0 into 0. They are equal, so they belong in the same bin.
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

    /// Σ term(value - max) for a `term` that vanishes for large gaps.
    fn sum_of_gaps(&self, term: impl Fn(f32) -> f32) -> f64 {
        // The scale must be finite so that the maximum's gap of 0 stays 0.
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
    /// Searches a block only if its largest value plus its largest G can win, and in a block only the tokens whose value
    /// plus that G can win. The result is the same as that of a search over all tokens.
    pub(super) fn draw(&self, noise: &GumbelNoise) -> Option<Token> {
        let max = self.max();
        let mut best = NoisyArgmax::new();
        // Start with the most probable token: few blocks can beat its score.
        let likely = self.argmax()?;
        best.offer(NoisyArgmax::score(max, max, noise.gumbel(likely)), likely);
        for (start, block, largest) in self.iter().filter(|(_, _, largest)| *largest > f32::NEG_INFINITY) {
            let lead = best.lead_over(self.value(largest), max);
            let Some(shared) = noise.block_above(start / BLOCK, lead) else { continue };
            let needed = best.logit_for(shared.bound(), max);
            // Slightly lower, to allow for rounding.
            let slack = if needed.is_finite() { needed.abs() * 1e-6 + 1e-9 } else { 0.0 };
            let needed = (needed - slack) * f64::from(self.temperature);
            for_each_above(block, needed as f32, |offset, logit| {
                let index = start + offset;
                best.offer(NoisyArgmax::score(self.value(logit), max, noise.gumbel_in(shared, index)), index as Token);
            });
        }
        best.token()
    }
}

#[cfg(test)]
mod tests;
