use super::*;

const PREPARED: Applicant = Applicant {
    is_prepared: true,
    n_prompt: 20,
    slot: None,
    has_beams: false,
    loads_session: false,
    waits_for_prompt: false,
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
    pass.place_applicant(&applicant, |index| n_common.get(index).copied().unwrap_or(0))
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
    let follower = Applicant { waits_for_prompt: true, ..PREPARED };
    assert_eq!(place(&mut pass(&states, None), follower, &[]), None);
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
    let mut pass_of = pass(&[free(0, 1), free(0, 2)], None);
    assert_eq!(place(&mut pass_of, Applicant { is_prepared: false, slot: Some(1), ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, Applicant { slot: Some(1), ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, PREPARED, &[]), Some(Placement::Slot(0)));
    assert_eq!(place(&mut pass_of, Applicant { is_prepared: false, ..PREPARED }, &[]), None);
    assert_eq!(place(&mut pass_of, PREPARED, &[]), None, "both slots are kept");
    let beams = Applicant { has_beams: true, ..PREPARED };
    assert_eq!(place(&mut pass_of, beams, &[]), Some(Placement::Beams));
    assert_eq!(place(&mut pass_of, Applicant { is_prepared: false, ..beams }, &[]), None);
    assert_eq!(place(&mut pass_of, beams, &[]), None);
}
