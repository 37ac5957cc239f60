//! The random numbers of the rules that need them: which there are, and why they are independent.
//!
//! A step drafts some tokens behind a text and verifies them. Each of its random numbers belongs to a [`Draw`]: drawing
//! the drafted token n from q, accepting it, drawing the token that follows node n. Each is a hash of
//!
//! ```text
//! seed, number of the step's first token, n, purpose
//! ```
//!
//! so that a run can be repeated, and no number is ever used for two things:
//! - A draw from q, its acceptance and the replacement have purposes of their own: the proofs of `rejection` and
//!   `block` take x ~ q, u and the replacement as independent. An acceptance that used the u of the draw would be
//!   wrong.
//! - The sampler's noise (`sampling::noise`) has other keys, by position alone, so it must not draw from q here
//!   (`coupled` wants just that, and needs no independence). XTC's chance comes from it, harmlessly: for each outcome
//!   of that the rules are exact for the p and q that follow from it.
//! - Every step emits at least one token, so two steps never begin at the same place. **The step's beginning must be in
//!   the key**; seed, position and purpose alone are not enough. With `block`, that only few tokens were accepted tells
//!   something about the tokens drafted behind them, so numbers used there are no longer fresh when the next step comes
//!   to the same positions. With `rejection` it tells nothing, but a controller that learns from what was drafted does.
//!   (Measured by enumeration: total variations of .08 and .11.)
//! - A step that is begun again, because its evaluation was interrupted before anything was verified, gets the same
//!   numbers again. Nothing has depended on them yet.

use crate::sampling::{stream, uniform};

/// What a random number is for. Node 0 is the text; the drafted tokens are nodes 1, 2, ... in the order drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Draw {
    /// Drawing the drafted token of that node from q.
    Draft(usize),
    /// Whether that node is accepted.
    Accept(usize),
    /// Drawing the token that the target puts behind that node.
    Next(usize),
}

/// Numbers uniform in 0..1, one for each [`Draw`], independent of each other. They are not handed out: one asks how
/// they compare, so that a test can go through all answers and weigh each by its exact probability.
pub trait Chance {
    /// Whether the number of `draw` is below `bound`: true with the probability `bound`.
    fn is_below(&mut self, draw: Draw, bound: f64) -> bool;

    /// The index of one of `weights`, each with a probability in proportion to it. `total`: their sum. `None` when none
    /// is above 0.
    fn choose(&mut self, draw: Draw, weights: impl Iterator<Item = f64>, total: f64) -> Option<usize> {
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

/// Tells the keys of this file from the sampler's. Any number would do.
const DOMAIN: u64 = 0x6472_6166_7465_642e;

/// The numbers of one step.
#[derive(Debug, Clone)]
pub struct StepChance {
    key: u64,
    /// The number last asked for: drawing from a long row asks about one many times.
    last: Option<(Draw, f64)>,
}

impl StepChance {
    /// `seed`: the request's. `start`: the number of the first token drafted, counted from the first one generated.
    pub fn new(seed: u32, start: usize) -> StepChance {
        StepChance { key: stream(seed, DOMAIN, start), last: None }
    }

    fn unit(&self, draw: Draw) -> f64 {
        let (node, purpose) = match draw {
            Draw::Draft(node) => (node, 0),
            Draw::Accept(node) => (node, 1),
            Draw::Next(node) => (node, 2),
        };
        uniform(self.key, 3 * node as u64 + purpose)
    }
}

impl Chance for StepChance {
    fn is_below(&mut self, draw: Draw, bound: f64) -> bool {
        let unit = match self.last {
            Some((last, unit)) if last == draw => unit,
            _ => self.unit(draw),
        };
        self.last = Some((draw, unit));
        unit < bound
    }
}
