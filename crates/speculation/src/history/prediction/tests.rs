use super::super::history_drafter::tests::{draft_in, play};
use super::*;
use crate::{Drafter, StopPolicy};
use proptest::prelude::*;

fn settings(expected: &[Token]) -> Settings {
    Settings { prediction: Some(Arc::new(expected.to_vec().into())), ..Settings::default() }
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

/// The draft after `generated`, with a prompt of two tokens that also occur in the prediction.
fn draft(expected: &[Token], generated: &[Token], n_max: usize) -> Draft {
    let mut drafter = Prediction::new(1);
    drafter.start(0, &settings(expected));
    draft_in(&mut drafter, &[&[3, 4], generated].concat(), 2, n_max)
}

#[test]
fn draft_continues_at_the_outputs_position() {
    let expected = numbers(0, 100);
    let check = |generated: &[Token], next: Token| {
        assert_eq!(draft(&expected, generated, 3).tokens, [next, next + 1, next + 2], "{generated:?}");
    };
    check(&[], 0);
    check(&[0], 1);
    check(&numbers(0, 50), 50);
    // One token differs.
    check(&[0, 1, 2, 3, 900], 5);
    check(&[0, 1, 2, 3, 900, 5], 6);
    check(&[900], 1);
    check(&[0, 900, 901, 902], 4);
    // Some are inserted.
    check(&[0, 1, 2, 3, 900, 901, 902, 903, 904, 4], 5);
    check(&[&numbers(0, 10)[..], &numbers(900, 990), &[10]].concat(), 11);
    // Some are omitted.
    check(&[0, 1, 2, 3, 8], 9);
    check(&[0, 1, 2, 3, 40, 41], 42);
    check(&[0, 1, 2, 3, 80, 81, 82], 83);
    // A preface, then the prediction from its beginning.
    check(&[900, 901, 902, 0], 1);
    // Back to an earlier position.
    check(&[&numbers(0, 60)[..], &[20, 21, 22]].concat(), 23);
}

#[test]
fn nearest_position_ahead_is_chosen() {
    // 7 8 9 at 3, 13 and 23, with different tokens after each.
    let expected = [0, 1, 2, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26, 7, 8, 9, 30, 31];
    assert_eq!(draft(&expected, &[0, 1, 2, 7, 8, 9, 10, 11, 12, 14, 900, 7, 8, 9], 2).tokens, [20, 21]);
    assert_eq!(draft(&expected, &[0, 1, 2, 900, 7, 8, 9], 2).tokens, [10, 11]);
    assert_eq!(draft(&expected, &expected[..23], 64).tokens, expected[23..]);
    // A single matching token does not move the cursor far.
    assert_eq!(draft(&expected, &[0, 1, 2, 11, 8, 9, 10], 2).tokens, [11, 12]);
}

#[test]
fn draft_ends_with_the_prediction() {
    assert_eq!(draft(&[5, 6], &[5], 8).tokens, [6]);
    assert!(draft(&[5, 6], &[5, 6], 8).tokens.is_empty());
    assert!(draft(&[5, 6], &[5, 6, 7, 8, 9, 10], 8).tokens.is_empty());
    assert_eq!(draft(&[Token::MAX], &[], 1).tokens, [Token::MAX]);
    assert_eq!(draft(&numbers(0, 100), &[], 64).tokens, numbers(0, 64));
    assert!(draft(&numbers(0, 100), &[], 0).tokens.is_empty());
}

#[test]
fn missing_prediction_is_reported() {
    let mut drafter = Prediction::new(1);
    for nothing in [None, Some(Arc::new(Vec::new().into()))] {
        drafter.start(0, &Settings { prediction: nothing, ..Settings::default() });
        assert!(draft_in(&mut drafter, &[1, 2, 3], 1, 8).tokens.is_empty());
        assert_eq!(drafter.disabled(0), Some("the request has no prediction"));
    }
    drafter.start(0, &settings(&[1]));
    assert_eq!(drafter.disabled(0), None);
    drafter.end(0, &[1, 2], 1);
    assert!(draft_in(&mut drafter, &[1, 2, 3], 1, 8).tokens.is_empty(), "no request");
}

#[test]
fn confidence_rises_with_matching_tokens() {
    let expected = numbers(0, 300);
    let first = |generated: &[Token]| draft(&expected, generated, 4).confidence[0];
    let deviating = |times: Token| -> Vec<Token> {
        numbers(0, 200)
            .into_iter()
            .map(|token| if token < times * 10 && token % 10 == 9 { 900 } else { token })
            .collect()
    };
    let confidences = [first(&[900, 901]), first(&numbers(0, 3)), first(&numbers(0, 30)), first(&numbers(0, 250))];
    assert!(confidences.is_sorted(), "{confidences:?}");
    let confidences = [first(&deviating(20)), first(&deviating(10)), first(&deviating(0))];
    assert!(confidences[0] < confidences[1] && confidences[1] < confidences[2], "{confidences:?}");
    let draft = draft(&expected, &[0], 20);
    assert!(draft.confidence.is_sorted() && draft.confidence[0] < draft.confidence[19]);
    let mut drafter = Prediction::new(1);
    drafter.start(0, &settings(&expected));
    let mut limited = Draft::default();
    drafter.propose(0, &[3, 0, 900], 2, Limits { n_max: 4, p_min: 0.99, stop_policy: StopPolicy::All }, &mut limited);
    assert!(limited.tokens.is_empty());
}

#[test]
fn context_shifts_do_not_change_drafts() {
    let expected = numbers(100, 200);
    let mut drafter = Prediction::new(1);
    drafter.start(0, &settings(&expected));
    let text = [numbers(0, 20), numbers(100, 150)].concat();
    assert_eq!(draft_in(&mut drafter, &text, 20, 2).tokens, [150, 151]);
    drafter.shift(0, 5, 40);
    let shifted = [&text[..5], &text[45..], &[150, 900]].concat();
    assert_eq!(draft_in(&mut drafter, &shifted, 5, 2).tokens, [152, 153]);
}

#[test]
fn edited_text_takes_about_one_step_per_edit() {
    let expected: Vec<Token> = (0..2000).map(|index: i32| index * 7919 % 1009).collect();
    // Every hundredth token is replaced, omitted, or preceded by an inserted one.
    let mut output = Vec::new();
    for (index, token) in expected.iter().enumerate() {
        match (index % 100, index / 100 % 3) {
            (99, 0) => output.push(5000),
            (99, 1) => {}
            (99, _) => output.extend([5000, *token]),
            _ => output.push(*token),
        }
    }
    let text = [&[1][..], &output].concat();
    let played = play(&mut Prediction::new(1), &settings(&expected), &text, 1, 64);
    // 20 edits, and a step for each 65 tokens.
    assert!(played.steps <= 20 * 2 + 2000 / 65 + 10, "{played:?}");
}

proptest! {
    #[test]
    fn correct_prediction_is_drafted_to_its_end(
        expected in prop::collection::vec(0..5_i32, 2..200),
        n_max in 1..65_usize,
    ) {
        let text = [&[9][..], &expected].concat();
        let played = play(&mut Prediction::new(1), &settings(&expected), &text, 1, n_max);
        prop_assert_eq!(played.accepted, played.drafted);
        prop_assert_eq!(played.steps, (expected.len() - 1).div_ceil(n_max + 1));
    }

    #[test]
    fn drafts_are_substrings_of_the_prediction(
        expected in prop::collection::vec(0..4_i32, 0..60),
        output in prop::collection::vec(0..5_i32, 0..80),
    ) {
        let draft = draft(&expected, &output, 5);
        if !draft.tokens.is_empty() {
            prop_assert!(expected.windows(draft.tokens.len()).any(|piece| piece == draft.tokens));
        }
        prop_assert!(draft.tokens.len() == 5 || expected.ends_with(&draft.tokens));
    }

    #[test]
    fn nearest_position_matches_a_search(
        text in prop::collection::vec(0..3_i32, 1..80),
        ngram in prop::collection::vec(0..3_i32, 1..4),
        from in 0..90_usize,
        near in prop_oneof![0..20_usize, Just(usize::MAX)],
    ) {
        let positions: Vec<usize> = (0..text.len()).filter(|place| text[*place..].starts_with(&ngram)).collect();
        let ahead = positions.iter().find(|place| **place >= from && **place - from <= near);
        let following = positions.iter().rev().find(|place| **place < from).filter(|_| near == usize::MAX);
        let found = Predicted::from(text).nearest(&ngram, from, near);
        prop_assert_eq!(found, ahead.or(following).copied());
    }
}
