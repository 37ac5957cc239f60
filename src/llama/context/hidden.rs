//! A context's use of the hidden states of tokens.

use crate::llama::Batch;

/// A context's use of hidden states.
#[derive(Debug, Default, Clone)]
pub(in crate::llama) struct Hidden {
    role: HiddenRole,
    /// Decodes keep the hidden states.
    pub(in crate::llama) kept: bool,
    /// The last decode kept them.
    pub(in crate::llama) available: bool,
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
    pub(in crate::llama) fn as_input() -> Hidden {
        Hidden { role: HiddenRole::Input, ..Hidden::default() }
    }

    /// Whether each token needs a hidden state as input.
    pub(in crate::llama) fn is_input(&self) -> bool {
        self.role == HiddenRole::Input
    }

    /// The hidden states of `batch` for llama.cpp, which only reads them.
    pub(in crate::llama) fn of(&self, batch: &Batch) -> *mut f32 {
        if self.is_input() { batch.hidden.as_ptr().cast_mut() } else { std::ptr::null_mut() }
    }

    /// Records a successful decode.
    pub(in crate::llama) fn decoded(&mut self) {
        self.available = self.kept;
    }
}
