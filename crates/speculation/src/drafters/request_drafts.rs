//! The drafting state of a request: what each drafter proposed in the current step, which draft is verified, and with what result.

use super::registered::RegisteredDrafter;
use crate::calibration::Bias;
use crate::controller::DraftOptions;
use crate::drafter::Draft;
use crate::policy::Length;
use crate::verify::SampledDraft;
use crate::{Adaptive, DrafterKind, MAX_DRAFT, Settings};
use foredraft_base::Token;

/// What drafters and controller know of a request that speculates. It belongs to the request, and ends with it.
pub struct RequestDrafts {
    pub(super) settings: Settings,
    pub(super) length: Length,
    /// One for each registered drafter; `None`: not asked for, or disabled.
    pub(super) proposals: Vec<Option<DrafterProposal>>,
    /// The drafter whose draft is verified in this step, and how many of its tokens.
    pub(super) chosen: Option<(usize, usize)>,
    /// The same with the distributions that it was drawn from, for stochastic verification.
    pub(super) sampled: SampledDraft,
    /// The drafter that has drawn it; `None`: the draft is deterministic.
    pub(super) drawn_by: Option<usize>,
    /// Whether a model was asked for a draft yet, and the context's length when one was last asked to keep up.
    pub(super) was_asked: bool,
    pub(super) n_known: usize,
    /// Why a drafter that was asked for has no proposal.
    pub(super) disabled: Option<String>,
}

/// What one drafter has for a request.
pub(super) struct DrafterProposal {
    pub(super) kind: DrafterKind,
    pub(super) draft: Draft,
    pub(super) bias: Bias,
    /// The request did not ask for it; it only offers free draft tokens: see [`Drafters::offer_free_tokens`].
    ///
    /// [`Drafters::offer_free_tokens`]: super::Drafters::offer_free_tokens
    pub(super) is_free: bool,
    /// It was asked in the last step as well, so it has no more than that step to catch up with.
    pub(super) keeps_up: bool,
}

/// The draft of a request that is verified in this step.
#[derive(Clone, Copy)]
pub struct ChosenDraft<'a> {
    /// Its drafter; `None`: it is a free draft token, which is not attributed to any drafter.
    pub kind: Option<DrafterKind>,
    /// The draft; only its first `n` tokens are verified.
    pub draft: &'a Draft,
    /// See `draft`.
    pub n: usize,
}

/// The result of verifying a draft: the source of every statistic about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftOutcome {
    /// The drafter; `None`: nothing was drafted, or only a free draft token, which is not attributed to any drafter.
    pub kind: Option<DrafterKind>,
    /// Drafted tokens that were verified.
    pub n_drafted: usize,
    /// The most that could be accepted: fewer than were verified where the draft had branches.
    pub depth: usize,
    /// Accepted tokens.
    pub n_accepted: usize,
}

impl RequestDrafts {
    pub(super) fn new(
        settings: &Settings,
        proposals: Vec<Option<DrafterProposal>>,
        disabled: Option<String>,
    ) -> RequestDrafts {
        RequestDrafts {
            length: Length::new(settings),
            proposals,
            chosen: None,
            sampled: SampledDraft::new(settings.verify, settings.n_branches),
            drawn_by: None,
            was_asked: false,
            n_known: 0,
            disabled,
            settings: settings.clone(),
        }
    }

    /// Whether its draft lengths adapt and the request asked for a drafter.
    pub fn adapts(&self) -> bool {
        self.has_adaptive_lengths() && self.proposals.iter().flatten().any(|proposal| !proposal.is_free)
    }

    pub(super) fn has_adaptive_lengths(&self) -> bool {
        self.settings.adaptive == Adaptive::Auto
    }

    /// Why a drafter that the request asked for does not draft.
    pub fn disabled(&self) -> Option<&str> {
        self.disabled.as_deref()
    }

    /// The draft length in use.
    pub fn length(&self) -> usize {
        self.length.current()
    }

