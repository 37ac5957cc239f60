use super::super::history_drafter::tests::{draft_in, draft_of, play};
use super::super::ngram_params::{LookupParams, NgramParams};
use super::*;
use crate::speculative::Drafter;
use proptest::prelude::*;

fn settings(size_n: usize, size_m: usize, min_hits: u32) -> Settings {
    let params = LookupParams { size_n, size_m, min_hits };
    Settings { ngram: NgramParams { map_k: params, map_k4v: params, ..NgramParams::default() }, ..Settings::default() }
}

#[test]
fn k_prefers_the_end_of_the_prompt() {
    let check = |prompt, n_max, text: &[Token], expected: &[Token]| {
        let draft = draft_of::<Map<false>>(&settings(2, 2, 1), text, prompt, n_max);
        assert_eq!(draft.tokens, expected, "prompt {prompt}, n_max {n_max}: {text:?}");
    };
    let text = [0, 1, 2, 3, 3, 1, 2, 4, 4, 1, 2, 5, 5, 6, 7, 1, 2];
    // All prompt: the last place.
    check(16, 64, &text, &[5, 5]);
    check(16, 1, &text, &[5]);
    check(16, 0, &text, &[]);
    // With a prompt of 12 tokens, the place of 4 4 is its last one that is complete; that of 5 5 is the answer's.
    check(12, 64, &text, &[4, 4]);
    // Two more than the m behind it: of a prompt of 9 tokens that of 3 3 is the last; of 9 and more it is that of 4 4.
    check(9, 64, &text, &[3, 3]);
    check(10, 64, &text, &[4, 4]);
    // Nothing in the prompt: the last of those seen in one step.
    check(2, 64, &text, &[5, 5]);
    check(0, 64, &[0, 1, 2, 3, 4, 1, 2], &[3, 4]);
    check(0, 64, &[0, 1, 2, 3, 1, 2], &[]);
    check(0, 64, &[0, Token::MAX, 2, 3, 4, 5, Token::MAX, 2], &[3, 4]);
    check(0, 64, &[1, 2, 3, 4, 5, 6, 1, 2], &[]);
    check(0, 64, &[], &[]);
}

#[test]
fn k_stays_with_the_first_place_in_the_answer() {
    let mut drafter = NgramMapK::new(1);
    drafter.start(0, &settings(2, 2, 1));
    let text = [0, 9, 8, 7, 6, 5, 1, 2, 3, 3, 0, 1, 2, 4, 4, 0, 1, 2];
    let drafts: Vec<Vec<Token>> = (7..=18).map(|end| draft_in(&mut drafter, &text[..end], 6, 64).tokens).collect();
    assert_eq!(drafts[13 - 7], [3, 3]);
    assert_eq!(drafts[18 - 7], [3, 3]);
}

#[test]
fn what_was_wrong_once_is_not_drafted_again() {
    let text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 1, 2];
    let check = |drafted, accepted, expected: &[Token]| {
        let mut drafter = NgramMapK::new(1);
        drafter.start(0, &settings(2, 4, 1));
        assert_eq!(draft_in(&mut drafter, &text, 12, 64).tokens, [3, 4, 5, 6]);
        drafter.checked(0, drafted, accepted);
        drafter.checked(0, 4, 0);
        assert_eq!(draft_in(&mut drafter, &text, 12, 64).tokens, expected, "{accepted} of {drafted}");
    };
    check(4, 4, &[3, 4, 5, 6]);
    check(4, 2, &[3, 4]);
    check(4, 0, &[]);
    // Cut short and right: nothing speaks against the others.
    check(2, 2, &[3, 4, 5, 6]);
    check(2, 1, &[3]);
}

#[test]
fn k4v_drafts_what_is_clearly_the_most_frequent() {
    let check = |min_hits, texts: &[&[Token]], expected: &[Token]| {
        // The m-grams behind 1 2, one after the other.
        let behind: Vec<Token> = texts.iter().flat_map(|text| [&[1, 2], *text, &[0]].concat()).collect();
        let text = [&[0, 0][..], &behind, &[0, 0, 1, 2]].concat();
        let draft = draft_of::<Map<true>>(&settings(2, 2, min_hits), &text, text.len() - 1, 64);
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
    // A fifth one is not counted.
    check(1, &[a, a, a, a, a, a, b, c, d, e, e, e, e, e, e, e], a);
}

#[test]
fn k4v_needs_hits() {
    let text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 1, 2];
    let mut drafter = NgramMapK4v::new(1);
    drafter.start(0, &settings(2, 4, 3));
    let drafts: Vec<usize> = (0..4).map(|_| draft_in(&mut drafter, &text, 12, 64).tokens.len()).collect();
    assert_eq!(drafts, [0, 0, 4, 4]);
    drafter.start(0, &settings(2, 4, 3));
    assert!(draft_in(&mut drafter, &text, 12, 64).tokens.is_empty(), "another request");
}

/// `k`: what is known in each step, most preferred first.
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
    fn they_draft_what_a_search_finds(
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
fn a_copied_text_is_drafted_in_long_pieces() {
    let text: Vec<Token> = (0..300).chain(0..300).collect();
    let played = play(&mut NgramMapK::new(1), &settings(4, 16, 1), &text, 300, 64);
    assert!(played.accepted > 240 && played.steps < 50, "{played:?}");
}
