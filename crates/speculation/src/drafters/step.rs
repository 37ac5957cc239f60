//! Drafting in one step: which drafters draft, for which slots, and how much of it is verified.
//!
//! History drafters take microseconds: each drafts in every step, and its draft is compared with the committed tokens whether or
//! not it was verified. So their worth is known without having paid for it. A model's time counts: it drafts when its drafts
//! are expected to make up for that, for all slots together (see [`controller`]), and otherwise now and then, to notice when they
//! would again (see [`exploration`]).
//!
//! Stochastic verification must verify every drawn token (see [`SampledDraft`]). So whether a model's draft is preferred to the
//! drafts from the history is decided before it drafts.
//!
//! [`controller`]: crate::controller
//! [`exploration`]: crate::controller
//! [`SampledDraft`]: crate::verify::SampledDraft

use super::Drafters;
use super::drafting_state::{DrafterState, DraftingState};
use super::registered::RegisteredDrafter;
use super::slot_drafts::{Proposals, SlotDrafts};
use crate::Settings;
use crate::controller::{Calibration, Decision, DraftPrices, MOST_UNREAD, Prospect, StepSlot, StopPolicy, mean_n_past};
use crate::drafter::{Draft, DraftRequest, Drafter, Drawing};
use crate::verify::StepRandom;
use foredraft_base::Token;
use foredraft_sampling::Sampler;

/// A slot that takes part in a step and whose request speculates.
pub struct DraftingSlot<'a> {
    /// The slot.
    pub slot: usize,
    /// As [`DraftRequest::tokens`], for drafters that see rows.
    pub tokens: &'a [Token],
    /// The same for the others: see [`text_of`](super::text_of).
    pub text: &'a [Token],
    /// The target's sampler.
    pub sampler: &'a Sampler,
    /// As [`DraftRequest::generated`].
    pub generated: usize,
    /// As [`DraftRequest::position`].
    pub position: usize,
    /// Most tokens that can be drafted; `None`: the target has not decoded the context yet, so drafters only keep up with it.
    pub room: Option<usize>,
    /// Whether the slot's token would be decoded with a padding token.
    pub is_padded: bool,
    /// The request's drafting state.
    pub state: &'a mut DraftingState,
    /// The slot's drafts in the step.
    pub drafts: &'a mut SlotDrafts,
}

/// The slots that take part in a step and whose requests speculate.
pub trait DraftingSlots {
    /// All of them, in the order of their numbers.
    fn all(&mut self) -> impl Iterator<Item = DraftingSlot<'_>>;
}

impl<'a> DraftingSlot<'a> {
    /// The context of a drafter's request.
    fn seen_by(&self, drafter: &dyn Drafter) -> &'a [Token] {
        if drafter.sees_rows() { self.tokens } else { self.text }
    }

    fn proposals(&self) -> Proposals<'_> {
        Proposals { state: self.state, drafts: self.drafts }
    }

    /// The draft to expect of a model here; `None`: the model may not draft, or its draft has a fixed length.
    fn prospect(&self, index: usize, calibration: &Calibration) -> Option<Prospect> {
        let DraftingState { settings, length, .. } = &*self.state;
        let bias = &self.state.drafter(index)?.bias;
        let n_max = self.room?.min(length.current());
        // Drawn tokens are verified, however few they are.
        let is_too_short = n_max < settings.n_min && !settings.verify.draws();
        let may_draft =
            self.state.has_adaptive_lengths() && self.drafts.drawn_by.is_none() && n_max > 0 && !is_too_short;
        may_draft.then(|| Prospect::of(calibration, bias, (settings.n_min, n_max)))
    }
}

