//! A request as the engine sees it: tokens and validated settings, no JSON.

use std::time::Duration;

use crate::grammar::Grammar;
use crate::llama::Token;
use crate::{sampling, speculative};

/// One text generation.
#[derive(Debug)]
pub struct Request {
    /// The whole prompt; the engine shortens it when it does not fit (see [`crate::session`]).
    pub prompt: Vec<Token>,
    /// Most tokens to generate; `None`: until the model ends the text.
    pub n_predict: Option<usize>,
    /// Tokens at the start of the prompt that a shortened prompt and a context shift keep; `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// Texts that end the generation; none of them is empty.
    pub stop: Vec<String>,
    /// Whether the cached beginning of an earlier request may be reused.
    pub cache_prompt: bool,
    /// The slot to run in; `None`: the one whose cache fits best.
    pub slot: Option<usize>,
    /// A hard limit on the time from submission to the end.
    pub timeout: Option<Duration>,
    /// How tokens are chosen.
    pub sampling: sampling::Settings,
    /// A grammar that the text must follow, compiled for this request.
    pub grammar: Option<Grammar>,
    /// How to speculate; `None`: not at all.
    pub speculative: Option<speculative::Settings>,
}
