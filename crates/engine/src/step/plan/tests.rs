use super::*;
use crate::step::input::StepLimits;
use crate::step::schedule::schedule;
use crate::tests::STEP_LIMITS as LIMITS;
use foredraft_llama::Rollback;
use foredraft_speculation::{Draft, StepSlot};

/// A slot whose request generates, with this context, of which all but the last token are in the cache.
fn generating(n_tokens: usize) -> SlotState {
    SlotState { is_generating: true, n_cached: n_tokens - 1, ..prompt(n_tokens) }
}

/// A slot whose request has a prompt, nothing of which is in the cache.
fn prompt(n_tokens: usize) -> SlotState {
    SlotState {
        has_request: true,
        n_tokens,
        n_remaining: 100,
        n_max_draft: 16,
        tokens_until_group: usize::MAX,
        ..SlotState::default()
    }
}

/// The stages before the decode, and what they pass on.
struct Stages {
    input: StepInput,
    schedule: Schedule,
    plan: StepPlan,
}

fn stages(states: &[SlotState]) -> Stages {
    let trees = (0..states.len()).map(|index| DraftTree::new(i32::try_from(index).unwrap(), Vec::new()));
    Stages {
        input: StepInput { slots: states.to_vec(), limits: LIMITS },
        schedule: Schedule::default(),
        plan: StepPlan::new(trees.collect()),
    }
}

/// Schedules a step, and marks the slots as `commit` does. Returns the slots that take part.
fn step(stages: &mut Stages, limits: &StepLimits) -> Vec<usize> {
    let Stages { input, schedule: scheduled, .. } = stages;
    input.limits = *limits;
    schedule(input, scheduled);
    for (state, slot) in input.slots.iter_mut().zip(&scheduled.slots) {
        if slot.is_in_turn {
            state.last_turn = scheduled.turn.number;
        }
        if slot.is_scheduled {
            state.last_step = scheduled.turn.step;
        }
    }
    scheduled.active().collect()
}

/// Fills the batch with drafts of these lengths. Returns for each slot its tokens of context, draft and filler.
fn filled(stages: &mut Stages, limits: &StepLimits, drafts: &[usize], lengths: &[usize]) -> Vec<(usize, usize, usize)> {
    let Stages { input, schedule: scheduled, plan } = stages;
    input.limits = *limits;
    schedule(input, scheduled);
    let mut long = Draft::default();
    (0..100).for_each(|_| long.push(7, 0.5));
    let chosen = |index: usize| ChosenDraft { kind: Some(DrafterKind::Suffix), draft: &long, n: drafts[index] };
    let wanted = |index: usize| Wanted { draft: Some(chosen(index)), length: lengths[index] };
    fill(input, scheduled, wanted, &mut Vec::new(), plan);
    plan.slots.iter().map(|slot| (slot.n_context, slot.draft.tokens.len(), slot.n_filler)).collect()
}

#[test]
fn all_slots_with_a_running_request_take_part() {
    let preempted = SlotState { is_preempted: true, ..prompt(10) };
    let mut stages = stages(&[generating(10), SlotState::default(), preempted, prompt(10)]);
    assert_eq!(step(&mut stages, &LIMITS), [0, 3]);
    let n_tokens: Vec<usize> = stages.schedule.demands.iter().map(|step| step.n_tokens).collect();
    assert_eq!(n_tokens, [1, 0, 0, 10]);
    assert_eq!(stages.schedule.demands[0], StepSlot { n_tokens: 1, generates: true, room: 61, n_past: 9 });
    assert!(!stages.schedule.demands[3].generates);
}

#[test]
fn nothing_is_scheduled_without_requests() {
    let mut stages = stages(&[SlotState::default(); 2]);
    assert_eq!(step(&mut stages, &LIMITS), [0; 0]);
    assert_eq!(filled(&mut stages, &LIMITS, &[3, 3], &[3, 3]), [(0, 0, 0); 2]);
    assert!(stages.plan.is_empty());
}

#[test]
fn suspects_are_scheduled_alone() {
    let suspect = SlotState { is_suspect: true, adapters: 1, ..prompt(10) };
    let waiting = SlotState { is_preempted: true, ..suspect };
    let mut stages = stages(&[generating(10), waiting, suspect, SlotState { is_suspect: true, ..prompt(10) }]);
    for expected in [&[2_usize][..], &[3], &[0, 3]] {
        assert_eq!(step(&mut stages, &LIMITS), expected);
        assert_eq!(step(&mut stages, &LIMITS), expected, "until its logits are known");
        assert_eq!(stages.schedule.adapters_of, expected.first().copied());
        stages.input.slots[expected[0]].is_suspect = false;
        stages.input.slots[2].has_request = false;
    }
}

