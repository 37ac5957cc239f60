//! The product's random numbers: uniform, independent, and consistent between comparisons.

use super::super::{RandomSource, RandomUse, Residual, SampledDraft, StepRandom, TokenDistribution, block, rejection};
use super::rules::{Constant, row};

/// The index of the cell, out of `cells` equal ones, that contains the number.
fn cell(random: &mut StepRandom, draw: RandomUse, cells: usize) -> usize {
    (1..cells).find(|cell| random.is_below(draw, *cell as f64 / cells as f64)).unwrap_or(cells) - 1
}

/// Asserts that Pearson's statistic for equal cells is within five standard deviations of its mean.
fn assert_even(what: &str, counts: &[usize]) {
    let each = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    let statistic: f64 = counts.iter().map(|count| (*count as f64 - each).powi(2) / each).sum();
    let freedom = (counts.len() - 1) as f64;
    assert!((statistic - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "{what}: {statistic} for {freedom}");
}

#[test]
fn random_numbers_are_uniform_and_pairwise_independent() {
    type Pair = fn(usize) -> [(u32, usize, RandomUse); 2];
    let pairs: [(&str, Pair); 7] = [
        ("draw and acceptance", |n| [(1, n, RandomUse::Draft(1)), (1, n, RandomUse::Accept(1))]),
        ("rejection and replacement", |n| [(1, n, RandomUse::Accept(1)), (1, n, RandomUse::Next(0))]),
        ("draw and replacement", |n| [(1, n, RandomUse::Draft(1)), (1, n, RandomUse::Next(0))]),
        ("acceptances in a row", |n| [(1, n, RandomUse::Accept(1)), (1, n, RandomUse::Accept(2))]),
        ("one position in two steps", |n| [(1, n, RandomUse::Draft(2)), (1, n + 1, RandomUse::Draft(1))]),
        ("nodes and steps", |n| [(1, n / 64, RandomUse::Draft(n % 64)), (1, n / 64 + 1, RandomUse::Accept(n % 64))]),
        ("seeds", |n| [(n as u32, 3, RandomUse::Accept(1)), (n as u32 + 1, 3, RandomUse::Accept(1))]),
    ];
    for (what, pair) in pairs {
        let mut counts = [0; 256];
        for n in 0..60_000 {
            let [a, b] = pair(n).map(|(seed, start, draw)| cell(&mut StepRandom::new(seed, start), draw, 16));
            counts[16 * a + b] += 1;
        }
        assert_even(what, &counts);
    }
}

#[test]
fn comparisons_of_one_number_are_consistent() {
    for start in 0..2000 {
        let mut random = StepRandom::new(7, start);
        let (fine, coarse) = (cell(&mut random, RandomUse::Next(3), 64), cell(&mut random, RandomUse::Next(3), 8));
        assert_eq!(fine / 8, coarse, "the same number, compared again");
        cell(&mut random, RandomUse::Next(4), 64);
        assert_eq!(cell(&mut random, RandomUse::Next(3), 64), fine, "and again after another number");
        assert_eq!(random.sample_index(RandomUse::Next(3), [1.0; 64].into_iter(), 64.0), Some(fine));
        let gaps = [0.0, 2.0, 0.0, 2.0, 0.0].into_iter();
        assert_eq!(random.sample_index(RandomUse::Next(3), gaps, 4.0), Some(if fine < 32 { 1 } else { 3 }));
        assert!(!random.is_below(RandomUse::Accept(1), 0.0) && random.is_below(RandomUse::Accept(1), 1.0));
    }
    let mut random = StepRandom::new(7, 0);
    assert_eq!(random.sample_index(RandomUse::Next(0), [].into_iter(), 0.0), None);
    assert_eq!(random.sample_index(RandomUse::Next(0), [0.0, 0.0].into_iter(), 0.0), None);
    assert_eq!(
        random.sample_index(RandomUse::Next(0), [0.0, 1e-300, 0.0].into_iter(), 1.0),
        Some(1),
        "rounding leaves no gap"
    );
}

/// The only test that samples: steps with the product's random numbers, two tokens of 40,000 outputs.
#[test]
fn outputs_with_the_products_random_numbers_follow_the_target() {
    let (p, q) = ([0.6, 0.3, 0.1], row(&[0.2, 0.3, 0.5]));
    for is_block in [false, true] {
        let mut counts = [0; 9];
        let (mut draft, mut residual, mut target) = (SampledDraft::default(), Residual::default(), Constant(row(&p)));
        for seed in 0..40_000 {
            let mut text = Vec::new();
            while text.len() < 2 {
                let mut random = StepRandom::new(seed, text.len());
                draft.begin(2);
                while draft.draw_next(TokenDistribution::new(&q).unwrap(), &mut random).is_some() {}
                let verify = if is_block { block::verify } else { rejection::verify };
                let verdict = verify(&draft, &mut target, &mut random, &mut residual);
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
