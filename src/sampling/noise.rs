//! Randomness as a pure function of (seed, position, token), and the choice that is made with it.
//!
//! A token is drawn from p as the argmax of ln p(x) + G(x), with a Gumbel variable G(x) of its own for each token
//! (the Gumbel-max trick). Because G depends on nothing but seed, position and token, the text depends on nothing
//! but the seed and the model's distributions: speculation cannot change it, and a draft that uses the same noise
//! agrees with its target as often as their distributions let it (arXiv 2408.07978).
//!
//! G = -ln E with E exponentially distributed, and E is made so that the smallest E of a whole block of tokens is
//! known from one hash. In a block of [`BLOCK`] tokens the smallest E is itself exponential with rate [`BLOCK`], it
//! sits at each of the tokens with the same chance, and since exponentials have no memory every other token's E is
//! that smallest one plus a fresh exponential:
//!
//! ```text
//! m(block) = -ln u(block) / BLOCK          at token index j(block), uniform in 0..BLOCK
//! E(x)     = m(block of x)                 where x is that token
//!          = m(block of x) - ln u(x)       elsewhere
//! ```
//!
//! So all E are independent and of rate 1, exactly, and ln p(x) - ln m(block) bounds what any token of a block can
//! reach. That is why drawing from a whole vocabulary costs little more than finding its largest logit: hashing each
//! of 128 thousand tokens would cost several times the pass over the logits.
//!
//! u comes from SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) used as a
//! counter-based generator: the finalizer of a key plus a multiple of the golden ratio. Position and seed make the
//! key, one for blocks and one for tokens. The top 52 bits give u, so G lies between -3.6 and 42; a block's j is
//! in the low bits, which u does not use.

use super::math::{exp, gap};
use crate::llama::Token;

/// Tokens that share a bound on their noise. Part of the definition: another value gives other texts.
pub(super) const BLOCK: usize = 256;

/// The golden ratio's fraction in 64 bits: SplitMix64's increment.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer, a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `counter`-th output of the generator whose state starts at `key`.
fn hash(key: u64, counter: u64) -> u64 {
    mix(key.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// The top 52 bits as a number strictly between 0 and 1.
fn unit(hash: u64) -> f64 {
    const STEP: f64 = 1.0 / (1_u64 << 52) as f64;
    ((hash >> 12) as f64 + 0.5) * STEP
}

/// The key of a stream of numbers: of the place `position` in a text with that seed. Each use of chance has a `domain` of
/// its own; 0 is the noise of the draws.
pub(crate) fn stream(seed: u32, domain: u64, position: usize) -> u64 {
    mix(hash(domain, u64::from(seed)) ^ position as u64)
}

/// The `counter`-th number of a stream, strictly between 0 and 1.
pub(crate) fn uniform(stream: u64, counter: u64) -> f64 {
    unit(hash(stream, counter))
}

/// The noise of one position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noise {
    tokens: u64,
    blocks: u64,
    stages: u64,
}

/// The noise that a block's tokens have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockNoise {
    /// The smallest E in the block.
    least: f64,
    /// Which of its tokens has it.
    index: usize,
}

impl BlockNoise {
    /// From the block's hash and its u.
    fn new(hash: u64, unit: f64) -> Self {
        BlockNoise { least: -unit.ln() / BLOCK as f64, index: hash as usize % BLOCK }
    }

    /// The largest G in the block.
    pub(super) fn bound(self) -> f64 {
        -self.least.ln()
    }
}

impl Noise {
    /// The noise of the `position`-th generated token of a text with that seed.
    pub(super) fn new(seed: u32, position: usize) -> Self {
        let base = stream(seed, 0, position);
        Noise { tokens: hash(base, 0), blocks: hash(base, 1), stages: hash(base, 2) }
    }

    /// The noise of the tokens from `block * BLOCK` on, if one of them has a G above `lead`, or nearly. Where none has,
    /// a hash tells it without a logarithm, because E >= (1 - u) / BLOCK.
    pub(super) fn block_above(&self, block: usize, lead: f64) -> Option<BlockNoise> {
        let hash = hash(self.blocks, block as u64);
        let unit = unit(hash);
        // G > lead means E < exp(-lead). The factor covers all rounding.
        let least = if lead > 0.0 { f64::from(exp(-lead as f32)) * 1.000_01 } else { f64::INFINITY };
        ((1.0 - unit) / (BLOCK as f64) < least).then(|| BlockNoise::new(hash, unit))
    }

    /// G of the token `index`, whose block's noise is `block`.
    pub(super) fn gumbel_in(&self, block: BlockNoise, index: usize) -> f64 {
        if index % BLOCK == block.index {
            block.bound()
        } else {
            -(block.least - unit(hash(self.tokens, index as u64)).ln()).ln()
        }
    }

    /// G of `token`, which is not negative.
    pub(super) fn gumbel(&self, token: Token) -> f64 {
        let index = token as usize;
        let hash = hash(self.blocks, (index / BLOCK) as u64);
        self.gumbel_in(BlockNoise::new(hash, unit(hash)), index)
    }

    /// A number strictly between 0 and 1 for a stage that decides by chance, independent of all G.
    pub(super) fn chance(&self) -> f64 {
        unit(hash(self.stages, 0))
    }
}

/// The argmax of logit + G so far. Equal scores go to the lowest token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    score: f64,
    token: Option<Token>,
}

impl Best {
    pub(super) fn new() -> Self {
        Best { score: f64::NEG_INFINITY, token: None }
    }

    /// What a token of that logit scores with that G; `max` is the largest logit of all.
    pub(super) fn score(logit: f32, max: f32, gumbel: f64) -> f64 {
        f64::from(gap(logit, max)) + gumbel
    }

    /// What G a token of that logit needs to win.
    pub(super) fn lead_over(&self, logit: f32, max: f32) -> f64 {
        self.score - f64::from(gap(logit, max))
    }

    /// The least logit of a token that wins with that G.
    pub(super) fn logit_for(&self, gumbel: f64, max: f32) -> f64 {
        f64::from(max) + self.score - gumbel
    }

    /// Offers a token that scored `score`.
    pub(super) fn offer(&mut self, score: f64, token: Token) {
        let wins = score > self.score || (score == self.score && self.token.is_some_and(|best| token < best));
        if wins {
            *self = Best { score, token: Some(token) };
        }
    }

    /// The winner; `None` when nothing above -inf was offered.
    pub(super) fn token(&self) -> Option<Token> {
        self.token
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
