use super::super::history_drafter::tests::{draft_in, play};
use super::*;
use crate::speculative::{Drafter, StopPolicy};
use proptest::prelude::*;

fn settings(expected: &[Token]) -> Settings {
    Settings { prediction: Some(Arc::new(expected.to_vec().into())), ..Settings::default() }
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

/// The draft after `generated`, behind a prompt of two tokens that are in the expected text as well.
fn draft(expected: &[Token], generated: &[Token], n_max: usize) -> Draft {
    let mut drafter = Prediction::new(1);
    drafter.start(0, &settings(expected));
    draft_in(&mut drafter, &[&[3, 4], generated].concat(), 2, n_max)
}

#[test]
fn it_goes_on_where_the_answer_is() {
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
    // Some are put in.
    check(&[0, 1, 2, 3, 900, 901, 902, 903, 904, 4], 5);
    check(&[&numbers(0, 10)[..], &numbers(900, 990), &[10]].concat(), 11);
    // Some are left out.
    check(&[0, 1, 2, 3, 8], 9);
    check(&[0, 1, 2, 3, 40, 41], 42);
    check(&[0, 1, 2, 3, 80, 81, 82], 83);
    // A preface, then the text from the beginning.
    check(&[900, 901, 902, 0], 1);
    // Back to what was said before.
    check(&[&numbers(0, 60)[..], &[20, 21, 22]].concat(), 23);
}

#[test]
fn the_nearest_place_ahead_is_taken() {
    // 7 8 9 at 3, 13, 23; and what follows.
    let expected = [0, 1, 2, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26, 7, 8, 9, 30, 31];
    assert_eq!(draft(&expected, &[0, 1, 2, 7, 8, 9, 10, 11, 12, 14, 900, 7, 8, 9], 2).tokens, [20, 21]);
    assert_eq!(draft(&expected, &[0, 1, 2, 900, 7, 8, 9], 2).tokens, [10, 11]);
    assert_eq!(draft(&expected, &expected[..23], 64).tokens, expected[23..]);
    // A place further on is not lost to what a single token says.
    assert_eq!(draft(&expected, &[0, 1, 2, 11, 8, 9, 10], 2).tokens, [11, 12]);
}

#[test]
fn there_is_an_end_and_it_can_be_short() {
    assert_eq!(draft(&[5, 6], &[5], 8).tokens, [6]);
    assert!(draft(&[5, 6], &[5, 6], 8).tokens.is_empty());
    assert!(draft(&[5, 6], &[5, 6, 7, 8, 9, 10], 8).tokens.is_empty());
    assert_eq!(draft(&[Token::MAX], &[], 1).tokens, [Token::MAX]);
    assert_eq!(draft(&numbers(0, 100), &[], 64).tokens, numbers(0, 64));
    assert!(draft(&numbers(0, 100), &[], 0).tokens.is_empty());
}

#[test]
fn without_a_prediction_it_says_so() {
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
fn confidence_is_how_long_it_has_been_in_step() {
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
    let mut cut = Draft::default();
    drafter.propose(0, &[3, 0, 900], 2, Limits { n_max: 4, p_min: 0.99, pace: StopPolicy::All }, &mut cut);
    assert!(cut.tokens.is_empty());
}

#[test]
fn shifts_change_nothing() {
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
fn an_edited_text_takes_about_a_step_for_each_edit() {
    let expected: Vec<Token> = (0..2000).map(|index: i32| index * 7919 % 1009).collect();
    // Every hundredth token: replaced, left out, or another one put in.
    let mut said = Vec::new();
    for (index, token) in expected.iter().enumerate() {
        match (index % 100, index / 100 % 3) {
            (99, 0) => said.push(5000),
            (99, 1) => {}
            (99, _) => said.extend([5000, *token]),
            _ => said.push(*token),
        }
    }
    let text = [&[1][..], &said].concat();
    let played = play(&mut Prediction::new(1), &settings(&expected), &text, 1, 64);
    // 20 edits, and a step for each 65 tokens.
    assert!(played.steps <= 20 * 2 + 2000 / 65 + 10, "{played:?}");
}

proptest! {
    #[test]
    fn a_prediction_that_comes_true_is_drafted_to_its_end(
        expected in prop::collection::vec(0..5_i32, 2..200),
        n_max in 1..65_usize,
    ) {
        let text = [&[9][..], &expected].concat();
        let played = play(&mut Prediction::new(1), &settings(&expected), &text, 1, n_max);
        prop_assert_eq!(played.accepted, played.drafted);
        prop_assert_eq!(played.steps, (expected.len() - 1).div_ceil(n_max + 1));
    }

    #[test]
    fn drafts_are_pieces_of_the_prediction(
        expected in prop::collection::vec(0..4_i32, 0..60),
        said in prop::collection::vec(0..5_i32, 0..80),
    ) {
        let draft = draft(&expected, &said, 5);
        if !draft.tokens.is_empty() {
            prop_assert!(expected.windows(draft.tokens.len()).any(|piece| piece == draft.tokens));
        }
        prop_assert!(draft.tokens.len() == 5 || expected.ends_with(&draft.tokens));
    }

    #[test]
    fn the_nearest_place_is_what_a_search_finds(
        text in prop::collection::vec(0..3_i32, 1..80),
        ngram in prop::collection::vec(0..3_i32, 1..4),
        from in 0..90_usize,
        near in prop_oneof![0..20_usize, Just(usize::MAX)],
    ) {
        let places: Vec<usize> = (0..text.len()).filter(|place| text[*place..].starts_with(&ngram)).collect();
        let ahead = places.iter().find(|place| **place >= from && **place - from <= near);
        let behind = places.iter().rev().find(|place| **place < from).filter(|_| near == usize::MAX);
        let found = Places::new(&text, ngram.len()).nearest(&text, &ngram, from, near);
        prop_assert_eq!(found, ahead.or(behind).copied());
    }
}