impl Drafters {
    /// Lets the drafters keep up with the requests in `slots`, and chooses the draft of each: see [`SlotDrafts::chosen`]. `steps`: every slot
    /// of the engine, by sequence id. Returns for each of these how many tokens it decodes after its own, drafted ones and filler; none if no
    /// request speculates.
    pub fn draft(&mut self, steps: &[StepSlot], slots: &mut impl DraftingSlots) -> &[usize] {
        self.controller.begin(steps.len());
        let (mut n_slots, mut n_drafting, mut any_adapts, mut used) = (0, 0, false, 0_u64);
        for DraftingSlot { state, drafts, room, .. } in slots.all() {
            drafts.begin(state);
            n_slots += 1;
            let adapts = state.adapts();
            any_adapts |= adapts;
            n_drafting += usize::from(adapts && room.is_some());
            used |= state.used_drafters();
        }
        let is_used = |index: &usize| used >> (*index).min(63) & 1 == 1;
        if n_slots == 0 {
            return &[];
        }
        if any_adapts {
            let model = self.model_of_only_slot(steps, slots);
            self.controller.prepare(steps, n_drafting, model);
        }
        let is_model = |registered: &RegisteredDrafter| registered.is_model_based;
        let n_history = self.registered.iter().position(is_model).unwrap_or(self.registered.len());
        (0..n_history).filter(is_used).for_each(|index| self.draft_from_history(index, slots));
        self.offer(n_history, slots);
        let mut exploring = None;
        for index in (n_history..self.registered.len()).filter(is_used) {
            exploring = self.consider_model(index, steps, slots).or(exploring);
            self.offer(index + 1, slots);
        }
        self.controller.decide(steps, exploring);
        for DraftingSlot { slot, state, drafts, .. } in slots.all().filter(|slot| slot.room.is_some()) {
            let length = self.controller.length(slot);
            let draft = self.controller.options(slot).and_then(|options| options.best(length).draft);
            drafts.choose(draft, state);
        }
        self.controller.lengths()
    }

    /// Offers the drafts of the first `n` drafters to the controller.
    fn offer(&mut self, n: usize, slots: &mut impl DraftingSlots) {
        let registered = self.registered.get(..n).unwrap_or(&self.registered);
        for slot in slots.all().filter(|slot| slot.room.is_some()) {
            if let Some(options) = self.controller.options_mut(slot.slot) {
                slot.proposals().offer(registered, options);
            }
        }
    }

    /// The mean acceptance and the longest draft of the model that can draft for the only slot that generates.
    fn model_of_only_slot(&self, steps: &[StepSlot], slots: &mut impl DraftingSlots) -> Option<(f64, usize)> {
        let mut generating = (0..).zip(steps).filter(|(_, step)| step.generates).map(|(slot, _)| slot);
        let only = generating.next().filter(|_| generating.next().is_none())?;
        let slot = slots.all().find(|slot| slot.slot == only && slot.room.is_some() && slot.state.adapts())?;
        let mut models = self.registered.iter().zip(&slot.state.drafters);
        models.find_map(|(registered, state)| {
            let bias = &state.as_ref().filter(|_| registered.is_model_based)?.bias;
            Some((registered.calibration.mean(bias), slot.state.length.current()))
        })
    }

    /// Lets a history drafter draft, for one slot after the other.
    fn draft_from_history(&mut self, index: usize, slots: &mut impl DraftingSlots) {
        let Some(RegisteredDrafter { drafter, calibration, .. }) = self.registered.get_mut(index) else { return };
        let prices = self.controller.draft_prices();
        for slot in slots.all() {
            let DraftingSlot {
                slot, text: tokens, sampler, generated, position, room, is_padded, state, drafts, ..
            } = slot;
            let DraftingState { settings, length, drafters, .. } = &*state;
            let Some(Some(DrafterState { bias, is_free, .. })) = drafters.get(index) else { continue };
            let Some(draft) = drafts.proposals.get_mut(index) else { continue };
            let adapts = settings.adaptive == crate::Adaptive::Auto;
            let most = match (*is_free, adapts) {
                (true, _) => usize::from(is_padded),
                // The beginning of a draft tells what its drafter is worth, also if it is not verified.
                (false, true) => settings.n_max_text.min(prices.longest().max(1)),
                (false, false) => length.current(),
            };
            let n_max = room.map_or(0, |room| most.min(room));
            if room.is_some() && n_max == 0 && !is_free {
                continue;
            }
            let stop_policy = match adapts && !is_free {
                true => StopPolicy::Paying { prices, calibration, bias: *bias, n_min: settings.n_min },
                false => StopPolicy::All,
            };
            let view = SlotContext { slot, tokens, sampler, generated, position };
            let mut request = view.request(settings, n_max, stop_policy, draft, None);
            drafter.draft(std::slice::from_mut(&mut request));
            if let Some(end) = request.draft.tokens.iter().position(|token| self.end_tokens.contains(token)) {
                request.draft.truncate(end + 1);
            }
        }
    }

