//! All drafters of an engine.
//!
//! - `registered`: a drafter, and how good its drafts have been.
//! - `drafting_state`: what is known of a request from one step to the next. `slot_drafts`: what is drafted for it in one step.
//! - `step`: which of them draft in a step, and how much of it is verified.
//! - `learning`: what they learn from the committed tokens.

mod drafting_state;
mod learning;
mod registered;
mod slot_drafts;
mod step;

use std::time::Instant;

use self::drafting_state::DrafterState;
use self::registered::RegisteredDrafter;
use super::controller::{Choice, Controller};
use super::drafter::{DecodedTokens, Drafter};
use super::{Adaptive, DrafterKind, Settings, Verify};
use foredraft_base::{Snapshot, Token};
use foredraft_sampling::Sampler;

pub use self::drafting_state::DraftingState;
pub use self::slot_drafts::{ChosenDraft, DraftOutcome, SlotDrafts};
pub use self::step::{DraftingSlot, DraftingSlots};

/// The drafters, and what is known of each.
pub struct Drafters {
    /// History drafters come first, models last.
    registered: Vec<RegisteredDrafter>,
    /// Decides lengths, by what steps cost and bring.
    pub controller: Controller,
    /// See [`Drafters::offer_free_tokens`].
    offers_free_tokens: bool,
    /// The kinds that have no drafter, and why.
    unavailable: Vec<(DrafterKind, String)>,
    /// Why no request drafts, if none may.
    forbidden: Option<String>,
    /// Tokens that end a completion.
    end_tokens: Vec<Token>,
    /// The lengths of a model's drafts in the step; kept for its memory.
    draft_lengths: Vec<usize>,
    /// The time by which drafts and decodes are measured.
    pub clock: fn() -> Instant,
}

impl Drafters {
    /// No drafters. Drafts end with one of `end_tokens`, after which a completion ends. `clock`: the time by which drafts and decodes are
    /// measured.
    pub fn new(end_tokens: Vec<Token>, clock: fn() -> Instant) -> Drafters {
        Drafters {
            registered: Vec::new(),
            controller: Controller::default(),
            offers_free_tokens: false,
            unavailable: Vec::new(),
            forbidden: None,
            end_tokens,
            draft_lengths: Vec::new(),
            clock,
        }
    }

    /// From now on, where a slot's token would be decoded with a padding token ([`DraftingSlot::is_padded`]) and nothing is drafted,
    /// the likeliest token by the history takes the place of the padding. This free draft token is not attributed to any drafter.
    pub fn offer_free_tokens(&mut self) {
        self.offers_free_tokens = true;
        self.controller.costs.pad();
    }

    /// The time by which drafts and decodes are measured.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Adds a history drafter, behind the earlier ones.
    pub fn add(&mut self, drafter: Box<dyn Drafter + Send>) {
        let is_model = |registered: &RegisteredDrafter| registered.is_model_based;
        let place = self.registered.iter().position(is_model).unwrap_or(self.registered.len());
        self.registered.insert(place, RegisteredDrafter::of_history(drafter));
    }

    /// Adds a model-based drafter.
    pub fn add_model(&mut self, drafter: Box<dyn Drafter + Send>) {
        self.registered.push(RegisteredDrafter::of_model(drafter));
    }

    /// Whether there is a drafter of this kind.
    pub fn has(&self, kind: DrafterKind) -> bool {
        self.registered.iter().any(|registered| registered.kind() == kind)
    }

    /// There is no drafter of this kind, and why.
    pub fn mark_unavailable(&mut self, kind: DrafterKind, why: String) {
        self.unavailable.push((kind, why));
    }

    /// No request may draft, and why.
    pub fn forbid(&mut self, why: String) {
        self.forbidden = Some(why);
    }

    /// Why the draft model, or the layers for multi-token prediction, do not draft for a request that asks for `kinds`, if that is
    /// worth reporting: they exist and cannot serve the target, or the request asks for no other drafter.
    fn unavailable(&self, kinds: &[DrafterKind]) -> Option<String> {
        let reason = |kind: DrafterKind| {
            let known = self.unavailable.iter().find(|(of, _)| *of == kind && kinds.contains(of));
            known.map(|(_, why)| why.clone())
        };
        let wants_only_draft = || kinds == [DrafterKind::Draft] && !self.has(DrafterKind::Draft);
        reason(DrafterKind::Mtp)
            .or_else(|| reason(DrafterKind::Draft))
            .or_else(|| wants_only_draft().then(|| "there is no draft model".to_owned()))
    }

