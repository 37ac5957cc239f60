//! A slot's drafts in one step: the proposals of all drafters, and the one that is verified.

use super::drafting_state::{DrafterState, DraftingState};
use super::registered::RegisteredDrafter;
use crate::controller::DraftOptions;
use crate::drafter::Draft;
use crate::verify::SampledDraft;
use crate::{DrafterKind, MAX_DRAFT};

/// The drafts of a slot in one step. Steps reuse it for its allocations.
#[derive(Default)]
pub struct SlotDrafts {
    /// The draft of each registered drafter that the request uses.
    pub(super) proposals: Vec<Draft>,
    /// The draft that is verified.
    pub(super) choice: Option<DraftChoice>,
    /// The same with the distributions that it was drawn from, for stochastic verification.
    pub(super) sampled: SampledDraft,
    /// The drafter that has drawn it; `None`: the draft is deterministic.
    pub(super) drawn_by: Option<usize>,
}

/// Which draft is verified.
#[derive(Clone, Copy)]
pub(super) struct DraftChoice {
    /// The number of its drafter.
    pub(super) drafter: usize,
    /// `None`: it is a free draft token.
    pub(super) kind: Option<DrafterKind>,
    /// Tokens of the draft.
    pub(super) n: usize,
}

/// The draft of a slot that is verified in a step.
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
    /// The most that could be accepted, the tokens of the longest branch: fewer than were verified where the draft had branches.
    pub n_longest: usize,
    /// Accepted tokens.
    pub n_accepted: usize,
}

impl SlotDrafts {
    /// The draft that is verified.
    pub fn chosen(&self) -> Option<ChosenDraft<'_>> {
        let DraftChoice { drafter, kind, n } = self.choice?;
        Some(ChosenDraft { kind, draft: self.proposals.get(drafter)?, n })
    }

    /// The draft that is verified with the distributions that it was drawn from, for stochastic verification; no more than `n` tokens of
    /// it, for a reason that does not depend on its tokens: the batch has no space for more.
    pub fn sampled(&mut self, n: usize) -> &SampledDraft {
        self.sampled.cap(n);
        &self.sampled
    }

    /// Nothing is drafted in this step, unless the slot is among those that draft.
    pub fn clear(&mut self) {
        (self.choice, self.drawn_by) = (None, None);
    }

    /// Empties it for a step of a request.
    pub(super) fn begin(&mut self, DraftingState { settings, drafters, .. }: &DraftingState) {
        self.clear();
        self.proposals.resize_with(drafters.len(), Draft::default);
        let used = self.proposals.iter_mut().zip(drafters).filter(|(_, drafter)| drafter.is_some());
        used.for_each(|(draft, _)| draft.clear());
        self.sampled.begin_as(settings.verify);
    }

    /// `n` tokens of a drafter's draft are verified.
    pub(super) fn choose(&mut self, draft: Option<(usize, usize)>, state: &DraftingState) {
        self.choice = draft.map(|(drafter, n)| {
            let kind = state.drafter(drafter).filter(|drafter| !drafter.is_free).map(|drafter| drafter.kind);
            DraftChoice { drafter, kind, n }
        });
        let Some(DraftChoice { drafter, n, .. }) =
            self.choice.filter(|_| state.settings.verify.draws() && self.drawn_by.is_none())
        else {
            return;
        };
        let Some(draft) = self.proposals.get(drafter) else { return };
        self.sampled.begin(n);
        draft.tokens.iter().all(|token| self.sampled.push_deterministic(self.sampled.len(), *token));
    }
}

/// The proposals of all drafters for a slot, with what is known of the drafters.
#[derive(Clone, Copy)]
pub(super) struct Proposals<'a> {
    pub(super) state: &'a DraftingState,
    pub(super) drafts: &'a SlotDrafts,
}

impl<'a> Proposals<'a> {
    /// The proposals of `registered`, which are the first of all drafters, as far as the request has them.
    fn of(
        self,
        registered: &'a [RegisteredDrafter],
    ) -> impl Iterator<Item = (usize, &'a RegisteredDrafter, &'a DrafterState, &'a Draft)> {
        let all = registered.iter().zip(&self.state.drafters).zip(&self.drafts.proposals).enumerate();
        all.filter_map(|(index, ((registered, state), draft))| Some((index, registered, state.as_ref()?, draft)))
    }

    /// Offers the drafts of `registered`, which are the first of all drafters, to the controller.
    pub(super) fn offer(self, registered: &[RegisteredDrafter], options: &mut DraftOptions) {
        let Proposals { state, drafts } = self;
        options.clear();
        if let Some(index) = drafts.drawn_by {
            options.fix(index, drafts.sampled.len());
            return;
        }
        if !state.has_adaptive_lengths() {
            // All of the draft with most tokens to expect, whatever it costs.
            if let Some((index, n, _)) = self.most_expected(registered) {
                options.fix(index, n);
            }
            return;
        }
        for (index, registered, DrafterState { bias, is_free, .. }, draft) in self.of(registered) {
            let accepted =
                acceptance_of_prefixes(draft, |confidence| registered.calibration.acceptance(bias, confidence));
            let factor = registered.factor_if_chosen();
            let (most, least) = if *is_free { (1, 0) } else { (draft.tokens.len(), state.settings.n_min) };
            let accepted = accepted.iter().skip(1).take(most.min(draft.tokens.len())).map(|accepted| factor * accepted);
            options.offer(index, least, accepted, !registered.is_model_based);
        }
    }

    /// The draft with most tokens to expect of those that are not too short: its drafter, its length, the tokens to expect. If
    /// there is none, a free draft token.
    pub(super) fn most_expected(self, registered: &[RegisteredDrafter]) -> Option<(usize, usize, f64)> {
        let drafts =
            self.of(registered).filter_map(|(index, registered, DrafterState { bias, is_free, .. }, draft)| {
                let n = draft.tokens.len();
                if *is_free || n == 0 || n < self.state.settings.n_min {
                    return None;
                }
                let accepted =
                    acceptance_of_prefixes(draft, |confidence| registered.calibration.acceptance(bias, confidence));
                Some((index, n, accepted.iter().skip(1).take(n).sum::<f64>()))
            });
        let best = drafts.reduce(|best, other| if other.2 > best.2 { other } else { best });
        best.or_else(|| {
            let all = self.state.drafters.iter().zip(&self.drafts.proposals).enumerate();
            let mut free = all.filter_map(|(index, (state, draft))| Some((index, state.as_ref()?, draft)));
            let free = free.find(|(_, state, draft)| state.is_free && !draft.tokens.is_empty());
            free.map(|(index, ..)| (index, 1, 0.0))
        })
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
