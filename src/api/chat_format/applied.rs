//! What llama.cpp answers about templates and formats (`chat.cpp`).

use serde::Deserialize;

use crate::error::{Error, Result};

/// A text from which on a lazy grammar applies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(in crate::api) struct FormatTrigger {
    /// `word`, `pattern`, `pattern_full` or `token`.
    #[serde(rename = "type")]
    pub(in crate::api) kind: String,
    pub(in crate::api) value: String,
}

/// llama.cpp's answer (`params_json` in `chat.cpp`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct AppliedFormat {
    pub(super) format: i32,
    pub(super) generation_prompt: String,
    pub(super) grammar: String,
    pub(super) grammar_lazy: bool,
    pub(super) grammar_triggers: Vec<FormatTrigger>,
    pub(super) preserved_tokens: Vec<String>,
    pub(super) additional_stops: Vec<String>,
    pub(super) supports_thinking: bool,
    pub(super) thinking_start: String,
    pub(super) thinking_ends: Vec<String>,
    pub(super) parser: String,
}

/// llama.cpp's answer about a template.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Capabilities {
    pub(super) tools: bool,
    pub(super) parallel: bool,
}

pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("chat format: {error}")))
}
