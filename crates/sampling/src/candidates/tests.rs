use super::super::noise::GumbelNoise;
use super::{Candidates, best_first};
use crate::tests::reference::Rng;
use foredraft_base::{Token, TokenData};

fn list(logits: &[f32]) -> Candidates {
    let mut list = Candidates::default();
    list.refill(false, |items| {
        items.extend((0..).zip(logits).map(|(id, logit)| TokenData { id, logit: *logit, p: 0.0 }));
    });
    list
}

fn ids(list: &Candidates) -> Vec<Token> {
    list.items().iter().map(|item| item.id).collect()
}

#[test]
fn best_first_orders_by_logit_then_token() {
    let mut rng = Rng::new(3);
    let mut logits = vec![f32::INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-45, 0.0, -0.0, 1.0, -1.0];
    logits.extend((0..200).map(|_| (rng.normal() * 10.0) as f32));
    for id in [0, 5, Token::MAX] {
        for other in [0, 5, Token::MAX] {
            for a in &logits {
                for b in &logits {
                    let (x, y) = (TokenData { id, logit: *a, p: 0.0 }, TokenData { id: other, logit: *b, p: 1.0 });
                    assert_eq!(best_first(&x, &y), b.partial_cmp(a).unwrap().then(id.cmp(&other)), "{a} {b}");
                }
            }
        }
    }
}

#[test]
fn logits_set_to_minus_infinity_or_nan_are_masked() {
    let mut candidates = list(&[1.0, 2.0, 3.0, 4.0]);
    candidates.sort();
    candidates.edit_logits(true, |items| {
        items[0].logit = f32::NEG_INFINITY;
        items[2].logit = f32::NAN;
    });
    assert_eq!((ids(&candidates), candidates.size(), candidates.max()), (vec![2, 0], 4, 3.0));
    candidates.edit_logits(false, |items| items[1].logit = 9.0);
    assert_eq!(candidates.max(), 9.0, "the maximum is recomputed after an edit that changes the order");
    candidates.truncate(3);
    assert_eq!(
        (candidates.len(), candidates.size()),
        (2, 3),
        "keeps as many masked candidates as fit behind the others"
    );
    candidates.truncate(1);
    assert_eq!((candidates.len(), candidates.size()), (1, 1));
}

#[test]
fn keep_best_keeps_the_k_best() {
    for (k, expected) in [(0, vec![3]), (1, vec![3]), (2, vec![3, 1]), (3, vec![3, 1, 2])] {
        let mut candidates = list(&[0.5, 2.0, 2.0, 7.0]);
        candidates.keep_best(k);
        assert_eq!(ids(&candidates), expected, "k = {k}");
    }
    let mut candidates = list(&[0.5, 2.0]);
    candidates.keep_best(9);
    candidates.sort();
    assert_eq!(ids(&candidates), [1, 0]);
    candidates.keep_argmax();
    assert_eq!((ids(&candidates), candidates.size()), (vec![1], 2));
}

#[test]
fn softmax_and_entropy_match_their_definitions() {
    let mut candidates = list(&[1.0_f32.ln(), 2.0_f32.ln(), 5.0_f32.ln()]);
    let log_sum = candidates.softmax();
    for (item, p) in candidates.items().iter().zip([0.125, 0.25, 0.625]) {
        assert!((item.p - p).abs() < 1e-6, "{item:?}");
    }
    assert!((log_sum - (8.0_f64 / 5.0).ln()).abs() < 1e-6);
    let entropy: f64 = [0.125_f64, 0.25, 0.625].iter().map(|p| -p * p.ln()).sum();
    assert!((candidates.entropy() - entropy).abs() < 1e-6);
    let mut infinite = list(&[f32::INFINITY, 3.0, f32::INFINITY]);
    infinite.softmax();
    assert_eq!(infinite.items().iter().map(|item| item.p).collect::<Vec<_>>(), [0.5, 0.0, 0.5]);
}

/// Compared with a full sort, with prefixes that end before, at and after the boundaries of the partial sorts.
#[test]
fn keep_prefix_matches_a_full_sort() {
    let mut rng = Rng::new(6);
    for n in [1, 5, 255, 256, 257, 1300, 4000] {
        let logits: Vec<f32> = (0..n).map(|_| rng.below(3 * n) as f32).collect();
        let mut all = list(&logits);
        all.sort();
        let all = ids(&all);
        for wanted in [1, 2, 200, 256, 257, 1279, 1280, 1281, n / 2 + 1, n, n + 1] {
            for min_keep in [0, 3, 300] {
                let (mut candidates, mut asked) = (list(&logits), Vec::new());
                candidates.keep_prefix(true, min_keep, best_first, |item| {
                    asked.push(item.id);
                    asked.len() >= wanted
                });
                let expected = &all[..wanted.max(min_keep).min(n)];
                assert_eq!(ids(&candidates), expected, "{wanted} of {n}, at least {min_keep}");
                assert_eq!(asked, expected, "each candidate is tested once, in order");
            }
        }
    }
}

#[test]
fn draw_returns_one_of_the_candidates() {
    assert_eq!(Candidates::default().draw(&GumbelNoise::new(1, 1)), None);
    let candidates = list(&[f32::MIN, f32::MIN]);
    let drawn: Vec<_> = (0..50).map(|position| candidates.draw(&GumbelNoise::new(1, position)).unwrap()).collect();
    assert!(drawn.contains(&0) && drawn.contains(&1), "equal logits are equally likely, however low");
}