    /// Lets a model draft for all slots together, which it decodes in one batch, if that pays or is due to be tried. Returns the length for
    /// all that is to be verified, where that is to be measured.
    fn consider_model(&mut self, index: usize, steps: &[StepSlot], slots: &mut impl DraftingSlots) -> Option<usize> {
        self.controller.clear_prospects(steps.len());
        let (mut unread, mut unread_limited, mut is_new) = (0, 0, false);
        for slot in slots.all() {
            let Some(RegisteredDrafter { drafter, calibration, .. }) = self.registered.get(index) else { continue };
            let Some(prospect) = slot.prospect(index, calibration) else { continue };
            self.controller.expect(slot.slot, prospect);
            let own = slot.seen_by(&**drafter).len().saturating_sub(slot.state.n_caught_up + 1);
            (unread, unread_limited) = (unread + own, unread_limited + own.min(MOST_UNREAD));
            is_new |= !slot.state.has_tried_model;
        }
        let (decision, length) = self.controller.consider_model(steps, (unread, unread_limited), is_new);
        let n_wanted = slots.all().filter(|slot| self.controller.wants_model(slot.slot, decision, length)).count();
        self.controller.begin_drafting(steps, n_wanted);
        self.draft_with_model(index, steps, slots, decision, length);
        match decision {
            Decision::Explore { length, verify: true } => Some(length),
            _ => None,
        }
    }

    /// Lets a model draft for the slots that want a draft by this decision, and keep up with the others.
    fn draft_with_model(
        &mut self,
        index: usize,
        steps: &[StepSlot],
        slots: &mut impl DraftingSlots,
        decision: Decision,
        best_length: usize,
    ) {
        let Drafters { registered, controller, clock, draft_lengths, .. } = self;
        let Some((registered, before)) = registered.get_mut(..=index).and_then(|all| all.split_last_mut()) else {
            return;
        };
        let RegisteredDrafter { drafter, calibration, .. } = registered;
        let (mut requests, mut all_keep_up) = (Vec::new(), true);
        for slot in slots.all() {
            let wanted = controller.wants_model(slot.slot, decision, best_length);
            let demand =
                demand_of_model(&slot, index, before, calibration, controller.draft_prices(), decision, wanted);
            let tokens = slot.seen_by(&**drafter);
            let DraftingSlot { slot, sampler, generated, position, room, state, drafts, .. } = slot;
            let Some(of_drafter) = state.drafter_mut(index) else { continue };
            let kept_up = std::mem::replace(&mut of_drafter.keeps_up, demand.is_some() && room.is_some());
            let bias = of_drafter.bias;
            let Some((n_max, stops_when_it_does_not_pay)) = demand else { continue };
            all_keep_up &= kept_up;
            state.n_caught_up = tokens.len();
            state.has_tried_model |= n_max > 0;
            let settings = &state.settings;
            let SlotDrafts { proposals, sampled, drawn_by, .. } = drafts;
            let Some(draft) = proposals.get_mut(index) else { continue };
            let stop_policy = match stops_when_it_does_not_pay {
                true => {
                    StopPolicy::Paying { prices: controller.draft_prices(), calibration, bias, n_min: settings.n_min }
                }
                false => StopPolicy::All,
            };
            let drawing = (settings.verify.draws() && drawn_by.is_none()).then(|| {
                sampled.begin(n_max);
                Drawing { drawn: sampled, random: StepRandom::new(sampler.seed(), position) }
            });
            let view = SlotContext { slot, tokens, sampler, generated, position };
            requests.push(view.request(settings, n_max, stop_policy, draft, drawing));
        }
        if requests.is_empty() {
            return;
        }
        let (start, n_past) = (clock(), mean_n_past(steps));
        drafter.draft(&mut requests);
        let time = clock().saturating_duration_since(start);
        let longest = requests.iter().map(|request| request.draft.tokens.len()).max().unwrap_or(0);
        let rounds = controller.costs.passes().between(0, longest);
        draft_lengths.clear();
        draft_lengths.extend(requests.iter().map(|request| request.draft.longest_branch(usize::MAX)));
        drop(requests);
        // A slot that has to catch up with more than the last step takes longer for that.
        let drafted = |round: usize| draft_lengths.iter().filter(|length| **length > round).count();
        if all_keep_up {
            controller.costs.record_drafts(drafted, rounds, n_past, time);
        }
        controller.drafted(drafted, rounds, n_past);
        for DraftingSlot { slot, state, drafts, .. } in slots.all() {
            if drafts.drawn_by.is_none() && !drafts.sampled.is_empty() {
                drafts.drawn_by = Some(index);
            }
            if let Some(why) = drafter.disabled(slot).filter(|_| state.drafter(index).is_some()) {
                state.disabled = Some(why.to_owned());
                state.drafters.iter_mut().skip(index).take(1).for_each(|drafter| *drafter = None);
                drafts.proposals.iter_mut().skip(index).take(1).for_each(Draft::clear);
            }
        }
    }
}

