//! One step of the engine: every stage is a function of plain data that passes from one to the next.
//!
//! ```text
//! slots ──schedule──> StepPlan ──draft──> StepPlan ──decode──> Rows ──verify──> SlotOutcome ──commit──> slots
//! ```
//!
//! - [`schedule`]: which slots take part, and how much of the batch each of them gets. Pure.
//! - [`draft`](draft()): the drafters propose tokens, and the controller chooses all lengths.
//! - [`decode`](decode()): the only stage that calls llama.cpp.
//! - [`verify`](verify()): what a step brings for a slot. Only samplers advance.
//! - [`commit`](commit()): the only stage that changes slots.
//!
//! Every slot is decoded up to the end of its request's tokens: a prompt, the last sampled token, or everything again after its cells
//! were given away. A draft is a few more tokens after those. So prompts, speculation and resumed requests share one loop.

pub(super) mod commit;
mod decode;
mod draft;
pub(super) mod draft_tree;
pub(super) mod plan;
mod schedule;
mod verify;

use self::commit::{abandon, commit, commit_turn};
use self::decode::{Rows, decode};
use self::draft::draft;
use self::draft_tree::DraftTree;
use self::plan::StepPlan;
use self::schedule::schedule;
use self::verify::{SlotOutcome, VerifiedRequest, verify};
use super::request_handle::Outbox;
use super::slots::{Slot, SlotPool};
use super::space;
use super::task::Task;
use crate::llama::{Batch, Model};
use crate::speculative::DraftingSlot;

/// The buffers of a step, which the next one uses again.
pub(super) struct Step {
    pub(super) plan: StepPlan,
    batch: Batch,
    outcomes: Vec<SlotOutcome>,
    drafting: Vec<DraftingSlot<'static>>,
}

impl Step {
    /// For slots with these sequences for the branches of their drafts.
    pub(super) fn new(trees: Vec<DraftTree>) -> Step {
        let outcomes = trees.iter().map(|_| SlotOutcome::default()).collect();
        Step { plan: StepPlan::new(trees.into_iter()), batch: Batch::new(), outcomes, drafting: Vec::new() }
    }

    /// Runs a step for all slots. `notify` is called with the number of each request that has news.
    pub(super) fn run(&mut self, pool: &mut SlotPool, outbox: &mut Outbox, notify: &mut dyn FnMut(u64)) {
        self.plan(pool, outbox);
        commit_turn(&self.plan, &mut pool.slots);
        if self.plan.is_empty() {
            return;
        }
        let exchanges = exchanges_states(pool);
        let SlotPool { context, slots, drafters, .. } = pool;
        let model = context.model().clone();
        match decode(&self.plan, slots, context, &mut self.batch, exchanges, || drafters.now()) {
            Ok(mut rows) => {
                let time = rows.time;
                verify_all(&self.plan, slots, &mut rows, &model, &mut self.outcomes);
                commit(&self.plan, &mut self.outcomes, time, pool, outbox, notify);
            }
            Err(error) => abandon(&self.plan, error, exchanges, pool, outbox),
        }
    }

    /// Plans a step, before which cells are made free for it.
    pub(super) fn plan(&mut self, pool: &mut SlotPool, outbox: &mut Outbox) {
        let plan = &mut self.plan;
        space::make_space(pool, outbox);
        let limits = pool.limits();
        pool.states(&mut plan.states);
        space::balance(&mut plan.states, &limits, |change| space::apply(pool, change));
        schedule(plan, &limits);
        draft(plan, &limits, &mut pool.slots, &mut pool.drafters, &mut self.drafting);
    }
}

/// Verifies every slot of a decoded step.
fn verify_all(plan: &StepPlan, slots: &mut [Slot], rows: &mut Rows<'_>, model: &Model, outcomes: &mut [SlotOutcome]) {
    for ((planned, slot), outcome) in plan.slots.iter().zip(slots).zip(outcomes) {
        outcome.clear();
        let Some(task) = slot.task.as_mut().filter(|_| planned.n_context > 0) else { continue };
        let Task { sampler, tokens, completion, speculation, .. } = task;
        let speculation = speculation.as_mut();
        verify(
            planned,
            VerifiedRequest { sampler, tokens, completion, speculation, vocab: model.vocab() },
            rows,
            outcome,
        );
    }
}

/// Whether a decode moves the states of sequences that are not in its batch: llama.cpp exchanges the cells of recurrent states before
/// it moves their contents. If it is stopped in between, sequences have the states of others. So such a decode runs to its end.
fn exchanges_states(pool: &SlotPool) -> bool {
    pool.slots.len() > 1 && !pool.context.model().can_roll_back()
}
