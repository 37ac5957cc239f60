//! Commands for the engine's thread.
//!
//! Rendering and tokenizing a long prompt takes longer than a host's call may. Such a request is queued before its prompt is known: it
//! keeps its place in the queue, and its prompt follows by a [`PreparedSender`].

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;

use super::compare::CacheOfFirstRun;
use super::event::{Restored, Stop};
use super::request::{Prepared, Request};
use super::request_handle::{RequestHandle, TextSink};
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::session::Session;

/// A message to the engine's thread. The list is closed.
pub(super) enum Command {
    /// Generate text.
    Submit(Box<Submission>),
    /// The texts of the request with this number, which wait for their prompts, get them or fail.
    Prepare(u64, Result<Prepared>),
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
    /// Whether the request has its prompt. Else it keeps its place in the queue until the prompt comes.
    pub(super) is_prepared: bool,
    pub(super) sink: TextSink,
    pub(super) deadline: Option<Instant>,
    /// Of the second run of a comparison, which begins in the first one's slot.
    pub(super) first_run: Option<CacheOfFirstRun>,
}

impl Submission {
    /// Gives the text its prompt, or ends it.
    pub(super) fn prepare(&mut self, prepared: &Result<Prepared>) {
        let prepared = prepared.as_ref().map_err(Error::clone).and_then(|prepared| {
            let prompt = prepared.prompts.get(self.sink.index());
            Ok((prompt.ok_or_else(|| Error::invalid("prompt: is missing"))?, prepared))
        });
        match prepared {
            Ok((prompt, prepared)) => {
                self.sink.set_prompt_len(prompt.len());
                self.request.prompt = Arc::clone(prompt);
                if let Some(settings) = &mut self.request.speculative {
                    settings.prediction = prepared.prediction.clone();
                }
                self.is_prepared = true;
            }
            Err(error) => {
                self.sink.finish_if_queued(Stop::Error(error));
            }
        }
    }
}

/// Sends prompts to an engine, from any thread. It does not keep the engine alive.
#[derive(Clone)]
pub struct PreparedSender(pub(super) Sender<Command>);

impl PreparedSender {
    /// Lets the texts of a request begin that [`Engine::submit_unprepared`](super::Engine::submit_unprepared) has queued, or
    /// ends them with an error. Texts that have ended meanwhile are left as they are.
    pub fn send(&self, handle: &RequestHandle, prepared: Result<Prepared>) {
        // An engine that has ended has ended the request as well.
        let _ = self.0.send(Command::Prepare(handle.id(), prepared));
    }
}
