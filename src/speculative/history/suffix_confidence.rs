//! How likely what `suffix` proposes is, learnt from what became of earlier proposals of the same kind in the request.
//!
//! Counts alone mislead: a token that followed a context once is nearly sure in a copied text and worthless in a random
//! one. So each proposal belongs to a kind (by what it is based on), each kind has a bin of how often it was right
//! lately, and a formula of counts and lengths is what it starts from (the secondary estimation of PPM and PAQ
//! compressors).

use super::suffix_tree::{Continuations, LENGTHS};

/// Which text a proposal is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The request's own.
    Own,
    /// An earlier answer.
    Earlier,
}

/// A place that is being copied, and what the longest context in the tree says about it.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    /// Tokens that were the same.
    pub length: usize,
    /// What is left of the length of matches before wrong tokens.
    pub before: usize,
    /// Wrong tokens lately.
    pub misses: u32,
    /// How often the context was seen.
    pub total: u8,
    /// How often with the token that is next at the place.
    pub agreeing: u8,
}

/// A number for a proposal's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(usize);

const SHARES: usize = 6;
const CONTEXTS: usize = LENGTHS.len() * SHARES;
const LENGTH_CLASSES: usize = 8;
const AGREEMENTS: usize = 4;
const MISSES: usize = 3;
const COPIES: usize = LENGTH_CLASSES * AGREEMENTS * MISSES;
const KINDS: usize = 2 * (CONTEXTS + COPIES);

/// Other answers say less about a text than the text itself.
const EARLIER: f32 = 0.9;
/// The formula counts as many proposals as this.
const PRIOR: f32 = 3.0;
/// When a bin has seen so many, the older ones count half.
const FULL: f32 = 60.0;

/// What became of proposals, by kind. 2 KiB.
#[derive(Debug)]
pub struct Bins {
    bins: Vec<Bin>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    right: f32,
    seen: f32,
}

impl Default for Bins {
    fn default() -> Self {
        Bins { bins: vec![Bin::default(); KINDS] }
    }
}

impl Bins {
    /// The most frequent token behind a context.
    ///
    /// At first its share, as if the context had been seen a little more often with other tokens; the more, the shorter
    /// it is.
    pub fn context(&self, origin: Origin, context: &Continuations) -> (Kind, f32) {
        let (best, total) = (context.best.1, context.total);
        let share = match (best, total) {
            (1, 1) => 0,
            (2, 2) => 1,
            _ if best == total => 2,
            _ if u16::from(best) * 4 >= u16::from(total) * 3 => 3,
            _ if u16::from(best) * 2 > u16::from(total) => 4,
            _ => 5,
        };
        let length = LENGTHS.iter().position(|length| *length >= context.length).unwrap_or(0);
        let kind = length * SHARES + share;
        let formula = f32::from(best) / (f32::from(total) + 0.5 + 4.0 / small(context.length));
        self.estimate(origin, kind, formula)
    }

    /// The token at a copied place.
    ///
    /// At first the likelier, the longer the match and the fewer tokens were wrong lately; what the context says counts
    /// as well, and the place as much more as the match is longer.
    pub fn copied(&self, origin: Origin, copied: &Copied) -> (Kind, f32) {
        let length = small(copied.length);
        let misses = usize::try_from(copied.misses).unwrap_or(usize::MAX);
        let (agreeing, total) = (f32::from(copied.agreeing), f32::from(copied.total));
        let agreement = match (copied.agreeing, copied.total) {
            (_, 0..=1) => 0,
            (agreeing, total) if agreeing == total => 1,
            (agreeing, total) if u16::from(agreeing) * 2 > u16::from(total) => 2,
            _ => 3,
        };
        let bits = usize::try_from(usize::BITS - copied.length.leading_zeros()).unwrap_or(0);
        let kind = (bits.min(LENGTH_CLASSES - 1) * AGREEMENTS + agreement) * MISSES + misses.min(MISSES - 1);
        let before = small(copied.before.min(32)) / 8.0;
        let matched = length + before;
        let alone = (matched + 0.5) / (matched + 1.0 + 80.0 / (16.0 + matched) + small(misses));
        let weight = (length / 16.0).clamp(1.0, 8.0);
        let formula = if total <= 1.0 { alone } else { (agreeing + weight * alone) / (total + weight) };
        self.estimate(origin, CONTEXTS + kind, formula)
    }

    fn estimate(&self, origin: Origin, kind: usize, formula: f32) -> (Kind, f32) {
        let (kind, formula) = match origin {
            Origin::Own => (kind, formula),
            Origin::Earlier => (kind + CONTEXTS + COPIES, formula * EARLIER),
        };
        let bin = self.bins.get(kind).copied().unwrap_or_default();
        (Kind(kind), (bin.right + PRIOR * formula) / (bin.seen + PRIOR))
    }

    /// A proposal of this kind was right, or not.
    pub fn saw(&mut self, kind: Kind, right: bool) {
        let Some(bin) = self.bins.get_mut(kind.0) else { return };
        if bin.seen >= FULL {
            *bin = Bin { right: bin.right / 2.0, seen: bin.seen / 2.0 };
        }
        bin.seen += 1.0;
        bin.right += f32::from(u8::from(right));
    }
}

fn small(number: usize) -> f32 {
    f32::from(u16::try_from(number).unwrap_or(u16::MAX))
}

#[cfg(test)]
#[path = "suffix_confidence_tests.rs"]
mod tests;
