//! Arguments of a request beside its text: from an adaptor in front of the engine, and from the host's process of an isolated engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::llama::Token;

/// The arguments beside the text of a request. The default is those of a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RequestArguments {
    /// How an adaptor has translated it.
    pub translation: Translation,
    /// The part of an isolated engine's host process.
    pub isolated: IsolatedArguments,
}

/// The traits of another interface that a request translated from it keeps. The default is a request that was not translated.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Translation {
    /// The warnings of the translation, which come before those of the request.
    pub warnings: Vec<String>,
    /// The request speculates only if it has `speculative`, and otherwise its answer does not mention speculation.
    pub speculates_if_asked: bool,
    /// The prompt is tokenized before the submit returns, however long it is, so that `prompt_stats` is complete.
    pub is_prepared_first: bool,
    /// A stop string that has begun at the end of the completion is cut.
    pub cuts_begun_stop: bool,
    /// `generation_settings` shows the bias of a banned token as null instead of false.
    pub bans_as_null: bool,
    /// `__debug` logs the answer alone, because the request was logged before it was translated.
    pub is_logged: bool,
    /// The request needs questions, and its final response has the fields of a decision only.
    pub is_decision: bool,
    /// The request may come later, and is prepared.
    pub is_preparation: bool,
    /// The final response has the prompt, whether or not `response_fields` names it.
    pub shows_prompt: bool,
}

/// The part of a request that is the same in every process that serves it. The default is an engine in the host's process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct IsolatedArguments {
    /// The seed, where the request gives none.
    pub drawn_seed: Option<u32>,
    /// The number of the request in the host's process, for its logits callback. `None`: the engine's own.
    pub host_number: Option<u64>,
    /// The time since the submission.
    pub elapsed: Duration,
    /// For each completion, the tokens that an earlier process generated.
    pub prefixes: Vec<Vec<Token>>,
}
