//! The truncating stages: they remove improbable tokens (XTC: all but the least probable of the top choices).
//!
//! Each is llama.cpp's sampler of the same name, over a list of candidates. Those that often come first also have a form
//! over the whole row, which lists only the tokens it keeps. Every stage keeps at least `min_keep` candidates, and at
//! least one.

use super::blocks::BlockMaxima;
use super::candidates::{Candidates, best_first};
use super::math::{exp, gap};
use super::noise::GumbelNoise;
use foredraft_base::TokenData;

/// Number of a row's most probable tokens that are listed at first, before it is known how many a stage needs.
const INITIAL_K: usize = 64;

/// `top_p` (nucleus sampling, arXiv 1904.09751) over a list: keeps the fewest most probable whose sum reaches `p`.
pub(super) fn top_p(list: &mut Candidates, p: f32, min_keep: usize) {
    list.softmax();
    let mut sum = 0.0;
    list.keep_prefix(true, min_keep, best_first, |item| {
        sum += f64::from(item.p);
        sum >= f64::from(p)
    });
}

/// `top_p` over a row: lists the most probable tokens, and more of them while they do not reach `p`.
pub(super) fn top_p_row(blocks: &mut BlockMaxima<'_>, list: &mut Candidates, p: f32, min_keep: usize) {
    let (total, max) = (blocks.sum_exp(), blocks.max());
    let mut k = INITIAL_K.max(min_keep);
    loop {
        blocks.top_k(k, list);
        let mut sum = 0.0;
        let enough = list.items().iter().zip(1..).find_map(|(item, count)| {
            sum += f64::from(exp(gap(item.logit, max))) / total;
            (sum >= f64::from(p) && count >= min_keep).then_some(count)
        });
        match enough {
            Some(count) => return list.truncate(count),
            None if list.len() < k => return,
            None => k = k.saturating_mul(8),
        }
    }
}

/// `min_p` over a list: keeps tokens at least `p` times as probable as the most probable one.
pub(super) fn min_p(list: &mut Candidates, p: f32, min_keep: usize) {
    let threshold = list.max() + p.ln();
    let count = list.items().iter().filter(|item| item.logit >= threshold).count();
    if count >= min_keep.max(1) {
        list.retain(|item| item.logit >= threshold);
    } else {
        list.keep_best(min_keep);
    }
}

/// `min_p` over a row.
pub(super) fn min_p_row(blocks: &mut BlockMaxima<'_>, list: &mut Candidates, p: f32, min_keep: usize) {
    blocks.at_least(blocks.max() + p.ln(), list);
    if list.len() < min_keep.max(1) {
        blocks.top_k(min_keep, list);
    }
}

/// `top_n_sigma` (arXiv 2411.07641) over a list: keeps tokens within n standard deviations of the largest logit.
pub(super) fn top_n_sigma(list: &mut Candidates, n: f32) {
    if list.size() <= 1 {
        return;
    }
    let finite = || list.items().iter().map(|item| f64::from(item.logit)).filter(|logit| logit.is_finite());
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    let deviation = (finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count).sqrt();
    let threshold = sigma_threshold(list.max(), n, deviation);
    list.edit_logits(true, |items| {
        for item in items.iter_mut().filter(|item| item.logit < threshold) {
            item.logit = f32::NEG_INFINITY;
        }
    });
}

/// `top_n_sigma` over a row.
pub(super) fn top_n_sigma_row(blocks: &BlockMaxima<'_>, list: &mut Candidates, n: f32) {
    let (_, deviation) = blocks.moments();
    blocks.at_least(sigma_threshold(blocks.max(), n, deviation), list);
    list.set_masked(blocks.len() - list.len());
}

/// The smallest logit that `top_n_sigma` keeps: never above the maximum, even after an overflow.
fn sigma_threshold(max: f32, n: f32, deviation: f64) -> f32 {
    let threshold = (f64::from(max) - f64::from(n) * deviation) as f32;
    if threshold <= max { threshold } else { max }
}

/// `typ_p` (locally typical sampling, arXiv 2202.00666) over a list: keeps the fewest whose surprise is closest to
/// the entropy and whose sum exceeds `p`.
pub(super) fn typical_p(list: &mut Candidates, p: f32, min_keep: usize) {
    let typical = Typical { max: list.max(), log_sum: list.softmax(), entropy: list.entropy() };
    typical.keep(list, p, min_keep);
}

