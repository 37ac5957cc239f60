use std::sync::Arc;

use super::super::breakers::Breakers;
use super::super::candidates::Candidates;
use super::super::oracle::{Rng, Toy};
use super::super::row::Row;
use super::super::settings::{self, Settings};
use super::super::tally::Tally;
use super::{Dry, power, suffix_matches};
use crate::llama::{Token, TokenData};

fn settings(multiplier: f32, base: f32, allowed_length: i32, penalty_last_n: i32) -> Settings {
    let dry = settings::Dry { multiplier, base, allowed_length, penalty_last_n, sequence_breakers: Vec::new() };
    Settings { dry, ..Settings::default() }
}

/// What is subtracted from each logit, the same from the row and from a list.
fn subtracted(settings: &Settings, n_vocab: usize, history: &[Token], breakers: &[&[Token]]) -> Vec<f32> {
    let mut dry = Dry::new(settings, &Toy::new(n_vocab)).unwrap().unwrap();
    let sequences = breakers.iter().map(|breaker| (breaker[0], breaker[1..].to_vec())).collect();
    dry.breakers = Arc::new(Breakers::from_sequences(sequences, n_vocab));
    let (mut tally, mut matches, mut logits) = (Tally::new(n_vocab), Vec::new(), vec![0.0; n_vocab]);
    let mut row = Row::new(&mut logits, Vec::new());
    dry.edit(&mut row, history, &mut tally, &mut matches);
    let edited: Vec<f32> = row.logits().iter().map(|logit| -logit).collect();
    row.restore();
    assert_eq!(logits, vec![0.0; n_vocab], "put back");
    let mut list = Candidates::default();
    list.refill(false, |items| {
        items.extend((0..n_vocab as Token).rev().map(|id| TokenData { id, logit: 0.0, p: 0.0 }));
    });
    dry.apply(&mut list, history, &mut tally, &mut matches);
    assert!(list.items().iter().all(|item| -item.logit == edited[item.id as usize]));
    assert!(tally.tokens().is_empty());
    edited
}

fn check(settings: &Settings, history: &[Token], breakers: &[&[Token]], expected: &[f32]) {
    let found = subtracted(settings, expected.len(), history, breakers);
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close, "{history:?}: {found:?}, expected {expected:?}");
}

/// The cases of llama.cpp's own test, as penalties.
#[test]
fn as_in_llama_cpps_tests() {
    check(&settings(1.0, 1.1, 2, 4), &[0, 1], &[], &[0.0; 4]);
    check(&settings(1.0, 1.1, 2, 5), &[0, 1, 2, 0, 1], &[], &[0.0, 0.0, 1.0, 0.0]);
    check(&settings(1.0, 1.1, 2, 6), &[0, 1, 3, 4, 0, 1], &[&[3]], &[0.0; 5]);
    check(&settings(2.0, 1.1, 2, 5), &[0, 1, 2, 0, 1], &[], &[0.0, 0.0, 2.0, 0.0, 0.0]);
    check(&settings(1.0, 1.1, 4, 7), &[0, 1, 2, 3, 4, 0, 1], &[], &[0.0; 5]);
}

#[test]
fn the_penalty_grows_with_the_repetition() {
    // The text ends in 1 2 3 for the second time, so 4 continues a repetition of 3; 6 continued one of 2.
    let history = [1, 2, 3, 4, 0, 2, 3, 6, 0, 1, 2, 3];
    check(&settings(0.5, 2.0, 1, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.5 * 4.0, 0.0, 0.5 * 2.0]);
    check(&settings(0.5, 2.0, 3, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0]);
    check(&settings(0.5, 2.0, 4, -1), &history, &[], &[0.0; 7]);
    check(&settings(0.5, 2.0, 1, 7), &history, &[], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    // With every length allowed, all that occurred before something are penalised: base^0 and more.
    check(&settings(1.0, 3.0, 0, -1), &[1, 2, 1], &[], &[0.0, 1.0, 3.0]);
}

#[test]
fn breakers_end_repetitions() {
    let history = [1, 2, 3, 4, 5, 1, 2, 3];
    check(&settings(1.0, 2.0, 1, -1), &history, &[], &[0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[2]], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[3]], &[0.0; 6]);
    // 1 2 is a breaker of two tokens: what follows it counts.
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[1, 2]], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // A breaker is never penalised itself; one of two tokens may be.
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[4]], &[0.0; 6]);
    check(&settings(1.0, 2.0, 1, -1), &history, &[&[4, 0]], &[0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
}

#[test]
fn large_powers_neither_overflow_nor_ban() {
    let history = vec![1; 3000];
    let found = subtracted(&settings(1.0, 4.0, 1, -1), 2, &history, &[]);
    assert!(found[1] > 1e37 && found[1].is_finite(), "{found:?}");
    assert_eq!(subtracted(&settings(1e30, 4.0, 1, -1), 2, &history, &[])[1], f32::MAX, "the lowest finite logit");
    assert_eq!(subtracted(&settings(1.5, 1.0, 1, -1), 2, &history, &[])[1], 1.5, "base 1 does not grow");
}

#[test]
fn off_is_no_step() {
    for off in [settings(0.0, 1.75, 2, -1), settings(0.8, 0.9, 2, -1), settings(0.8, 1.75, 2, 0)] {
        assert!(Dry::new(&off, &Toy::new(3)).unwrap().is_none());
    }
}

#[test]
fn suffix_matches_are_what_comparing_finds() {
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

/// Comparing would take 10^11 steps here.
#[test]
fn a_long_repetition_takes_linear_time() {
    let mut matches = Vec::new();
    suffix_matches(&vec![7; 400_000], &mut matches);
    assert_eq!((matches[1], matches[399_999]), (399_999, 1));
    let period: Vec<Token> = (0..400_000).map(|i| i % 1000).collect();
    suffix_matches(&period, &mut matches);
    assert_eq!((matches[1], matches[1000], matches[2000]), (0, 399_000, 398_000));
}

#[test]
fn powers() {
    let cases: [(f64, i64); 6] = [(1.75, 0), (1.75, 1), (1.75, 2), (1.75, 37), (2.0, 100), (1.0, 1 << 40)];
    for (base, exponent) in cases {
        assert!((power(base, exponent) / base.powf(exponent as f64) - 1.0).abs() < 1e-12, "{base}^{exponent}");
    }
}