/// The most tokens that a model drafts for a slot, and whether it stops when more do not pay; `None`: it neither drafts nor keeps up.
fn demand_of_model(
    slot: &DraftingSlot<'_>,
    index: usize,
    before: &[RegisteredDrafter],
    calibration: &Calibration,
    prices: &DraftPrices,
    decision: Decision,
    wanted: bool,
) -> Option<(usize, bool)> {
    let state = &*slot.state;
    let settings = &state.settings;
    let acceptance = calibration.mean(&state.drafter(index)?.bias);
    let n_max = state.length.current();
    let Some(room) = slot.room else {
        // Until its first draft it keeps up with a prompt; later on it does not while it does not pay.
        let lengths = settings.n_min..=n_max;
        let adapts = state.has_adaptive_lengths();
        let keeps_up = !adapts || !state.has_tried_model || prices.prospect(acceptance, lengths) > 0.0;
        return keeps_up.then_some((0, false));
    };
    let n_max = n_max.min(room);
    if n_max == 0 || slot.drafts.drawn_by.is_some() {
        return None;
    }
    if !state.has_adaptive_lengths() {
        if n_max < settings.n_min && !settings.verify.draws() {
            return None;
        }
        // A drawn draft cannot be dropped afterwards for a better one.
        let history = slot.proposals().most_expected(before).map_or(0.0, |(_, _, expected)| expected);
        let gives_way = settings.verify.draws() && expected_tokens(acceptance, n_max) <= history;
        return (!gives_way).then_some((n_max, false));
    }
    match decision {
        _ if !wanted => None,
        Decision::Rest => None,
        Decision::Pays { most } => Some((n_max.min(most), true)),
        Decision::Explore { length, .. } => Some((n_max.min(length), false)),
    }
}

/// The part of a [`DraftingSlot`] that a drafter sees.
struct SlotContext<'a> {
    slot: usize,
    tokens: &'a [Token],
    sampler: &'a Sampler,
    generated: usize,
    position: usize,
}

impl<'a> SlotContext<'a> {
    fn request(
        self,
        settings: &Settings,
        n_max: usize,
        stop_policy: StopPolicy<'a>,
        draft: &'a mut Draft,
        drawing: Option<Drawing<'a>>,
    ) -> DraftRequest<'a> {
        let SlotContext { slot, tokens, sampler, generated, position } = self;
        let branches = (settings.n_branches, settings.p_split);
        DraftRequest {
            slot,
            tokens,
            sampler,
            generated,
            position,
            n_max,
            p_min: settings.p_min,
            branches,
            stop_policy,
            draft,
            drawing,
        }
    }
}

/// Tokens to expect of `n`, each accepted with `acceptance` if those before it were.
fn expected_tokens(acceptance: f64, n: usize) -> f64 {
    (1..).take(n).map(|power| acceptance.powi(power)).sum()
}
