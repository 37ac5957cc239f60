//! All drafters of an engine: which of them draft in this step, and how much of it is verified.
//!
//! Drafters that look at the text alone take a microsecond: each is asked in every step, and what it proposed is compared
//! with what came, whether or not it was chosen. So what they are worth here and now is known without ever having paid for
//! it, and on text that cannot be foretold they cost next to nothing. A draft model's time counts: it is asked when what
//! it has brought lately makes up for that, for all slots together (see [`controller`]), and otherwise now and then, to
//! notice when it would again (see [`exploration`]).
//!
//! With a rule that compares probabilities, what the model has drawn is verified, all of it (see [`SampledDraft`]). So whether
//! its draft is preferred to those that others found is decided before it is asked.
//!
//! [`controller`]: super::controller
//! [`exploration`]: super::exploration

use std::time::Instant;

use super::calibration::{Calibration, Choice};
use super::controller::{self, Candidates, Prices, Prospect, StepSlot};
use super::drafter::{Draft, DraftRequest, Drafter, Drawing, Evaluated};
use super::exploration::{Decision, Exploration};
use super::policy::{Plan, Rate, StopPolicy};
use super::slot_drafts::{Proposal, SlotDrafts};
use super::verify::{SampledDraft, StepRandom};
use super::{Adaptive, Costs, DrafterKind, MAX_DRAFT, Settings, Verify};
use crate::llama::{Context, Token, working_time};
use crate::sampling::Sampler;
use crate::session::Snapshot;

/// The drafters, and what is known of each.
pub struct Drafters {
    /// Those that look at the text alone come first, the draft model last.
    members: Vec<RegisteredDrafter>,
    slots: Vec<Option<SlotDrafts>>,
    /// What evaluations cost.
    pub costs: Costs,
    rate: Rate,
    plan: Plan,
    exploration: Exploration,
    /// The step: its slots, by their sequence ids, the drafts for each, and how many tokens each decodes behind its own.
    steps: Vec<StepSlot>,
    candidates: Vec<Candidates>,
    lengths: Vec<usize>,
    guesses: bool,
    /// Why nobody drafts like this.
    unavailable: Vec<(DrafterKind, String)>,
    /// Tokens that end a text.
    ends: Vec<Token>,
    clock: fn() -> Instant,
}

/// A drafter, and what its drafts have been worth.
pub(super) struct RegisteredDrafter {
    drafter: Box<dyn Drafter + Send>,
    /// Whether its drafts take time that counts.
    pub(super) is_model_based: bool,
    pub(super) calibration: Calibration,
    /// Of one that looks at the text alone: how often its first token was right where a model drafted another one.
    pub(super) against_models: Record,
}

/// How often something was seen, and how often it was right, fading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    seen: f64,
    right: f64,
}

/// What a [`Record`] begins with, and how many observations it remembers.
const FIRST_SEEN: f64 = 4.0;
const FIRST_RIGHT: f64 = 2.0;
const MOST_SEEN: f64 = 64.0;

impl Default for Record {
    fn default() -> Self {
        Record { seen: FIRST_SEEN, right: FIRST_RIGHT }
    }
}

impl Record {
    fn saw(&mut self, was_right: bool) {
        let keep = if self.seen < MOST_SEEN { 1.0 } else { 1.0 - 1.0 / MOST_SEEN };
        self.seen = self.seen * keep + 1.0;
        self.right = self.right * keep + f64::from(u8::from(was_right));
    }

    pub(super) fn share(self) -> f64 {
        self.right / self.seen
    }
}

impl RegisteredDrafter {
    fn new(drafter: Box<dyn Drafter + Send>, is_model_based: bool, calibration: Calibration) -> RegisteredDrafter {
        RegisteredDrafter { drafter, is_model_based, calibration, against_models: Record::default() }
    }
}

