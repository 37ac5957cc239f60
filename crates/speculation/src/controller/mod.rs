//! The controller: decides for all slots of a step together whether a model drafts and how many tokens each slot decodes.
//!
//! Modules that measure:
//! - `costs`: the costs of batches, with `batch_split` (how llama.cpp divides them) and `kalman` (the filter that follows them).
//! - `calibration`: how often tokens of a confidence are accepted.
//!
//! Modules that decide from the measurements, by pure functions:
//! - `prices`: the cost of a step. `lengths`: how many tokens each slot decodes. `outlook`: the gain to expect of a model.
//! - `policy`: the value of drafted tokens to the drafters that make them, and when a draft stops.
//! - `exploration`: when to try a model or a length that does not seem to pay. `losses`: how much drafts may lose, all together.
//!
//! [`Controller`] keeps what steps have shown: costs, the rate of tokens, the time saved up for trials, and what drafts have gained and lost.

mod batch_split;
mod calibration;
mod costs;
mod exploration;
mod kalman;
mod lengths;
mod losses;
mod outlook;
mod policy;
mod prices;

pub use self::batch_split::{BatchSplit, SequencePadding};
pub use self::calibration::{Bias, Calibration, Choice};
#[cfg(test)]
pub(crate) use self::costs::tests::costs as test_costs;
pub use self::costs::{Costs, DraftPasses, MAX_MEASURED, sizes_to_measure};
pub use self::exploration::{Decision, MOST_UNREAD};
pub use self::lengths::{DraftOptions, decide};
pub use self::outlook::{Prospect, outlook};
pub use self::policy::{DraftPrices, GrowingDraft, Length, SoFar, StopPolicy, another_round_pays};
pub use self::prices::{Prices, StepSlot, mean_n_past};

use self::exploration::{Exploration, catching_up};
use self::losses::LossLimit;
use self::policy::Rate;
use super::MAX_DRAFT;

/// The controller's measurements, and its decisions for the current step.
#[derive(Default)]
pub struct Controller {
    /// The costs of batches.
    pub costs: Costs,
    rate: Rate,
    draft_prices: DraftPrices,
    exploration: Exploration,
    /// `None`: drafts may lose what the estimates allow.
    losses: Option<LossLimit>,
    /// The cost of the models' drafts in the current step.
    drafting: f64,
    /// Whether models drafted in the last step, or it decoded drafts.
    has_drafted: bool,
    // The current step's values by sequence id; kept for their memory.
    options: Vec<DraftOptions>,
    prospects: Vec<Option<Prospect>>,
    lengths: Vec<usize>,
}

impl Controller {
    /// Limits what drafts may lose from now on, because tokens of a draft cost more than estimates of acceptance are worth.
    pub fn limit_losses(&mut self) {
        self.losses = Some(LossLimit::default());
    }

    /// A step of an engine with `n_slots` slots begins: nothing is drafted yet.
    pub(super) fn begin(&mut self, n_slots: usize) {
        self.options.resize_with(n_slots, DraftOptions::default);
        self.options.iter_mut().for_each(DraftOptions::clear);
        self.lengths.clear();
        self.drafting = 0.0;
        self.clear_prospects(n_slots);
    }

    /// Before anything is drafted: what tokens are worth in this step. `n_drafting`: the slots whose lengths adapt. `model`: where one
    /// slot alone generates, the mean acceptance and the longest draft of the model that drafts for it.
    pub(super) fn prepare(&mut self, steps: &[StepSlot], n_drafting: usize, model: Option<(f64, usize)>) {
        self.draft_prices.choose_preferred(&self.costs, mean_n_past(steps), model);
        let mut draft_prices = std::mem::take(&mut self.draft_prices);
        if steps.iter().any(|step| step.generates) {
            let prices = Prices { preferred: preferred_size(&draft_prices, steps), ..self.prices(steps) };
            draft_prices.update(&prices, n_drafting);
        } else {
            // Until a slot generates, the prices are those of one that does.
            let slots = [StepSlot { n_tokens: 1, generates: true, room: MAX_DRAFT, n_past: 0 }];
            let rate = self.rate.of(1.0);
            let preferred = draft_prices.preferred().map(|preferred| 1 + preferred);
            draft_prices.update(
                &Prices { slots: &slots, costs: &self.costs, rate, preferred, most_lost: f64::MAX, least_lost: 0.0 },
                1,
            );
        }
        self.draft_prices = draft_prices;
    }

