//! Decisions in a step: the slots whose requests have choices. See [`ChoiceDecision`].

use super::decode::Rows;
use super::draft::StepDrafts;
use super::input::StepInput;
use super::plan::SlotPlan;
use super::schedule::Schedule;
use super::verify::SlotOutcome;
use crate::decision::ChoiceDecision;
use crate::event::{Generated, Stop};
use crate::slots::{Slot, Task};
use foredraft_base::error::{Error, Result};
use foredraft_base::prompt_fit;
use foredraft_llama::{Context, Token, Vocab};
use foredraft_speculation::{Draft, DrafterKind};

/// Plans the choices that are decoded after the contexts of their slots.
///
/// As many as leave logits batch-invariant, so that a choice is as probable as it is alone: branches, or one choice. Beside more than the
/// last token of a prompt, they are planned only if there is room for all of them.
pub(super) fn plan_choices(input: &StepInput, schedule: &Schedule, slots: &mut [Slot], drafts: &mut StepDrafts) {
    let StepInput { slots: states, limits } = input;
    drafts.choices.clear();
    drafts.choices.extend(states.iter().zip(&schedule.slots).zip(slots).map(|((state, scheduled), slot)| {
        let decision = slot.task.as_mut()?.decision.as_mut()?;
        let n_pending = state.n_pending();
        let room = state.room_after(limits).min(limits.n_batch.saturating_sub(n_pending));
        let can_plan = limits.rollback.is_unlimited() && scheduled.takes_part;
        let (tokens, parents) =
            decision.plan(if can_plan { room } else { 0 }, limits.branches_are_invariant, n_pending > 1);
        let mut draft = Draft::default();
        for (token, parent) in tokens.into_iter().zip(parents) {
            draft.push_behind(parent, token, 0.0);
        }
        Some(draft)
    }));
}

/// Reads the rows of a slot. At the end the outcome has the tokens of a choice that continues the prompt.
pub(super) fn read_choices(
    planned: &SlotPlan,
    decision: &mut ChoiceDecision,
    rows: &mut Rows<'_>,
    vocab: &Vocab,
    outcome: &mut SlotOutcome,
) {
    let Some(first) = planned.row else { return };
    match read_rows(planned, first, decision, rows) {
        Ok(None) => {}
        Ok(Some(tokens)) => {
            for token in tokens {
                let start = outcome.added.len();
                outcome.added.extend_from_slice(vocab.text(token));
                outcome.tokens.push(Generated { token, source: DrafterKind::Target, start, probs: None });
            }
            outcome.end = Some(Stop::Eos.into());
        }
        Err(error) => outcome.end = Some(Stop::Error(error).into()),
    }
}

/// Reads the rows of a slot, the first of which is at this place. When all are read, returns what [`ChoiceDecision::finish`] does.
fn read_rows(
    planned: &SlotPlan,
    first: usize,
    decision: &mut ChoiceDecision,
    rows: &mut Rows<'_>,
) -> Result<Option<Vec<Token>>> {
    for (place, node) in decision.due(planned.draft.tokens.len()) {
        let row = rows.logits(first + planned.tree.row(place));
        decision.read(node, row.ok_or_else(|| Error::model("the decode gave no logits"))?)?;
    }
    decision.finish()
}

/// Makes the context of the next step, before what the outcome adds.
pub(super) fn next_context(slot: &mut Slot, context: &mut Context) {
    let Some(Task { decision: Some(decision), tokens, .. }) = &mut slot.task else { return };
    let can_roll_back = context.rollback().is_unlimited();
    let most = decision.next_context(tokens, can_roll_back);
    let keep = prompt_fit::common_prefix(&slot.cache, tokens).min(most);
    slot.cache.cut(context, keep);
}
