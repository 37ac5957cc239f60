//! Drafting in one step: which drafters draft, for which slots, and how much of it is verified.
//!
//! History drafters take microseconds: each is asked in every step, and its draft is compared with the committed tokens whether or
//! not it was verified. So their worth is known without having paid for it. A model's time counts: it is asked when its drafts
//! are expected to make up for that, for all slots together (see [`controller`]), and otherwise now and then, to notice when they
//! would again (see [`exploration`]).
//!
//! Stochastic verification must verify every drawn token (see [`SampledDraft`]). So whether a model's draft is preferred to the
//! drafts from the history is decided before it is asked.
//!
//! [`controller`]: crate::controller
//! [`exploration`]: crate::exploration
//! [`SampledDraft`]: crate::verify::SampledDraft

use super::Drafters;
use super::registered::RegisteredDrafter;
use super::request_drafts::RequestDrafts;
use crate::controller::{Prospect, StepSlot, mean_depth};
use crate::drafter::{Draft, DraftRequest, Drawing};
use crate::exploration::{Decision, MOST_UNREAD};
use crate::policy::{Plan, StopPolicy};
use crate::verify::StepRandom;
use crate::{Calibration, Settings};
use foredraft_base::Token;
use foredraft_sampling::Sampler;

/// A slot that takes part in a step and whose request speculates.
pub struct DraftingSlot<'a> {
    /// The slot.
    pub slot: usize,
    /// As [`DraftRequest::tokens`].
    pub tokens: &'a [Token],
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
    pub drafts: &'a mut RequestDrafts,
}

impl DraftingSlot<'_> {
    /// What a model is expected to draft here; `None`: it may not, or its draft has a fixed length.
    fn prospect(&self, index: usize, calibration: &Calibration) -> Option<Prospect> {
        let drafts = &*self.drafts;
        let bias = &drafts.proposal(index)?.bias;
        let n_max = self.room?.min(drafts.length.current());
        // Drawn tokens are verified, however few they are.
        let is_too_short = n_max < drafts.settings.n_min && !drafts.settings.verify.draws();
        let may_draft = drafts.has_adaptive_lengths() && drafts.drawn_by.is_none() && n_max > 0 && !is_too_short;
        may_draft.then(|| Prospect::of(calibration, bias, (drafts.settings.n_min, n_max)))
    }
}

