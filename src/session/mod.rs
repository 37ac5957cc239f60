//! What a slot remembers of its tokens: reusing a common beginning, shortening a prompt that is too long, shifting a
//! full context, grouping positions, saving and loading. Pure decisions over tokens, and [`Sequence`], which applies them
//! to the contexts of target and draft alike.

mod checkpoints;
mod extend;
mod file;
mod reuse;
mod sequence;

use std::ops::Range;

pub use checkpoints::Checkpoints;
pub use extend::SelfExtend;
pub use file::{SeedOrigin, Session};
pub use sequence::{Sequence, Snapshot, branches};

use crate::llama::Token;

/// How many tokens `a` and `b` begin with in common.
pub fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    let shorter = a.len().min(b.len());
    // Nearly always one continues the other: a comparison of memory then says all.
    if a.get(..shorter) == b.get(..shorter) {
        return shorter;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The tokens that are kept at the start of a context of `n_ctx`, when `n_keep` were asked for (`None`: the whole
/// prompt): at most all but four, as the old server had it.
pub fn keep(n_keep: Option<usize>, n_prompt: usize, n_ctx: usize) -> usize {
    n_keep.unwrap_or(n_prompt).min(n_ctx.saturating_sub(4))
}

/// The part of a prompt to leave out when it does not fit into a context of `n_ctx`, where one more token must fit:
/// whole blocks of half of what is not kept, from the kept beginning on, as the old server did. `None` when it fits.
pub fn leave_out(n_prompt: usize, n_keep: usize, n_ctx: usize) -> Option<Range<usize>> {
    if n_prompt < n_ctx {
        return None;
    }
    let block = (n_ctx.saturating_sub(n_keep) / 2).max(1);
    // The old server left out one block less where the rest then filled the context to the last token.
    let blocks = (n_prompt + 1 - n_ctx).div_ceil(block);
    Some(n_keep..n_keep + blocks * block)
}

/// The part of a full context to drop so that generation can go on: half of what is not kept. `n_past` tokens are in
/// the context. `None` when that would be nothing.
pub fn shift(n_past: usize, n_keep: usize) -> Option<Range<usize>> {
    let dropped = n_past.saturating_sub(n_keep) / 2;
    (dropped > 0).then_some(n_keep..n_keep + dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (a, b, expected) in [
            (&[][..], &[][..], 0),
            (&[1, 2, 3], &[1, 2, 3], 3),
            (&[1, 2, 3], &[1, 2], 2),
            (&[1, 2, 3], &[1, 9, 3], 1),
            (&[4], &[5], 0),
        ] {
            assert_eq!(common_prefix(a, b), expected, "{a:?} {b:?}");
            assert_eq!(common_prefix(b, a), expected, "{b:?} {a:?}");
        }
    }

    #[test]
    fn a_shortened_prompt_fits_and_keeps_its_ends() {
        assert_eq!(leave_out(511, 0, 512), None);
        // As the old server: block (512 - 0) / 2 = 256, blocks (600 - 0 - 256 - 1) / 256 = 1.
        assert_eq!(leave_out(600, 0, 512), Some(0..256));
        assert_eq!(leave_out(600, 100, 512), Some(100..306));
        for n_ctx in 8..40 {
            for n_keep in 0..=n_ctx - 4 {
                for n_prompt in n_ctx..5 * n_ctx {
                    let gone = leave_out(n_prompt, n_keep, n_ctx).expect("too long");
                    assert_eq!(gone.start, n_keep);
                    assert!(gone.end < n_prompt, "the prompt's end is kept");
                    assert!(n_prompt - gone.len() < n_ctx, "{n_prompt} {n_keep} {n_ctx}");
                }
            }
        }
    }

    #[test]
    fn a_shift_drops_half_of_what_is_not_kept() {
        assert_eq!(shift(512, 0), Some(0..256));
        assert_eq!(shift(512, 12), Some(12..262));
        assert_eq!(shift(12, 12), None);
        assert_eq!(shift(13, 12), None);
        assert_eq!(keep(None, 700, 512), 508);
        assert_eq!(keep(Some(9), 700, 512), 9);
        assert_eq!(keep(None, 5, 512), 5);
    }
}
