use std::sync::Arc;

use super::super::candidates::Candidates;
use super::super::penalties::EditedLogits;
use super::super::penalties::TokenCounts;
use super::super::settings::{DrySettings, SamplingSettings};
use super::{Breakers, Dry, power, suffix_matches};
use crate::tests::fakes::FakeVocabulary;
use crate::tests::reference::Rng;
use foredraft_base::{Token, TokenData};

fn settings(multiplier: f32, base: f32, allowed_length: i32, penalty_last_n: i32) -> SamplingSettings {
    let dry = DrySettings { multiplier, base, allowed_length, penalty_last_n, sequence_breakers: Vec::new() };
    SamplingSettings { dry, ..SamplingSettings::default() }
}

/// The penalty subtracted from each logit. Asserts that row and list give the same.
fn subtracted(settings: &SamplingSettings, n_vocab: usize, history: &[Token], breakers: &[&[Token]]) -> Vec<f32> {
    let mut dry = Dry::new(settings, &FakeVocabulary::new(n_vocab)).unwrap().unwrap();
    let sequences = breakers.iter().map(|breaker| (breaker[0], breaker[1..].to_vec())).collect();
    dry.breakers = Arc::new(Breakers::from_sequences(sequences, n_vocab));
    let (mut tally, mut matches, mut logits) = (TokenCounts::new(n_vocab), Vec::new(), vec![0.0; n_vocab]);
    let mut row = EditedLogits::new(&mut logits, Vec::new());
    dry.edit(&mut row, history, &mut tally, &mut matches);
    let edited: Vec<f32> = row.logits().iter().map(|logit| -logit).collect();
    row.restore();
    assert_eq!(logits, vec![0.0; n_vocab], "restored");
    let mut list = Candidates::default();
    list.refill(false, |items| {
        items.extend((0..n_vocab as Token).rev().map(|id| TokenData { id, logit: 0.0, p: 0.0 }));
    });
    dry.apply(&mut list, history, &mut tally, &mut matches);
    assert!(list.items().iter().all(|item| -item.logit == edited[item.id as usize]));
    assert!(tally.tokens().is_empty());
    edited
}

fn check(settings: &SamplingSettings, history: &[Token], breakers: &[&[Token]], expected: &[f32]) {
    let found = subtracted(settings, expected.len(), history, breakers);
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close, "{history:?}: {found:?}, expected {expected:?}");
}

/// The cases of llama.cpp's own test.
#[test]
fn dry_matches_llama_cpps_test_cases() {
    check(&settings(1.0, 1.1, 2, 4), &[0, 1], &[], &[0.0; 4]);
    check(&settings(1.0, 1.1, 2, 5), &[0, 1, 2, 0, 1], &[], &[0.0, 0.0, 1.0, 0.0]);
    check(&settings(1.0, 1.1, 2, 6), &[0, 1, 3, 4, 0, 1], &[&[3]], &[0.0; 5]);
    check(&settings(2.0, 1.1, 2, 5), &[0, 1, 2, 0, 1], &[], &[0.0, 0.0, 2.0, 0.0, 0.0]);
    check(&settings(1.0, 1.1, 4, 7), &[0, 1, 2, 3, 4, 0, 1], &[], &[0.0; 5]);
}

#[test]
fn dry_penalty_grows_with_the_repetition() {
    // The history ends in 1 2 3 for the second time, so 4 would continue a repetition of 3 tokens and 6 one of 2.
    let history = [1, 2, 3, 4, 0, 2, 3, 6, 0, 1, 2, 3];
    check(&settings(0.5, 2.0, 1, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.5 * 4.0, 0.0, 0.5 * 2.0]);
    check(&settings(0.5, 2.0, 3, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0]);
    check(&settings(0.5, 2.0, 4, -1), &history, &[], &[0.0; 7]);
    check(&settings(0.5, 2.0, 1, 7), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    // With an allowed length of 0, every token that occurred is penalized by at least base^0.
    check(&settings(1.0, 3.0, 0, -1), &[1, 2, 1], &[], &[0.0, 1.0, 3.0]);
}

#[test]
fn sequence_breakers_end_repetitions() {
    let history = [1, 2, 3, 4, 5, 1, 2, 3];
    check(&settings(1.0, 2.0, 1, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[2]], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[3]], &[0.0; 6]);
    // 1 2 is a breaker of two tokens: repetitions start after it.
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[1, 2]], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // A one-token breaker is never penalized; the tokens of a longer one may be.
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[4]], &[0.0; 6]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[4, 0]], &[0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
}

#[test]
fn large_penalties_do_not_overflow_or_ban() {
    let history = vec![1; 3000];
    let found = subtracted(&settings(1.0, 4.0, 1, -1), 2, &history, &[]);
    assert!(found[1] > 1e37 && found[1].is_finite(), "{found:?}");
    assert_eq!(subtracted(&settings(1e30, 4.0, 1, -1), 2, &history, &[])[1], f32::MAX, "the lowest finite logit");
    assert_eq!(subtracted(&settings(1.5, 1.0, 1, -1), 2, &history, &[])[1], 1.5, "base 1 does not grow");
}

#[test]
fn dry_turned_off_makes_no_stage() {
    for off in [settings(0.0, 1.75, 2, -1), settings(0.8, 0.9, 2, -1), settings(0.8, 1.75, 2, 0)] {
        assert!(Dry::new(&off, &FakeVocabulary::new(3)).unwrap().is_none());
    }
}

