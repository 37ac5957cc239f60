use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::speculative::{ChosenDraft, Draft, DrafterKind};

const LIMITS: StepLimits = StepLimits {
    n_ctx: 100,
    n_batch: 64,
    n_ubatch: 32,
    shared_cells: None,
    max_invariant_tokens: 62,
    n_budgeted_tokens: usize::MAX,
    is_batch_invariant: true,
    can_roll_back: true,
    needs_checkpoints: false,
    pads_single_tokens: false,
};

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

fn plan(states: &[SlotState]) -> StepPlan {
    let mut plan =
        StepPlan::new((0..states.len()).map(|index| DraftTree::new(i32::try_from(index).unwrap(), Vec::new())));
    plan.states = states.to_vec();
    plan
}

/// Schedules a step, and marks the slots as `commit` does. Returns the slots that take part.
fn step(plan: &mut StepPlan, limits: &StepLimits) -> Vec<usize> {
    schedule(plan, limits);
    for (state, slot) in plan.states.iter_mut().zip(&plan.slots) {
        if slot.is_in_turn {
            state.last_turn = plan.turn.number;
        }
        if slot.is_scheduled {
            state.last_step = plan.turn.step;
        }
    }
    plan.active().map(|(index, ..)| index).collect()
}

/// Fills the batch with drafts of these lengths. Returns for each slot its tokens of context, draft and filler.
fn filled(plan: &mut StepPlan, limits: &StepLimits, drafts: &[usize], lengths: &[usize]) -> Vec<(usize, usize, usize)> {
    schedule(plan, limits);
    for (index, slot) in plan.active_mut() {
        let mut draft = Draft::default();
        (0..drafts[index]).for_each(|_| draft.push(7, 0.5));
        let chosen = ChosenDraft { kind: Some(DrafterKind::Suffix), draft: &draft, n: drafts[index] };
        slot.set_draft(Some(chosen), lengths[index]);
    }
    fill(plan, limits);
    plan.slots.iter().map(|slot| (slot.n_context, slot.draft.tokens.len(), slot.n_filler)).collect()
}

#[test]
fn all_slots_with_a_running_request_take_part() {
    let paused = SlotState { is_paused: true, ..prompt(10) };
    let mut plan = plan(&[generating(10), SlotState::default(), paused, prompt(10)]);
    assert_eq!(step(&mut plan, &LIMITS), [0, 3]);
    let n_tokens: Vec<usize> = plan.steps.iter().map(|step| step.n_tokens).collect();
    assert_eq!(n_tokens, [1, 0, 0, 10]);
    assert_eq!(plan.steps[0], StepSlot { n_tokens: 1, generates: true, room: 61, depth: 9 });
    assert!(!plan.steps[3].generates);
}

#[test]
fn nothing_is_scheduled_without_requests() {
    let mut plan = plan(&[SlotState::default(); 2]);
    assert_eq!(step(&mut plan, &LIMITS), [0; 0]);
    assert_eq!(filled(&mut plan, &LIMITS, &[3, 3], &[3, 3]), [(0, 0, 0); 2]);
    assert!(plan.is_empty());
}

#[test]
fn slots_with_different_lora_scales_are_scheduled_alternately() {
    let [first, second] = [0, 1].map(|adapters| SlotState { adapters, ..generating(10) });
    let mut plan = plan(&[first, second, first]);
    // A new engine has no slot that waits longest, so the first slot's turn may come twice.
    (0..8).for_each(|_| _ = step(&mut plan, &LIMITS));
    let steps: Vec<Vec<usize>> = (0..32).map(|_| step(&mut plan, &LIMITS)).collect();
    for (n, active) in steps.iter().enumerate() {
        let expected: &[usize] = if n / 8 % 2 == 0 { &[0, 2] } else { &[1] };
        assert_eq!(active, expected, "step {n}");
    }
    assert_eq!(plan.adapters_of, Some(1));
}

#[test]
fn a_turn_ends_when_its_requests_do() {
    let [first, second] = [0, 1].map(|adapters| SlotState { adapters, ..generating(10) });
    let mut plan = plan(&[first, second]);
    assert_eq!(step(&mut plan, &LIMITS), [0]);
    plan.states[0].has_request = false;
    assert_eq!(step(&mut plan, &LIMITS), [1]);
}

#[test]
fn a_long_prompt_alternates_with_all_others() {
    let mut plan = plan(&[generating(10), prompt(90), generating(10), prompt(95)]);
    let steps: Vec<Vec<usize>> = (0..6).map(|_| step(&mut plan, &LIMITS)).collect();
    assert_eq!(steps, [vec![1], vec![3], vec![0, 2], vec![1], vec![3], vec![0, 2]]);
    // Without batch-invariant logits it makes no difference.
    let limits = StepLimits { is_batch_invariant: false, ..LIMITS };
    assert_eq!(step(&mut plan, &limits), [0, 1, 2, 3]);
}