#[test]
fn slots_with_different_lora_scales_are_scheduled_alternately() {
    let [first, second] = [0, 1].map(|adapters| SlotState { adapters, ..generating(10) });
    let mut stages = stages(&[first, second, first]);
    // A new engine has no slot that waits longest, so the first slot's turn may come twice.
    (0..8).for_each(|_| _ = step(&mut stages, &LIMITS));
    let steps: Vec<Vec<usize>> = (0..32).map(|_| step(&mut stages, &LIMITS)).collect();
    for (n, active) in steps.iter().enumerate() {
        let expected: &[usize] = if n / 8 % 2 == 0 { &[0, 2] } else { &[1] };
        assert_eq!(active, expected, "step {n}");
    }
    assert_eq!(stages.schedule.adapters_of, Some(1));
}

#[test]
fn a_turn_ends_when_its_requests_do() {
    let [first, second] = [0, 1].map(|adapters| SlotState { adapters, ..generating(10) });
    let mut stages = stages(&[first, second]);
    assert_eq!(step(&mut stages, &LIMITS), [0]);
    stages.input.slots[0].has_request = false;
    assert_eq!(step(&mut stages, &LIMITS), [1]);
}

#[test]
fn a_long_prompt_alternates_with_all_others() {
    let mut stages = stages(&[generating(10), prompt(90), generating(10), prompt(95)]);
    let steps: Vec<Vec<usize>> = (0..6).map(|_| step(&mut stages, &LIMITS)).collect();
    assert_eq!(steps, [vec![1], vec![3], vec![0, 2], vec![1], vec![3], vec![0, 2]]);
    // Without batch-invariant logits it makes no difference.
    let limits = StepLimits { is_batch_invariant: false, ..LIMITS };
    assert_eq!(step(&mut stages, &limits), [0, 1, 2, 3]);
}

#[test]
fn slots_that_cannot_be_decoded_together_alternate() {
    let limits = StepLimits { decodes_slots_together: false, ..LIMITS };
    let mut stages = stages(&[generating(10), prompt(20), generating(10)]);
    let steps: Vec<Vec<usize>> = (0..6).map(|_| step(&mut stages, &limits)).collect();
    assert_eq!(steps, [[0], [1], [2], [0], [1], [2]]);
}

#[test]
fn slots_have_room_for_drafts_up_to_each_limit() {
    let room = |state: SlotState, limits: &StepLimits| {
        let mut stages = stages(&[state]);
        step(&mut stages, limits);
        stages.schedule.demands[0].room
    };
    assert_eq!(room(generating(10), &LIMITS), 61, "batch-invariant logits");
    assert_eq!(room(generating(70), &LIMITS), 29, "the context");
    assert_eq!(room(SlotState { tokens_until_group: 5, ..generating(10) }, &LIMITS), 4, "grouped positions");
    let of_memory = |rollback| room(generating(10), &StepLimits { rollback, ..LIMITS });
    assert_eq!(of_memory(Rollback::Never), 61, "a memory that returns to its state before the step");
    assert_eq!(of_memory(Rollback::Recent(5)), 5, "a memory that can roll back a few tokens");
    let shifted = StepLimits { rollback: Rollback::Never, has_pending_moves: true, ..LIMITS };
    assert_eq!(room(generating(10), &shifted), 0, "a state that cannot be copied");
}

#[test]
fn drafts_and_filler_follow_the_context_in_the_order_of_sequence_ids() {
    let states = [(10, 5), (20, 3), (30, 4)].map(|(n, last_used)| SlotState { last_used, ..generating(n) });
    let mut stages = stages(&states);
    assert_eq!(filled(&mut stages, &LIMITS, &[3, 0, 2], &[3, 3, 3]), [(1, 3, 0), (1, 0, 3), (1, 2, 1)]);
    let places: Vec<(usize, Option<usize>)> = stages.plan.slots.iter().map(|slot| (slot.first, slot.row)).collect();
    assert_eq!(places, [(0, Some(0)), (4, Some(4)), (8, Some(8))]);
    assert_eq!(stages.plan.n_tokens, [4, 4, 4]);
    assert_eq!(stages.plan.slots[0].draft.kind, Some(DrafterKind::Suffix));
}

