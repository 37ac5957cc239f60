//! Fitting tokens into a context: `n_keep`, prompt truncation and context shifts. Pure functions of token counts.

use std::ops::Range;

/// The number of tokens to keep at the start of a context of `n_ctx` tokens. `n_keep`: the requested number; `None` means
/// the whole prompt. At most `n_ctx` - 4, as in the old server.
pub fn effective_n_keep(n_keep: Option<usize>, n_prompt: usize, n_ctx: usize) -> usize {
    n_keep.unwrap_or(n_prompt).min(n_ctx.saturating_sub(4))
}

/// The range to remove from a prompt that does not fit, with one more token, into a context of `n_ctx` tokens. As in the old
/// server it begins after the kept tokens, in whole blocks of half the remaining context. `None` if the prompt fits.
pub fn prompt_truncation(n_prompt: usize, n_keep: usize, n_ctx: usize) -> Option<Range<usize>> {
    if n_prompt < n_ctx {
        return None;
    }
    let block = (n_ctx.saturating_sub(n_keep) / 2).max(1);
    // The old server removed one block less if the rest then filled the context completely.
    let blocks = (n_prompt + 1 - n_ctx).div_ceil(block);
    Some(n_keep..n_keep + blocks * block)
}

/// The range of a full context to drop so that generation can continue: half of the tokens that are not kept. `n_past`
/// tokens are in the context. `None` if the range would be empty.
pub fn shift(n_past: usize, n_keep: usize) -> Option<Range<usize>> {
    let dropped = n_past.saturating_sub(n_keep) / 2;
    (dropped > 0).then_some(n_keep..n_keep + dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_prompt_fits_and_keeps_both_ends() {
        assert_eq!(prompt_truncation(511, 0, 512), None);
        // As the old server: block (512 - 0) / 2 = 256, blocks (600 - 0 - 256 - 1) / 256 = 1.
        assert_eq!(prompt_truncation(600, 0, 512), Some(0..256));
        assert_eq!(prompt_truncation(600, 100, 512), Some(100..306));
        for n_ctx in 8..40 {
            for n_keep in 0..=n_ctx - 4 {
                for n_prompt in n_ctx..5 * n_ctx {
                    let gone = prompt_truncation(n_prompt, n_keep, n_ctx).expect("too long");
                    assert_eq!(gone.start, n_keep);
                    assert!(gone.end < n_prompt, "the prompt's end is kept");
                    assert!(n_prompt - gone.len() < n_ctx, "{n_prompt} {n_keep} {n_ctx}");
                }
            }
        }
    }

    #[test]
    fn shift_drops_half_of_the_tokens_that_are_not_kept() {
        assert_eq!(shift(512, 0), Some(0..256));
        assert_eq!(shift(512, 12), Some(12..262));
        assert_eq!(shift(12, 12), None);
        assert_eq!(shift(13, 12), None);
        assert_eq!(effective_n_keep(None, 700, 512), 508);
        assert_eq!(effective_n_keep(Some(9), 700, 512), 9);
        assert_eq!(effective_n_keep(None, 5, 512), 5);
    }
}