#[test]
fn slots_have_room_for_drafts_up_to_each_limit() {
    let room = |state: SlotState, limits: &StepLimits| {
        let mut plan = plan(&[state]);
        step(&mut plan, limits);
        plan.steps[0].room
    };
    assert_eq!(room(generating(10), &LIMITS), 61, "batch-invariant logits");
    assert_eq!(room(generating(70), &LIMITS), 29, "the context");
    assert_eq!(room(SlotState { tokens_until_group: 5, ..generating(10) }, &LIMITS), 4, "grouped positions");
    assert_eq!(
        room(generating(10), &StepLimits { can_roll_back: false, ..LIMITS }),
        0,
        "a memory that cannot roll back"
    );
}

#[test]
fn drafts_and_filler_follow_the_context_in_the_order_of_sequence_ids() {
    let states = [(10, 5), (20, 3), (30, 4)].map(|(n, last_used)| SlotState { last_used, ..generating(n) });
    let mut plan = plan(&states);
    assert_eq!(filled(&mut plan, &LIMITS, &[3, 0, 2], &[3, 3, 3]), [(1, 3, 0), (1, 0, 3), (1, 2, 1)]);
    let places: Vec<(usize, Option<usize>)> = plan.slots.iter().map(|slot| (slot.first, slot.row)).collect();
    assert_eq!(places, [(0, Some(0)), (4, Some(4)), (8, Some(8))]);
    assert_eq!(plan.n_tokens, [4, 4, 4]);
    assert_eq!(plan.slots[0].draft.kind, Some(DrafterKind::Suffix));
}

#[test]
fn every_slot_advances_before_drafts_get_space() {
    let limits = StepLimits { n_batch: 8, n_ubatch: 8, ..LIMITS };
    let states = [1, 2, 3, 4].map(|last_used| SlotState { last_used, ..generating(10) });
    assert_eq!(filled(&mut plan(&states), &limits, &[9; 4], &[9; 4]), [(1, 4, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0)]);
    // Tokens of an accepted branch are decoded again, and come first as well.
    let again = SlotState { n_cached: 5, last_used: 9, ..generating(10) };
    assert_eq!(filled(&mut plan(&[states[0], again]), &limits, &[9; 2], &[9; 2]), [(1, 2, 0), (5, 0, 0)]);
}

#[test]
fn prompts_come_in_pieces_while_others_generate() {
    let late = SlotState { last_used: 7, ..prompt(60) };
    assert_eq!(filled(&mut plan(&[late, generating(10)]), &LIMITS, &[0, 4], &[0, 4]), [(27, 0, 0), (1, 4, 0)]);
    let mut alone = plan(&[late]);
    assert_eq!(filled(&mut alone, &LIMITS, &[0], &[0]), [(60, 0, 0)]);
    assert_eq!(alone.slots[0].row, Some(59));
    let mut pieces = plan(&[prompt(90)]);
    assert_eq!(filled(&mut pieces, &LIMITS, &[0], &[0]), [(64, 0, 0)]);
    assert_eq!(pieces.slots[0].row, None, "the prompt goes on");
    let limits = StepLimits { needs_checkpoints: true, ..LIMITS };
    assert_eq!(
        filled(&mut plan(&[prompt(60)]), &limits, &[0], &[0]),
        [(59, 0, 0)],
        "a checkpoint before the last token"
    );
}

#[test]
fn prompts_and_drafts_fit_the_frame_budget() {
    let limits = StepLimits { n_budgeted_tokens: 20, ..LIMITS };
    assert_eq!(filled(&mut plan(&[prompt(60)]), &limits, &[0], &[0]), [(20, 0, 0)]);
    let mut drafting = plan(&[generating(10)]);
    assert_eq!(filled(&mut drafting, &limits, &[30], &[30]), [(1, 19, 0)]);
    assert_eq!(drafting.steps[0].room, 19);
    let limits = StepLimits { n_budgeted_tokens: 6, ..LIMITS };
    assert_eq!(
        filled(&mut plan(&[prompt(60)]), &limits, &[0], &[0]),
        [(6, 0, 0)],
        "fewer tokens than a draft may follow"
    );
    // Beside a slot that generates, a prompt gets what its token and draft leave; it is behind by no more than a step.
    assert_eq!(filled(&mut plan(&[generating(10), prompt(60)]), &limits, &[0, 0], &[0, 0]), [(1, 0, 0), (6, 0, 0)]);
}