/// What the drafters see of a slot for which they may draft.
pub struct SlotView<'a> {
    /// As [`DraftRequest::tokens`].
    pub tokens: &'a [Token],
    /// The target's sampler.
    pub sampler: &'a Sampler,
    /// As [`DraftRequest::generated`].
    pub generated: usize,
    /// As [`DraftRequest::position`].
    pub position: usize,
    /// Most tokens that there is room for; `None`: the context is not evaluated yet, only keep up with it.
    pub room: Option<usize>,
    /// Whether the slot's token would be evaluated with another that nobody needs.
    pub padded: bool,
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftOutcome {
    /// Whose it was.
    pub source: DrafterKind,
    /// Tokens checked, at least one.
    pub drafted: usize,
    /// The most that could be right: fewer than were checked where the draft had branches.
    pub depth: usize,
    /// Those that were right.
    pub accepted: usize,
}

impl Drafters {
    /// None, for `n_slots` slots.
    pub fn new(n_slots: usize) -> Drafters {
        Drafters {
            members: Vec::new(),
            slots: std::iter::repeat_with(|| None).take(n_slots).collect(),
            costs: Costs::default(),
            rate: Rate::default(),
            plan: Plan::default(),
            exploration: Exploration::default(),
            steps: vec![StepSlot::default(); n_slots],
            candidates: std::iter::repeat_with(Candidates::default).take(n_slots).collect(),
            lengths: Vec::with_capacity(n_slots),
            guesses: false,
            unavailable: Vec::new(),
            ends: Vec::new(),
            clock: working_time,
        }
    }

    /// The tokens behind which nothing is worth drafting.
    pub fn end_with(&mut self, tokens: impl Iterator<Item = Token>) {
        self.ends.extend(tokens);
    }

    /// From now on, one token more is evaluated at no cost where a slot is [`SlotView::padded`]: where nothing is drafted for it, the
    /// likeliest by earlier text is checked. That counts as nobody's draft.
    pub fn guess(&mut self) {
        self.guesses = true;
        self.costs.pad();
    }

    /// The time by which drafts and evaluations are measured.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Another clock than the machine's.
    #[cfg(test)]
    pub(crate) fn set_clock(&mut self, clock: fn() -> Instant) {
        self.clock = clock;
    }

    /// Adds a drafter that looks at the text alone.
    pub fn add(&mut self, drafter: Box<dyn Drafter + Send>) {
        let place = self.members.iter().position(|member| member.is_model_based).unwrap_or(self.members.len());
        self.members.insert(place, RegisteredDrafter::new(drafter, false, Calibration::of_text()));
    }

    /// Adds a drafter whose time counts: a model.
    pub fn add_model(&mut self, drafter: Box<dyn Drafter + Send>) {
        self.members.push(RegisteredDrafter::new(drafter, true, Calibration::of_model()));
    }

    /// Whether anybody drafts like this.
    pub fn has(&self, source: DrafterKind) -> bool {
        self.members.iter().any(|member| member.drafter.source() == source)
    }

    /// There is no drafter of this kind, and why.
    pub fn mark_unavailable(&mut self, source: DrafterKind, why: String) {
        self.unavailable.push((source, why));
    }

    /// Why the draft model, or the layers for multi-token prediction, do not draft, when that is worth telling: they are
    /// there and do not fit, or nobody else was asked for (the layers nobody asks for who does not mean them).
    fn missing(&self, asked: &[DrafterKind]) -> Option<String> {
        let obstacle = |source: DrafterKind| {
            let known = self.unavailable.iter().find(|(of, _)| *of == source && asked.contains(of));
            known.map(|(_, why)| why.clone())
        };
        let only_draft = || asked == [DrafterKind::Draft] && !self.has(DrafterKind::Draft);
        obstacle(DrafterKind::Mtp)
            .or_else(|| obstacle(DrafterKind::Draft))
            .or_else(|| only_draft().then(|| "there is no draft model".to_owned()))
    }