    /// The values of tokens while a draft is made.
    pub(super) fn draft_prices(&self) -> &DraftPrices {
        &self.draft_prices
    }

    /// The drafts that a slot can choose from.
    pub(super) fn options(&self, slot: usize) -> Option<&DraftOptions> {
        self.options.get(slot)
    }

    pub(super) fn options_mut(&mut self, slot: usize) -> Option<&mut DraftOptions> {
        self.options.get_mut(slot)
    }

    /// Clears the prospects of a model.
    pub(super) fn clear_prospects(&mut self, n_slots: usize) {
        self.prospects.clear();
        self.prospects.resize(n_slots, None);
    }

    /// Sets the draft to expect of a model for a slot.
    pub(super) fn expect(&mut self, slot: usize, prospect: Prospect) {
        if let Some(place) = self.prospects.get_mut(slot) {
            *place = Some(prospect);
        }
    }

    /// Whether a model should draft for the slots with a prospect, and the length that is best with it. `unread`: tokens that it has to
    /// catch up with, and the same with at most [`MOST_UNREAD`] of each slot. `is_new`: it has never drafted for one of the requests.
    pub(super) fn consider_model(
        &mut self,
        steps: &[StepSlot],
        (unread, unread_limited): (usize, usize),
        is_new: bool,
    ) -> (Decision, usize) {
        let n_eligible = self.prospects.iter().flatten().count();
        if n_eligible == 0 {
            return (Decision::Rest, 0);
        }
        let prices = self.prices(steps);
        let limited = catching_up(prices.costs.c(1, 0), unread_limited);
        let catching_up = catching_up(prices.costs.c(1, 0), unread);
        let prices = Prices { most_lost: prices.most_lost - catching_up, ..prices };
        let catching_up = if self.losses.is_some() { catching_up } else { limited };
        let (rate, cost) = (prices.rate, prices.costs.c(n_eligible, prices.mean_n_past()));
        let outlook = outlook(&prices, &self.options, &self.prospects, rate * cost);
        let decision = self.exploration.decide(&outlook, rate, cost, catching_up, is_new);
        if decision != Decision::Rest {
            self.drafting += catching_up;
        }
        (decision, outlook.length)
    }

    /// Whether a slot wants a draft of a model after this decision: with a long draft from the history it needs none.
    pub(super) fn wants_model(&self, slot: usize, decision: Decision, length: usize) -> bool {
        let Some(prospect) = self.prospects.get(slot).copied().flatten() else { return false };
        let history = self.options(slot).map_or(0.0, |own| own.best(length).expected);
        !matches!(decision, Decision::Pays { .. }) || prospect.expected(length) > history
    }

    /// A model drafts for `n_slots` slots.
    pub(super) fn begin_drafting(&mut self, steps: &[StepSlot], n_slots: usize) {
        let round = self.prices(steps).rate * self.costs.c(n_slots, mean_n_past(steps));
        self.draft_prices.set_draft_cost(round, n_slots);
    }

    /// A model has drafted: in each of `rounds` passes for `n_slots(round)` slots with about `n_past` tokens of context.
    pub(super) fn drafted(&mut self, n_slots: impl Fn(usize) -> usize, rounds: usize, n_past: usize) {
        let passes = (0..rounds).map(n_slots).filter(|n_slots| *n_slots > 0);
        self.drafting += passes.map(|n_slots| self.costs.c(n_slots, n_past)).sum::<f64>();
    }

    /// Decides the lengths. `exploring`: a length for all that is to be measured.
    pub(super) fn decide(&mut self, steps: &[StepSlot], exploring: Option<usize>) {
        let mut lengths = std::mem::take(&mut self.lengths);
        decide(&self.prices(steps), &self.options, exploring, &mut lengths);
        self.lengths = lengths;
    }

    /// For each slot, how many tokens it decodes after its own, drafted ones and filler.
    pub(super) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The same for one slot.
    pub(super) fn length(&self, slot: usize) -> usize {
        self.lengths.get(slot).copied().unwrap_or(0)
    }

