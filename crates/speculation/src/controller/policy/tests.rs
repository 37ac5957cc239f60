use std::time::Duration;

use super::*;
use crate::controller::{self, Choice, DraftOptions, StepSlot, test_costs as costs};

const ONE: [StepSlot; 1] = [StepSlot { n_tokens: 1, generates: true, room: MAX_DRAFT, n_past: 0 }];

/// Prices for one slot at this rate.
fn prices<'a>(costs: &'a Costs, rate: &Rate, preferred: Option<usize>) -> Prices<'a> {
    Prices {
        slots: &ONE,
        costs,
        rate: rate.of(1.0),
        preferred: preferred.map(|preferred| 1 + preferred),
        most_lost: f64::MAX,
        least_lost: 0.0,
    }
}

fn draft_prices(costs: &Costs, rate: f64) -> DraftPrices {
    let mut draft_prices = DraftPrices::default();
    let mut seen = Rate::default();
    seen.record(1000, 1000.0 / rate, 1.0);
    draft_prices.update(&prices(costs, &seen, None), 1);
    draft_prices
}

/// How many tokens of a draft from the text are decoded, and what that gains.
fn best_of_text(costs: &Costs, rate: f64, sure: impl Iterator<Item = f64>) -> (usize, f64) {
    let mut seen = Rate::default();
    seen.record(1000, 1000.0 / rate, 1.0);
    let (prices, mut candidates, mut lengths) = (prices(costs, &seen, None), [DraftOptions::default()], Vec::new());
    candidates[0].offer(0, 0, sure, true);
    controller::decide(&prices, &candidates, None, &mut lengths);
    let best = candidates[0].best(lengths[0]);
    assert_eq!(best.draft.map_or(0, |(_, n)| n), lengths[0]);
    (lengths[0], best.expected - prices.rate * (prices.cost_of_all(lengths[0]) - prices.cost_of_all(0)))
}

#[test]
fn the_heuristic_is_that_of_speculative_cpp() {
    let settings = Settings { adaptive: Adaptive::Heuristic, n_max: 30, ..Settings::default() };
    let mut length = Length::new(&settings);
    length.current = 10;
    let steps = [(10, 10, 18), (18, 18, 26), (26, 26, 30), (30, 3, 29), (29, 28, 28), (7, 7, 28), (28, 0, 27)];
    for (drafted, accepted, expected) in steps {
        length.record(drafted, drafted, accepted);
        assert_eq!(length.current(), expected, "after {accepted} of {drafted}");
    }
    for _ in 0..100 {
        length.record(5, 5, 0);
    }
    assert_eq!(length.current(), 2, "never below two");
    // With branches, not all of it can be right.
    length.current = 10;
    length.record(10, 6, 6);
    assert_eq!(length.current(), 18);
    length.record(18, 6, 5);
    assert_eq!(length.current(), 17);
}

#[test]
fn the_heuristic_begins_with_n_draft() {
    let first = |n_draft, n_max| {
        Length::new(&Settings { adaptive: Adaptive::Heuristic, n_draft, n_max, ..Settings::default() }).current()
    };
    assert_eq!([first(16, 30), first(16, 4), first(5, 30)], [16, 4, 5]);
    // Full acceptance of the first draft: speculative.cpp's 16 + 8, then its limit.
    let mut length =
        Length::new(&Settings { adaptive: Adaptive::Heuristic, n_draft: 16, n_max: 30, ..Settings::default() });
    let mut lengths = vec![length.current()];
    for _ in 0..3 {
        let n = length.current();
        length.record(n, n, n);
        lengths.push(length.current());
    }
    assert_eq!(lengths, [16, 24, 30, 30]);
}

#[test]
fn a_fixed_length_stays() {
    let mut length = Length::new(&Settings { adaptive: Adaptive::Fixed, n_max: 5, ..Settings::default() });
    length.record(5, 5, 0);
    assert_eq!(length.current(), 5);
}

#[test]
fn a_step_of_v_is_used_to_its_end() {
    // As measured with Q4_0: four tokens cost less than two.
    let costs = costs(&[(1, 100), (2, 148), (3, 191), (4, 132), (5, 180), (8, 247)], 0.0);
    let draft_prices = draft_prices(&costs, 1.2);
    assert_eq!(draft_prices.best([0.5].into_iter(), 0).0, 0, "one token at 1.48 does not pay");
    assert_eq!(draft_prices.best([0.5, 0.25, 0.125].into_iter(), 0).0, 3, "three at 1.32 do");
    assert_eq!(draft_prices.best([0.9, 0.81, 0.73, 0.07, 0.01].into_iter(), 0).0, 3);
    assert_eq!(draft_prices.best(std::iter::empty(), 0).0, 0);
}

