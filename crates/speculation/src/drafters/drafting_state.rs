//! The state that drafters and controller keep for a speculating request from one step to the next.

use crate::controller::Bias;
use crate::controller::Length;
use crate::{Adaptive, DrafterKind, Settings};

/// The drafting state of a request. The request owns it. [`SlotDrafts`] has the drafts of a single step.
///
/// [`SlotDrafts`]: super::SlotDrafts
pub struct DraftingState {
    pub(super) settings: Settings,
    pub(super) length: Length,
    /// One for each registered drafter; `None`: not requested, or disabled.
    pub(super) drafters: Vec<Option<DrafterState>>,
    /// Whether a model has drafted for it yet, and the context's length when one last caught up.
    pub(super) has_tried_model: bool,
    pub(super) n_caught_up: usize,
    /// Why a requested drafter does not draft.
    pub(super) disabled: Option<String>,
}

/// The state of one drafter for a request.
pub(super) struct DrafterState {
    pub(super) kind: DrafterKind,
    pub(super) bias: Bias,
    /// The request did not ask for it; it only offers free draft tokens: see [`Drafters::offer_free_tokens`].
    ///
    /// [`Drafters::offer_free_tokens`]: super::Drafters::offer_free_tokens
    pub(super) is_free: bool,
    /// It drafted in the last step as well, so it has no more than that step to catch up with.
    pub(super) keeps_up: bool,
}

impl DraftingState {
    pub(super) fn new(
        settings: &Settings,
        drafters: Vec<Option<DrafterState>>,
        disabled: Option<String>,
    ) -> DraftingState {
        DraftingState {
            length: Length::new(settings),
            drafters,
            has_tried_model: false,
            n_caught_up: 0,
            disabled,
            settings: settings.clone(),
        }
    }

    /// The settings with which the request drafts.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether its draft lengths adapt and the request asked for a drafter.
    pub fn adapts(&self) -> bool {
        self.has_adaptive_lengths() && self.drafters.iter().flatten().any(|drafter| !drafter.is_free)
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

    /// The drafters that it uses, as bits; the last one stands for all further ones.
    pub(super) fn used_drafters(&self) -> u64 {
        let used = (0..).zip(&self.drafters).filter(|(_, drafter)| drafter.is_some());
        used.fold(0, |bits, (index, _): (u32, _)| bits | 1 << index.min(63))
    }

    pub(super) fn drafter(&self, index: usize) -> Option<&DrafterState> {
        self.drafters.get(index)?.as_ref()
    }

    pub(super) fn drafter_mut(&mut self, index: usize) -> Option<&mut DrafterState> {
        self.drafters.get_mut(index)?.as_mut()
    }
}
