use super::super::candidates::Candidates;
use super::super::noise::{BLOCK, GumbelNoise};
use super::{BlockMaxima, BlockScratch, max_of, sum_exp};
use crate::tests::reference::Rng;
use foredraft_base::Token;

/// Rows of many kinds: sizes around block and lane boundaries, ties, NaN, infinities, flat and peaked.
fn rows() -> Vec<Vec<f32>> {
    let mut rng = Rng::new(1);
    let mut rows = vec![vec![0.0], vec![-3.5], vec![7.0; 3], vec![2.0; 2 * BLOCK + 1]];
    for n in [2, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 1000, 5003] {
        rows.push(rng.logits(n));
        rows.push((0..n).map(|_| (0.5 * rng.normal()) as f32).collect());
        rows.push((0..n).map(|_| rng.below(5) as f32 - 2.0).collect());
        let special = [f32::NAN, f32::NEG_INFINITY, -0.0, 0.0, 1e-40, -1e30, 3.0];
        rows.push((0..n).map(|i| if i == n / 2 { 1.0 } else { *rng.pick(&special) }).collect());
        let mut banned = vec![f32::NEG_INFINITY; n];
        banned[n - 1] = -20.0;
        rows.push(banned);
    }
    rows
}

/// Tokens and logits of the candidates, best first.
fn sorted(row: &[f32]) -> Vec<(Token, f32)> {
    let mut all: Vec<(Token, f32)> =
        (0..).zip(row).map(|(token, logit)| (token, *logit)).filter(|item| item.1 > f32::NEG_INFINITY).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all
}