#[test]
fn drafts_end_where_one_more_does_not_pay() {
    let free = costs(&[(1, 100), (65, 101)], 0.1);
    let dear = costs(&[(1, 100), (2, 200), (17, 1700)], 50.0);
    let calibration = Calibration::of_text();
    let wants = |costs: &Costs, confidence: &[f32]| {
        let draft_prices = draft_prices(costs, 1.0);
        StopPolicy::Paying {
            prices: &draft_prices,
            calibration: &calibration,
            bias: calibration.begin(Choice::Greedy),
            n_min: 0,
        }
        .wants_more(confidence, 16)
    };
    assert!(wants(&free, &[]));
    assert!(wants(&free, &[0.9; 12]));
    assert!(!wants(&free, &[0.9; 16]), "n_max");
    assert!(!wants(&free, &[0.01; 6]), "too unlikely to be reached");
    assert!(!wants(&dear, &[]));
    assert!(StopPolicy::All.wants_more(&[0.0; 15], 16));
}

/// [`StopPolicy::may_gain`] never cuts off a part of the best draft, and keeps few tokens behind it.
#[test]
fn what_cannot_gain_is_not_looked_for() {
    let costs =
        costs(&[(1, 100), (2, 114), (3, 129), (4, 146), (5, 208), (8, 226), (12, 308), (16, 403), (64, 1600)], 0.1);
    let (draft_prices, calibration) = (draft_prices(&costs, 1.5), Calibration::of_text());
    let stop_policy = StopPolicy::Paying {
        prices: &draft_prices,
        calibration: &calibration,
        bias: calibration.begin(Choice::Greedy),
        n_min: 0,
    };
    for confidence in [0.3, 0.6, 0.8, 0.95, 0.999] {
        let sure: Vec<f64> = (1..=62).map(|n| stop_policy.acceptance(confidence).powi(n)).collect();
        let best = best_of_text(&costs, 1.5, sure.iter().copied()).0;
        let mut so_far = SoFar::default();
        let kept = sure.iter().take_while(|sure| stop_policy.may_gain(&mut so_far, **sure)).count();
        assert!(kept >= best, "{confidence}: {kept} of which {best} pay");
        assert!(kept < best + LOOK_AHEAD, "{confidence}: {kept} of which {best} pay");
    }
    assert!(StopPolicy::All.may_gain(&mut SoFar::default(), 0.0));
}

/// Where each step copies with the same chance, a length is as good as the tokens of a step for its time, whatever the text
/// brought before.
#[test]
fn copied_text_is_checked_in_pieces_of_the_fastest_length() {
    for slope in [5, 20, 40] {
        let costs = costs(&[(1, 100), (65, 100 + 64 * slope)], 0.1);
        for acceptance in [0.5_f64, 0.8, 0.95, 0.99, 0.999] {
            let expected = |m: i32| (0..=m).map(|power| acceptance.powi(power)).sum::<f64>();
            let rate_of = |m: i32| expected(m) / costs.v(usize::try_from(m).unwrap() + 1);
            let best = (0..=MAX_DRAFT).map(|m| rate_of(i32::try_from(m).unwrap())).fold(0.0, f64::max);
            for before in [1.0, best] {
                let (m, gain) = best_of_text(&costs, before, (1..=64).map(|power| acceptance.powi(power)));
                let reached = rate_of(i32::try_from(m).unwrap());
                assert!(reached > 0.999 * best, "slope {slope}, {acceptance}: {reached} of {best} with {m}");
                assert_eq!(gain > 0.0, m > 0, "{gain}");
            }
        }
    }
}

