//! `n_cache_reuse`: parts of a prompt that the cache has further back, where something before them was left out.
//!
//! As llama-server has it: the keys of such a part can be moved to where the prompt has it. Its values were computed
//! with the left-out text before them, so logits change a little; hence nobody gets this without asking.

use crate::llama::Token;

/// A part of the cache, and where the prompt has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Where it is in the cache; not before `to`.
    pub from: usize,
    /// Where it is in the prompt: right behind the chunk before.
    pub to: usize,
    /// Tokens of it.
    pub len: usize,
}

/// The parts of `cache`, of at least `least` tokens each, that continue `prompt` behind their common beginning of
/// `prefix` tokens. Of each place in the prompt the first match is taken. Takes time that grows with the lengths alone,
/// whatever the tokens: the search is Knuth, Morris and Pratt's.
pub fn chunks(cache: &[Token], prompt: &[Token], prefix: usize, least: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    if least == 0 {
        return chunks;
    }
    let (mut from, mut to) = (prefix, prefix);
    while let Some(wanted) = prompt.get(to..).and_then(|rest| rest.get(..least)) {
        let Some(found) = cache.get(from..).and_then(|rest| find(rest, wanted)) else { break };
        from += found;
        let pairs = cache.iter().skip(from).zip(prompt.iter().skip(to));
        let len = pairs.take_while(|(cached, asked)| cached == asked).count();
        chunks.push(Chunk { from, to, len });
        (from, to) = (from + len, to + len);
    }
    chunks
}

/// Where `wanted`, which is not empty, first occurs in `tokens`.
fn find(tokens: &[Token], wanted: &[Token]) -> Option<usize> {
    // For each length of a match, the longest shorter match at its end.
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
    fn what_was_left_out_is_skipped() {
        let chunk = |from, to, len| Chunk { from, to, len };
        for (cache, prompt, least, expected) in [
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
            let prefix = crate::session::common_prefix(cache, prompt);
            assert_eq!(chunks(cache, prompt, prefix, least), expected, "{cache:?} {prompt:?} {least}");
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
        fn chunks_are_equal_in_both_and_leave_no_gap_in_the_prompt(
            cache in prop::collection::vec(0..3, 0..60), prompt in prop::collection::vec(0..3, 0..60), least in 1_usize..6,
        ) {
            let prefix = crate::session::common_prefix(&cache, &prompt);
            let (mut from, mut to) = (prefix, prefix);
            for chunk in chunks(&cache, &prompt, prefix, least) {
                prop_assert!(chunk.len >= least && chunk.from >= from && chunk.to == to && chunk.from >= chunk.to);
                prop_assert_eq!(&cache[chunk.from..chunk.from + chunk.len], &prompt[to..to + chunk.len]);
                (from, to) = (chunk.from + chunk.len, to + chunk.len);
            }
        }
    }
}
