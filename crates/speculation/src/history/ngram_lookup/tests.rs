//! Each drafter compared with a naive search.

mod simple {
    use super::super::super::history_drafter::tests::draft_of;
    use super::super::super::params::{LookupParams, NgramParams};
    use super::super::*;
    use proptest::prelude::*;

    fn settings(size_n: usize, size_m: usize) -> Settings {
        let simple = LookupParams { size_n, size_m, min_hits: 1 };
        Settings { ngram: NgramParams { simple, ..NgramParams::default() }, ..Settings::default() }
    }

    /// `ngram-simple` as a naive search.
    fn naive(text: &[Token], n: usize, m: usize) -> Vec<Token> {
        let before_last = text.len().saturating_sub(1);
        if before_last <= n + m + 1 {
            return Vec::new();
        }
        let last = &text[text.len() - n..];
        let Some(start) = (1..before_last - n).rev().find(|start| text[*start..].starts_with(last)) else {
            return Vec::new();
        };
        let end = (start + n + m).min(before_last);
        if end - (start + n) < n { Vec::new() } else { text[start + n..end].to_vec() }
    }

    #[test]
    fn simple_drafts_from_the_latest_match() {
        let check = |n, m, n_max, text: &[Token], expected: &[Token]| {
            let draft = draft_of::<SimpleLookup>(&settings(n, m), text, text.len(), n_max);
            assert_eq!(draft.tokens, expected, "n {n}, m {m}, n_max {n_max}: {text:?}");
        };
        // 1 2 was followed by 3 4 5 and later by 6 7 8.
        let text = [0, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2];
        check(2, 3, 64, &text, &[6, 7, 8]);
        check(2, 3, 2, &text, &[6, 7]);
        check(2, 3, 1, &text, &[6]);
        check(2, 3, 0, &text, &[]);
        // The last token is not drafted: 6 7 8 9 1 remain.
        check(2, 8, 64, &text, &[6, 7, 8, 9, 1]);
        // 9 1 2 occurred only once.
        check(3, 3, 64, &text, &[]);
        // A match at index 0 is ignored.
        check(2, 2, 64, &[1, 2, 3, 4, 5, 1, 2], &[]);
        check(2, 2, 64, &[0, 1, 2, 3, 4, 5, 1, 2], &[3, 4]);
        // The history has fewer than n + m + 1 tokens.
        check(2, 3, 64, &[0, 1, 2, 3, 4, 1, 2], &[]);
        // Fewer than n tokens follow the match.
        check(2, 3, 64, &[0, 5, 6, 8, 9, 7, 1, 2, 1, 2], &[]);
        check(1, 4, 64, &[0, 9, 9, 9, Token::MAX, 7, 8, Token::MAX], &[7, 8]);
        check(2, 3, 64, &[], &[]);
    }

    #[test]
    fn defaults_are_those_of_llama_cpp() {
        let params = NgramParams::default();
        for params in [params.simple, params.map_k, params.map_k4v] {
            assert_eq!((params.size_n, params.size_m, params.min_hits), (12, 48, 1));
        }
        assert_eq!((params.modulo.n_match, params.modulo.n_min, params.modulo.n_max), (24, 48, 64));
    }

    proptest! {
        #[test]
        fn simple_matches_a_naive_search(
            n in 1..5_usize,
            m in 1..12_usize,
            text in prop::collection::vec(0..4_i32, 1..150),
            steps in prop::collection::vec(1..8_usize, 1..150),
        ) {
            let mut drafter = NgramSimple::new(1);
            drafter.start(0, &settings(n, m));
            let mut end = 0;
            for step in steps {
                end = (end + step).min(text.len());
                let draft = super::super::super::history_drafter::tests::draft_in(&mut drafter, &text[..end], 0, 64);
                prop_assert_eq!(draft.tokens, naive(&text[..end], n, m));
            }
        }
    }
}

mod map {
    use super::super::super::history_drafter::tests::{draft_in, draft_of, play};
    use super::super::super::params::{LookupParams, NgramParams};
    use super::super::*;
    use crate::Drafter;
    use proptest::prelude::*;

    fn settings(size_n: usize, size_m: usize, min_hits: u32) -> Settings {
        let params = LookupParams { size_n, size_m, min_hits };
        Settings {
            ngram: NgramParams { map_k: params, map_k4v: params, ..NgramParams::default() },
            ..Settings::default()
        }
    }