/// The best fixed length's rate, and the one that the prices reach when they follow their own rate, for tokens accepted
/// with a constant chance: the prices must find the best without being given it.
#[test]
fn following_its_own_rate_leads_to_the_best_length() {
    let q8 = [(1, 100), (2, 114), (3, 129), (4, 146), (5, 208), (8, 226), (12, 308), (16, 403)];
    let f16 = [(1, 100), (2, 134), (3, 138), (4, 164), (5, 156), (8, 223), (12, 264), (16, 341)];
    let steep = [(1, 100), (2, 200), (4, 400), (16, 1600)];
    for table in [&q8[..], &f16, &steep] {
        for c in [0.5, 5.0, 20.0, 60.0] {
            for acceptance in [0.1, 0.4, 0.6, 0.75, 0.9, 0.97] {
                let costs = costs(table, c);
                let expected = |m: usize| (0..=m).map(|power| acceptance_power(acceptance, power)).sum::<f64>();
                let rate_of = |m: usize| expected(m) / (m as f64 * costs.c(1, 0) + costs.v(m + 1));
                let best = (0..=16).map(rate_of).fold(0.0, f64::max);
                let mut rate = Rate::default();
                let mut draft_prices = DraftPrices::default();
                let mut length = 0;
                for _ in 0..400 {
                    draft_prices.update(&prices(&costs, &rate, None), 1);
                    // Maximizes the gain as `prospect` does.
                    length = (0..=16)
                        .max_by(|a, b| {
                            let gain = |m: usize| expected(m) - draft_prices.verify(m) - draft_prices.draft * m as f64;
                            gain(*a).total_cmp(&gain(*b))
                        })
                        .unwrap();
                    let prospect = draft_prices.prospect(acceptance, 0..=16);
                    assert_eq!(prospect > 0.0, length > 0, "c {c}, acceptance {acceptance}: {prospect} {length}");
                    rate.tokens = FADE * rate.tokens + expected(length);
                    rate.plain = FADE * rate.plain + length as f64 * costs.c(1, 0) + costs.v(length + 1);
                }
                let reached = rate_of(length);
                assert!(reached > 0.999 * best, "c {c}, acceptance {acceptance}: {reached} of {best} with {length}");
            }
        }
    }
}

fn acceptance_power(acceptance: f64, power: usize) -> f64 {
    acceptance.powi(i32::try_from(power).unwrap())
}

/// Where coming to another size costs more than a step gains, it is still worth it once and for all, and not to leave for a step.
#[test]
fn the_size_that_pays_in_the_long_run_is_come_to_and_kept() {
    let mut costs = costs(&[(1, 100), (2, 120), (3, 300)], 25.0);
    for step in 0..400 {
        let (n, ms) = [(1, 150), (1, 100), (2, 170), (2, 120)][step % 4];
        costs.record_target(n, Duration::from_millis(ms));
    }
    assert!((costs.change() - 0.5).abs() < 0.05, "{}", costs.change());
    let planned = |costs: &Costs, drafts| {
        let (mut draft_prices, mut rate) = (DraftPrices::default(), Rate::default());
        rate.record(1000, 1000.0 / 1.24, 1.0);
        draft_prices.choose_preferred(costs, 0, drafts);
        draft_prices.update(&prices(costs, &rate, draft_prices.preferred()), 1);
        draft_prices
    };
    let (likely, unlikely) = (Some((0.8, 16)), Some((0.1, 16)));
    costs.record_mixed(1);
    assert!(planned(&costs, likely).prospect(0.8, 0..=16) > 0.0, "to be come to");
    assert!(planned(&costs, None).prospect(0.8, 0..=16) < 0.0, "its duration is unknown");
    assert!(planned(&costs, unlikely).prospect(0.8, 0..=16) < 0.0, "a lucky token is not worth the way there and back");
    costs.record_mixed(2);
    assert_eq!(
        planned(&costs, likely).best([0.2].into_iter(), 0).0,
        1,
        "a poor token is, as the way there and back is dearer"
    );
    assert_eq!(planned(&costs, unlikely).best([0.2].into_iter(), 0).0, 0, "to be left");
}

/// The preferred size does not alternate between two that gain the same.
#[test]
fn preferred_length_is_kept_against_one_that_is_hardly_better() {
    let mut costs = costs(&[(1, 100), (2, 150)], 1e-3);
    for step in 0..400 {
        let (n, ms) = [(1, 150), (1, 100), (2, 200), (2, 150)][step % 4];
        costs.record_target(n, Duration::from_millis(ms));
    }
    let mut draft_prices = DraftPrices::default();
    for (acceptance, expected) in [(0.3, 0), (0.505, 0), (0.6, 1), (0.495, 1), (0.4, 0)] {
        draft_prices.choose_preferred(&costs, 0, Some((acceptance, 1)));
        assert_eq!(draft_prices.preferred, Some(expected), "after {acceptance}");
    }
}
