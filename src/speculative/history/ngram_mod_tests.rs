use super::super::history_drafter::tests::{draft_in, draft_of};
use super::super::ngram_params::{ModParams, NgramParams};
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn settings(n_match: usize, n_min: usize, n_max: usize) -> Settings {
    let modulo = ModParams { n_match, n_min, n_max };
    Settings { ngram: NgramParams { modulo, ..NgramParams::default() }, ..Settings::default() }
}

#[test]
fn drafts_go_from_ngram_to_ngram() {
    let check = |params: (usize, usize, usize), n_max, text: &[Token], expected: &[Token]| {
        let draft = draft_of::<Chain>(&settings(params.0, params.1, params.2), text, text.len(), n_max);
        assert_eq!(draft.tokens, expected, "{params:?}, n_max {n_max}: {text:?}");
    };
    let text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 8, 1, 2];
    // 1 2 was followed by 3; 2 3 last by 5; then 6 7 8 1; what followed 8 1 is the last token, not known yet.
    check((2, 0, 64), 64, &text, &[3, 5, 6, 7, 8, 1]);
    check((2, 0, 4), 64, &text, &[3, 5, 6, 7]);
    check((2, 0, 64), 3, &text, &[3, 5, 6]);
    check((2, 6, 64), 64, &text, &[3, 5, 6, 7, 8, 1]);
    check((2, 7, 64), 64, &text, &[]);
    // Made long enough first, then cut.
    check((2, 6, 64), 2, &text, &[3, 5]);
    check((2, 7, 64), 2, &text, &[]);
    check((2, 0, 64), 0, &text, &[]);
    check((13, 0, 64), 4, &text, &[]);
    check((14, 0, 64), 4, &text, &[]);
    check((2, 0, 64), 4, &[], &[]);
    // Index 0 counts, and so does any token.
    check((1, 1, 2), 4, &[Token::MAX, 5, 6, 0, Token::MAX], &[5, 6]);
}

#[test]
fn what_is_generated_becomes_known_in_pieces() {
    let mut drafter = NgramMod::new(1);
    drafter.start(0, &settings(24, 1, 64));
    // A prompt of 30 tokens, then the same 30 again and again: the prompt's n-grams begin at 0..6.
    let text: Vec<Token> = (0..200).map(|index| index % 30).collect();
    let drafts: Vec<usize> = (31..100).map(|end| draft_in(&mut drafter, &text[..end], 30, 64).tokens.len()).collect();
    // Known n-grams begin before 6 at first: nothing ends like the text until 54 tokens are there; then those up to
    // index 5 lead to token 29. Once more than 6 + 32 tokens (and the last) are there, those up to 39 - 24 = 15, and so
    // on.
    assert!(drafts[..54 - 31].iter().all(|drafted| *drafted == 0), "{drafts:?}");
    let all = draft_of::<Chain>(&settings(24, 1, 64), &text[..199], 100, 64);
    assert_eq!(all.tokens, (199..199 + 64).map(|index| index % 30).collect::<Vec<Token>>());
}

/// The rule with a map of all n-grams, told what is known.
fn naive(text: &[Token], known: usize, params: ModParams) -> Vec<Token> {
    let n = params.n_match;
    let map: HashMap<&[Token], Token> = (0..known).map(|start| (&text[start..start + n], text[start + n])).collect();
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
    fn it_drafts_what_a_map_finds(
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