#[test]
fn every_slot_advances_before_drafts_get_space() {
    let limits = StepLimits { n_batch: 8, n_ubatch: 8, ..LIMITS };
    let states = [1, 2, 3, 4].map(|last_used| SlotState { last_used, ..generating(10) });
    assert_eq!(filled(&mut stages(&states), &limits, &[9; 4], &[9; 4]), [(1, 4, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0)]);
    // Tokens of an accepted branch are decoded again, and come first as well.
    let again = SlotState { n_cached: 5, last_used: 9, ..generating(10) };
    assert_eq!(filled(&mut stages(&[states[0], again]), &limits, &[9; 2], &[9; 2]), [(1, 2, 0), (5, 0, 0)]);
}

#[test]
fn prompts_come_in_pieces_while_others_generate() {
    let late = SlotState { last_used: 7, ..prompt(60) };
    assert_eq!(filled(&mut stages(&[late, generating(10)]), &LIMITS, &[0, 4], &[0, 4]), [(27, 0, 0), (1, 4, 0)]);
    let mut alone = stages(&[late]);
    assert_eq!(filled(&mut alone, &LIMITS, &[0], &[0]), [(60, 0, 0)]);
    assert_eq!(alone.plan.slots[0].row, Some(59));
    let mut pieces = stages(&[prompt(90)]);
    assert_eq!(filled(&mut pieces, &LIMITS, &[0], &[0]), [(64, 0, 0)]);
    assert_eq!(pieces.plan.slots[0].row, None, "the prompt goes on");
    let limits = StepLimits { needs_checkpoints: true, ..LIMITS };
    assert_eq!(
        filled(&mut stages(&[prompt(60)]), &limits, &[0], &[0]),
        [(59, 0, 0)],
        "a checkpoint before the last token"
    );
}

#[test]
fn prompts_and_drafts_fit_the_frame_budget() {
    let limits = StepLimits { n_budgeted_tokens: 20, ..LIMITS };
    assert_eq!(filled(&mut stages(&[prompt(60)]), &limits, &[0], &[0]), [(20, 0, 0)]);
    let mut drafting = stages(&[generating(10)]);
    assert_eq!(filled(&mut drafting, &limits, &[30], &[30]), [(1, 19, 0)]);
    assert_eq!(drafting.schedule.demands[0].room, 19);
    let limits = StepLimits { n_budgeted_tokens: 6, ..LIMITS };
    assert_eq!(
        filled(&mut stages(&[prompt(60)]), &limits, &[0], &[0]),
        [(6, 0, 0)],
        "fewer tokens than a draft may follow"
    );
    // Beside a slot that generates, a prompt gets what its token and draft leave; it is behind by no more than a step.
    assert_eq!(filled(&mut stages(&[generating(10), prompt(60)]), &limits, &[0, 0], &[0, 0]), [(1, 0, 0), (6, 0, 0)]);
}

#[test]
fn drafts_and_filler_take_no_more_cells_than_are_free() {
    let limits = StepLimits { shared_cells: Some(24), ..LIMITS };
    let states = [generating(10), SlotState { last_used: 1, ..generating(10) }];
    assert_eq!(filled(&mut stages(&states), &limits, &[3, 3], &[0, 0]), [(1, 3, 0), (1, 1, 0)]);
    assert_eq!(filled(&mut stages(&states), &limits, &[3, 1], &[3, 3]), [(1, 3, 0), (1, 1, 0)]);
    assert_eq!(filled(&mut stages(&states), &limits, &[1, 1], &[3, 3]), [(1, 1, 2), (1, 1, 0)]);
}

#[test]
fn a_draft_is_cut_where_positions_are_grouped() {
    let state = SlotState { tokens_until_group: 3, ..generating(10) };
    assert_eq!(filled(&mut stages(&[state]), &LIMITS, &[5], &[5]), [(1, 2, 0)]);
}

#[test]
fn slots_of_higher_levels_have_the_space_of_a_batch_first() {
    let levels = [0, 5, -2];
    let at = |states: [SlotState; 3]| stages(&[0, 1, 2].map(|slot| SlotState { level: levels[slot], ..states[slot] }));
    // Each advances, and the highest one has the rest.
    assert_eq!(filled(&mut at([prompt(60); 3]), &LIMITS, &[0; 3], &[0; 3]), [(16, 0, 0), (32, 0, 0), (16, 0, 0)]);
    assert_eq!(filled(&mut at([generating(20); 3]), &LIMITS, &[30; 3], &[30; 3]), [(1, 0, 0), (1, 29, 0), (1, 0, 0)]);
    // A prompt comes before the drafts of lower ones.
    let states = [generating(20), prompt(60), generating(20)];
    assert_eq!(filled(&mut at(states), &LIMITS, &[30; 3], &[30; 3]), [(1, 0, 0), (30, 0, 0), (1, 0, 0)]);
}
