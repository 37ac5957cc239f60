//! The drafting state of a request: what was proposed for it, and which draft is verified.

use super::calibration::Bias;
use super::controller::Candidates;
use super::drafter::Draft;
use super::drafters::RegisteredDrafter;
use super::policy::Length;
use super::verify::SampledDraft;
use super::{Adaptive, MAX_DRAFT, Settings};
use crate::llama::Token;

/// A request that speculates.
pub(super) struct SlotDrafts {
    pub(super) settings: Settings,
    pub(super) length: Length,
    /// One for each registered drafter; `None`: not asked for, or of no use here.
    pub(super) proposals: Vec<Option<Proposal>>,
    /// The drafter whose draft is verified in this step, and how many of its tokens.
    pub(super) chosen: Option<(usize, usize)>,
    /// The same with what it was drawn from, for a rule that compares probabilities.
    pub(super) drawn: SampledDraft,
    /// The drafter that has drawn it; `None`: it is deterministic.
    pub(super) drawer: Option<usize>,
    /// Whether a model was asked for a draft yet, and the context's length when one was last asked to keep up.
    pub(super) was_asked: bool,
    pub(super) known: usize,
    /// Why a drafter that was asked for has no proposal.
    pub(super) disabled: Option<String>,
}

pub(super) struct Proposal {
    pub(super) draft: Draft,
    pub(super) bias: Bias,
    /// It was not asked for, and only offers free draft tokens: see [`Drafters::guess`].
    ///
    /// [`Drafters::guess`]: super::Drafters::guess
    pub(super) guesses: bool,
    /// It was asked in the last step as well, so that it has no more than that step to catch up with.
    pub(super) keeps_up: bool,
}

impl SlotDrafts {
    pub(super) fn new(settings: &Settings, proposals: Vec<Option<Proposal>>, disabled: Option<String>) -> SlotDrafts {
        SlotDrafts {
            length: Length::new(settings),
            proposals,
            chosen: None,
            drawn: SampledDraft::new(settings.verify, settings.n_branches),
            drawer: None,
            was_asked: false,
            known: 0,
            disabled,
            settings: settings.clone(),
        }
    }

    /// Whether its drafts are as long as pays.
    pub(super) fn adapts(&self) -> bool {
        self.settings.adaptive == Adaptive::Auto
    }

    /// The same, and a drafter was asked for.
    pub(super) fn weighs(&self) -> bool {
        self.adapts() && self.proposals.iter().flatten().any(|proposal| !proposal.guesses)
    }

    pub(super) fn clear(&mut self) {
        (self.chosen, self.drawer) = (None, None);
        self.drawn.begin(0);
        self.proposals.iter_mut().flatten().for_each(|proposal| proposal.draft.clear());
    }

    /// Offers what was drafted, by the drafters in front of number `end`, for the step.
    pub(super) fn offer(&self, members: &[RegisteredDrafter], candidates: &mut Candidates) {
        candidates.clear();
        if let Some(index) = self.drawer {
            candidates.fix(index, self.drawn.len());
            return;
        }
        if !self.adapts() {
            // All of the draft with most tokens to expect, whatever it costs.
            if let Some((index, n, _)) = self.most_expected(members) {
                candidates.fix(index, n);
            }
            return;
        }
        let modelled = self.first_of_model(members);
        for (index, (member, proposal)) in members.iter().zip(&self.proposals).enumerate() {
            let Some(Proposal { draft, bias, guesses, .. }) = proposal else { continue };
            let sure = sure(draft, |confidence| member.calibration.acceptance(bias, confidence));
            // Of two that disagree one is wrong, however sure both are.
            let disagrees = !member.is_model_based
                && modelled.is_some_and(|modelled| draft.tokens.first().is_some_and(|first| *first != modelled));
            let [_, first, ..] = sure;
            let less = if disagrees && first > 0.0 { (member.against_models.share() / first).min(1.0) } else { 1.0 };
            let sure = sure.map(|sure| less * sure);
            let (most, least) = if *guesses { (1, 0) } else { (draft.tokens.len(), self.settings.n_min) };
            let sure = sure.iter().skip(1).take(most.min(draft.tokens.len())).copied();
            candidates.offer(index, least, sure, !member.is_model_based);
        }
    }

    /// The first token that a model has drafted.
    pub(super) fn first_of_model(&self, members: &[RegisteredDrafter]) -> Option<Token> {
        let mut models = members.iter().zip(&self.proposals).filter(|(member, _)| member.is_model_based);
        models.find_map(|(_, proposal)| proposal.as_ref()?.draft.tokens.first().copied())
    }

    /// The draft with most tokens to expect of those that are not too short: its drafter, its length, the tokens to expect. Where there
    /// is none, a free draft token.
    pub(super) fn most_expected(&self, members: &[RegisteredDrafter]) -> Option<(usize, usize, f64)> {
        let all = members.iter().zip(&self.proposals).enumerate();
        let drafts = all.filter_map(|(index, (member, proposal))| {
            let Proposal { draft, bias, guesses, .. } = proposal.as_ref()?;
            let n = draft.tokens.len();
            if *guesses || n == 0 || n < self.settings.n_min {
                return None;
            }
            let sure = sure(draft, |confidence| member.calibration.acceptance(bias, confidence));
            Some((index, n, sure.iter().skip(1).take(n).sum::<f64>()))
        });
        let best = drafts.reduce(|best, other| if other.2 > best.2 { other } else { best });
        best.or_else(|| {
            let is_free = |proposal: &Option<Proposal>| {
                proposal.as_ref().is_some_and(|proposal| proposal.guesses && !proposal.draft.tokens.is_empty())
            };
            self.proposals.iter().position(is_free).map(|index| (index, 1, 0.0))
        })
    }

    /// `n` tokens of a drafter's draft are verified.
    pub(super) fn choose(&mut self, draft: Option<(usize, usize)>) {
        self.chosen = draft;
        let Some((index, n)) = self.chosen.filter(|_| self.settings.verify.draws() && self.drawer.is_none()) else {
            return;
        };
        let Some(Some(Proposal { draft, .. })) = self.proposals.get(index) else { return };
        self.drawn.begin(n);
        draft.tokens.iter().all(|token| self.drawn.push_deterministic(*token));
    }

    /// Whether what is verified was not asked for.
    pub(super) fn guesses(&self) -> bool {
        let proposal = self.chosen.and_then(|(index, _)| self.proposals.get(index)?.as_ref());
        proposal.is_some_and(|proposal| proposal.guesses)
    }

    pub(super) fn chosen(&self) -> Option<(&Draft, usize)> {
        let (index, n) = self.chosen?;
        Some((&self.proposals.get(index)?.as_ref()?.draft, n))
    }
}

/// For each node of a draft the probability that it and all before it are right.
fn sure(draft: &Draft, acceptance: impl Fn(f32) -> f64) -> [f64; MAX_DRAFT + 1] {
    let mut sure = [1.0; MAX_DRAFT + 1];
    for (index, (confidence, parent)) in draft.confidence.iter().zip(draft.parents(draft.tokens.len())).enumerate() {
        let before = sure.get(parent).copied().unwrap_or(0.0);
        if let Some(sure) = sure.get_mut(index + 1) {
            *sure = before * acceptance(*confidence);
        }
    }
    sure
}