    /// A request that speculates begins in `slot`.
    pub fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        let disabled = self.missing(&settings.sources);
        let mut proposals = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let source = member.drafter.source();
            let wanted = settings.sources.contains(&source);
            let may_guess = self.guesses && source == DrafterKind::Suffix;
            let guesses = may_guess && !wanted && !settings.verify.draws();
            // Where it was asked for, the plan says when a token costs nothing.
            let guessing = (guesses || (may_guess && settings.adaptive == Adaptive::Auto)).then(|| settings.guessing());
            let settings = guessing.as_ref().unwrap_or(settings);
            let drafts = wanted || guesses;
            if drafts {
                member.drafter.begin(slot, sampler, settings);
            }
            let shares = member.is_model_based && settings.verify != Verify::Match;
            let choice = match sampler.is_greedy() {
                true => Choice::Greedy,
                false if shares => Choice::Shared,
                false => Choice::Chance,
            };
            proposals.push(drafts.then(|| Proposal {
                draft: Draft::default(),
                bias: member.calibration.begin(choice),
                guesses,
                keeps_up: false,
            }));
        }
        let drafts = SlotDrafts::new(settings, proposals, disabled);
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(drafts);
        }
    }

    /// Lets the drafters keep up with all that speculate, and decides what each slot decodes behind its own tokens. `view`: of a slot
    /// that speculates and takes part in the step. `step`: of every slot.
    pub fn draft<'a>(&mut self, view: impl Fn(usize) -> Option<SlotView<'a>>, step: impl Fn(usize) -> StepSlot) {
        for (slot, place) in self.steps.iter_mut().enumerate() {
            *place = step(slot);
        }
        self.lengths.clear();
        let n_slots = self.slots.len();
        if (0..n_slots).all(|slot| self.slots.get(slot).is_none_or(Option::is_none) || view(slot).is_none()) {
            self.candidates.iter_mut().for_each(Candidates::clear);
            return;
        }
        self.prepare(&view);
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            if let Some(drafts) = drafts.as_mut().filter(|_| view(slot).is_some()) {
                drafts.clear();
            }
        }
        let is_model = |member: &RegisteredDrafter| member.is_model_based;
        let n_text = self.members.iter().position(is_model).unwrap_or(self.members.len());
        (0..n_text).for_each(|index| self.ask_text(index, &view));
        self.offer(n_text, &view);
        let mut exploring = None;
        for index in n_text..self.members.len() {
            exploring = self.ask_model(index, &view).or(exploring);
            self.offer(index + 1, &view);
        }
        let mut lengths = std::mem::take(&mut self.lengths);
        controller::decide(&self.prices(), &self.candidates, exploring, &mut lengths);
        self.lengths = lengths;
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let may_draft = view(slot).is_some_and(|view| view.room.is_some());
            let Some(drafts) = drafts.as_mut().filter(|_| may_draft) else { continue };
            let length = self.lengths.get(slot).copied().unwrap_or(0);
            drafts.choose(self.candidates.get(slot).and_then(|candidates| candidates.best(length).draft));
        }
    }

    /// Before anything is drafted: what tokens are worth in this step.
    fn prepare<'a>(&mut self, view: &impl Fn(usize) -> Option<SlotView<'a>>) {
        if !self.slots.iter().flatten().any(SlotDrafts::weighs) {
            return;
        }
        self.plan.settle(&self.costs, self.model_drafts(view));
        let mut plan = std::mem::take(&mut self.plan);
        let may_draft = |slot: &usize| {
            let weighs = self.slots.get(*slot).and_then(Option::as_ref).is_some_and(SlotDrafts::weighs);
            weighs && view(*slot).is_some_and(|view| view.room.is_some())
        };
        let n_drafting = (0..self.slots.len()).filter(may_draft).count();
        if self.steps.iter().any(|step| step.generates) {
            let prices = Prices { preferred: self.preferred_size(&plan), ..self.prices() };
            plan.update(&prices, n_drafting);
        } else {
            // Before any does, as for one.
            let slots = [StepSlot { n_tokens: 1, generates: true, room: MAX_DRAFT }];
            let rate = self.rate.of(1.0);
            let preferred = plan.preferred().map(|preferred| 1 + preferred);
            plan.update(&Prices { slots: &slots, costs: &self.costs, rate, preferred }, 1);
        }
        self.plan = plan;
    }

    /// The size of batches that is best in the long run, where one slot takes part.
    fn preferred_size(&self, plan: &Plan) -> Option<usize> {
        let n_tokens: usize = self.steps.iter().map(|step| step.n_tokens).sum();
        plan.preferred().map(|preferred| n_tokens + preferred)
    }

    fn prices(&self) -> Prices<'_> {
        let slots = &self.steps;
        let rate = self.rate.of(self.plain());
        Prices { slots, costs: &self.costs, rate, preferred: self.preferred_size(&self.plan) }
    }

    /// What plain decoding brings in the step, in the time of one forward pass of one token.
    fn plain(&self) -> f64 {
        let slots = &self.steps;
        let generating = slots.iter().filter(|step| step.generates).count() as f64;
        let n_tokens = |slot: usize| slots.get(slot).map_or(0, |step| step.n_tokens);
        generating.max(1.0) / self.costs.step_of(n_tokens, slots.len()).max(1.0)
    }

    /// Offers what the first `n` drafters have drafted.
    fn offer<'a>(&mut self, n: usize, view: &impl Fn(usize) -> Option<SlotView<'a>>) {
        let members = self.members.get(..n).unwrap_or(&self.members);
        for (slot, (drafts, candidates)) in self.slots.iter().zip(&mut self.candidates).enumerate() {
            match drafts.as_ref().filter(|_| view(slot).is_some_and(|view| view.room.is_some())) {
                Some(drafts) => drafts.offer(members, candidates),
                None => candidates.clear(),
            }
        }
    }

    /// The mean acceptance and the longest of the drafts that a model can make for the one slot that generates.
    fn model_drafts<'a>(&self, view: &impl Fn(usize) -> Option<SlotView<'a>>) -> Option<(f64, usize)> {
        let mut generating =
            (0..self.steps.len()).filter(|slot| self.steps.get(*slot).is_some_and(|step| step.generates));
        let slot = generating.next().filter(|_| generating.next().is_none())?;
        view(slot)?.room?;
        let drafts = self.slots.get(slot)?.as_ref().filter(|drafts| drafts.weighs())?;
        let mut members = self.members.iter().zip(&drafts.proposals).filter(|(member, _)| member.is_model_based);
        let bias = &members.find_map(|(_, proposal)| proposal.as_ref())?.bias;
        Some((bias.mean(), drafts.length.current()))
    }

    /// Asks a drafter that looks at the text alone, for one slot after the other.
    fn ask_text<'a>(&mut self, index: usize, view: &impl Fn(usize) -> Option<SlotView<'a>>) {
        let Some(RegisteredDrafter { drafter, calibration, .. }) = self.members.get_mut(index) else { return };
        let (plan, ends) = (&self.plan, &self.ends);
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts else { continue };
            let Some(view) = view(slot) else { continue };
            let (adapts, n_max, n_max_text) = (drafts.adapts(), drafts.length.current(), drafts.settings.n_max_text);
            let Some(Proposal { draft, bias, guesses, .. }) = drafts.proposals.get_mut(index).and_then(Option::as_mut)
            else {
                continue;
            };
            let most = match (*guesses, adapts) {
                (true, _) => usize::from(view.padded),
                // Of a draft that is not verified, its beginning tells what its drafter is worth.
                (false, true) => n_max_text.min(plan.longest().max(1)),
                (false, false) => n_max,
            };
            let n_max = view.room.map_or(0, |room| most.min(room));
            if view.room.is_some() && n_max == 0 && !*guesses {
                continue;
            }
            let pace = match adapts && !*guesses {
                true => StopPolicy::Paying { plan, calibration, bias: *bias, n_min: drafts.settings.n_min },
                false => StopPolicy::All,
            };
            let mut ask = request(slot, &view, &drafts.settings, n_max, pace, draft, None);
            drafter.draft(std::slice::from_mut(&mut ask));
            if let Some(end) = ask.draft.tokens.iter().position(|token| ends.contains(token)) {
                ask.draft.truncate(end + 1);
            }
        }
    }

    /// Asks a model for all slots together, which it decodes in one batch, if that pays or is due to be tried. Returns the length for all
    /// that is to be verified, where that is to be measured.
    fn ask_model<'a>(&mut self, index: usize, view: &impl Fn(usize) -> Option<SlotView<'a>>) -> Option<usize> {
        let prices = self.prices();
        let eligible = |slot: usize| {
            let (drafts, view) = (self.slots.get(slot)?.as_ref()?, view(slot)?);
            let bias = &drafts.proposals.get(index)?.as_ref()?.bias;
            let n_max = view.room?.min(drafts.length.current());
            // What is drawn is verified, however short it is.
            let too_short = n_max < drafts.settings.n_min && !drafts.settings.verify.draws();
            let may = drafts.adapts() && drafts.drawer.is_none() && n_max > 0 && !too_short;
            may.then(|| (Prospect::of(bias, (drafts.settings.n_min, n_max)), drafts, view.tokens.len()))
        };
        let n_eligible = (0..self.slots.len()).filter(|slot| eligible(*slot).is_some()).count();
        let round = prices.rate * prices.costs.c(n_eligible);
        let outlook =
            controller::outlook(&prices, &self.candidates, |slot| eligible(slot).map(|(prospect, ..)| prospect), round);
        let unread = |slot: usize| eligible(slot).map_or(0, |(_, drafts, len)| len.saturating_sub(drafts.known + 1));
        let unread = (0..self.slots.len()).map(unread).max().unwrap_or(0);
        let is_new = (0..self.slots.len()).any(|slot| eligible(slot).is_some_and(|(_, drafts, _)| !drafts.was_asked));
        let decision = match n_eligible {
            0 => Decision::Rest,
            _ => self.exploration.decide(&outlook, prices.rate, prices.costs.c(n_eligible), unread, is_new),
        };
        // With a long draft from the text, a slot needs none from the model.
        let wants = |slot: usize| {
            let (prospect, ..) = eligible(slot)?;
            let length = outlook.length;
            let text = self.candidates.get(slot).map_or(0.0, |own| own.best(length).expected);
            (decision != Decision::Pays || prospect.expected(length) > text).then_some(())
        };
        let mut wanted = std::mem::take(&mut self.lengths);
        wanted.clear();
        wanted.extend((0..self.slots.len()).map(|slot| usize::from(wants(slot).is_some())));
        self.ask_slots(index, view, decision, &wanted);
        self.lengths = wanted;
        match decision {
            Decision::Explore { length, verify: true } => Some(length),
            _ => None,
        }
    }

    /// Asks a model for drafts for the slots that are `wanted`, and to keep up with the others.
    fn ask_slots<'a>(
        &mut self,
        index: usize,
        view: &impl Fn(usize) -> Option<SlotView<'a>>,
        decision: Decision,
        wanted: &[usize],
    ) {
        let n_wanted = wanted.iter().sum();
        let round = self.prices().rate * self.costs.c(n_wanted);
        self.plan.draft(round, n_wanted);
        let Some((member, before)) = self.members.get_mut(..=index).and_then(|members| members.split_last_mut()) else {
            return;
        };
        let RegisteredDrafter { drafter, calibration, .. } = member;
        let (plan, costs) = (&self.plan, &mut self.costs);
        let (mut asks, mut all_keep_up) = (Vec::new(), true);
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts else { continue };
            let Some(view) = view(slot) else { continue };
            let wanted = wanted.get(slot) == Some(&1);
            let asked = ask_of_model(drafts, index, before, plan, decision, wanted, &view);
            let Some(Proposal { draft, bias, keeps_up, .. }) = drafts.proposals.get_mut(index).and_then(Option::as_mut)
            else {
                continue;
            };
            let kept_up = std::mem::replace(keeps_up, asked.is_some() && view.room.is_some());
            let Some((n_max, pays)) = asked else { continue };
            all_keep_up &= kept_up;
            drafts.known = view.tokens.len();
            drafts.was_asked |= n_max > 0;
            let pace = match pays {
                true => StopPolicy::Paying { plan, calibration, bias: *bias, n_min: drafts.settings.n_min },
                false => StopPolicy::All,
            };
            let draws = drafts.settings.verify.draws() && drafts.drawer.is_none();
            let drawing = draws.then(|| {
                drafts.drawn.begin(n_max);
                Drawing { drawn: &mut drafts.drawn, chance: StepRandom::new(view.sampler.seed(), view.position) }
            });
            asks.push(request(slot, &view, &drafts.settings, n_max, pace, draft, drawing));
        }
        if asks.is_empty() {
            return;
        }
        let start = (self.clock)();
        drafter.draft(&mut asks);
        let time = (self.clock)().saturating_duration_since(start);
        // A slot that has to catch up with more than the last step takes longer for that.
        if all_keep_up {
            let rounds = asks.iter().map(|ask| ask.draft.tokens.len()).max().unwrap_or(0);
            let drafted = |round: usize| asks.iter().filter(|ask| ask.draft.depth(usize::MAX) > round).count();
            costs.saw_drafts(drafted, rounds, time);
        }
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts else { continue };
            if drafts.drawer.is_none() && !drafts.drawn.is_empty() {
                drafts.drawer = Some(index);
            }
            if let Some(why) =
                drafter.disabled(slot).filter(|_| drafts.proposals.get(index).is_some_and(Option::is_some))
            {
                drafts.disabled = Some(why.to_owned());
                drafts.proposals.iter_mut().skip(index).take(1).for_each(|proposal| *proposal = None);
            }
        }
    }

    /// How many tokens without any meaning `slot` decodes behind `drafted` ones, so that the batch is one forward pass.
    pub fn filler(&self, slot: usize, drafted: usize) -> usize {
        self.lengths.get(slot).copied().unwrap_or(0).saturating_sub(drafted)
    }

    /// No more than `n` of the draft for `slot` are in the batch, where there is no room for more.
    pub fn cap(&mut self, slot: usize, n: usize) {
        let Some(drafts) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        drafts.drawn.cap(n);
        drafts.chosen = drafts.chosen.map(|(index, all)| (index, all.min(n)));
    }

    /// The tokens to check in `slot` in this step.
    pub fn drafted(&self, slot: usize) -> &[Token] {
        let drafts = self.slots.get(slot).and_then(Option::as_ref);
        drafts.and_then(SlotDrafts::chosen).and_then(|(draft, n)| draft.tokens.get(..n)).unwrap_or(&[])
    }

    /// The node before each of [`Drafters::drafted`]: see [`Draft`].
    pub fn parents(&self, slot: usize) -> impl Iterator<Item = usize> + '_ {
        let drafts = self.slots.get(slot).and_then(Option::as_ref);
        drafts.and_then(SlotDrafts::chosen).into_iter().flat_map(|(draft, n)| draft.parents(n))
    }

    /// [`Drafters::drafted`] with what it was drawn from, for a rule that compares probabilities.
    pub fn drawn(&self, slot: usize) -> Option<&SampledDraft> {
        Some(&self.slots.get(slot)?.as_ref()?.drawn)
    }

    /// Who proposed [`Drafters::drafted`]; `None`: it is a guess.
    pub fn source(&self, slot: usize) -> Option<DrafterKind> {
        let (index, _) = self.slots.get(slot)?.as_ref().filter(|drafts| !drafts.guesses())?.chosen?;
        Some(self.members.get(index)?.drafter.source())
    }

    /// Whether somebody who drafts now needs the target's hidden states.
    pub fn needs_hidden(&self) -> bool {
        let all = self.slots.iter().flatten();
        let mut pairs = all.flat_map(|drafts| self.members.iter().zip(&drafts.proposals));
        pairs.any(|(member, proposal)| proposal.is_some() && member.drafter.needs_hidden())
    }

    /// As [`Drafter::evaluated`]: of `tokens` those from number `from` on, and the first `drafted` of [`Drafters::drafted`].
    pub fn evaluated(
        &mut self,
        slot: usize,
        target: &mut Context,
        first: usize,
        tokens: &[Token],
        from: usize,
        drafted: usize,
    ) {
        let Some(drafts) = self.slots.get(slot).and_then(Option::as_ref) else { return };
        // Where it has branches, as far as it goes on behind the text without one.
        let straight =
            |draft: &Draft| draft.parents(drafted).enumerate().take_while(|(at, parent)| at == parent).count();
        let draft = drafts.chosen().and_then(|(draft, _)| draft.tokens.get(..straight(draft))).unwrap_or(&[]);
        for (member, proposal) in self.members.iter_mut().zip(&drafts.proposals) {
            if proposal.is_some() {
                member.drafter.evaluated(slot, &mut Evaluated { target, first, tokens, from, draft });
            }
        }
    }

    /// The target said `tokens`, of which the first `accepted` are the draft's, when it was checked for `drafted` tokens.
    /// Tells what became of the draft, if there was one.
    pub fn saw(&mut self, slot: usize, tokens: &[Token], drafted: usize, accepted: usize) -> Option<DraftOutcome> {
        let drafts = self.slots.get_mut(slot)?.as_mut()?;
        if let (Some(modelled), Some(actual)) = (drafts.first_of_model(&self.members), tokens.first()) {
            for (member, proposal) in self.members.iter_mut().zip(&drafts.proposals) {
                let first = proposal.as_ref().and_then(|proposal| proposal.draft.tokens.first());
                if let Some(first) = first.filter(|first| !member.is_model_based && **first != modelled) {
                    member.against_models.saw(first == actual);
                }
            }
        }
        for (index, (member, proposal)) in self.members.iter_mut().zip(&mut drafts.proposals).enumerate() {
            let Some(Proposal { draft, bias, .. }) = proposal else { continue };
            // What was drawn and refused may still come, as the target's own.
            let most = if drafts.drawer == Some(index) { accepted } else { usize::MAX };
            // How many tokens were said up to each node that was right.
            let mut said = [None; MAX_DRAFT + 1];
            let [text, ..] = &mut said;
            *text = Some(0);
            let drafted = draft.tokens.iter().zip(&draft.confidence).zip(draft.parents(draft.tokens.len()));
            for (node, ((token, confidence), parent)) in (1..).zip(drafted) {
                let Some(before) = said.get(parent).copied().flatten() else { continue };
                let Some(actual) = tokens.get(before) else { continue };
                let right = before < most && actual == token;
                member.calibration.saw(bias, *confidence, right);
                if let Some(said) = said.get_mut(node).filter(|_| right) {
                    *said = Some(before + 1);
                }
            }
        }
        let depth = drafts.chosen().map_or(0, |(draft, _)| draft.depth(drafted));
        let guesses = drafts.guesses();
        let (index, _) = drafts.chosen.take().filter(|_| drafted > 0 && !guesses)?;
        drafts.length.saw(drafted, depth, accepted);
        let member = self.members.get_mut(index)?;
        member.drafter.checked(slot, drafted, accepted);
        Some(DraftOutcome { source: member.drafter.source(), drafted, depth, accepted })
    }

    /// A step, which had no prompt in it, brought `tokens` and cost so many evaluations of one token, drafting included.
    ///
    /// The rate is what scratch drafts leads to: what plain requests and fixed lengths bring says nothing of it.
    pub fn stepped(&mut self, tokens: usize, cost: f64) {
        if self.slots.iter().flatten().any(SlotDrafts::weighs) {
            self.rate.saw(tokens, cost, self.plain());
            self.exploration.earn(cost);
        }
    }

    /// As [`Drafter::shift`].
    pub fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        for member in &mut self.members {
            member.drafter.shift(slot, keep, dropped);
        }
    }

    /// As [`Drafter::reuse`].
    pub fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        for member in &mut self.members {
            member.drafter.reuse(slot, prompt, least);
        }
    }

    /// As [`Drafter::save`]; the draft model's, if there is one.
    pub fn save(&mut self, slot: usize) -> Option<Snapshot> {
        self.members.iter_mut().rev().find_map(|member| member.drafter.save(slot))
    }

    /// As [`Drafter::load`].
    pub fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        self.members.iter_mut().any(|member| member.drafter.load(slot, snapshot))
    }

    /// A request has ended, whether or not it speculated: see [`Drafter::end`].
    pub fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        for member in &mut self.members {
            member.drafter.end(slot, tokens, generated);
        }
        if let Some(drafts) = self.slots.get_mut(slot) {
            *drafts = None;
        }
    }

    /// As [`Drafter::forget_answers`].
    pub fn forget_answers(&mut self) {
        for member in &mut self.members {
            member.drafter.forget_answers();
        }
    }

    /// Why a drafter that the request in `slot` asked for does not draft.
    pub fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.as_ref()?.disabled.as_deref()
    }

    /// The draft length in use.
    pub fn length(&self, slot: usize) -> Option<usize> {
        Some(self.slots.get(slot)?.as_ref()?.length.current())
    }
}

