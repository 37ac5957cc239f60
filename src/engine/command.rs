//! What the engine's thread is asked to do.

use std::time::Instant;

use crossbeam_channel::Sender;

use super::compare::Found;
use super::request_handle::TextSink;
use super::{Request, Restored};
use crate::error::Result;
use crate::llama::Token;
use crate::session::Session;

/// A message to the engine's thread. The list is closed.
pub(super) enum Command {
    /// Generate text.
    Submit(Box<Submission>),
    /// Copy a slot's sequences out, or in, as soon as no request runs in it.
    Session(SessionJob),
    /// Compute an embedding and send it back.
    Embed(Vec<Token>, Sender<Result<Vec<f32>>>),
    /// Nothing of earlier answers shall show in drafts.
    ForgetAnswers,
    /// Look again: a request was cancelled, or the engine shall stop.
    Wake,
}

/// Work on a free slot's sequences.
pub(super) struct SessionJob {
    pub(super) slot: usize,
    /// The newest request before it.
    pub(super) after: u64,
    pub(super) work: SessionWork,
}

pub(super) enum SessionWork {
    Save(Sender<Result<Session>>),
    Load(Box<Session>, Sender<Result<Restored>>),
}

/// A text on its way to a slot.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) sink: TextSink,
    pub(super) deadline: Option<Instant>,
    /// Of the second run of a comparison, which begins in the first one's slot.
    pub(super) found: Option<Found>,
}
