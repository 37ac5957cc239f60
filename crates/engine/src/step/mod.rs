//! One step of the engine: every stage is a function of plain data that passes from one to the next.
//!
//! ```text
//! slots -> StepInput --schedule--> Schedule --draft--> StepDrafts --fill--> StepPlan
//!       StepPlan --decode--> Rows --verify--> SlotOutcome --commit--> slots, StepReport
//! ```
//!
//! - [`StepInput`]: the state of the slots, and the limits of the step.
//! - [`schedule`](schedule()): which slots take part. Pure.
//! - [`draft`](draft()): the drafters propose tokens, and the controller chooses all lengths.
//! - [`fill`]: how much of the batch each slot gets. Pure. [`StepPlan`]: what is decoded, and nothing else.
//! - [`decode`](decode()): the only stage that decodes with the target.
//! - [`verify`](verify()): the result of a step for a slot. Only samplers advance.
//! - `decide`: what the requests with choices do in these stages instead of drafting and verifying.
//! - [`commit`](commit()): the only stage that changes what a slot holds: its cells, its completion and its statistics. What that means
//!   for the submitters of requests is in the [`StepReport`].
//!
//! Before that, cells are made free (see [`space`]).
//!
//! Every slot is decoded up to the end of its request's tokens: a prompt, the last sampled token, or everything again after a preemption. A
//! draft is a few more tokens after those. So prompts, speculation and resumed requests share one loop.

pub(super) mod commit;
mod decide;
mod decode;
mod draft;
pub(super) mod draft_tree;
pub(super) mod input;
pub(super) mod plan;
mod schedule;
mod target_rows;
mod trace;
mod verify;

use self::commit::{DecodedStep, abandon, commit, commit_turn};
use self::decide::{plan_choices, read_choices};
use self::decode::{Rows, decode};
use self::draft::{StepDrafts, draft};
use self::draft_tree::DraftTree;
use self::input::StepInput;
use self::plan::{SlotPlan, StepPlan, fill};
use self::schedule::{Schedule, schedule};
use self::verify::{SlotOutcome, VerifiedRequest, score_prompt, verify};
use super::report::StepReport;
use super::slots::{Slot, SlotPool, Task};
use super::space;
use foredraft_llama::{Batch, Context, Model};

/// The data that the stages of a step pass on. The next step uses the memory again.
pub(super) struct Step {
    input: StepInput,
    schedule: Schedule,
    drafts: StepDrafts,
    pub(super) plan: StepPlan,
    batch: Batch,
    outcomes: Vec<SlotOutcome>,
    /// The slots in the order in which they get space in the batch.
    order: Vec<usize>,
}

impl Step {
    /// A step of slots with these sequences for the branches of their drafts.
    pub(super) fn new(trees: Vec<DraftTree>) -> Step {
        Step {
            input: StepInput::default(),
            schedule: Schedule::default(),
            drafts: StepDrafts::new(trees.len()),
            outcomes: trees.iter().map(|_| SlotOutcome::default()).collect(),
            plan: StepPlan::new(trees),
            batch: Batch::new(),
            order: Vec::new(),
        }
    }

    /// Runs a step for all slots. Appends to `report` what has changed for the submitters of the requests.
    pub(super) fn run(&mut self, pool: &mut SlotPool, report: &mut StepReport) {
        self.make_plan(pool);
        let Step { input, schedule, drafts, plan, batch, outcomes, .. } = self;
        commit_turn(schedule, drafts.time, &mut pool.slots);
        if plan.is_empty() {
            return;
        }
        let runs_to_end = moves_other_sequences(pool);
        let SlotPool { context, slots, drafters, .. } = pool;
        let model = context.model().clone();
        mark_drafted(plan, slots, context);
        match decode(plan, slots, context, batch, runs_to_end, || drafters.now()) {
            Ok(mut rows) => {
                let time = rows.time;
                verify_all(plan, slots, drafts, &mut rows, &model, outcomes);
                commit(&DecodedStep { schedule, drafts, plan, time }, outcomes, pool, report);
            }
            Err(error) => abandon(plan, &input.slots, error, runs_to_end, pool, report),
        }
    }

    /// Makes the plan of a step, after balancing the cells that slots share.
    pub(super) fn make_plan(&mut self, pool: &mut SlotPool) {
        let Step { input, schedule: scheduled, drafts, plan, order, .. } = self;
        input.limits = pool.limits();
        pool.states(&mut input.slots);
        space::balance(&mut input.slots, &input.limits, |change| space::apply(pool, change));
        schedule(input, scheduled);
        draft(input, scheduled, &mut pool.slots, &mut pool.drafters, drafts);
        plan_choices(input, scheduled, &mut pool.slots, drafts);
        fill(input, scheduled, |slot| drafts.wanted(slot), order, plan);
        plan.keeps_hidden = drafts.needs_hidden;
    }
}

/// Where rejected tokens cannot be removed, keeps the states of the slots that verify a draft, to which [`commit`](commit()) then returns.
fn mark_drafted(plan: &StepPlan, slots: &mut [Slot], context: &mut Context) {
    if context.rollback().is_unlimited() {
        return;
    }
    let n_tokens = plan.slots.iter().map(SlotPlan::n_batch_tokens);
    for (index, (planned, slot)) in plan.slots.iter().zip(slots).enumerate() {
        let is_drafted = planned.n_context > 0 && planned.n_batch_tokens() > planned.n_context;
        if is_drafted && !context.rolls_back_after(n_tokens.clone(), index) {
            slot.cache.mark(context);
        }
    }
}

/// Verifies every slot of a decoded step.
fn verify_all(
    plan: &StepPlan,
    slots: &mut [Slot],
    drafts: &mut StepDrafts,
    rows: &mut Rows<'_>,
    model: &Model,
    outcomes: &mut [SlotOutcome],
) {
    for (((planned, slot), drafts), outcome) in plan.slots.iter().zip(slots).zip(&mut drafts.slots).zip(outcomes) {
        outcome.clear();
        let Some(task) = slot.task.as_mut().filter(|_| planned.n_context > 0) else { continue };
        let Task { sink, sampler, edited_rows, tokens, completion, speculation, options, output, decision, .. } = task;
        if planned.scores {
            let prompt = tokens.get(slot.cache.len()..*output).unwrap_or(&[]);
            score_prompt(planned, prompt, options.prompt_probs.unwrap_or(0), rows, outcome);
        }
        if let Some(decision) = decision {
            read_choices(planned, decision, rows, model.vocab(), outcome);
            continue;
        }
        let vocab = model.vocab();
        let (edited_rows, speculation) = (edited_rows.as_mut(), speculation.as_mut());
        let request = VerifiedRequest { sink, sampler, edited_rows, tokens, completion, speculation, drafts, vocab };
        verify(planned, request, rows, outcome);
    }
}

/// Whether a decode moves the states of sequences that are not in its batch: llama.cpp exchanges the cells of recurrent states before
/// it moves their contents. If it is stopped in between, sequences have the states of others. So such a decode runs to its end.
fn moves_other_sequences(pool: &SlotPool) -> bool {
    pool.slots.len() > 1 && !pool.context.rollback().is_unlimited()
}