    /// A draft was not verified, and its first token was right or not.
    pub(super) fn left_out(&mut self, steps: &[StepSlot], is_right: bool) {
        if self.losses.is_none() {
            return;
        }
        let prices = self.prices(steps);
        let plain = self.plain_step(steps);
        let more = (prices.cost_of_all(1) - prices.cost_of_all(0)).max(prices.least_lost) / generating(steps);
        let gain = if is_right { plain / generating(steps) - more } else { -more - prices.most_repeated(1) };
        if let Some(losses) = &mut self.losses {
            losses.miss(gain / plain);
        }
    }

    /// A step of adaptive drafts, which had no prompt in it, brought `n_tokens` and cost so many forward passes of one token, and
    /// `drafting` for all drafts.
    pub(super) fn stepped(&mut self, steps: &[StepSlot], n_tokens: usize, cost: f64, drafting: f64) {
        self.rate.record(n_tokens, cost + drafting, self.plain(steps));
        self.exploration.earn(cost + drafting);
        if self.losses.is_none() {
            return;
        }
        let (plain, least_lost) = (self.plain_step(steps), self.least_lost(steps));
        let repeats = self.costs.repeats() && steps.iter().any(|step| step.generates && step.n_tokens > 1);
        let is_plain = !repeats && self.lengths.iter().all(|length| *length == 0);
        let drafts = !is_plain || self.drafting > 0.0;
        // A step after drafts pays for the change of the batch's size.
        let is_of_drafts = std::mem::replace(&mut self.has_drafted, drafts) || drafts;
        let Some(losses) = &mut self.losses else { return };
        losses.save(cost / plain);
        if is_of_drafts && steps.iter().all(|step| step.n_tokens == 0 || step.generates) {
            let least = if is_plain { 0.0 } else { plain + least_lost };
            losses.settle(n_tokens as f64 / generating(steps) - (cost.max(least) + self.drafting) / plain);
        }
        losses.measured(is_plain);
    }

    fn prices<'a>(&'a self, steps: &'a [StepSlot]) -> Prices<'a> {
        let rate = self.rate.of(self.plain(steps));
        let preferred = preferred_size(&self.draft_prices, steps);
        // The drafts of several slots are rarely all wrong.
        let most_lost = self
            .losses
            .as_ref()
            .map_or(f64::MAX, |losses| losses.allowance() * generating(steps) * self.plain_step(steps) - self.drafting);
        Prices { slots: steps, costs: &self.costs, rate, preferred, most_lost, least_lost: self.least_lost(steps) }
    }

    /// The least that drafts of a step count as a loss, if all of them are wrong: see [`LossLimit::least`].
    fn least_lost(&self, steps: &[StepSlot]) -> f64 {
        self.losses.as_ref().map_or(0.0, |losses| losses.least() * self.plain_step(steps))
    }

    /// The tokens that plain decoding generates in the time of one forward pass of one token, with this step's slots.
    fn plain(&self, steps: &[StepSlot]) -> f64 {
        generating(steps) / self.plain_step(steps)
    }

    /// The cost of a step with these slots if none of them ever had a draft: each that generates decodes one token.
    fn plain_step(&self, steps: &[StepSlot]) -> f64 {
        let n_tokens = |slot: usize| steps.get(slot).map_or(0, |step| if step.generates { 1 } else { step.n_tokens });
        let n_past = |slot: usize| steps.get(slot).map_or(0, |step| step.n_past);
        self.costs.step_of(n_tokens, n_past, steps.len()).max(1.0)
    }
}

/// The number of slots that generate, at least one.
fn generating(steps: &[StepSlot]) -> f64 {
    (steps.iter().filter(|step| step.generates).count() as f64).max(1.0)
}

/// The batch size that is best in the long run, where one slot takes part.
fn preferred_size(draft_prices: &DraftPrices, steps: &[StepSlot]) -> Option<usize> {
    let n_tokens: usize = steps.iter().map(|step| step.n_tokens).sum();
    draft_prices.preferred().map(|preferred| n_tokens + preferred)
}

#[cfg(test)]
mod tests;
