use std::time::Duration;

use super::costs::tests::costs;
use super::lengths::{DraftOptions, decide};
use super::outlook::{Prospect, geometric, outlook};
use super::prices::{Prices, StepSlot};
use crate::{BatchSplit, Costs, SequencePadding};

const Q8: [(usize, u64); 10] =
    [(1, 100), (2, 114), (3, 129), (4, 146), (5, 208), (8, 226), (12, 308), (16, 403), (32, 640), (64, 1150)];

fn rectangles(target_ms: &[(usize, u64)]) -> Costs {
    let mut costs = costs(target_ms, 10.0);
    costs.set_split(BatchSplit::Rectangles { n_ubatch: 512, padding: SequencePadding::Never });
    costs
}

/// Slots that generate, and their drafts: each token is right with this probability if those before it were.
fn decided(costs: &Costs, rate: f64, drafts: &[(usize, f64)]) -> Vec<usize> {
    let slots = vec![StepSlot { n_tokens: 1, generates: true, room: 60, n_past: 0 }; drafts.len()];
    lengths_of(costs, rate, &slots, drafts, false)
}

fn lengths_of(costs: &Costs, rate: f64, slots: &[StepSlot], drafts: &[(usize, f64)], of_text: bool) -> Vec<usize> {
    let mut options = Vec::new();
    for (n, acceptance) in drafts {
        let mut own = DraftOptions::default();
        own.offer(0, 0, (1..=*n).map(|power| acceptance.powi(i32::try_from(power).unwrap())), of_text);
        options.push(own);
    }
    let mut lengths = Vec::new();
    decide(
        &Prices { slots, costs, rate, preferred: None, most_lost: f64::MAX, least_lost: 0.0 },
        &options,
        None,
        &mut lengths,
    );
    lengths
}

#[test]
fn drafts_whose_right_tokens_may_be_decoded_again_must_promise_more() {
    let removing = costs(&Q8, 10.0);
    let mut repeating = costs(&Q8, 10.0);
    repeating.repeat();
    assert_eq!(decided(&removing, 1.0, &[(1, 0.2)]), [1], "it pays where wrong tokens are removed");
    assert_eq!(decided(&repeating, 1.0, &[(1, 0.2)]), [0], "and not where the others are decoded again");
    assert!(decided(&repeating, 1.0, &[(8, 0.98)])[0] > 3);
    assert_eq!(decided(&repeating, 1.0, &[(8, 1.0)]), decided(&removing, 1.0, &[(8, 1.0)]), "right drafts stay");
    let outlook = |costs: &Costs| {
        let slots = [StepSlot { n_tokens: 1, generates: true, room: 60, n_past: 0 }];
        let prospect = Prospect { acceptance: 0.5, optimistic: 0.5, lengths: (0, 16) };
        outlook(
            &Prices { slots: &slots, costs, rate: 1.0, preferred: None, most_lost: f64::MAX, least_lost: 0.0 },
            &[DraftOptions::default()],
            &[Some(prospect)],
            0.0,
        )
    };
    assert!(outlook(&repeating).with < outlook(&removing).with);
}

#[test]
fn slots_decode_equal_lengths_and_short_drafts_are_filled() {
    let costs = rectangles(&Q8);
    let rate = 4.0 / 1.46;
    assert_eq!(decided(&costs, rate, &[(3, 0.99); 4]), [3; 4]);
    assert_eq!(decided(&costs, rate, &[(3, 0.99), (3, 0.99), (2, 0.99), (3, 0.99)]), [3; 4]);
    let flat = rectangles(&[(1, 100), (64, 120)]);
    assert_eq!(decided(&flat, 4.0, &[(0, 0.0), (3, 0.9), (0, 0.0), (3, 0.9)]), [3; 4], "also without any draft");
    assert_eq!(decided(&costs, rate, &[(3, 0.05); 4]), [0; 4], "nothing that is improbable");
}

#[test]
fn a_slot_that_copies_gets_a_forward_pass_of_its_own() {
    let costs = rectangles(&Q8);
    let lengths = decided(&costs, 4.0 / 1.46, &[(0, 0.0), (40, 0.999), (0, 0.0), (0, 0.0)]);
    assert_eq!((lengths[0], lengths[2], lengths[3]), (0, 0, 0), "{lengths:?}");
    assert!(lengths[1] > 8, "{lengths:?}");
    let lengths = decided(&costs, 4.0 / 1.46, &[(30, 0.999), (30, 0.999), (3, 0.2), (3, 0.2)]);
    assert!(lengths[0] > 3 && lengths[0] == lengths[1] && lengths[2] < 2 && lengths[3] < 2, "{lengths:?}");
}

#[test]
fn slots_that_are_not_neighbours_are_decided_apart() {
    let costs = rectangles(&Q8);
    let generates = StepSlot { n_tokens: 1, generates: true, room: 60, n_past: 0 };
    let slots = [generates, StepSlot::default(), generates];
    let lengths = lengths_of(&costs, 1.5, &slots, &[(3, 0.95), (0, 0.0), (0, 0.0)], false);
    assert_eq!(lengths, [3, 0, 0], "filler for the last would make no rectangle");
    let slots = [generates, StepSlot { n_tokens: 200, ..StepSlot::default() }];
    assert_eq!(lengths_of(&costs, 1.5, &slots, &[(3, 0.95), (0, 0.0)], false), [3, 0], "a prompt gets nothing");
}

