use super::super::history_drafter::tests::draft_of;
use super::super::ngram_params::{LookupParams, NgramParams};
use super::*;
use proptest::prelude::*;

fn settings(size_n: usize, size_m: usize) -> Settings {
    let simple = LookupParams { size_n, size_m, min_hits: 1 };
    Settings { ngram: NgramParams { simple, ..NgramParams::default() }, ..Settings::default() }
}

/// The rule, searched for.
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
fn the_latest_match_is_drafted_from() {
    let check = |n, m, n_max, text: &[Token], expected: &[Token]| {
        let draft = draft_of::<Simple>(&settings(n, m), text, text.len(), n_max);
        assert_eq!(draft.tokens, expected, "n {n}, m {m}, n_max {n_max}: {text:?}");
    };
    // 1 2 was followed by 3 4 5 and later by 6 7 8.
    let text = [0, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2];
    check(2, 3, 64, &text, &[6, 7, 8]);
    check(2, 3, 2, &text, &[6, 7]);
    check(2, 3, 1, &text, &[6]);
    check(2, 3, 0, &text, &[]);
    // The last token is not drafted: 6 7 8 9 1 are what is left.
    check(2, 8, 64, &text, &[6, 7, 8, 9, 1]);
    // Three tokens never were 9 1 2.
    check(3, 3, 64, &text, &[]);
    // At index 0 there is no match.
    check(2, 2, 64, &[1, 2, 3, 4, 5, 1, 2], &[]);
    check(2, 2, 64, &[0, 1, 2, 3, 4, 5, 1, 2], &[3, 4]);
    // Too short a text for n + m + 1 tokens.
    check(2, 3, 64, &[0, 1, 2, 3, 4, 1, 2], &[]);
    // Behind the match there are fewer tokens than n.
    check(2, 3, 64, &[0, 5, 6, 8, 9, 7, 1, 2, 1, 2], &[]);
    check(1, 4, 64, &[0, 9, 9, 9, Token::MAX, 7, 8, Token::MAX], &[7, 8]);
    check(2, 3, 64, &[], &[]);
}

#[test]
fn defaults_are_llama_cpps() {
    let params = NgramParams::default();
    for params in [params.simple, params.map_k, params.map_k4v] {
        assert_eq!((params.size_n, params.size_m, params.min_hits), (12, 48, 1));
    }
    assert_eq!((params.modulo.n_match, params.modulo.n_min, params.modulo.n_max), (24, 48, 64));
}

proptest! {
    #[test]
    fn it_drafts_what_a_search_finds(
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
            let draft = super::super::history_drafter::tests::draft_in(&mut drafter, &text[..end], 0, 64);
            prop_assert_eq!(draft.tokens, naive(&text[..end], n, m));
        }
    }
}