fn with<R>(row: &[f32], temperature: f32, ask: impl FnOnce(&mut BlockMaxima<'_>) -> R) -> R {
    let mut scratch = BlockScratch::default();
    let mut blocks = BlockMaxima::scan(row, &mut scratch);
    blocks.set_temperature(temperature);
    ask(&mut blocks)
}

fn items(list: &Candidates) -> Vec<(Token, f32)> {
    list.items().iter().map(|item| (item.id, item.logit)).collect()
}

#[test]
fn max_and_argmax_match_a_sort() {
    for row in rows() {
        let best = sorted(&row)[0];
        assert_eq!(max_of(&row), best.1);
        assert_eq!(with(&row, 1.0, |blocks| blocks.argmax()), Some(best.0));
        assert_eq!(with(&row, 0.5, |blocks| blocks.max()), best.1 / 0.5);
    }
    for row in [vec![], vec![f32::NAN; 300], vec![f32::NEG_INFINITY; 16]] {
        assert_eq!(max_of(&row), f32::NEG_INFINITY);
        assert_eq!(with(&row, 1.0, |blocks| (blocks.is_empty(), blocks.argmax())), (true, None));
        assert_eq!(with(&row, 1.0, |blocks| blocks.draw(&GumbelNoise::new(1, 1))), None);
    }
    assert_eq!(with(&[1.0, f32::INFINITY, f32::INFINITY], 1.0, |blocks| blocks.argmax()), Some(1));
}

#[test]
fn top_k_matches_a_sort() {
    let mut list = Candidates::default();
    for row in rows() {
        let all = sorted(&row);
        for k in [1, 2, 3, 40, 63, 300, row.len() - 1, row.len(), row.len() + 1, usize::MAX] {
            with(&row, 1.0, |blocks| blocks.top_k(k, &mut list));
            let expected: Vec<_> = all.iter().copied().take(k.max(1)).collect();
            assert_eq!(items(&list), expected, "k = {k} of {}", row.len());
            assert_eq!(list.size(), k.max(1).min(row.len()), "banned tokens count, as in llama.cpp");
        }
    }
}

#[test]
fn listed_logits_are_divided_by_the_temperature() {
    let (row, mut list) = (Rng::new(5).logits(1000), Candidates::default());
    with(&row, 0.7, |blocks| blocks.top_k(10, &mut list));
    let expected: Vec<_> = sorted(&row).iter().take(10).map(|item| (item.0, item.1 / 0.7)).collect();
    assert_eq!(items(&list), expected);
    with(&row, 0.7, |blocks| blocks.list_all(&mut list));
    let expected: Vec<_> = (0..).zip(&row).map(|(token, logit)| (token, logit / 0.7)).collect();
    assert_eq!(items(&list), expected);
}

#[test]
fn at_least_lists_exactly_the_values_at_or_above_the_threshold() {
    let mut list = Candidates::default();
    for row in rows() {
        for temperature in [1.0, 0.3, 1.7] {
            let all: Vec<_> =
                (0..).zip(&row).map(|(token, logit): (Token, &f32)| (token, logit / temperature)).collect();
            for threshold in [f32::NEG_INFINITY, -1.0, 0.0, all[row.len() / 2].1, 2.0 / temperature, 1e9] {
                with(&row, temperature, |blocks| blocks.at_least(threshold, &mut list));
                let reaches = |item: &&(Token, f32)| item.1 >= threshold && item.1 > f32::NEG_INFINITY;
                let expected: Vec<_> = all.iter().filter(reaches).copied().collect();
                assert_eq!(items(&list), expected, "{threshold} of {}", row.len());
            }
        }
    }
}

#[test]
fn sums_entropy_and_moments_match_f64() {
    for row in rows() {
        let finite: Vec<f64> = row.iter().filter(|logit| logit.is_finite()).map(|logit| f64::from(*logit)).collect();
        for temperature in [1.0, 0.4, 2.0] {
            let t = f64::from(temperature);
            let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = finite.iter().map(|logit| ((logit - max) / t).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let entropy: f64 = weights.iter().map(|w| w / sum).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
            let mean = finite.iter().sum::<f64>() / finite.len() as f64;
            let variance = finite.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / finite.len() as f64;
            with(&row, temperature, |blocks| {
                assert!((blocks.sum_exp() / sum - 1.0).abs() < 1e-6, "{} and {sum}", blocks.sum_exp());
                assert!((blocks.entropy() - entropy).abs() < 1e-5 * (1.0 + entropy), "{} {entropy}", blocks.entropy());
                let (m, s) = blocks.moments();
                let scale = 1e-5 * (mean.abs() + variance.sqrt() + 1e-9) / t;
                if variance < 1e30 {
                    assert!((m - mean / t).abs() <= scale, "{m} and {}", mean / t);
                    assert!((s - variance.sqrt() / t).abs() <= scale, "{s} and {}", variance.sqrt() / t);
                }
            });
            if temperature == 1.0 {
                assert!((sum_exp(&row, max as f32) / sum - 1.0).abs() < 1e-6);
            }
        }
    }
}

/// The draw without skipping: the largest score of all tokens.
fn naive_draw(row: &[f32], temperature: f32, noise: &GumbelNoise) -> Option<Token> {
    let values: Vec<f32> = row.iter().map(|logit| logit / temperature).collect();
    let max = values.iter().copied().filter(|value| !value.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let mut best = None;
    for (token, value) in (0..).zip(&values).filter(|(_, value)| **value > f32::NEG_INFINITY) {
        let distance = if *value == max { 0.0 } else { f64::from(value - max) };
        let score = distance + noise.gumbel(token);
        if best.is_none_or(|(other, _)| score > other) {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}

#[test]
fn skipping_blocks_does_not_change_draws() {
    let mut rng = Rng::new(77);
    let mut rows = rows();
    for _ in 0..20 {
        let spread = 0.2 + 5.0 * rng.unit();
        rows.push((0..6000).map(|_| (spread * rng.normal()) as f32).collect());
    }
    rows.push(vec![f32::INFINITY, 1.0, f32::INFINITY, f32::NAN, f32::INFINITY]);
    let mut different = 0;
    for (seed, row) in (0..).zip(&rows) {
        for (position, temperature) in [1.0, 0.1, 0.8, 1.3, 3.0, 40.0].iter().cycle().take(60).enumerate() {
            let noise = GumbelNoise::new(seed, position);
            let drawn = with(row, *temperature, |blocks| blocks.draw(&noise));
            assert_eq!(drawn, naive_draw(row, *temperature, &noise), "seed {seed}, position {position}");
            different += usize::from(drawn != with(row, 1.0, |blocks| blocks.argmax()));
        }
    }
    assert!(different > 1000, "only {different} draws were not the argmax");
}

#[test]
fn row_and_list_draw_the_same_token() {
    let mut list = Candidates::default();
    for (seed, row) in (0..).zip(rows()) {
        for position in 0..20 {
            let noise = GumbelNoise::new(seed, position);
            let drawn = with(&row, 0.9, |blocks| {
                blocks.list_all(&mut list);
                blocks.draw(&noise)
            });
            assert_eq!(list.draw(&noise), drawn);
        }
    }
}
