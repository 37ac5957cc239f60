//! What the engine's thread is asked to do.

use std::time::Instant;

use crossbeam_channel::Sender;

use super::Request;
use super::ticket::Ticket;
use crate::error::Result;
use crate::llama::Token;

/// A message to the engine's thread. The list is closed.
pub(super) enum Command {
    /// Generate text.
    Submit(Box<Submission>),
    /// Compute an embedding and send it back.
    Embed(Vec<Token>, Sender<Result<Vec<f32>>>),
    /// Look again: a request was cancelled, or the engine shall stop.
    Wake,
}

/// A text on its way to a slot.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) ticket: Ticket,
    pub(super) deadline: Option<Instant>,
}