#[test]
fn a_slot_gets_no_more_than_it_has_room_for() {
    let costs = rectangles(&Q8);
    let slots = [3, 1, 3, 3].map(|room| StepSlot { n_tokens: 1, generates: true, room, n_past: 0 });
    let lengths = lengths_of(&costs, 4.0 / 1.46, &slots, &[(3, 0.99), (1, 0.99), (3, 0.99), (3, 0.99)], false);
    assert!(lengths[1] <= 1, "{lengths:?}");
}

#[test]
fn what_is_fixed_is_decoded_whole_and_the_others_are_filled() {
    let costs = rectangles(&Q8);
    let slots = [StepSlot { n_tokens: 1, generates: true, room: 60, n_past: 0 }; 3];
    let mut options: [DraftOptions; 3] = Default::default();
    options[0].fix(2, 3);
    options[2].fix(2, 3);
    let mut lengths = Vec::new();
    decide(
        &Prices { slots: &slots, costs: &costs, rate: 2.0, preferred: None, most_lost: f64::MAX, least_lost: 0.0 },
        &options,
        None,
        &mut lengths,
    );
    assert_eq!(lengths, [3; 3]);
    assert_eq!(options[0].best(3).draft, Some((2, 3)));
    assert_eq!(options[1].best(3).draft, None);
}

/// Without rectangles a drafted token costs the same in every slot.
#[test]
fn with_one_buffer_each_slot_gets_what_its_own_draft_is_worth() {
    let costs = costs(&Q8, 10.0);
    assert_eq!(decided(&costs, 4.0 / 1.46, &[(0, 0.0), (4, 0.99), (4, 0.01), (0, 0.0)]), [0, 4, 0, 0]);
}

/// The choice is the best of all combinations of lengths, or hardly worse: these are too many for more slots.
#[test]
fn lengths_are_nearly_the_best_of_all_combinations() {
    let costs = rectangles(&Q8);
    let mut state = 1_u64;
    let mut chance = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    };
    for _ in 0..200 {
        let rate = 1.5 + 2.0 * chance();
        let drafts: Vec<(usize, f64)> = (0..3).map(|_| ((chance() * 9.0) as usize, chance().sqrt())).collect();
        let value = |lengths: &[usize]| {
            let gain = |(length, (n, acceptance)): (&usize, &(usize, f64))| geometric(*acceptance, *n.min(length));
            let gain: f64 = lengths.iter().zip(&drafts).map(gain).sum();
            gain - rate * costs.step_of(|slot| 1 + lengths[slot], |_| 0, 3)
        };
        let lengths = decided(&costs, rate, &drafts);
        let (mut best, mut most) = ([0; 3], f64::NEG_INFINITY);
        for a in 0..=8 {
            for b in 0..=8 {
                for c in 0..=8 {
                    if value(&[a, b, c]) > most {
                        (best, most) = ([a, b, c], value(&[a, b, c]));
                    }
                }
            }
        }
        let reached = value(&lengths);
        assert!(reached >= most - 0.25, "{drafts:?} at {rate}: {lengths:?} {reached}, {best:?} {most}");
    }
}

#[test]
fn the_outlook_tells_whether_a_model_pays_for_all_slots_together() {
    let costs = rectangles(&Q8);
    let slots = [StepSlot { n_tokens: 1, generates: true, room: 60, n_past: 0 }; 4];
    let options: [DraftOptions; 4] = Default::default();
    let prices = Prices {
        slots: &slots,
        costs: &costs,
        rate: 4.0 / 1.46,
        preferred: None,
        most_lost: f64::MAX,
        least_lost: 0.0,
    };
    let look = |acceptance: f64, draft: f64| {
        let prospect = Prospect { acceptance, optimistic: acceptance, lengths: (0, 16) };
        outlook(&prices, &options, &[Some(prospect); 4], draft)
    };
    let good = look(0.95, 0.1);
    assert!(good.with > good.without && good.length > 2, "{good:?}");
    let bad = look(0.2, 0.5);
    assert!(bad.with < bad.without, "{bad:?}");
    assert_eq!(bad.first_length.length, 0, "nor is there anything to try: {bad:?}");
    let close = look(0.42, 0.1);
    assert!(
        close.with < close.without && close.first_length.optimistic > close.without,
        "sizes never used may cost less: {close:?}"
    );
}

#[test]
fn the_cost_of_several_rectangles_is_learnt() {
    let mut costs = rectangles(&Q8);
    for _ in 0..200 {
        // 4 x 1, and 1 x 3.
        costs.record_step(&[1, 4, 1, 1], |_| 0, Duration::from_millis(2 * 146 + 2 * 129));
        costs.record_step(&[1, 0, 0, 0], |_| 0, Duration::from_millis(100));
    }
    let cost = costs.step(&[1, 4, 1, 1], |_| 0);
    assert!((cost - 5.5).abs() < 0.4, "{cost}");
}
