mod simulator;

use super::*;

const PREPARED: Applicant = Applicant {
    prompt: PromptState::Known,
    priority: 0,
    n_prompt: 20,
    slot: None,
    has_beams: false,
    loads_session: false,
};

fn free(n_cached: usize, last_used: u64) -> SlotState {
    SlotState { n_cached, last_used, ..SlotState::default() }
}

fn busy(n_tokens: usize) -> SlotState {
    SlotState { has_request: true, n_tokens, n_cached: n_tokens / 2, ..SlotState::default() }
}

fn pass(states: &[SlotState], shared_cells: Option<usize>) -> AdmissionPass {
    AdmissionPass::over(states.to_vec(), shared_cells, 100, false)
}

fn place(pass: &mut AdmissionPass, applicant: Applicant, n_common: &[usize]) -> Option<Placement> {
    let prefix = |n: &usize| SlotPrefix { reusable: *n, copyable: *n, awaited: 0 };
    pass.place_applicant(&applicant, || n_common.iter().map(prefix).collect())
}

#[test]
fn slot_with_the_longest_common_prefix_is_chosen_else_the_one_unused_for_longest() {
    let states = [free(10, 5), free(10, 2), busy(10), free(10, 3)];
    for (n_common, expected) in [([4, 6, 20, 5], 1), ([0; 4], 1), ([2, 0, 0, 2], 1), ([0, 0, 0, 3], 3)] {
        assert_eq!(
            place(&mut pass(&states, Some(1000)), PREPARED, &n_common),
            Some(Placement::Slot(expected)),
            "{n_common:?}"
        );
    }
    let session = Applicant { loads_session: true, ..PREPARED };
    assert_eq!(place(&mut pass(&states, None), session, &[9, 0, 0, 9]), Some(Placement::Slot(1)));
}

/// The caches of free slots with 500 tokens, of which 400 are in common, and a shorter or older one.
#[test]
fn the_cache_of_another_conversation_is_copied_instead_of_overwritten() {
    let place_beside = |other: SlotState, common: usize, copy_cost: Option<usize>| {
        let pass = pass(&[free(500, 5), free(500, 4), other], None);
        let prefixes = [400, 400, common];
        place(&mut AdmissionPass { copy_cost, ..pass }, Applicant { n_prompt: 450, ..PREPARED }, &prefixes)
    };
    assert_eq!(place_beside(free(0, 0), 0, Some(50)), Some(Placement::Slot(2)), "it is empty");
    assert_eq!(place_beside(free(30, 3), 0, Some(50)), Some(Placement::Slot(2)), "it has less to lose");
    assert_eq!(
        place_beside(free(0, 0), 0, Some(150)),
        Some(Placement::Slot(1)),
        "a copy costs more than the rest is worth"
    );
    assert_eq!(place_beside(free(70, 3), 0, Some(50)), Some(Placement::Slot(1)), "it has as much to lose");
    assert_eq!(place_beside(free(450, 3), 399, Some(50)), Some(Placement::Slot(2)), "nothing is copied there");
    assert_eq!(place_beside(free(0, 0), 0, None), Some(Placement::Slot(1)), "caches cannot be copied");
}

#[test]
fn a_conversation_goes_on_in_its_slot() {
    let states = [free(500, 5), free(500, 4), free(0, 0)];
    let mut pass = AdmissionPass { copy_cost: Some(50), ..pass(&states, None) };
    for n_prompt in [600, 481] {
        let asks = Applicant { n_prompt, ..PREPARED };
        assert_eq!(place(&mut pass, asks, &[480, 400, 0]), Some(Placement::Slot(0)), "{n_prompt}");
    }
    let again = Applicant { n_prompt: 401, ..PREPARED };
    assert_eq!(place(&mut pass, again, &[300, 400, 0]), Some(Placement::Slot(1)), "another answer to the same prompt");
}

#[test]
fn a_request_that_waits_for_a_prefix_keeps_a_slot() {
    let waits = |awaited: usize, now: usize| {
        let states = [busy(450), free(0, 1), free(0, 2)];
        let mut pass = AdmissionPass { copy_cost: Some(50), ..pass(&states, None) };
        let prefixes = [
            SlotPrefix { copyable: now, awaited, ..SlotPrefix::default() },
            SlotPrefix::default(),
            SlotPrefix { reusable: 100, copyable: 100, awaited: 0 },
        ];
        let asked = pass.place_applicant(&Applicant { n_prompt: 450, ..PREPARED }, || prefixes.to_vec());
        let later = place(&mut pass, PREPARED, &[]);
        (asked, later, place(&mut pass, PREPARED, &[]))
    };
    let (first, second) = (Some(Placement::Slot(1)), Some(Placement::Slot(2)));
    assert_eq!(waits(400, 0), (None, first, first), "one slot is kept, and later requests have the other");
    assert_eq!(waits(400, 399).0, None);
    for (awaited, now) in [(400, 400), (0, 400), (150, 0)] {
        assert_eq!(waits(awaited, now).0, second, "{awaited} {now}");
    }
}

