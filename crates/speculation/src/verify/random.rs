//! The random numbers of stochastic verification, and why they are independent.
//!
//! A step drafts tokens after the committed prefix and verifies them. Each of its random numbers has one [`RandomUse`]:
//! drawing the n-th drafted token from q, accepting it, or drawing the token after node n. Each number is a hash of
//!
//! ```text
//! seed, index of the step's first token, n, purpose
//! ```
//!
//! So runs are reproducible, and no number is used twice:
//! - A draw from q, its acceptance and its replacement have different purposes. The proofs of `rejection` and `block`
//!   require x ~ q, u and the replacement to be independent. Reusing the u of the draw for the acceptance would be wrong.
//! - The sampler's noise (`sampling::noise`) has other keys, by position alone. It must not be used to draw from q here;
//!   only `coupled` shares it. XTC uses the sampler's noise, which is harmless: the rules are exact for the p and q of
//!   each outcome.
//! - **The index of the step's first token must be part of the key.** Every step commits at least one token, so no two
//!   steps have the same key. Seed, position and purpose alone are not enough. With `block`, the number of accepted
//!   tokens depends on later drafted tokens, so random numbers of rejected positions are not independent of it and must
//!   not be used again by the next step. With `rejection` they would be independent, unless a controller looks at rejected
//!   tokens. (Enumeration gives total variation errors of .08 and .11.)
//! - A step that is repeated because its decode was interrupted before verification uses the same numbers again. Nothing
//!   has depended on them.

use foredraft_sampling::{stream, uniform};

/// The use of a random number. Drafted tokens are nodes 1, 2, ... in the order drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RandomUse {
    /// Draws the drafted token of that node from q.
    Draft(usize),
    /// Decides whether that node is accepted.
    Accept(usize),
    /// Draws the target's token after that node.
    Next(usize),
}

/// Independent uniform numbers in 0..1, one for each [`RandomUse`]. Callers compare a number with a bound instead of
/// reading it, so a test can enumerate both results with their exact probabilities.
pub trait RandomSource {
    /// Whether the number for `draw` is below `bound`: true with the probability `bound`.
    fn is_below(&mut self, draw: RandomUse, bound: f64) -> bool;

    /// Samples an index with a probability proportional to its weight. `total`: the sum of the weights. `None` if no
    /// weight is above 0.
    fn sample_index(&mut self, draw: RandomUse, weights: impl Iterator<Item = f64>, total: f64) -> Option<usize> {
        let (mut sum, mut last) = (0.0, None);
        for (index, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
            sum += weight;
            last = Some(index);
            if self.is_below(draw, sum / total) {
                break;
            }
        }
        last
    }
}

/// Separates these streams from the sampler's noise. An arbitrary constant.
const DOMAIN: u64 = 0x6472_6166_7465_642e;

/// The random numbers of one step.
#[derive(Debug, Clone)]
pub struct StepRandom {
    key: u64,
    /// The number used last: sampling from a long distribution compares one number many times.
    last: Option<(RandomUse, f64)>,
}

impl StepRandom {
    /// `seed`: the request's seed. `start`: the index of the step's first token among the generated tokens.
    pub fn new(seed: u32, start: usize) -> StepRandom {
        StepRandom { key: stream(seed, DOMAIN, start), last: None }
    }

    fn unit(&self, draw: RandomUse) -> f64 {
        let (node, purpose) = match draw {
            RandomUse::Draft(node) => (node, 0),
            RandomUse::Accept(node) => (node, 1),
            RandomUse::Next(node) => (node, 2),
        };
        uniform(self.key, 3 * node as u64 + purpose)
    }
}

impl RandomSource for StepRandom {
    fn is_below(&mut self, draw: RandomUse, bound: f64) -> bool {
        let unit = match self.last {
            Some((last, unit)) if last == draw => unit,
            _ => self.unit(draw),
        };
        self.last = Some((draw, unit));
        unit < bound
    }
}