    #[test]
    fn map_k_prefers_the_last_position_in_the_prompt() {
        let check = |prompt, n_max, text: &[Token], expected: &[Token]| {
            let draft = draft_of::<MapLookup<false>>(&settings(2, 2, 1), text, prompt, n_max);
            assert_eq!(draft.tokens, expected, "prompt {prompt}, n_max {n_max}: {text:?}");
        };
        let text = [0, 1, 2, 3, 3, 1, 2, 4, 4, 1, 2, 5, 5, 6, 7, 1, 2];
        // Only a prompt: the last position.
        check(16, 64, &text, &[5, 5]);
        check(16, 1, &text, &[5]);
        check(16, 0, &text, &[]);
        // With a prompt of 12 tokens, 4 4 is the last complete position in the prompt; 5 5 is in the output.
        check(12, 64, &text, &[4, 4]);
        // The m tokens after the n-gram and two more must be known: with a prompt of 9 tokens 3 3 is the last position.
        check(9, 64, &text, &[3, 3]);
        check(10, 64, &text, &[4, 4]);
        // No position in the prompt: the last of those indexed in one step.
        check(2, 64, &text, &[5, 5]);
        check(0, 64, &[0, 1, 2, 3, 4, 1, 2], &[3, 4]);
        check(0, 64, &[0, 1, 2, 3, 1, 2], &[]);
        check(0, 64, &[0, Token::MAX, 2, 3, 4, 5, Token::MAX, 2], &[3, 4]);
        check(0, 64, &[1, 2, 3, 4, 5, 6, 1, 2], &[]);
        check(0, 64, &[], &[]);
    }

    #[test]
    fn map_k_keeps_the_first_position_in_the_output() {
        let mut drafter = NgramMapK::new(1);
        drafter.start(0, &settings(2, 2, 1));
        let text = [0, 9, 8, 7, 6, 5, 1, 2, 3, 3, 0, 1, 2, 4, 4, 0, 1, 2];
        let drafts: Vec<Vec<Token>> = (7..=18).map(|end| draft_in(&mut drafter, &text[..end], 6, 64).tokens).collect();
        assert_eq!(drafts[13 - 7], [3, 3]);
        assert_eq!(drafts[18 - 7], [3, 3]);
    }

