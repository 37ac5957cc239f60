//! How a prompt fits a context and its cache. Pure functions of tokens and their counts.
//!
//! - The context: `n_keep`, prompt truncation and context shifts.
//! - The cache: prefix reuse, and `n_cache_reuse`: parts of a prompt that the cache has at a later position, because tokens
//!   before them were removed.
//!
//! With `n_cache_reuse`, as in llama-server, the keys of such a part are shifted to its position in the prompt. Its values
//! were computed with the removed tokens in the context, so logits change slightly; therefore it is off unless a request
//! enables it.

use std::ops::Range;

use crate::Token;

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

/// The length of the common prefix of `a` and `b`.
pub fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    let shorter = a.len().min(b.len());
    // Usually one continues the other; then one memory comparison is enough.
    if a.get(..shorter) == b.get(..shorter) {
        return shorter;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A part of the cache that occurs in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Position in the cache, at least `to`.
    pub from: usize,
    /// Position in the prompt, directly after the previous chunk.
    pub to: usize,
    /// Number of tokens.
    pub len: usize,
}

/// The parts of `cache`, of at least `min_len` tokens each, that continue `prompt` after their common prefix of `prefix` tokens.
/// Takes the first match for each position of the prompt. Linear time per search (Knuth, Morris and Pratt).
pub fn chunks(cache: &[Token], prompt: &[Token], prefix: usize, min_len: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    if min_len == 0 {
        return chunks;
    }
    let (mut from, mut to) = (prefix, prefix);
    while let Some(wanted) = prompt.get(to..).and_then(|rest| rest.get(..min_len)) {
        let Some(found) = cache.get(from..).and_then(|rest| find(rest, wanted)) else { break };
        from += found;
        let pairs = cache.iter().skip(from).zip(prompt.iter().skip(to));
        let len = pairs.take_while(|(cached, asked)| cached == asked).count();
        chunks.push(Chunk { from, to, len });
        (from, to) = (from + len, to + len);
    }
    chunks
}

/// The first position of `wanted`, which is not empty, in `tokens`.
fn find(tokens: &[Token], wanted: &[Token]) -> Option<usize> {
    // For each match length, the longest shorter match at its end (the failure function of Knuth, Morris and Pratt).
    let mut shorter = vec![0; wanted.len()];
    let step = |shorter: &[usize], mut matched: usize, token: Token| loop {
        if wanted.get(matched) == Some(&token) {
            return matched + 1;
        }
        if matched == 0 {
            return 0;
        }
        matched = shorter.get(matched - 1).copied().unwrap_or(0);
    };
    let mut matched = 0;
    for (index, token) in wanted.iter().enumerate().skip(1) {
        matched = step(&shorter, matched, *token);
        if let Some(entry) = shorter.get_mut(index) {
            *entry = matched;
        }
    }
    matched = 0;
    for (index, token) in tokens.iter().enumerate() {
        matched = step(&shorter, matched, *token);
        if matched == wanted.len() {
            return Some(index + 1 - matched);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn common_prefix_has_the_right_length() {
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
    fn removed_tokens_are_skipped() {
        let chunk = |from, to, len| Chunk { from, to, len };
        for (cache, prompt, min_len, expected) in [
            (&[1, 2, 3, 4, 5, 6][..], &[1, 4, 5, 6, 7][..], 2, vec![chunk(3, 1, 3)]),
            (&[1, 2, 3, 4, 5, 6], &[1, 4, 5, 6, 7], 4, vec![]),
            (&[1, 2, 3, 4, 5, 6], &[1, 4, 5, 6, 7], 0, vec![]),
            (
                &[9, 1, 2, 9, 9, 3, 4, 9, 5, 6],
                &[1, 2, 3, 4, 5, 6],
                2,
                vec![chunk(1, 0, 2), chunk(5, 2, 2), chunk(8, 4, 2)],
            ),
            (&[1, 2, 3], &[7, 1, 2, 3], 1, vec![]),
            (&[], &[1], 1, vec![]),
        ] {
            let prefix = common_prefix(cache, prompt);
            assert_eq!(chunks(cache, prompt, prefix, min_len), expected, "{cache:?} {prompt:?} {min_len}");
        }
    }

    proptest! {
        #[test]
        fn search_finds_the_first_occurrence(
            tokens in prop::collection::vec(0..2, 0..40), wanted in prop::collection::vec(0..2, 1..8),
        ) {
            let naive = tokens.windows(wanted.len()).position(|window| window == wanted);
            prop_assert_eq!(find(&tokens, &wanted), naive);
        }

        #[test]
        fn chunks_match_and_are_contiguous_in_the_prompt(
            cache in prop::collection::vec(0..3, 0..60), prompt in prop::collection::vec(0..3, 0..60), min_len in 1_usize..6,
        ) {
            let prefix = common_prefix(&cache, &prompt);
            let (mut from, mut to) = (prefix, prefix);
            for chunk in chunks(&cache, &prompt, prefix, min_len) {
                prop_assert!(chunk.len >= min_len && chunk.from >= from && chunk.to == to && chunk.from >= chunk.to);
                prop_assert_eq!(&cache[chunk.from..chunk.from + chunk.len], &prompt[to..to + chunk.len]);
                (from, to) = (chunk.from + chunk.len, to + chunk.len);
            }
        }
    }
}
