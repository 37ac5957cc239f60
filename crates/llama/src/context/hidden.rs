//! A context's use of hidden states: those of its tokens, which a target keeps for drafters, and those that a head's tokens need.

use crate::{Batch, BatchInput, DraftKind};

/// A context's use of hidden states.
#[derive(Debug, Default, Clone)]
pub(crate) struct Hidden {
    /// The kind of the head that the context decodes; [`DraftKind::Model`]: the main layers of a model.
    head: DraftKind,
    /// Decodes keep the hidden states.
    pub(crate) kept: bool,
    /// The last decode kept them.
    pub(crate) available: bool,
    /// The states of layers that decodes keep for a draft head: see [`Context::keep_layers`](crate::Context::keep_layers).
    pub(crate) layers: Vec<LayerState>,
}

/// A state that a draft head reads of each token of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerState {
    /// The input of the layer with this index.
    InputOf(u32),
    /// The hidden state after the last layer.
    Hidden,
}

impl Hidden {
    /// For a context of a head.
    pub(crate) fn of_head(kind: DraftKind) -> Hidden {
        Hidden { head: kind, ..Hidden::default() }
    }

    /// The kind of the head; [`DraftKind::Model`] for another context.
    pub(crate) fn head(&self) -> DraftKind {
        self.head
    }

    /// Whether the context is that of a head. A head's results need not be exact, because the target verifies them.
    pub(crate) fn is_head(&self) -> bool {
        self.head.is_head()
    }

    /// Whether each token needs a hidden state as input.
    pub(crate) fn is_input(&self) -> bool {
        matches!(self.head, DraftKind::Mtp | DraftKind::Eagle3 | DraftKind::Assistant)
    }

    /// Whether the context's memory is that of its target.
    pub(crate) fn shares_memory(&self) -> bool {
        self.head == DraftKind::Assistant
    }

    /// The hidden states or rows of `batch` for llama.cpp, which only reads them.
    pub(crate) fn of(&self, batch: &Batch) -> *mut f32 {
        if self.is_input() || batch.input != BatchInput::Tokens {
            batch.hidden.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        }
    }

    /// Records a successful decode.
    pub(crate) fn decoded(&mut self) {
        self.available = self.kept;
    }
}