/// `typ_p` over a row: lists the most probable tokens until all others are farther from the entropy than those kept.
pub(super) fn typical_p_row(blocks: &mut BlockMaxima<'_>, list: &mut Candidates, p: f32, min_keep: usize) {
    let typical = Typical { max: blocks.max(), log_sum: blocks.sum_exp().ln(), entropy: blocks.entropy() };
    let mut k = INITIAL_K;
    loop {
        blocks.top_k(k, list);
        let all = list.len() < k;
        let horizon = list.items().last().map_or(0.0, |last| typical.surprise(last.logit) - typical.entropy);
        let near = list.items().iter().filter(|item| f64::from(typical.distance(item.logit)) < horizon);
        let (count, sum) = near.fold((0, 0.0), |(count, sum), item| (count + 1, sum + typical.probability(item.logit)));
        if all || (count >= min_keep && sum > f64::from(p)) {
            return typical.keep(list, p, min_keep);
        }
        k = k.saturating_mul(8);
    }
}

/// The quantities that determine how typical a logit is.
struct Typical {
    max: f32,
    /// ln Σ exp(logit - max).
    log_sum: f64,
    entropy: f64,
}

impl Typical {
    fn surprise(&self, logit: f32) -> f64 {
        self.log_sum - f64::from(gap(logit, self.max))
    }

    fn distance(&self, logit: f32) -> f32 {
        (self.surprise(logit) - self.entropy).abs() as f32
    }

    fn probability(&self, logit: f32) -> f64 {
        f64::from(exp(-self.surprise(logit) as f32))
    }

    fn keep(&self, list: &mut Candidates, p: f32, min_keep: usize) {
        list.set_p(|logit| self.distance(logit));
        let nearest_first = |a: &TokenData, b: &TokenData| a.p.total_cmp(&b.p).then_with(|| best_first(a, b));
        let mut sum = 0.0;
        list.keep_prefix(false, min_keep, nearest_first, |item| {
            sum += self.probability(item.logit);
            sum > f64::from(p)
        });
    }
}

/// `tfs_z` (tail free sampling, Bricken 2019, as llama.cpp had it until 2024) over a list: truncates where the curve
/// of the sorted probabilities has flattened, that is, where its second differences sum to more than `z` of their total.
pub(super) fn tail_free(list: &mut Candidates, z: f32, min_keep: usize) {
    if list.size() <= 2 {
        return;
    }
    list.sort();
    list.softmax();
    let total = bends(list, min_keep).sum::<f64>();
    let count = bends(list, min_keep).count() as f64;
    let mut sum = 0.0;
    let cut = bends(list, min_keep).enumerate().find_map(|(index, bend)| {
        sum += if total > 1e-6 { bend / total } else { 1.0 / count };
        (sum > f64::from(z) && index >= min_keep).then_some(index)
    });
    if let Some(cut) = cut {
        list.truncate(cut.max(1));
    }
}

/// `tfs_z` over a row: lists the most probable tokens until the rest of the curve is too low to matter.
pub(super) fn tail_free_row(blocks: &mut BlockMaxima<'_>, list: &mut Candidates, z: f32, min_keep: usize) {
    let mut k = INITIAL_K.max(min_keep.saturating_mul(2));
    loop {
        blocks.top_k(k, list);
        list.softmax();
        // The differences of a falling curve sum to its height, the second differences to at most twice that.
        let rest = list.items().last().map_or(0.0, |last| 2.0 * f64::from(last.p));
        if list.len() < k || rest <= bends(list, min_keep).sum::<f64>() * 1e-7 {
            return tail_free(list, z, min_keep);
        }
        k = k.saturating_mul(8);
    }
}

/// The absolute second differences of the sorted probabilities. llama.cpp's list ends with the masked candidates, of
/// probability 0; as many of them as can matter are appended.
fn bends(list: &Candidates, min_keep: usize) -> impl Iterator<Item = f64> {
    let masked = (list.size() - list.len()).min(min_keep.saturating_add(2));
    let curve = list.items().iter().map(|item| f64::from(item.p)).chain(std::iter::repeat_n(0.0, masked));
    let (first, second, third) = (curve.clone(), curve.clone().skip(1), curve.skip(2));
    first.zip(second).zip(third).map(|((a, b), c)| ((a - b) - (b - c)).abs())
}

/// Whether `xtc` applies at this position.
pub(super) fn xtc_applies(probability: f32, noise: &GumbelNoise) -> bool {
    noise.stage_uniform() <= f64::from(probability)
}

/// `xtc` (exclude top choices) at a position where it applies: removes all but the least probable of the tokens of at
/// least `threshold`.
pub(super) fn xtc(list: &mut Candidates, threshold: f32, min_keep: usize) {
    if list.size() < 2 {
        return;
    }
    list.softmax();
    let top = || list.items().iter().filter(|item| item.p >= threshold);
    let excluded = top().count().saturating_sub(1);
    let Some(last) = top().copied().max_by(best_first) else { return };
    if excluded > 0 && list.size() - excluded >= min_keep {
        let masked = list.size() - list.len();
        list.retain(|item| item.p < threshold || item.id == last.id);
        list.set_masked(masked);
    }
}

#[cfg(test)]
mod tests;
