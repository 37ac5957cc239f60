//! All drafters of an engine: who drafts for a slot in this step, and how much of it is checked.
//!
//! Drafters that look at the text alone take a microsecond: each is asked in every step, and what it proposed is compared
//! with what came, whether or not it was chosen. So what they are worth here and now is known without ever having paid for
//! it, and on text that nobody can foretell they cost next to nothing. A draft model's time counts: it is asked when what
//! it has brought lately makes up for that, and for a single token at the beginning of each request and now and then, to
//! notice when it would again.
//!
//! With a rule that compares probabilities, what the model has drawn is checked, all of it (see [`SampledDraft`]). So whether
//! its draft is preferred to those that others found is decided before it is asked.

use std::time::Instant;

use super::calibration::{Calibration, Choice};
use super::drafter::{Draft, DraftRequest, Drafter, Drawing, Evaluated};
use super::policy::{Plan, Rate, StopPolicy};
use super::slot_drafts::{Proposal, SlotDrafts};
use super::verify::{SampledDraft, StepRandom};
use super::{Adaptive, Costs, DrafterKind, MAX_DRAFT, Settings, Verify};
use crate::llama::{Context, Token};
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
            guesses: false,
            unavailable: Vec::new(),
            ends: Vec::new(),
            clock: Instant::now,
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
        self.members
            .insert(place, RegisteredDrafter { drafter, is_model_based: false, calibration: Calibration::of_text() });
    }

    /// Adds a drafter whose time counts: a model.
    pub fn add_model(&mut self, drafter: Box<dyn Drafter + Send>) {
        self.members.push(RegisteredDrafter { drafter, is_model_based: true, calibration: Calibration::of_model() });
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

    /// Lets the drafters keep up with all that speculate and propose tokens to those that have room. `view`: of a slot that
    /// speculates and runs. `base`: how many slots generate, those included that do not speculate.
    pub fn draft<'a>(&mut self, view: impl Fn(usize) -> Option<SlotView<'a>>, base: usize) {
        if self.slots.iter().flatten().any(SlotDrafts::weighs) {
            self.plan.settle(&self.costs, self.model_drafts(&view, base));
            self.plan.update(&self.costs, &self.rate, base);
        }
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts.as_mut().filter(|_| view(slot).is_some()) else { continue };
            drafts.clear();
            for proposal in drafts.proposals.iter_mut().flatten() {
                proposal.draft.clear();
            }
        }
        for index in 0..self.members.len() {
            self.ask(index, &view);
        }
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let may_draft = view(slot).is_some_and(|view| view.room.is_some());
            let Some(drafts) = drafts.as_mut().filter(|_| may_draft) else { continue };
            drafts.choose(&self.members, &self.plan);
            let chosen = drafts.chosen.and_then(|(index, _)| self.members.get(index));
            // What was drawn in a try is checked whatever it promised: that is no sign that it pays.
            let had_to_be = drafts.drawer.is_some() && drafts.probes.is_probe;
            drafts.probes.settle(chosen.is_some_and(|member| member.is_model_based) && !had_to_be);
        }
    }

    /// The mean acceptance and the longest of the drafts that a model can make for the one slot that generates.
    fn model_drafts<'a>(&self, view: &impl Fn(usize) -> Option<SlotView<'a>>, base: usize) -> Option<(f64, usize)> {
        let generates = |slot: usize| view(slot).is_some_and(|view| view.room.is_some());
        let (_, drafts) = self.slots.iter().enumerate().find(|(slot, _)| base == 1 && generates(*slot))?;
        let drafts = drafts.as_ref().filter(|drafts| drafts.weighs())?;
        let mut members = self.members.iter().zip(&drafts.proposals).filter(|(member, _)| member.is_model_based);
        let bias = &members.find_map(|(_, proposal)| proposal.as_ref())?.bias;
        Some((bias.mean(), drafts.length.current()))
    }

    /// Asks one drafter for all slots: together when it is a model, which evaluates them in one batch.
    fn ask<'a>(&mut self, index: usize, view: &impl Fn(usize) -> Option<SlotView<'a>>) {
        let Some((member, before)) = self.members.get_mut(..=index).and_then(|members| members.split_last_mut()) else {
            return;
        };
        let RegisteredDrafter { drafter, is_model_based, calibration } = member;
        let (plan, costs, ends) = (&self.plan, &mut self.costs, &self.ends);
        let (mut asks, mut all_keep_up) = (Vec::new(), true);
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts else { continue };
            let Some(view) = view(slot) else { continue };
            let asked = drafts.ask(index, *is_model_based, before, plan, costs.c(), &view);
            let Some(Proposal { draft, bias, keeps_up, .. }) = drafts.proposals.get_mut(index).and_then(Option::as_mut)
            else {
                continue;
            };
            let kept_up = std::mem::replace(keeps_up, asked.is_some() && view.room.is_some());
            let Some((n_max, pays)) = asked else { continue };
            all_keep_up &= kept_up;
            let pace = if pays {
                StopPolicy::Paying { plan, calibration, bias: *bias, n_min: drafts.settings.n_min }
            } else {
                StopPolicy::All
            };
            let Settings { p_min, n_branches, p_split, .. } = drafts.settings;
            let SlotView { tokens, sampler, generated, position, .. } = view;
            let draws = *is_model_based && drafts.settings.verify.draws() && drafts.drawer.is_none();
            let drawing = draws.then(|| {
                drafts.drawn.begin(n_max);
                Drawing { drawn: &mut drafts.drawn, chance: StepRandom::new(sampler.seed(), position) }
            });
            let branches = (n_branches, p_split);
            let mut ask = DraftRequest {
                slot,
                tokens,
                sampler,
                generated,
                position,
                n_max,
                p_min,
                branches,
                pace,
                draft,
                drawing,
            };
            if *is_model_based {
                asks.push(ask);
                continue;
            }
            drafter.draft(std::slice::from_mut(&mut ask));
            if let Some(end) = ask.draft.tokens.iter().position(|token| ends.contains(token)) {
                ask.draft.truncate(end + 1);
            }
        }
        if asks.is_empty() {
            return;
        }
        let start = (self.clock)();
        drafter.draft(&mut asks);
        let time = (self.clock)().saturating_duration_since(start);
        let longest = asks.iter().map(|ask| ask.draft.tokens.len()).max().unwrap_or(0);
        let each = costs.of(time) / asks.len() as f64;
        // Who has to catch up with more than the last step takes longer for that.
        if all_keep_up {
            costs.saw_draft(longest, time);
        }
        for (slot, drafts) in self.slots.iter_mut().enumerate() {
            let Some(drafts) = drafts else { continue };
            if drafts.probes.asked {
                drafts.probes.credit -= each;
            }
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
            self.rate.saw(tokens, cost);
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

#[cfg(test)]
#[path = "drafters_tests.rs"]
mod tests;