/// What a model drafts for a slot, at most, and whether it stops when more does not pay; `None`: nothing, and it need not keep up.
fn ask_of_model(
    drafts: &SlotDrafts,
    index: usize,
    before: &[RegisteredDrafter],
    plan: &Plan,
    decision: Decision,
    wanted: bool,
    view: &SlotView<'_>,
) -> Option<(usize, bool)> {
    let bias = &drafts.proposals.get(index)?.as_ref()?.bias;
    let n_max = drafts.length.current();
    let Some(room) = view.room else {
        // Until its first try it keeps up with a prompt; later on it does not while it does not pay.
        let lengths = drafts.settings.n_min..=n_max;
        let keeps_up = !drafts.adapts() || !drafts.was_asked || plan.prospect(bias.mean(), lengths) > 0.0;
        return keeps_up.then_some((0, false));
    };
    let n_max = n_max.min(room);
    if n_max == 0 || drafts.drawer.is_some() {
        return None;
    }
    if !drafts.adapts() {
        if n_max < drafts.settings.n_min && !drafts.settings.verify.draws() {
            return None;
        }
        // What is drawn cannot be compared afterwards.
        let text = drafts.most_expected(before).map_or(0.0, |(_, _, expected)| expected);
        let gives_way = drafts.settings.verify.draws() && expected(bias.mean(), n_max) <= text;
        return (!gives_way).then_some((n_max, false));
    }
    match decision {
        _ if !wanted => None,
        Decision::Rest => None,
        Decision::Pays => Some((n_max, true)),
        Decision::Explore { length, .. } => Some((n_max.min(length), false)),
    }
}

fn request<'a>(
    slot: usize,
    view: &SlotView<'a>,
    settings: &Settings,
    n_max: usize,
    pace: StopPolicy<'a>,
    draft: &'a mut Draft,
    drawing: Option<Drawing<'a>>,
) -> DraftRequest<'a> {
    let SlotView { tokens, sampler, generated, position, .. } = *view;
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
        pace,
        draft,
        drawing,
    }
}

/// Tokens to expect of `n`, each accepted with `acceptance` if those before it were.
fn expected(acceptance: f64, n: usize) -> f64 {
    (1..).take(n).map(|power| acceptance.powi(power)).sum()
}

#[cfg(test)]
#[path = "drafters_tests.rs"]
mod tests;