#[test]
fn drafts_take_no_more_cells_than_are_free() {
    let limits = StepLimits { shared_cells: Some(24), ..LIMITS };
    let states = [generating(10), SlotState { last_used: 1, ..generating(10) }];
    assert_eq!(filled(&mut plan(&states), &limits, &[3, 3], &[0, 0]), [(1, 3, 0), (1, 1, 0)]);
}

#[test]
fn a_draft_is_cut_where_positions_are_grouped() {
    let state = SlotState { tokens_until_group: 3, ..generating(10) };
    assert_eq!(filled(&mut plan(&[state]), &LIMITS, &[5], &[5]), [(1, 2, 0)]);
}

fn planted(parents: &[usize], n_spare: SeqId) -> (DraftTree, usize) {
    let mut tree = DraftTree::new(5, (10..10 + n_spare).collect());
    let n = tree.plant(parents.iter().copied());
    (tree, n)
}

/// For each token in batch order: its node, its depth, and its sequences.
fn layout(tree: &DraftTree) -> Vec<(usize, usize, Vec<SeqId>)> {
    tree.nodes().map(|(node, depth, sequences)| (node, depth, sequences.to_vec())).collect()
}

#[test]
fn chain_stays_in_the_slots_own_sequence() {
    let (tree, n) = planted(&[0, 1, 2], 3);
    assert_eq!((n, tree.of_context()), (3, &[5][..]));
    assert_eq!(layout(&tree), [(1, 0, vec![5]), (2, 1, vec![5]), (3, 2, vec![5])]);
    assert_eq!([0, 1, 2, 3].map(|node| tree.row(node)), [0, 1, 2, 3]);
}

#[test]
fn first_branch_is_decoded_first() {
    // 1 and 2 follow the text, 3 follows 1, and 4 and 5 follow 2.
    let (tree, n) = planted(&[0, 0, 1, 2, 2], 3);
    assert_eq!((n, tree.of_context()), (5, &[5, 10, 11][..]));
    let expected = [(1, 0, vec![5]), (3, 1, vec![5]), (2, 0, vec![10, 11]), (4, 1, vec![10]), (5, 1, vec![11])];
    assert_eq!(layout(&tree), expected);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|node| tree.row(node)), [0, 1, 3, 2, 4, 5]);
    assert_eq!((tree.towards(0, 5), tree.towards(2, 5), tree.towards(5, 5)), (Some(2), Some(5), None));
    assert!(tree.is_own(3) && !tree.is_own(4));
}

#[test]
fn draft_is_cut_when_sequences_run_out() {
    assert_eq!(planted(&[0, 0, 0, 1], 1).1, 2);
    assert_eq!(planted(&[0, 0], 0).1, 1);
    let (tree, _) = planted(&[0, 0, 0, 1], 1);
    assert_eq!((tree.of_context(), tree.sequences()), (&[5, 10][..], (5, &[10][..])));
    assert_eq!(planted(&[0, 0], 0).0.of_context(), [5]);
}

proptest! {
    /// A token sees only the text and the tokens before it in its own branch.
    #[test]
    fn each_token_sees_only_its_own_branch(choices in vec(any::<prop::sample::Index>(), 1..40)) {
        let parents: Vec<usize> = choices.iter().enumerate().map(|(n, choice)| choice.index(n + 1)).collect();
        let (tree, n) = planted(&parents, 40);
        prop_assert_eq!(n, parents.len());
        let before = |node: usize| {
            let way = std::iter::successors(Some(node), |at| Some(parents[*at - 1]).filter(|parent| *parent > 0));
            way.skip(1).collect::<Vec<_>>()
        };
        let nodes = layout(&tree);
        for (node, depth, sequences) in &nodes {
            prop_assert_eq!(before(*node).len(), *depth);
            prop_assert!(sequences.iter().all(|sequence| tree.of_context().contains(sequence)));
            for (other, other_depth, others) in nodes.iter().filter(|other| other.1 < *depth) {
                let shared = sequences.iter().any(|sequence| others.contains(sequence));
                prop_assert_eq!(shared, before(*node).contains(other), "{} {} {}", node, other, other_depth);
            }
            let mut way: Vec<usize> = std::iter::successors(tree.towards(0, *node), |at| tree.towards(*at, *node)).collect();
            way.reverse();
            prop_assert_eq!(way, [&[*node], before(*node).as_slice()].concat());
        }
        // Accepted tokens of the first branch are contiguous in the slot's own sequence.
        let own = nodes.iter().take_while(|(node, ..)| tree.is_own(*node)).count();
        prop_assert!(nodes.iter().skip(own).all(|(node, ..)| !tree.is_own(*node)));
    }
}
