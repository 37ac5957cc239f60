//! The product's numbers: that they are uniform, independent, and answer as the tests' dice do.

use super::super::{Chance, Draw, Proposal, Residual, Row, StepChance, block, rejection};
use super::rules::{Constant, row};

/// The number itself, to so many cells.
fn cell(chance: &mut StepChance, draw: Draw, cells: usize) -> usize {
    (1..cells).find(|cell| chance.is_below(draw, *cell as f64 / cells as f64)).unwrap_or(cells) - 1
}

/// Pearson's statistic against equal cells stays within five deviations of its mean.
fn assert_even(what: &str, counts: &[usize]) {
    let each = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    let statistic: f64 = counts.iter().map(|count| (*count as f64 - each).powi(2) / each).sum();
    let freedom = (counts.len() - 1) as f64;
    assert!((statistic - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "{what}: {statistic} for {freedom}");
}

#[test]
fn numbers_are_uniform_and_independent_in_pairs() {
    type Pair = fn(usize) -> [(u32, usize, Draw); 2];
    let pairs: [(&str, Pair); 7] = [
        ("draw and acceptance", |n| [(1, n, Draw::Draft(1)), (1, n, Draw::Accept(1))]),
        ("refusal and replacement", |n| [(1, n, Draw::Accept(1)), (1, n, Draw::Next(0))]),
        ("draw and replacement", |n| [(1, n, Draw::Draft(1)), (1, n, Draw::Next(0))]),
        ("acceptances in a row", |n| [(1, n, Draw::Accept(1)), (1, n, Draw::Accept(2))]),
        ("one position in two steps", |n| [(1, n, Draw::Draft(2)), (1, n + 1, Draw::Draft(1))]),
        ("nodes and steps", |n| [(1, n / 64, Draw::Draft(n % 64)), (1, n / 64 + 1, Draw::Accept(n % 64))]),
        ("seeds", |n| [(n as u32, 3, Draw::Accept(1)), (n as u32 + 1, 3, Draw::Accept(1))]),
    ];
    for (what, pair) in pairs {
        let mut counts = [0; 256];
        for n in 0..60_000 {
            let [a, b] = pair(n).map(|(seed, start, draw)| cell(&mut StepChance::new(seed, start), draw, 16));
            counts[16 * a + b] += 1;
        }
        assert_even(what, &counts);
    }
}

#[test]
fn answers_are_those_of_one_number() {
    for start in 0..2000 {
        let mut chance = StepChance::new(7, start);
        let (fine, coarse) = (cell(&mut chance, Draw::Next(3), 64), cell(&mut chance, Draw::Next(3), 8));
        assert_eq!(fine / 8, coarse, "the same number, asked about again");
        cell(&mut chance, Draw::Next(4), 64);
        assert_eq!(cell(&mut chance, Draw::Next(3), 64), fine, "and after another");
        assert_eq!(chance.choose(Draw::Next(3), [1.0; 64].into_iter(), 64.0), Some(fine));
        let gaps = [0.0, 2.0, 0.0, 2.0, 0.0].into_iter();
        assert_eq!(chance.choose(Draw::Next(3), gaps, 4.0), Some(if fine < 32 { 1 } else { 3 }));
        assert!(!chance.is_below(Draw::Accept(1), 0.0) && chance.is_below(Draw::Accept(1), 1.0));
    }
    let mut chance = StepChance::new(7, 0);
    assert_eq!(chance.choose(Draw::Next(0), [].into_iter(), 0.0), None);
    assert_eq!(chance.choose(Draw::Next(0), [0.0, 0.0].into_iter(), 0.0), None);
    assert_eq!(chance.choose(Draw::Next(0), [0.0, 1e-300, 0.0].into_iter(), 1.0), Some(1), "rounding leaves no gap");
}

/// The only test by sampling: step after step with the product's numbers, two tokens of 40,000 texts.
#[test]
fn texts_by_the_products_numbers_have_the_targets_law() {
    let (p, q) = ([0.6, 0.3, 0.1], row(&[0.2, 0.3, 0.5]));
    for is_block in [false, true] {
        let mut counts = [0; 9];
        let (mut draft, mut residual, mut target) = (Proposal::default(), Residual::default(), Constant(row(&p)));
        for seed in 0..40_000 {
            let mut text = Vec::new();
            while text.len() < 2 {
                let mut chance = StepChance::new(seed, text.len());
                draft.begin(2);
                while draft.draw(Row::new(&q).unwrap(), &mut chance).is_some() {}
                let verify = if is_block { block::verify } else { rejection::verify };
                let verdict = verify(&draft, &mut target, &mut chance, &mut residual);
                text.extend_from_slice(&draft.tokens()[..verdict.node]);
                text.push(verdict.next.unwrap().token);
            }
            counts[(3 * text[0] + text[1]) as usize] += 1;
        }
        let statistic: f64 = (0..9)
            .map(|cell| {
                let expected = 40_000.0 * f64::from(p[cell / 3]) * f64::from(p[cell % 3]);
                (f64::from(counts[cell]) - expected).powi(2) / expected
            })
            .sum();
        assert!(statistic < 8.0 + 5.0 * 4.0 + 10.0, "block: {is_block}: {statistic} for 8: {counts:?}");
    }
}
