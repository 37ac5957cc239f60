//! A request as the engine sees it: tokens and validated settings, no JSON.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::grammar::Grammar;
use crate::llama::Token;
use crate::sampling;
use crate::speculative::{self, Predicted};

/// One text generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole prompt; the engine shortens it when it does not fit (see [`crate::session`]).
    pub prompt: Arc<[Token]>,
    /// The text of the same submission (by index, and before this one) that has the same prompt: it is evaluated once
    /// for both where the KV cache allows it.
    pub prompt_of: Option<usize>,
    /// The scale of each LoRA adapter of the model.
    pub lora: Vec<f32>,
    /// How tokens are chosen.
    pub sampling: sampling::SamplingSettings,
    /// A grammar that the text must follow, compiled for this request.
    pub grammar: Option<Grammar>,
    /// How to speculate; `None`: not at all.
    pub speculative: Option<speculative::Settings>,
    /// Whether the draft model answers, alone. Then all that is said of the model is said of that one.
    pub draft_only: bool,
    /// Whether a text that was generated with speculation is generated once more without, to be compared.
    pub compare: bool,
    /// What needs no vocabulary, as the caller gave it.
    pub options: Options,
}

/// What of a request is made after it was queued.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The prompt of each text.
    pub prompts: Vec<Arc<[Token]>>,
    /// The predicted output, where the request drafts from one.
    pub prediction: Option<Arc<Predicted>>,
}

/// Where a text runs, what it keeps and reuses, when it ends, and what is reported of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Most tokens to generate; `None`: until the model ends the text.
    pub n_predict: Option<usize>,
    /// Tokens at the start of the prompt that a shortened prompt and a context shift keep; `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// Texts that end the generation; none of them is empty.
    pub stop: Vec<String>,
    /// A hard limit on the time from submission to the end.
    pub timeout: Option<Duration>,
    /// Ends the text after the first token with a newline that comes later than this after the first token.
    pub t_max_predict: Option<Duration>,
    /// Texts that a beam search follows side by side, up to [`MAX_BEAMS`](super::MAX_BEAMS); up to 1: none.
    pub n_beams: usize,
    /// The slot to run in; `None`: the one whose cache fits best.
    pub slot: Option<usize>,
    /// Whether the cached beginning of an earlier request may be reused.
    pub cache_prompt: bool,
    /// Least tokens of a part of the prompt that is moved to its place from further back in the cache; 0: none are.
    pub n_cache_reuse: usize,
    /// A session file to put into the slot before the request begins.
    pub session_load: Option<PathBuf>,
    /// Where to save the slot as a session when the request has ended, unless it failed.
    pub session_save: Option<PathBuf>,
    /// The position in the noise of the first generated token; `None`: 0, or where the loaded session's seed goes on.
    pub seed_position: Option<usize>,
    /// Whether reported probabilities are those that the token was drawn by, instead of the model's own.
    pub post_sampling_probs: bool,
    /// Whether to report how far the prompt's evaluation has come.
    pub progress: bool,
}
