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

/// A message to the engine's thread.
pub(super) enum Command {
    /// Generates a completion.
    Submit(Box<Submission>),
    /// Gives the completions of the request with this number their prompts, or ends them.
    Prepare(u64, Result<Prepared>),
    /// Copies a slot's sequences out, or in, as soon as no request runs in it.
    Session(SessionJob),
    /// Computes an embedding and sends it back.
    Embed(Vec<Token>, Sender<Result<Vec<f32>>>),
    /// Lets drafters forget earlier outputs.
    ForgetAnswers,
    /// Wakes the thread: a request was cancelled, or the engine stops.
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

/// A completion that waits for a slot.
pub(super) struct Submission {
    pub(super) request: Request,
    /// Whether the request has its prompt. Without it, it keeps its place in the queue.
    pub(super) is_prepared: bool,
    pub(super) sink: TextSink,
    pub(super) deadline: Option<Instant>,
    /// Only for the second run of a comparison: what the first run found in the cache of the slot.
    pub(super) first_run: Option<CacheOfFirstRun>,
}

impl Submission {
    /// Sets the prompt, or ends the completion.
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
    /// Gives the completions that [`Engine::submit_unprepared`](super::Engine::submit_unprepared) has queued their prompts, or ends them
    /// with an error. Does nothing for those that have ended meanwhile.
    pub fn send(&self, handle: &RequestHandle, prepared: Result<Prepared>) {
        // An engine that has ended has ended the request as well.
        let _ = self.0.send(Command::Prepare(handle.id(), prepared));
    }
}