    /// A request that speculates begins in `slot`. Returns its drafting state.
    #[must_use]
    pub fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) -> DraftingState {
        if let Some(why) = &self.forbidden {
            let none = self.registered.iter().map(|_| None).collect();
            return DraftingState::new(settings, none, Some(why.clone()));
        }
        let settings = &self.with_known_layers(settings);
        let disabled = self.unavailable(&settings.sources);
        let mut drafters = Vec::with_capacity(self.registered.len());
        for registered in &mut self.registered {
            let kind = registered.kind();
            let wanted = settings.sources.contains(&kind);
            let may_be_free = self.offers_free_tokens && kind == DrafterKind::Suffix;
            let is_free = may_be_free && !wanted && !settings.verify.draws();
            // Where the request asked for it, the values of tokens say when one costs nothing.
            let for_free_token =
                (is_free || (may_be_free && settings.adaptive == Adaptive::Auto)).then(|| settings.for_free_token());
            let settings = for_free_token.as_ref().unwrap_or(settings);
            let drafts = wanted || is_free;
            if drafts {
                registered.drafter.begin(slot, sampler, settings);
            }
            let shares_noise = registered.is_model_based && settings.verify != Verify::Match;
            let choice = match sampler.is_greedy() {
                true => Choice::Greedy,
                false if shares_noise => Choice::Shared,
                false => Choice::Chance,
            };
            drafters.push(drafts.then(|| DrafterState {
                kind,
                bias: registered.calibration.begin(choice),
                is_free,
                keeps_up: false,
            }));
        }
        DraftingState::new(settings, drafters, disabled)
    }

    /// Layers for multi-token prediction can be in the target's file, or be the draft model. If the target has none, and nothing says why they do
    /// not draft, a request for them means the draft model.
    fn with_known_layers(&self, settings: &Settings) -> Settings {
        let is_known = |kind| self.has(kind) || self.unavailable.iter().any(|(of, _)| *of == kind);
        let mut settings = settings.clone();
        if !is_known(DrafterKind::Mtp) && is_known(DrafterKind::Draft) {
            let draft = settings.sources.iter_mut().filter(|kind| **kind == DrafterKind::Mtp);
            draft.for_each(|kind| *kind = DrafterKind::Draft);
        }
        settings
    }

    /// Whether a drafter of this request needs the target's hidden states.
    pub fn needs_hidden(&self, state: &DraftingState) -> bool {
        let mut pairs = self.registered.iter().zip(&state.drafters);
        pairs.any(|(registered, state)| state.is_some() && registered.drafter.needs_hidden())
    }

    /// The target has decoded tokens of the request in `slot`: see [`Drafter::decoded`].
    pub fn decoded(&mut self, slot: usize, state: &DraftingState, what: &mut DecodedTokens<'_>) {
        for (registered, state) in self.registered.iter_mut().zip(&state.drafters) {
            if state.is_some() {
                registered.drafter.decoded(slot, what);
            }
        }
    }

    /// As [`Drafter::shift`].
    pub fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        for registered in &mut self.registered {
            registered.drafter.shift(slot, keep, dropped);
        }
    }

    /// As [`Drafter::copy`].
    pub fn copy(&mut self, from: usize, to: usize, prompt: &[Token]) {
        let text: Vec<Token> = text_of(prompt).collect();
        for RegisteredDrafter { drafter, .. } in &mut self.registered {
            drafter.copy(from, to, if drafter.sees_rows() { prompt } else { &text });
        }
    }

    /// As [`Drafter::reuse`].
    pub fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        for registered in &mut self.registered {
            registered.drafter.reuse(slot, prompt, least);
        }
    }

    /// As [`Drafter::save`]; the draft model's, if there is one.
    pub fn save(&mut self, slot: usize) -> Option<Snapshot> {
        self.registered.iter_mut().rev().find_map(|registered| registered.drafter.save(slot))
    }

    /// As [`Drafter::state_size`]; the largest one.
    pub fn state_size(&mut self, slot: usize) -> usize {
        self.registered.iter_mut().map(|registered| registered.drafter.state_size(slot)).max().unwrap_or(0)
    }

    /// As [`Drafter::load`].
    pub fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        self.registered.iter_mut().any(|registered| registered.drafter.load(slot, snapshot))
    }

    /// As [`Drafter::erase`], for all drafters.
    pub fn erase(&mut self, slot: usize) -> usize {
        self.registered.iter_mut().map(|registered| registered.drafter.erase(slot)).sum()
    }

    /// A request has ended, whether or not it speculated: see [`Drafter::end`].
    pub fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        for registered in &mut self.registered {
            registered.drafter.end(slot, tokens, generated);
        }
    }

    /// As [`Drafter::forget_answers`].
    pub fn forget_answers(&mut self) {
        for registered in &mut self.registered {
            registered.drafter.forget_answers();
        }
    }
}

/// The text of a context, without the rows of pictures and sounds.
pub fn text_of(tokens: &[Token]) -> impl Iterator<Item = Token> + '_ {
    tokens.iter().copied().filter(|token| *token >= 0)
}

#[cfg(test)]
mod tests;
