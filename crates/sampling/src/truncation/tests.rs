use super::super::blocks::{BlockMaxima, BlockScratch};
use super::super::candidates::Candidates;
use super::super::noise::GumbelNoise;
use super::*;
use crate::tests::reference::Rng;
use foredraft_base::Token;

/// The candidates that a stage keeps.
#[derive(Debug, PartialEq)]
struct Left {
    tokens: Vec<Token>,
    /// llama.cpp's number of candidates.
    size: usize,
}

fn left(list: &Candidates) -> Left {
    let mut tokens: Vec<Token> = list.items().iter().map(|item| item.id).collect();
    tokens.sort();
    Left { tokens, size: list.size() }
}

/// A list of all tokens above -inf, by token id or best first.
fn listed(logits: &[f32], sorted: bool) -> Candidates {
    let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
    BlockMaxima::scan(logits, &mut scratch).list_all(&mut list);
    if sorted {
        list.sort();
    }
    list
}

type OnList<'a> = &'a dyn Fn(&mut Candidates);
type OnRow<'a> = &'a dyn Fn(&mut BlockMaxima<'_>, &mut Candidates);

/// Asserts that a stage keeps `tokens`, in its list form and, if it has one, in its row form.
fn check_logits(what: &str, logits: &[f32], on_list: OnList<'_>, on_row: Option<OnRow<'_>>, tokens: &[Token]) {
    let mut results = Vec::new();
    for sorted in [false, true] {
        let mut list = listed(logits, sorted);
        on_list(&mut list);
        results.push(left(&list));
    }
    if let Some(on_row) = on_row {
        let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
        on_row(&mut BlockMaxima::scan(logits, &mut scratch), &mut list);
        results.push(left(&list));
    }
    for result in &results {
        assert_eq!(result.tokens, tokens, "{what}");
        assert_eq!(result.size, results[0].size, "{what}");
    }
}

fn check(what: &str, probabilities: &[f32], on_list: OnList<'_>, on_row: Option<OnRow<'_>>, tokens: &[Token]) {
    let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
    check_logits(what, &logits, on_list, on_row, tokens);
}

#[test]
fn top_p_keeps_the_fewest_tokens_that_reach_p() {
    let p = [0.1, 0.2, 0.3, 0.4];
    let cases: [(f32, usize, &[Token]); 9] = [
        (0.0, 0, &[3]),
        (0.39, 0, &[3]),
        (0.41, 0, &[2, 3]),
        (0.69, 0, &[2, 3]),
        (0.71, 0, &[1, 2, 3]),
        (0.99, 0, &[0, 1, 2, 3]),
        (0.0, 2, &[2, 3]),
        (0.8, 2, &[1, 2, 3]),
        (0.1, 9, &[0, 1, 2, 3]),
    ];
    for (limit, min_keep, expected) in cases {
        check(
            &format!("top_p {limit}, min_keep {min_keep}"),
            &p,
            &|list| top_p(list, limit, min_keep),
            Some(&|blocks, list| top_p_row(blocks, list, limit, min_keep)),
            expected,
        );
    }
    // Among equal probabilities the lower token ids are kept.
    check(
        "ties",
        &[0.25; 4],
        &|list| top_p(list, 0.5, 0),
        Some(&|blocks, list| top_p_row(blocks, list, 0.5, 0)),
        &[0, 1],
    );
}

#[test]
fn top_p_lists_more_tokens_for_a_flat_row() {
    // 5000 equally probable tokens: far more than the initially listed ones are needed.
    let logits = vec![1.5; 5000];
    let expected: Vec<Token> = (0..4000).collect();
    let on_row: OnRow<'_> = &|blocks, list| top_p_row(blocks, list, 0.79999, 0);
    check_logits("flat", &logits, &|list| top_p(list, 0.79999, 0), Some(on_row), &expected);
}

#[test]
fn min_p_keeps_tokens_near_the_most_probable() {
    let p = [0.1, 0.2, 0.3, 0.4];
    let cases: [(f32, usize, &[Token]); 10] = [
        (0.24, 0, &[0, 1, 2, 3]),
        (0.26, 0, &[1, 2, 3]),
        (0.49, 0, &[1, 2, 3]),
        (0.51, 0, &[2, 3]),
        (0.74, 0, &[2, 3]),
        (0.76, 0, &[3]),
        (1.00, 0, &[3]),
        (1.05, 0, &[3]),
        (0.76, 3, &[1, 2, 3]),
        (1.05, 9, &[0, 1, 2, 3]),
    ];
    for (limit, min_keep, expected) in cases {
        check(
            &format!("min_p {limit}, min_keep {min_keep}"),
            &p,
            &|list| min_p(list, limit, min_keep),
            Some(&|blocks, list| min_p_row(blocks, list, limit, min_keep)),
            expected,
        );
    }
}

#[test]
fn top_n_sigma_keeps_tokens_near_the_largest_logit() {
    // Mean 5, deviation 3: 9 - 3n.
    let logits = [1.0, 3.0, 5.0, 7.0, 9.0];
    let deviation = 8.0_f32.sqrt();
    let cases: [(f32, &[Token]); 4] =
        [(0.5, &[4]), (2.01 / deviation, &[3, 4]), (3.99 / deviation, &[3, 4]), (10.0, &[0, 1, 2, 3, 4])];
    for (n, expected) in cases {
        let on_row: OnRow<'_> = &|blocks, list| top_n_sigma_row(blocks, list, n);
        check_logits(&format!("n = {n}"), &logits, &|list| top_n_sigma(list, n), Some(on_row), expected);
    }
    // Banned tokens do not count in the mean and the deviation. They and the masked ones stay in llama.cpp's list.
    let banned = [f32::NEG_INFINITY, 1.0, 3.0, 5.0, 7.0, f32::NEG_INFINITY, 9.0];
    let on_row: OnRow<'_> = &|blocks, list| {
        top_n_sigma_row(blocks, list, 1.0);
        assert_eq!(list.size(), 7);
    };
    check_logits("banned", &banned, &|list| top_n_sigma(list, 1.0), Some(on_row), &[4, 6]);
    check_logits(
        "single",
        &[2.0],
        &|list| top_n_sigma(list, 1.0),
        Some(&|b, list| top_n_sigma_row(b, list, 1.0)),
        &[0],
    );
    for huge in [[f32::MAX, f32::MIN, 0.0], [f32::INFINITY, 0.0, 1.0]] {
        let on_row: OnRow<'_> = &|blocks, list| {
            top_n_sigma_row(blocks, list, 0.1);
            assert_eq!(list.items().iter().filter(|item| item.id == 0).count(), 1, "the largest stays");
        };
        check_logits("huge", &huge, &|list| top_n_sigma(list, 0.1), None, &[0]);
        let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
        on_row(&mut BlockMaxima::scan(&huge, &mut scratch), &mut list);
    }
}