    /// The draft that is verified in this step.
    pub fn chosen(&self) -> Option<ChosenDraft<'_>> {
        let (index, n) = self.chosen?;
        let proposal = self.proposals.get(index)?.as_ref()?;
        let kind = Some(proposal.kind).filter(|_| !proposal.is_free);
        Some(ChosenDraft { kind, draft: &proposal.draft, n })
    }

    /// The draft that is verified in this step with the distributions that it was drawn from, for stochastic verification.
    pub fn sampled(&self) -> &SampledDraft {
        &self.sampled
    }

    /// Verifies no more than `n` tokens of the draft, for a reason that does not depend on its tokens: the batch has no space for more.
    pub fn limit(&mut self, n: usize) {
        self.sampled.cap(n);
        self.chosen = self.chosen.map(|(index, all)| (index, all.min(n)));
    }

    pub(super) fn clear(&mut self) {
        (self.chosen, self.drawn_by) = (None, None);
        self.sampled.begin(0);
        self.proposals.iter_mut().flatten().for_each(|proposal| proposal.draft.clear());
    }

    pub(super) fn proposal(&self, index: usize) -> Option<&DrafterProposal> {
        self.proposals.get(index)?.as_ref()
    }

    pub(super) fn proposal_mut(&mut self, index: usize) -> Option<&mut DrafterProposal> {
        self.proposals.get_mut(index)?.as_mut()
    }

    /// Offers the drafts of `drafters`, which are the first of all, to the controller.
    pub(super) fn offer(&self, drafters: &[RegisteredDrafter], options: &mut DraftOptions) {
        options.clear();
        if let Some(index) = self.drawn_by {
            options.fix(index, self.sampled.len());
            return;
        }
        if !self.has_adaptive_lengths() {
            // All of the draft with most tokens to expect, whatever it costs.
            if let Some((index, n, _)) = self.most_expected(drafters) {
                options.fix(index, n);
            }
            return;
        }
        let first_of_model = self.first_of_model(drafters);
        for (index, (drafter, proposal)) in drafters.iter().zip(&self.proposals).enumerate() {
            let Some(DrafterProposal { draft, bias, is_free, .. }) = proposal else { continue };
            let accepted = acceptance_of_prefixes(draft, |confidence| drafter.calibration.acceptance(bias, confidence));
            // Of two that disagree one is wrong, however high the confidence of both.
            let disagrees = !drafter.is_model_based
                && first_of_model.is_some_and(|model| draft.tokens.first().is_some_and(|first| *first != model));
            let [_, first, ..] = accepted;
            let less = if disagrees && first > 0.0 { (drafter.against_models.ratio() / first).min(1.0) } else { 1.0 };
            let factor = less * drafter.factor_if_chosen();
            let accepted = accepted.map(|accepted| factor * accepted);
            let (most, least) = if *is_free { (1, 0) } else { (draft.tokens.len(), self.settings.n_min) };
            let accepted = accepted.iter().skip(1).take(most.min(draft.tokens.len())).copied();
            options.offer(index, least, accepted, !drafter.is_model_based);
        }
    }

    /// The first token that a model has drafted.
    pub(super) fn first_of_model(&self, drafters: &[RegisteredDrafter]) -> Option<Token> {
        let mut models = drafters.iter().zip(&self.proposals).filter(|(drafter, _)| drafter.is_model_based);
        models.find_map(|(_, proposal)| proposal.as_ref()?.draft.tokens.first().copied())
    }

    /// The draft with most tokens to expect of those that are not too short: its drafter, its length, the tokens to expect. If
    /// there is none, a free draft token.
    pub(super) fn most_expected(&self, drafters: &[RegisteredDrafter]) -> Option<(usize, usize, f64)> {
        let all = drafters.iter().zip(&self.proposals).enumerate();
        let drafts = all.filter_map(|(index, (drafter, proposal))| {
            let DrafterProposal { draft, bias, is_free, .. } = proposal.as_ref()?;
            let n = draft.tokens.len();
            if *is_free || n == 0 || n < self.settings.n_min {
                return None;
            }
            let accepted = acceptance_of_prefixes(draft, |confidence| drafter.calibration.acceptance(bias, confidence));
            Some((index, n, accepted.iter().skip(1).take(n).sum::<f64>()))
        });
        let best = drafts.reduce(|best, other| if other.2 > best.2 { other } else { best });
        best.or_else(|| {
            let is_free_token = |proposal: &Option<DrafterProposal>| {
                proposal.as_ref().is_some_and(|proposal| proposal.is_free && !proposal.draft.tokens.is_empty())
            };
            self.proposals.iter().position(is_free_token).map(|index| (index, 1, 0.0))
        })
    }

    /// `n` tokens of a drafter's draft are verified.
    pub(super) fn choose(&mut self, draft: Option<(usize, usize)>) {
        self.chosen = draft;
        let Some((index, n)) = self.chosen.filter(|_| self.settings.verify.draws() && self.drawn_by.is_none()) else {
            return;
        };
        let Some(Some(DrafterProposal { draft, .. })) = self.proposals.get(index) else { return };
        self.sampled.begin(n);
        draft.tokens.iter().all(|token| self.sampled.push_deterministic(*token));
    }
}

/// For each node of a draft the probability that it and all nodes before it are accepted.
fn acceptance_of_prefixes(draft: &Draft, acceptance: impl Fn(f32) -> f64) -> [f64; MAX_DRAFT + 1] {
    let mut accepted = [1.0; MAX_DRAFT + 1];
    for (index, (confidence, parent)) in draft.confidence.iter().zip(draft.parents(draft.tokens.len())).enumerate() {
        let before = accepted.get(parent).copied().unwrap_or(0.0);
        if let Some(accepted) = accepted.get_mut(index + 1) {
            *accepted = before * acceptance(*confidence);
        }
    }
    accepted
}
