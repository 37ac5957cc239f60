//! A context's use of the hidden states of tokens.

use super::Batch;

/// A context's use of hidden states.
#[derive(Debug, Default, Clone)]
pub(super) struct Hidden {
    role: HiddenRole,
    /// Decodes keep the hidden states.
    pub(super) kept: bool,
    /// The last decode kept them.
    pub(super) available: bool,
}

#[derive(Debug, Default, PartialEq, Clone)]
enum HiddenRole {
    /// A context of the model's main layers, which output hidden states.
    #[default]
    Source,
    /// A context of the MTP layers: each token needs a hidden state as input.
    Input,
}

impl Hidden {
    /// For a context of the MTP layers.
    pub(super) fn as_input() -> Hidden {
        Hidden { role: HiddenRole::Input, ..Hidden::default() }
    }

    /// Whether each token needs a hidden state as input.
    pub(super) fn is_input(&self) -> bool {
        self.role == HiddenRole::Input
    }

    /// The hidden states of `batch` for llama.cpp, which only reads them.
    pub(super) fn of(&self, batch: &Batch) -> *mut f32 {
        if self.is_input() { batch.hidden.as_ptr().cast_mut() } else { std::ptr::null_mut() }
    }

    /// Records a successful decode.
    pub(super) fn decoded(&mut self) {
        self.available = self.kept;
    }
}