    #[test]
    fn rejected_tokens_are_not_drafted_again() {
        let text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 1, 2];
        let check = |drafted, accepted, expected: &[Token]| {
            let mut drafter = NgramMapK::new(1);
            drafter.start(0, &settings(2, 4, 1));
            assert_eq!(draft_in(&mut drafter, &text, 12, 64).tokens, [3, 4, 5, 6]);
            drafter.verified(0, drafted, accepted);
            drafter.verified(0, 4, 0);
            assert_eq!(draft_in(&mut drafter, &text, 12, 64).tokens, expected, "{accepted} of {drafted}");
        };
        check(4, 4, &[3, 4, 5, 6]);
        check(4, 2, &[3, 4]);
        check(4, 0, &[]);
        // A shortened, fully accepted draft does not limit later ones.
        check(2, 2, &[3, 4, 5, 6]);
        check(2, 1, &[3]);
    }

    #[test]
    fn map_k4v_drafts_a_clearly_most_frequent_continuation() {
        let check = |min_hits, texts: &[&[Token]], expected: &[Token]| {
            // The m-grams after 1 2, in order.
            let following: Vec<Token> = texts.iter().flat_map(|text| [&[1, 2], *text, &[0]].concat()).collect();
            let text = [&[0, 0][..], &following, &[0, 0, 1, 2]].concat();
            let draft = draft_of::<MapLookup<true>>(&settings(2, 2, min_hits), &text, text.len() - 1, 64);
            assert_eq!(draft.tokens, expected, "{texts:?}");
        };
        let [a, b, c, d, e]: [&[Token]; 5] = [&[3, 4], &[3, 5], &[6, 7], &[8, 8], &[9, 9]];
        check(1, &[a], a);
        check(2, &[a], &[]);
        check(1, &[a, b], &[]);
        check(1, &[a, a, b], a);
        check(1, &[b, a, a], a);
        check(1, &[a, a, b, c], &[]);
        check(1, &[a, b, a, c, a, a], a);
        // A fifth m-gram is not counted.
        check(1, &[a, a, a, a, a, a, b, c, d, e, e, e, e, e, e, e], a);
    }

    #[test]
    fn map_k4v_needs_min_hits() {
        let text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 1, 2];
        let mut drafter = NgramMapK4v::new(1);
        drafter.start(0, &settings(2, 4, 3));
        let drafts: Vec<usize> = (0..4).map(|_| draft_in(&mut drafter, &text, 12, 64).tokens.len()).collect();
        assert_eq!(drafts, [0, 0, 4, 4]);
        drafter.start(0, &settings(2, 4, 3));
        assert!(draft_in(&mut drafter, &text, 12, 64).tokens.is_empty(), "a new request starts without hits");
    }

    /// `ngram-map-k` as a search over the positions known in each step.
    fn naive_k(text: &[Token], prompt: usize, steps: &[usize], n: usize, m: usize) -> Vec<Token> {
        let mut preferred: Vec<usize> = Vec::new();
        let mut next = 1;
        let prompt_end = prompt.saturating_sub(n + m);
        for len in steps {
            if *len > 2 * n + m {
                let end = len.saturating_sub(n + m + 1).max(next);
                preferred.extend((next..end.min(prompt_end).max(next)).rev());
                preferred.extend((next.max(prompt_end)..end).rev());
                next = end;
            }
        }
        if text.len() < 2 * n + m + 1 {
            return Vec::new();
        }
        let last = &text[text.len() - n..];
        match preferred.iter().find(|start| text[**start..].starts_with(last)) {
            Some(start) => text[start + n..start + n + m].to_vec(),
            None => Vec::new(),
        }
    }

    fn naive_k4v(text: &[Token], n: usize, m: usize) -> Vec<Token> {
        if text.len() < 2 * n + m + 1 {
            return Vec::new();
        }
        let last = &text[text.len() - n..];
        let mut counts: Vec<(&[Token], usize)> = Vec::new();
        for start in (1..text.len() - n - m - 1).filter(|start| text[*start..].starts_with(last)) {
            let value = &text[start + n..start + n + m];
            match counts.iter().position(|(other, _)| *other == value) {
                Some(index) => counts[index].1 += 1,
                None if counts.len() < 4 => counts.push((value, 1)),
                None => {}
            }
        }
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let all: usize = counts.iter().map(|(_, count)| *count).sum();
        let best = counts.iter().find(|(_, count)| *count == most);
        best.filter(|_| most == all || most >= 2 * (all - most)).map_or(Vec::new(), |(value, _)| value.to_vec())
    }

    proptest! {
        #[test]
        fn maps_match_a_naive_search(
            n in 1..4_usize,
            m in 1..5_usize,
            all in prop::collection::vec(0..3_i32, 1..120),
            prompt in 0..60_usize,
            steps in prop::collection::vec(1..12_usize, 1..60),
        ) {
            let prompt = prompt.min(all.len() - 1);
            let (mut k, mut k4v) = (NgramMapK::new(1), NgramMapK4v::new(1));
            k.start(0, &settings(n, m, 1));
            k4v.start(0, &settings(n, m, 1));
            let (mut end, mut ends) = (prompt + 1, Vec::new());
            for step in steps {
                let text = &all[..end];
                ends.push(end);
                prop_assert_eq!(draft_in(&mut k, text, prompt, 64).tokens, naive_k(text, prompt, &ends, n, m));
                prop_assert_eq!(draft_in(&mut k4v, text, prompt, 64).tokens, naive_k4v(text, n, m));
                end = (end + step).min(all.len());
            }
        }
    }

    #[test]
    fn copied_text_is_drafted_in_long_runs() {
        let text: Vec<Token> = (0..300).chain(0..300).collect();
        let played = play(&mut NgramMapK::new(1), &settings(4, 16, 1), &text, 300, 64);
        assert!(played.accepted > 240 && played.steps < 50, "{played:?}");
    }
}

mod modulo {
    use super::super::super::history_drafter::tests::{draft_in, draft_of};
    use super::super::super::params::{ModParams, NgramParams};
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn settings(n_match: usize, n_min: usize, n_max: usize) -> Settings {
        let modulo = ModParams { n_match, n_min, n_max };
        Settings { ngram: NgramParams { modulo, ..NgramParams::default() }, ..Settings::default() }
    }

