//! The events of a request that an engine's process sends, and their parts. Everything is checked when it arrives.

use foredraft_chat::MessageDelta;
use serde::{Deserialize, Serialize};

use crate::api::loaded::registry::AcceptedRequest;
use crate::api::prompts::PreparedPrompt;
use crate::engine::{Event, Generated, PromptProbs};
use crate::error::{Error, Result};
use crate::llama::{Token, TokenPieces};
use crate::sampling::TokenProbs;

/// An event of a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum RequestEvent {
    /// It is valid, and queued.
    Accepted(AcceptedRequest),
    /// It is invalid, or cannot be queued. The last event.
    Refused(Error),
    /// The prompts of all completions.
    Prepared(Vec<PreparedPrompt>),
    /// An event of the completion `index`. `message`: what it adds to the completion's message, in a chat.
    Completion { index: usize, event: Event, message: Option<MessageParts> },
}

/// New parts of a message, and all warnings about it.
#[derive(Debug, Serialize, Deserialize)]
pub struct MessageParts {
    pub delta: MessageDelta,
    pub warnings: Vec<String>,
}

/// The error of a process that has sent what no engine sends.
pub(super) fn breach(what: &str) -> Error {
    Error::model(format!("it broke the protocol: {what}"))
}

impl RequestEvent {
    /// Reads an event of a request with this number of completions, whose model has these tokens.
    ///
    /// # Errors
    /// It is none that an engine sends.
    pub(super) fn read(text: &[u8], n_completions: usize, pieces: &TokenPieces) -> Result<RequestEvent> {
        let event = serde_json::from_slice(text).map_err(|error| breach(&format!("an event: {error}")))?;
        let is_valid = match &event {
            RequestEvent::Accepted(accepted) => accepted.settings.len() == n_completions,
            RequestEvent::Refused(_) => true,
            RequestEvent::Prepared(prompts) => {
                // Rows of pictures are below the number for no token.
                let is_known = |token: &Token| *token < -1 || pieces.contains(*token);
                prompts.len() == n_completions && prompts.iter().all(|prompt| prompt.tokens.iter().all(is_known))
            }
            RequestEvent::Completion { index, event, .. } => *index < n_completions && is_of_engine(event, pieces),
        };
        if is_valid { Ok(event) } else { Err(breach("an event with a number out of range")) }
    }
}

/// Whether the tokens of an event are in the vocabulary. Other numbers are only shown, or added up without overflow.
fn is_of_engine(event: &Event, pieces: &TokenPieces) -> bool {
    let are_probs =
        |probs: &TokenProbs| pieces.contains(probs.token) && probs.top.iter().all(|(token, _)| pieces.contains(*token));
    let are_tokens = |tokens: &[Generated]| {
        tokens
            .iter()
            .all(|generated| pieces.contains(generated.token) && generated.probs.as_ref().is_none_or(are_probs))
    };
    match event {
        Event::Update(update) => are_tokens(&update.tokens),
        Event::Progress(_) => true,
        // The host notices that itself.
        Event::Restarted { .. } => false,
        Event::Finished(outcome) => {
            let in_prompt = |probs: &PromptProbs| pieces.contains(probs.first) && probs.others.iter().all(are_probs);
            are_tokens(&outcome.tokens) && outcome.prompt_probs.as_ref().is_none_or(in_prompt)
        }
    }
}