impl Drafters {
    /// Lets the drafters keep up with the requests in `slots`, and chooses the draft of each: see [`RequestDrafts::chosen`] and
    /// [`Controller::length`](crate::Controller::length). `steps`: every slot of the engine, by sequence id.
    pub fn draft(&mut self, steps: &[StepSlot], slots: &mut [DraftingSlot<'_>]) {
        self.controller.begin(steps.len());
        if slots.is_empty() {
            return;
        }
        if slots.iter().any(|slot| slot.drafts.adapts()) {
            let n_drafting = slots.iter().filter(|slot| slot.drafts.adapts() && slot.room.is_some()).count();
            self.controller.prepare(steps, n_drafting, self.model_of_only_slot(steps, slots));
        }
        slots.iter_mut().for_each(|slot| slot.drafts.clear());
        let is_model = |registered: &RegisteredDrafter| registered.is_model_based;
        let n_history = self.registered.iter().position(is_model).unwrap_or(self.registered.len());
        (0..n_history).for_each(|index| self.ask_history(index, slots));
        self.offer(n_history, slots);
        let mut exploring = None;
        for index in n_history..self.registered.len() {
            exploring = self.ask_model(index, steps, slots).or(exploring);
            self.offer(index + 1, slots);
        }
        self.controller.decide(steps, exploring);
        for slot in slots.iter_mut().filter(|slot| slot.room.is_some()) {
            let length = self.controller.length(slot.slot);
            slot.drafts.choose(self.controller.options(slot.slot).and_then(|options| options.best(length).draft));
        }
    }

    /// Offers the drafts of the first `n` drafters to the controller.
    fn offer(&mut self, n: usize, slots: &[DraftingSlot<'_>]) {
        let registered = self.registered.get(..n).unwrap_or(&self.registered);
        for slot in slots.iter().filter(|slot| slot.room.is_some()) {
            if let Some(options) = self.controller.options_mut(slot.slot) {
                slot.drafts.offer(registered, options);
            }
        }
    }

    /// The mean acceptance and the longest draft of the model that can draft for the only slot that generates.
    fn model_of_only_slot(&self, steps: &[StepSlot], slots: &[DraftingSlot<'_>]) -> Option<(f64, usize)> {
        let mut generating = (0..).zip(steps).filter(|(_, step)| step.generates).map(|(slot, _)| slot);
        let only = generating.next().filter(|_| generating.next().is_none())?;
        let slot = slots.iter().find(|slot| slot.slot == only && slot.room.is_some() && slot.drafts.adapts())?;
        let mut models =
            self.registered.iter().zip(&slot.drafts.proposals).filter(|(registered, _)| registered.is_model_based);
        let (registered, bias) =
            models.find_map(|(registered, proposal)| Some((registered, &proposal.as_ref()?.bias)))?;
        Some((registered.calibration.mean(bias), slot.drafts.length.current()))
    }

    /// Asks a history drafter, for one slot after the other.
    fn ask_history(&mut self, index: usize, slots: &mut [DraftingSlot<'_>]) {
        let Some(RegisteredDrafter { drafter, calibration, .. }) = self.registered.get_mut(index) else { return };
        let plan = self.controller.plan();
        for slot in slots {
            let DraftingSlot { slot, tokens, sampler, generated, position, room, is_padded, ref mut drafts } = *slot;
            let RequestDrafts { settings, length, proposals, .. } = &mut **drafts;
            let Some(proposal) = proposals.get_mut(index).and_then(Option::as_mut) else { continue };
            let adapts = settings.adaptive == crate::Adaptive::Auto;
            let most = match (proposal.is_free, adapts) {
                (true, _) => usize::from(is_padded),
                // The beginning of a draft tells what its drafter is worth, also if it is not verified.
                (false, true) => settings.n_max_text.min(plan.longest().max(1)),
                (false, false) => length.current(),
            };
            let n_max = room.map_or(0, |room| most.min(room));
            if room.is_some() && n_max == 0 && !proposal.is_free {
                continue;
            }
            let stop_policy = match adapts && !proposal.is_free {
                true => StopPolicy::Paying { plan, calibration, bias: proposal.bias, n_min: settings.n_min },
                false => StopPolicy::All,
            };
            let draft = &mut proposal.draft;
            let view = SlotContext { slot, tokens, sampler, generated, position };
            let mut request = view.request(settings, n_max, stop_policy, draft, None);
            drafter.draft(std::slice::from_mut(&mut request));
            if let Some(end) = request.draft.tokens.iter().position(|token| self.end_tokens.contains(token)) {
                request.draft.truncate(end + 1);
            }
        }
    }

    /// Asks a model for all slots together, which it decodes in one batch, if that pays or is due to be probed. Returns the length for
    /// all that is to be verified, where that is to be measured.
    fn ask_model(&mut self, index: usize, steps: &[StepSlot], slots: &mut [DraftingSlot<'_>]) -> Option<usize> {
        self.controller.clear_prospects(steps.len());
        let (mut unread, mut is_new) = (0, false);
        for slot in &*slots {
            let calibration = self.registered.get(index).map(|registered| &registered.calibration);
            let Some(prospect) = calibration.and_then(|calibration| slot.prospect(index, calibration)) else {
                continue;
            };
            self.controller.expect(slot.slot, prospect);
            unread += slot.tokens.len().saturating_sub(slot.drafts.n_known + 1).min(MOST_UNREAD);
            is_new |= !slot.drafts.was_asked;
        }
        let (decision, length) = self.controller.consider_model(steps, unread, is_new);
        let wants = |slot: &DraftingSlot<'_>| self.controller.wants_model(slot.slot, decision, length);
        let n_wanted = slots.iter().filter(|slot| wants(slot)).count();
        self.controller.begin_drafting(steps, n_wanted);
        self.draft_with_model(index, steps, slots, decision, length);
        match decision {
            Decision::Explore { length, verify: true } => Some(length),
            _ => None,
        }
    }

    /// Asks a model for drafts for the slots that want one by this decision, and to keep up with the others.
    fn draft_with_model(
        &mut self,
        index: usize,
        steps: &[StepSlot],
        slots: &mut [DraftingSlot<'_>],
        decision: Decision,
        best_length: usize,
    ) {
        let Drafters { registered, controller, clock, .. } = self;
        let Some((registered, before)) = registered.get_mut(..=index).and_then(|all| all.split_last_mut()) else {
            return;
        };
        let RegisteredDrafter { drafter, calibration, .. } = registered;
        let (mut requests, mut all_keep_up) = (Vec::new(), true);
        for slot in slots.iter_mut() {
            let wanted = controller.wants_model(slot.slot, decision, best_length);
            let asked = ask_of_model(slot, index, before, calibration, controller.plan(), decision, wanted);
            let DraftingSlot { slot, tokens, sampler, generated, position, room, ref mut drafts, .. } = *slot;
            let Some(proposal) = drafts.proposal_mut(index) else { continue };
            let kept_up = std::mem::replace(&mut proposal.keeps_up, asked.is_some() && room.is_some());
            let Some((n_max, stops_when_it_does_not_pay)) = asked else { continue };
            all_keep_up &= kept_up;
            drafts.n_known = tokens.len();
            drafts.was_asked |= n_max > 0;
            let RequestDrafts { settings, proposals, sampled, drawn_by, .. } = &mut **drafts;
            let Some(proposal) = proposals.get_mut(index).and_then(Option::as_mut) else { continue };
            let (plan, bias) = (controller.plan(), proposal.bias);
            let stop_policy = match stops_when_it_does_not_pay {
                true => StopPolicy::Paying { plan, calibration, bias, n_min: settings.n_min },
                false => StopPolicy::All,
            };
            let drawing = (settings.verify.draws() && drawn_by.is_none()).then(|| {
                sampled.begin(n_max);
                Drawing { drawn: sampled, random: StepRandom::new(sampler.seed(), position) }
            });
            let view = SlotContext { slot, tokens, sampler, generated, position };
            requests.push(view.request(settings, n_max, stop_policy, &mut proposal.draft, drawing));
        }
        if requests.is_empty() {
            return;
        }
        let (start, depth) = (clock(), mean_depth(steps));
        drafter.draft(&mut requests);
        let time = clock().saturating_duration_since(start);
        let rounds = requests.iter().map(|request| request.draft.tokens.len()).max().unwrap_or(0);
        let mut depths = std::mem::take(&mut self.depths);
        depths.clear();
        depths.extend(requests.iter().map(|request| request.draft.depth(usize::MAX)));
        drop(requests);
        // A slot that has to catch up with more than the last step takes longer for that.
        if all_keep_up {
            let drafted = |round: usize| depths.iter().filter(|depth| **depth > round).count();
            self.controller.costs.saw_drafts(drafted, rounds, depth, time);
        }
        self.depths = depths;
        for DraftingSlot { slot, drafts, .. } in slots {
            if drafts.drawn_by.is_none() && !drafts.sampled.is_empty() {
                drafts.drawn_by = Some(index);
            }
            if let Some(why) = drafter.disabled(*slot).filter(|_| drafts.proposal(index).is_some()) {
                drafts.disabled = Some(why.to_owned());
                drafts.proposals.iter_mut().skip(index).take(1).for_each(|proposal| *proposal = None);
            }
        }
    }
}

/// What a model drafts for a slot, at most, and whether it stops when more does not pay; `None`: nothing, and it need not keep up.
fn ask_of_model(
    slot: &DraftingSlot<'_>,
    index: usize,
    before: &[RegisteredDrafter],
    calibration: &Calibration,
    plan: &Plan,
    decision: Decision,
    wanted: bool,
) -> Option<(usize, bool)> {
    let drafts = &*slot.drafts;
    let settings = &drafts.settings;
    let acceptance = calibration.mean(&drafts.proposal(index)?.bias);
    let n_max = drafts.length.current();
    let Some(room) = slot.room else {
        // Until its first draft it keeps up with a prompt; later on it does not while it does not pay.
        let lengths = settings.n_min..=n_max;
        let adapts = drafts.has_adaptive_lengths();
        let keeps_up = !adapts || !drafts.was_asked || plan.prospect(acceptance, lengths) > 0.0;
        return keeps_up.then_some((0, false));
    };
    let n_max = n_max.min(room);
    if n_max == 0 || drafts.drawn_by.is_some() {
        return None;
    }
    if !drafts.has_adaptive_lengths() {
        if n_max < settings.n_min && !settings.verify.draws() {
            return None;
        }
        // A drawn draft cannot be dropped afterwards for a better one.
        let history = drafts.most_expected(before).map_or(0.0, |(_, _, expected)| expected);
        let gives_way = settings.verify.draws() && expected_tokens(acceptance, n_max) <= history;
        return (!gives_way).then_some((n_max, false));
    }
    match decision {
        _ if !wanted => None,
        Decision::Rest => None,
        Decision::Pays => Some((n_max, true)),
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
