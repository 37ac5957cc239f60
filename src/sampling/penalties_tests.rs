use super::super::candidates::Candidates;
use super::super::row::Row;
use super::super::settings::Settings;
use super::super::tally::Tally;
use super::Penalties;
use crate::llama::{Token, TokenData};

fn settings(repeat: f32, presence: f32, frequency: f32, last_n: i32) -> Settings {
    Settings {
        repeat_penalty: repeat,
        presence_penalty: presence,
        frequency_penalty: frequency,
        repeat_last_n: last_n,
        ..Settings::default()
    }
}

/// The logits after the penalties, the same from the row and from a list in another order; and the row afterwards.
fn penalised(settings: &Settings, newline: Option<Token>, logits: &[f32], history: &[Token]) -> Vec<f32> {
    let penalties = Penalties::new(settings, newline).unwrap();
    let (mut tally, mut raw) = (Tally::new(logits.len()), logits.to_vec());
    let mut row = Row::new(&mut raw, Vec::new());
    penalties.edit(&mut row, history, &mut tally);
    let edited = row.logits().to_vec();
    row.restore();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&raw), bits(logits), "put back");

    let mut list = Candidates::default();
    list.refill(false, |items| {
        let alive = (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        items.extend(alive.map(|(id, logit)| TokenData { id, logit: *logit, p: 0.0 }));
        items.reverse();
    });
    penalties.apply(&mut list, history, &mut tally);
    for item in list.items() {
        assert_eq!(item.logit, edited[item.id as usize], "token {}", item.id);
    }
    assert!(tally.tokens().is_empty() && (0..logits.len()).all(|token| tally.get(token as Token) == 0));
    edited
}

fn check(settings: &Settings, logits: &[f32], history: &[Token], expected: &[f32]) {
    let found = penalised(settings, None, logits, history);
    let close = found.iter().zip(expected).all(|(a, b)| a == b || (a - b).abs() <= 1e-6 * b.abs());
    assert!(close && found.len() == expected.len(), "{found:?}, expected {expected:?}");
}

#[test]
fn each_penalty_by_itself() {
    let logits = [4.0, -4.0, 0.0, 1.0];
    check(&settings(2.0, 0.0, 0.0, 64), &logits, &[0, 1, 2, 0, 0], &[2.0, -8.0, 0.0, 1.0]);
    check(&settings(1.0, 0.5, 0.0, 64), &logits, &[0, 1, 2, 0, 0], &[3.5, -4.5, -0.5, 1.0]);
    check(&settings(1.0, 0.0, 0.5, 64), &logits, &[0, 1, 2, 0, 0], &[2.5, -4.5, -0.5, 1.0]);
    check(&settings(2.0, 1.0, 0.5, 64), &logits, &[0, 1, 2, 0, 0], &[2.0 - 2.5, -8.0 - 1.5, -1.5, 1.0]);
    check(&settings(0.5, -1.0, -0.5, 64), &logits, &[3], &[4.0, -4.0, 0.0, 2.0 + 1.5]);
}

#[test]
fn the_window_is_the_end_of_the_history() {
    let logits = [2.0; 5];
    let history = [0, 1, 2, 3];
    for (last_n, expected) in [
        (1, [2.0, 2.0, 2.0, 1.0, 2.0]),
        (2, [2.0, 2.0, 1.0, 1.0, 2.0]),
        (4, [1.0, 1.0, 1.0, 1.0, 2.0]),
        (64, [1.0, 1.0, 1.0, 1.0, 2.0]),
        (-1, [1.0, 1.0, 1.0, 1.0, 2.0]),
    ] {
        check(&settings(2.0, 0.0, 0.0, last_n), &logits, &history, &expected);
        check(&settings(2.0, 0.0, 0.0, last_n), &logits, &[], &logits);
    }
}

#[test]
fn off_is_no_step() {
    for off in [settings(1.0, 0.0, 0.0, 64), settings(1.5, 0.5, 0.5, 0)] {
        assert!(Penalties::new(&off, None).is_none());
    }
}

#[test]
fn the_newline_is_spared_on_request() {
    let mut settings = settings(2.0, 1.0, 1.0, 64);
    let (logits, history) = ([2.0, 2.0], [0, 0, 1]);
    assert_eq!(penalised(&settings, Some(0), &logits, &history), [1.0 - 3.0, 1.0 - 2.0]);
    settings.penalize_nl = false;
    assert_eq!(penalised(&settings, Some(0), &logits, &history), [2.0, 1.0 - 2.0]);
    assert_eq!(penalised(&settings, None, &logits, &history), [1.0 - 3.0, 1.0 - 2.0]);
}

#[test]
fn penalties_do_not_ban_and_do_not_unban() {
    let history = [0, 1, 2];
    let strong = settings(1e30, 1e38, 1e38, 64);
    assert_eq!(
        penalised(&strong, None, &[-1e20, f32::NEG_INFINITY, 1.0], &history)[..2],
        [f32::MIN, f32::NEG_INFINITY]
    );
    let generous = settings(1.0, -1e38, -1e38, 64);
    assert_eq!(penalised(&generous, None, &[0.0, f32::NEG_INFINITY, 1.0], &history)[1], f32::NEG_INFINITY);
}

#[test]
fn ids_outside_the_vocabulary_are_passed_over() {
    check(&settings(2.0, 0.0, 0.0, -1), &[2.0, 2.0], &[-1, 2, Token::MAX, Token::MIN, 1], &[2.0, 1.0]);
}
