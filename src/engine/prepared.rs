//! Requests that are queued before their prompts are known: rendering and tokenizing a long prompt takes longer than a host's
//! call may. Such a request keeps its place in the queue, and its prompts follow by a [`PreparedSender`].

use crossbeam_channel::Sender;

use super::command::Command;
use super::request::Prepared;
use super::request_handle::RequestHandle;
use crate::error::Result;

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