#[test]
fn neighbours_of_busy_slots_are_preferred_where_each_sequence_has_its_own_buffer() {
    let states = [free(0, 1), free(0, 2), busy(10), free(0, 2)];
    assert_eq!(place(&mut pass(&states, None), PREPARED, &[]), Some(Placement::Slot(3)));
    assert_eq!(place(&mut pass(&states, Some(1000)), PREPARED, &[]), Some(Placement::Slot(0)));
}

#[test]
fn a_request_waits_for_the_slot_that_it_asks_for() {
    let states = [free(0, 1), busy(10)];
    for (slot, expected) in [(0, Some(Placement::Slot(0))), (1, None), (7, None)] {
        assert_eq!(
            place(&mut pass(&states, None), Applicant { slot: Some(slot), ..PREPARED }, &[]),
            expected,
            "{slot}"
        );
    }
}

#[test]
fn requests_that_wait_for_cells_are_not_overtaken() {
    let mut pass_of = pass(&[free(0, 1), busy(60)], Some(100));
    assert_eq!(place(&mut pass_of, Applicant { n_prompt: 50, ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, Applicant { n_prompt: 5, ..PREPARED }, &[]), None, "it would fit");
    let preempted = SlotState { is_preempted: true, ..busy(10) };
    assert_eq!(place(&mut pass(&[free(0, 1), preempted], Some(100)), Applicant { n_prompt: 5, ..PREPARED }, &[]), None);
    assert_eq!(
        place(&mut pass(&[free(0, 1), busy(60)], Some(100)), Applicant { n_prompt: 5, ..PREPARED }, &[]),
        Some(Placement::Slot(0))
    );
}

#[test]
fn unprepared_requests_keep_slots_from_later_ones() {
    let awaited = PromptState::Awaited(std::time::Instant::now());
    let mut pass_of = pass(&[free(0, 1), free(0, 2)], None);
    assert_eq!(place(&mut pass_of, Applicant { prompt: awaited, slot: Some(1), ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, Applicant { slot: Some(1), ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, Applicant { prompt: PromptState::Late, ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, PREPARED, &[]), Some(Placement::Slot(0)));
    assert_eq!(place(&mut pass_of, Applicant { prompt: awaited, ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, PREPARED, &[]), None, "both slots are kept");
    let beams = Applicant { has_beams: true, ..PREPARED };
    assert_eq!(place(&mut pass_of, beams, &[]), Some(Placement::Beams));
    assert_eq!(place(&mut pass_of, Applicant { prompt: awaited, ..beams }, &[]), None);
    assert_eq!(place(&mut pass_of, beams, &[]), None);
}

fn running(level: i32, last_used: u64) -> SlotState {
    SlotState { level, last_used, may_be_preempted: true, ..busy(10) }
}

#[test]
fn a_request_preempts_the_youngest_of_the_lowest_level_below_its_priority() {
    let states = [running(2, 1), running(-3, 2), running(-3, 3), running(5, 4)];
    let asks = |priority, slot| place(&mut pass(&states, None), Applicant { priority, slot, ..PREPARED }, &[]);
    assert_eq!((asks(-3, None), asks(-2, None)), (None, Some(Placement::Slot(2))));
    assert_eq!((asks(2, Some(0)), asks(3, Some(0)), asks(3, Some(3))), (None, Some(Placement::Slot(0)), None));
    let kept = [SlotState { may_be_preempted: false, ..running(-3, 3) }, running(4, 1)];
    let asks = |priority| place(&mut pass(&kept, None), Applicant { priority, ..PREPARED }, &[]);
    assert_eq!((asks(4), asks(5)), (None, Some(Placement::Slot(1))), "the lowest one keeps its slot");
    let free_too = [running(-3, 1), free(0, 1)];
    assert_eq!(
        place(&mut pass(&free_too, None), Applicant { priority: 9, ..PREPARED }, &[]),
        Some(Placement::Slot(1)),
        "a free slot comes first"
    );
}

#[test]
fn an_unprepared_request_preempts_none_and_keeps_the_slot_that_it_asks_for() {
    let mut pass_of = pass(&[running(-5, 1), running(-5, 2)], None);
    assert_eq!(
        place(
            &mut pass_of,
            Applicant {
                prompt: PromptState::Awaited(std::time::Instant::now()),
                priority: 9,
                slot: Some(1),
                ..PREPARED
            },
            &[]
        ),
        None
    );
    assert_eq!(place(&mut pass_of, Applicant { priority: 8, slot: Some(1), ..PREPARED }, &[]), None);
    assert_eq!(
        place(&mut pass_of, Applicant { priority: 8, slot: Some(0), ..PREPARED }, &[]),
        Some(Placement::Slot(0))
    );
}

#[test]
fn cells_of_requests_of_lower_levels_are_free_for_higher_ones() {
    let states = [free(0, 1), SlotState { level: -1, ..busy(60) }];
    let asks = |priority| place(&mut pass(&states, Some(100)), Applicant { priority, n_prompt: 50, ..PREPARED }, &[]);
    assert_eq!((asks(-1), asks(0)), (None, Some(Placement::Slot(0))));
    let preempted = [free(0, 1), SlotState { level: 1, is_preempted: true, ..busy(10) }];
    let asks = |priority| place(&mut pass(&preempted, Some(100)), Applicant { priority, n_prompt: 5, ..PREPARED }, &[]);
    assert_eq!((asks(1), asks(2)), (None, Some(Placement::Slot(0))));
}