#[test]
fn suffix_matches_equal_a_naive_search() {
    let (mut rng, mut matches) = (Rng::new(12), Vec::new());
    for round in 0..3000 {
        let alphabet = 1 + round % 4;
        let window: Vec<Token> = (0..rng.below(40)).map(|_| rng.below(alphabet) as Token).collect();
        let n = window.len();
        let by_comparing: Vec<u32> = (0..n)
            .map(|k| {
                if k == 0 {
                    0
                } else {
                    (0..n - k).take_while(|i| window[n - 1 - i] == window[n - 1 - k - i]).count() as u32
                }
            })
            .collect();
        suffix_matches(&window, &mut matches);
        assert_eq!(matches.get(..n).unwrap(), by_comparing, "{window:?}");
    }
}

/// A naive search would take 10^11 steps.
#[test]
fn suffix_matches_take_linear_time() {
    let mut matches = Vec::new();
    suffix_matches(&vec![7; 400_000], &mut matches);
    assert_eq!((matches[1], matches[399_999]), (399_999, 1));
    let period: Vec<Token> = (0..400_000).map(|i| i % 1000).collect();
    suffix_matches(&period, &mut matches);
    assert_eq!((matches[1], matches[1000], matches[2000]), (0, 399_000, 398_000));
}

#[test]
fn power_matches_powf() {
    let cases: [(f64, i64); 6] = [(1.75, 0), (1.75, 1), (1.75, 2), (1.75, 37), (2.0, 100), (1.0, 1 << 40)];
    for (base, exponent) in cases {
        assert!((power(base, exponent) / base.powf(exponent as f64) - 1.0).abs() < 1e-12, "{base}^{exponent}");
    }
}

fn toy(pieces: &[&str]) -> FakeVocabulary {
    FakeVocabulary(pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect())
}

fn found(strings: &[&str], pieces: &[&str]) -> Vec<(Token, Vec<Token>)> {
    let strings: Vec<String> = strings.iter().map(|text| text.to_string()).collect();
    Breakers::find(&strings, &toy(pieces)).unwrap().sequences
}

#[test]
fn token_containing_a_breaker_has_no_tail() {
    assert_eq!(found(&["\n"], &["a", "\n", "b\n\nc", "n"]), [(1, vec![]), (2, vec![])]);
}

#[test]
fn token_ending_with_a_breaker_prefix_has_the_rest_as_tail() {
    let pieces = ["a", "b", "c", "xa", "ab", "abc", "ca", "bc", "aXb"];
    let expected = [
        (0, vec![1, 2]), // a + bc
        (3, vec![1, 2]), // xa + bc
        (4, vec![2]),    // ab + c
        (5, vec![]),     // abc
        (6, vec![1, 2]), // ca + bc
    ];
    assert_eq!(found(&["abc"], &pieces), expected);
}

#[test]
fn token_can_begin_a_breaker_in_several_ways() {
    // "aaab" can continue after one, two or three a's.
    let pieces = ["a", "b", "aa", "xaa"];
    let (one, two) = (vec![0, 0, 1], vec![0, 1]);
    assert_eq!(found(&["aaab"], &pieces), [(0, one.clone()), (2, one.clone()), (2, two.clone()), (3, one), (3, two)]);
}

#[test]
fn empty_and_duplicate_breakers_are_ignored() {
    assert_eq!(found(&["", "a", "a"], &["a", "b"]), [(0, vec![])]);
    assert_eq!(found(&[], &["a", "b"]), []);
}

/// llama.cpp's limits: 40 bytes, and tails of 20 tokens.
#[test]
fn long_breakers_are_truncated() {
    let long = "ab".repeat(30);
    assert_eq!(found(&[&long], &["a", &"ab".repeat(20)]), [(0, vec![0; 19]), (1, vec![])], "tokenized to a's alone");
    let of_a = format!("x{}", "a".repeat(60));
    assert_eq!(found(&[&of_a], &["a", "x"]), [(1, vec![0; 20])]);
}

#[test]
fn distance_is_measured_from_the_end_of_the_last_breaker() {
    // 0 alone is a breaker; 1 2 3 and 1 2 are; 4 5 is.
    let sequences = vec![(0, vec![]), (1, vec![2, 3]), (1, vec![2]), (4, vec![5])];
    let breakers = Breakers::from_sequences(sequences, 10);
    let cases: [(&[Token], Option<usize>); 12] = [
        (&[], None),
        (&[7, 8, 9], None),
        (&[0], Some(0)),
        (&[0, 7, 8], Some(2)),
        (&[0, 7, 0, 8], Some(1)),
        (&[4, 7, 7], None),
        (&[4, 5, 7, 7], Some(2)),
        (&[4], None),
        (&[1, 2, 7, 7], Some(2)),
        (&[1, 2, 3, 7], Some(1)),
        (&[0, 7, 1, 7, 7], Some(4)),
        (&[-1, 99, 0, -5, 99], Some(2)),
    ];
    for (window, expected) in cases {
        assert_eq!(breakers.distance(window), expected, "{window:?}");
    }
    assert!(breakers.contains_one(0) && !breakers.contains_one(1) && !breakers.contains_one(-1));
}
