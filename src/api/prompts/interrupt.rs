//! When to stop preparing a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foredraft_base::work::Work;
use foredraft_jinja::StopSignal;
use once_cell::sync::OnceCell;

use super::ServingModel;
use crate::api::prompts::chat_format::KnownTemplate;
use crate::api::wire::request::ChatInput;
use crate::error::{Code, Error, Result};

/// The steps of all schemas of a request: a few seconds. Typical schemas take thousands.
const MAX_STEPS: u64 = 1 << 25;

/// When to stop rendering chat templates and compiling schemas: at the request's `timeout_ms`, when the request is cancelled, when the engine is unloaded.
#[derive(Clone)]
pub struct PromptInterrupt {
    stopping: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// Whether the request has ended. Set once it is queued.
    has_ended: Arc<OnceCell<StopSignal>>,
}

impl PromptInterrupt {
    /// The interrupt of a request that begins, with this `timeout_ms`.
    pub fn new(serving: &ServingModel, timeout: Option<Duration>) -> PromptInterrupt {
        PromptInterrupt {
            stopping: Arc::clone(&serving.stopping),
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            has_ended: Arc::default(),
        }
    }

    /// Stops also when the request has ended.
    pub fn end_with(&self, has_ended: StopSignal) {
        // Called once for each request, so the cell is empty.
        let _ = self.has_ended.set(has_ended);
    }

    /// Whether the request's time has passed.
    pub fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Fails if the preparation has to stop. For work that asks no signal itself.
    ///
    /// # Errors
    /// It was interrupted.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_overdue() {
            return Err(Error::new(Code::Timeout, "timeout_ms: passed before the prompts were prepared"));
        }
        if self.for_template()() {
            return Err(Error::new(Code::Cancelled, "the preparation of the prompts was interrupted"));
        }
        Ok(())
    }

    /// The steps that schemas and patterns of the request may take together.
    pub fn work(&self) -> Work {
        Work::new(MAX_STEPS, Some(self.for_template()))
    }

    /// The question that a rendering asks.
    pub(super) fn for_template(&self) -> StopSignal {
        let this = self.clone();
        Arc::new(move || {
            this.stopping.load(Ordering::Relaxed)
                || this.is_overdue()
                || this.has_ended.get().is_some_and(|has_ended| has_ended())
        })
    }

    /// The template of a chat.
    ///
    /// # Errors
    /// It cannot be parsed, or it is interrupted.
    pub fn template(&self, serving: &ServingModel, chat: &ChatInput) -> Result<Arc<KnownTemplate>> {
        let found = serving.template(chat.chat_template.as_deref(), !chat.tools.is_empty(), &self.for_template());
        found.map_err(|error| self.explained(error))
    }

    /// The error of a rendering, which says why it was interrupted.
    pub(super) fn explained(&self, error: Error) -> Error {
        self.explained_for(error, "the chat template had rendered the messages")
    }

    /// An error of what must be complete before the request begins, which says why it was interrupted.
    pub fn explained_for(&self, error: Error, what: &str) -> Error {
        if error.code() == Code::Cancelled && !self.stopping.load(Ordering::Relaxed) && self.is_overdue() {
            return Error::invalid(format!("timeout_ms: passed before {what}"));
        }
        error
    }
}