#[test]
fn typical_p_keeps_the_most_typical_tokens() {
    let cases: [(&[f32], f32, usize, &[Token]); 6] = [
        (&[0.97, 0.01, 0.01, 0.01], 0.5, 0, &[0]),
        // Entropy 1.33: 0.2 is at distance 0.28 from it, 0.4 at 0.42. All three 0.2 are needed to exceed 0.5.
        (&[0.4, 0.2, 0.2, 0.2], 0.5, 0, &[1, 2, 3]),
        (&[0.4, 0.2, 0.2, 0.2], 0.3, 0, &[1, 2]),
        (&[0.4, 0.2, 0.2, 0.2], 0.3, 3, &[1, 2, 3]),
        (&[0.4, 0.2, 0.2, 0.2], 0.61, 0, &[0, 1, 2, 3]),
        (&[0.25, 0.25, 0.25, 0.25], 0.6, 0, &[0, 1, 2]),
    ];
    for (p, limit, min_keep, expected) in cases {
        check(
            &format!("typical_p {limit} of {p:?}, min_keep {min_keep}"),
            p,
            &|list| typical_p(list, limit, min_keep),
            Some(&|blocks, list| typical_p_row(blocks, list, limit, min_keep)),
            expected,
        );
    }
}

#[test]
fn tail_free_truncates_where_the_curve_flattens() {
    // First differences .3 .1 .09 .01 0; second .2 .01 .08 .01, of .3: .667 .7 .967 1.
    let p = [0.51, 0.21, 0.11, 0.02, 0.01, 0.01];
    let cases: [(f32, usize, &[Token]); 7] = [
        (0.5, 0, &[0]),
        (0.6, 0, &[0]),
        (0.68, 0, &[0]),
        (0.72, 0, &[0, 1]),
        (0.97, 0, &[0, 1, 2]),
        (0.5, 3, &[0, 1, 2]),
        (0.5, 9, &[0, 1, 2, 3, 4, 5]),
    ];
    for (z, min_keep, expected) in cases {
        check(
            &format!("tfs_z {z}, min_keep {min_keep}"),
            &p,
            &|list| tail_free(list, z, min_keep),
            Some(&|blocks, list| tail_free_row(blocks, list, z, min_keep)),
            expected,
        );
    }
    // A straight line has no second differences: every position counts the same.
    let straight: OnRow<'_> = &|blocks, list| tail_free_row(blocks, list, 0.6, 0);
    check("straight", &[0.25; 4], &|list| tail_free(list, 0.6, 0), Some(straight), &[0]);
    check("two", &[0.5, 0.5], &|list| tail_free(list, 0.1, 0), None, &[0, 1]);
}

