//! A counter-based random number generator, and sampling with the Gumbel-max trick.
//!
//! A token is drawn from p as the argmax of ln p(x) + G(x), where every token has its own Gumbel variable G(x). G is a
//! pure function of (seed, position, token); the position is the RNG counter. So the output depends only on the seed and
//! the model's distributions: speculation cannot change it, and a draft model that uses the same noise agrees with the
//! target as often as their distributions allow (arXiv 2408.07978).
//!
//! G = -ln E with E exponentially distributed. E is constructed so that one hash gives the smallest E of a whole block
//! of tokens. In a block of [`BLOCK`] tokens the smallest E is itself exponential with rate [`BLOCK`], its index is
//! uniform, and since exponentials are memoryless every other token's E is that smallest one plus a fresh exponential:
//!
//! ```text
//! m(block) = -ln u(block) / BLOCK          at token index j(block), uniform in 0..BLOCK
//! E(x)     = m(block of x)                 where x is that token
//!          = m(block of x) - ln u(x)       elsewhere
//! ```
//!
//! So all E are exactly independent and of rate 1, and ln p(x) - ln m(block) bounds the score of every token of a
//! block. Drawing from a whole vocabulary therefore costs little more than finding its largest logit; hashing each of
//! 128 thousand tokens would cost several times the pass over the logits.
//!
//! u comes from SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) used as a
//! counter-based generator: the finalizer of a key plus a multiple of the golden ratio. The key is a hash of seed and
//! position; blocks and tokens have different keys. The top 52 bits give u, so G lies between -3.6 and 42. A block's j
//! is in the low bits, which u does not use.

use super::math::{exp, gap};
use foredraft_base::Token;

/// Tokens per block. Part of the generator's definition: another value changes the output of every seed.
pub(super) const BLOCK: usize = 256;

/// SplitMix64's increment: the fractional part of the golden ratio in 64 bits.
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

/// The key of the random number stream for `position` in a completion with that seed. Every use of randomness has its
/// own `domain`; 0 is the Gumbel noise.
pub fn stream(seed: u32, domain: u64, position: usize) -> u64 {
    mix(hash(domain, u64::from(seed)) ^ position as u64)
}

/// The `counter`-th number of a stream, strictly between 0 and 1.
pub fn uniform(stream: u64, counter: u64) -> f64 {
    unit(hash(stream, counter))
}

/// The Gumbel noise of all tokens at one position.
#[derive(Debug, Clone, Copy)]
pub(super) struct GumbelNoise {
    tokens: u64,
    blocks: u64,
    stages: u64,
}

/// The noise that the tokens of a block share.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockNoise {
    /// The smallest E in the block.
    min_exponential: f64,
    /// The index within the block of the token that has it.
    index: usize,
}

impl BlockNoise {
    /// `unit` is the u of `hash`.
    fn new(hash: u64, unit: f64) -> Self {
        BlockNoise { min_exponential: -unit.ln() / BLOCK as f64, index: hash as usize % BLOCK }
    }

    /// The largest G in the block.
    pub(super) fn bound(self) -> f64 {
        -self.min_exponential.ln()
    }
}

impl GumbelNoise {
    /// The noise for the `position`-th generated token of a completion with that seed.
    pub(super) fn new(seed: u32, position: usize) -> Self {
        let base = stream(seed, 0, position);
        GumbelNoise { tokens: hash(base, 0), blocks: hash(base, 1), stages: hash(base, 2) }
    }

    /// The noise of the tokens from `block * BLOCK` on; `None` if none of them has a G above `lead`. May return a block
    /// whose largest G is slightly below `lead`.
    ///
    /// Ruling a block out takes one hash and no logarithm, because E >= (1 - u) / BLOCK.
    pub(super) fn block_above(&self, block: usize, lead: f64) -> Option<BlockNoise> {
        let hash = hash(self.blocks, block as u64);
        let unit = unit(hash);
        // G > lead means E < exp(-lead). The factor covers rounding errors.
        let least = if lead > 0.0 { f64::from(exp(-lead as f32)) * 1.000_01 } else { f64::INFINITY };
        ((1.0 - unit) / (BLOCK as f64) < least).then(|| BlockNoise::new(hash, unit))
    }

    /// G of the token `index`, which lies in `block`.
    pub(super) fn gumbel_in(&self, block: BlockNoise, index: usize) -> f64 {
        if index % BLOCK == block.index {
            block.bound()
        } else {
            -(block.min_exponential - unit(hash(self.tokens, index as u64)).ln()).ln()
        }
    }

    /// G of `token`, which is not negative.
    pub(super) fn gumbel(&self, token: Token) -> f64 {
        let index = token as usize;
        let hash = hash(self.blocks, (index / BLOCK) as u64);
        self.gumbel_in(BlockNoise::new(hash, unit(hash)), index)
    }

    /// A uniform number strictly between 0 and 1 for a stage that applies with some probability. Independent of all G.
    pub(super) fn stage_uniform(&self) -> f64 {
        unit(hash(self.stages, 0))
    }
}

/// The argmax of logit + G so far. Equal scores go to the lowest token.
#[derive(Debug, Clone, Copy)]
pub(super) struct NoisyArgmax {
    score: f64,
    token: Option<Token>,
}

impl NoisyArgmax {
    pub(super) fn new() -> Self {
        NoisyArgmax { score: f64::NEG_INFINITY, token: None }
    }

    /// The score of a token with that logit and G; `max` is the largest logit of the distribution.
    pub(super) fn score(logit: f32, max: f32, gumbel: f64) -> f64 {
        f64::from(gap(logit, max)) + gumbel
    }

    /// The G that a token with that logit needs to win.
    pub(super) fn lead_over(&self, logit: f32, max: f32) -> f64 {
        self.score - f64::from(gap(logit, max))
    }

    /// The smallest logit with which a token with that G wins.
    pub(super) fn logit_for(&self, gumbel: f64, max: f32) -> f64 {
        f64::from(max) + self.score - gumbel
    }

    /// Considers a token with the score `score`.
    pub(super) fn offer(&mut self, score: f64, token: Token) {
        let wins = score > self.score || (score == self.score && self.token.is_some_and(|best| token < best));
        if wins {
            *self = NoisyArgmax { score, token: Some(token) };
        }
    }

    /// The token with the largest score; `None` if no score was above -inf.
    pub(super) fn token(&self) -> Option<Token> {
        self.token
    }
}

#[cfg(test)]
mod tests;