    #[test]
    fn draft_follows_ngram_after_ngram() {
        let check = |params: (usize, usize, usize), n_max, text: &[Token], expected: &[Token]| {
            let draft = draft_of::<ModLookup>(&settings(params.0, params.1, params.2), text, text.len(), n_max);
            assert_eq!(draft.tokens, expected, "{params:?}, n_max {n_max}: {text:?}");
        };
        let text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 8, 1, 2];
        // 1 2 was followed by 3; 2 3 last by 5; then 6 7 8 1; the token after 8 1 is the last one, not indexed yet.
        check((2, 0, 64), 64, &text, &[3, 5, 6, 7, 8, 1]);
        check((2, 0, 4), 64, &text, &[3, 5, 6, 7]);
        check((2, 0, 64), 3, &text, &[3, 5, 6]);
        check((2, 6, 64), 64, &text, &[3, 5, 6, 7, 8, 1]);
        check((2, 7, 64), 64, &text, &[]);
        // Drafted to n_min first, then truncated.
        check((2, 6, 64), 2, &text, &[3, 5]);
        check((2, 7, 64), 2, &text, &[]);
        check((2, 0, 64), 0, &text, &[]);
        check((13, 0, 64), 4, &text, &[]);
        check((14, 0, 64), 4, &text, &[]);
        check((2, 0, 64), 4, &[], &[]);
        // Index 0 and any token id are indexed.
        check((1, 1, 2), 4, &[Token::MAX, 5, 6, 0, Token::MAX], &[5, 6]);
    }

    #[test]
    fn generated_tokens_are_indexed_in_chunks() {
        let mut drafter = NgramMod::new(1);
        drafter.start(0, &settings(24, 1, 64));
        // A prompt of 30 tokens, then the same 30 again and again: the prompt's n-grams begin at 0..6.
        let text: Vec<Token> = (0..200).map(|index| index % 30).collect();
        let drafts: Vec<usize> =
            (31..100).map(|end| draft_in(&mut drafter, &text[..end], 30, 64).tokens.len()).collect();
        // Indexed n-grams begin before 6 at first, so nothing matches until there are 54 tokens. Then those up to index 5
        // lead to token 29. Once there are more than 6 + 32 tokens (and the last), those up to 39 - 24 = 15 are indexed,
        // and so on.
        assert!(drafts[..54 - 31].iter().all(|drafted| *drafted == 0), "{drafts:?}");
        let all = draft_of::<ModLookup>(&settings(24, 1, 64), &text[..199], 100, 64);
        assert_eq!(all.tokens, (199..199 + 64).map(|index| index % 30).collect::<Vec<Token>>());
    }

    /// `ngram-mod` with a map of all n-grams of the first `known` tokens.
    fn naive(text: &[Token], known: usize, params: ModParams) -> Vec<Token> {
        let n = params.n_match;
        let map: HashMap<&[Token], Token> =
            (0..known).map(|start| (&text[start..start + n], text[start + n])).collect();
        let mut all = text.to_vec();
        while all.len() < text.len() + params.n_max && all.len() >= n {
            let Some(next) = map.get(&all[all.len() - n..]) else { break };
            all.push(*next);
        }
        let drafted = all.split_off(text.len());
        if drafted.len() < params.n_min { Vec::new() } else { drafted }
    }

    proptest! {
        #[test]
        fn modulo_matches_a_map(
            n_match in 1..5_usize,
            n_min in 0..6_usize,
            more in 0..10_usize,
            text in prop::collection::vec(0..4_i32, 1..200),
            prompt in 0..100_usize,
            steps in prop::collection::vec(1..8_usize, 1..100),
        ) {
            let params = ModParams { n_match, n_min, n_max: n_min + more };
            let prompt = prompt.min(text.len() - 1);
            let mut drafter = NgramMod::new(1);
            drafter.start(0, &settings(n_match, n_min, n_min + more));
            let (mut end, mut known) = (prompt + 1, prompt.saturating_sub(n_match));
            for step in steps {
                let before_last = end - 1;
                if known + 32 < before_last {
                    known = before_last - n_match;
                }
                let draft = draft_in(&mut drafter, &text[..end], prompt, 64);
                prop_assert_eq!(draft.tokens, naive(&text[..end], known, params));
                end = (end + step).min(text.len());
            }
        }
    }
}