#[test]
fn xtc_keeps_only_the_last_of_the_top_choices() {
    let p = [0.4, 0.3, 0.2, 0.1];
    let cases: [(f32, usize, &[Token]); 8] = [
        (0.09, 0, &[3]),
        (0.19, 0, &[2, 3]),
        (0.29, 0, &[1, 2, 3]),
        (0.39, 0, &[0, 1, 2, 3]),
        (0.50, 0, &[0, 1, 2, 3]),
        (0.09, 2, &[0, 1, 2, 3]),
        (0.19, 2, &[2, 3]),
        (0.0, 0, &[3]),
    ];
    for (threshold, min_keep, expected) in cases {
        let what = format!("xtc {threshold}, min_keep {min_keep}");
        check(&what, &p, &|list| xtc(list, threshold, min_keep), None, expected);
    }
    check("ties", &[0.25; 4], &|list| xtc(list, 0.2, 0), None, &[3]);
    check("single", &[1.0], &|list| xtc(list, 0.0, 0), None, &[0]);
}

#[test]
fn xtc_applies_with_its_probability() {
    for probability in [0.0_f32, 0.1, 0.5, 1.0] {
        let count =
            (0..20_000).filter(|position| xtc_applies(probability, &GumbelNoise::new(3, *position))).count() as f64;
        let expected = 20_000.0 * f64::from(probability);
        assert!(
            (count - expected).abs() <= 5.0 * (expected * (1.0 - f64::from(probability))).sqrt(),
            "{count} {expected}"
        );
    }
}

/// Rows so long that the row forms look at only a part of them.
#[test]
fn row_and_list_forms_keep_the_same_tokens() {
    let mut rng = Rng::new(9);
    for round in 0..60 {
        let mut logits = rng.logits(4000);
        if round % 3 == 0 {
            logits.iter_mut().for_each(|logit| *logit *= 0.3);
        }
        let (p, min_keep) = (rng.unit() as f32, *rng.pick(&[0, 1, 3, 100]));
        let forms: [(&str, OnList<'_>, OnRow<'_>); 5] = [
            ("top_p", &|list| top_p(list, p, min_keep), &|blocks, list| top_p_row(blocks, list, p, min_keep)),
            ("min_p", &|list| min_p(list, p, min_keep), &|blocks, list| min_p_row(blocks, list, p, min_keep)),
            ("typ_p", &|list| typical_p(list, p, min_keep), &|blocks, list| typical_p_row(blocks, list, p, min_keep)),
            ("tfs_z", &|list| tail_free(list, p, min_keep), &|blocks, list| tail_free_row(blocks, list, p, min_keep)),
            ("sigma", &|list| top_n_sigma(list, p * 5.0), &|blocks, list| top_n_sigma_row(blocks, list, p * 5.0)),
        ];
        for (what, on_list, on_row) in forms {
            let mut list = listed(&logits, false);
            on_list(&mut list);
            let expected = left(&list).tokens;
            check_logits(&format!("{what} {p} {min_keep} in round {round}"), &logits, on_list, Some(on_row), &expected);
        }
    }
}
