//! Updates drafters and controller after a verified step.

use super::Drafters;
use super::drafting_state::{DrafterState, DraftingState};
use super::slot_drafts::{DraftChoice, DraftOutcome, SlotDrafts};
use crate::MAX_DRAFT;
use crate::controller::StepSlot;
use crate::drafter::Draft;
use foredraft_base::Token;

impl Drafters {
    /// Learns from a verified step of the request in `slot`: `tokens` are the tokens that it committed, the accepted ones first. `steps`: every
    /// slot of the engine, as for [`Drafters::draft`].
    ///
    /// Every drafter is judged by them, also one whose draft was not verified.
    pub fn learn(
        &mut self,
        slot: usize,
        steps: &[StepSlot],
        state: &mut DraftingState,
        drafts: &SlotDrafts,
        tokens: &[Token],
        outcome: &DraftOutcome,
    ) {
        let all = self.registered.iter_mut().zip(&mut state.drafters).zip(&drafts.proposals).enumerate();
        for (index, ((registered, of_drafter), draft)) in all {
            let Some(DrafterState { bias, .. }) = of_drafter else { continue };
            // A drawn token that was rejected may still come, as the target's own.
            let n_comparable = if drafts.drawn_by == Some(index) { outcome.n_accepted } else { usize::MAX };
            judge(draft, tokens, n_comparable, |confidence, hit| registered.calibration.record(bias, confidence, hit));
        }
        if drafts.choice.is_none() && state.has_adaptive_lengths() {
            let best = self.controller.options(slot).and_then(|options| options.best(MAX_DRAFT).draft);
            let first = best.and_then(|(index, _)| drafts.proposals.get(index)?.tokens.first());
            if let (Some(first), Some(actual)) = (first, tokens.first()) {
                self.controller.left_out(steps, first == actual);
            }
        }
        let Some(DraftChoice { drafter, .. }) =
            drafts.choice.filter(|_| outcome.kind.is_some() && outcome.n_drafted > 0)
        else {
            return;
        };
        if state.has_adaptive_lengths() && drafts.drawn_by.is_none() {
            let expected =
                self.controller.options(slot).map_or(0.0, |options| options.best(outcome.n_drafted).expected);
            if let Some(registered) = self.registered.get_mut(drafter).filter(|registered| !registered.is_model_based) {
                registered.chosen.record(expected / registered.factor_if_chosen(), outcome.n_accepted as f64);
            }
        }
        state.length.record(outcome.n_drafted, outcome.n_longest, outcome.n_accepted);
        if let Some(registered) = self.registered.get_mut(drafter) {
            registered.drafter.verified(slot, outcome.n_drafted, outcome.n_accepted);
        }
    }

    /// A step, which had no prompt in it, brought `n_tokens` and cost so many forward passes of one token, and `drafting` for the drafts.
    /// `adapts`: draft lengths of one of its requests adapt. What plain requests and fixed lengths bring says nothing of the rate
    /// that adaptive drafts lead to.
    pub fn stepped(&mut self, steps: &[StepSlot], adapts: bool, n_tokens: usize, cost: f64, drafting: f64) {
        if adapts {
            self.controller.stepped(steps, n_tokens, cost, drafting);
        }
    }
}

/// Compares a draft with the committed tokens, of which it may have foreseen the first `n_comparable`, along the branch that they follow.
/// `record` gets the confidence of each token that could be compared, and whether it was right.
fn judge(draft: &Draft, tokens: &[Token], n_comparable: usize, mut record: impl FnMut(f32, bool)) {
    // For each node that was foreseen: how many tokens are committed up to it.
    let mut committed = [None; MAX_DRAFT + 1];
    let [root, ..] = &mut committed;
    *root = Some(0);
    let nodes = draft.tokens.iter().zip(&draft.confidence).zip(draft.parents(draft.tokens.len()));
    for (node, ((token, confidence), parent)) in (1..).zip(nodes) {
        let Some(before) = committed.get(parent).copied().flatten() else { continue };
        let Some(actual) = tokens.get(before) else { continue };
        let is_hit = before < n_comparable && actual == token;
        record(*confidence, is_hit);
        if let Some(place) = committed.get_mut(node).filter(|_| is_hit) {
            *place = Some(before + 1);
        }
    }
}
