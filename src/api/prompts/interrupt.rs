//! When to stop rendering a chat template.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foredraft_jinja::StopSignal;
use once_cell::sync::OnceCell;

use super::ServingModel;
use crate::engine::{Phase, RequestHandle};
use crate::error::{Code, Error};

/// When to stop rendering: at the request's `timeout_ms`, when the request is cancelled, when the engine is unloaded.
#[derive(Clone)]
pub(in crate::api) struct PromptInterrupt {
    stopping: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// Set once the request is queued.
    request: Arc<OnceCell<Arc<RequestHandle>>>,
}

impl PromptInterrupt {
    /// The interrupt of a request that begins, with this `timeout_ms`.
    pub(in crate::api) fn new(serving: &ServingModel, timeout: Option<Duration>) -> PromptInterrupt {
        PromptInterrupt {
            stopping: Arc::clone(&serving.stopping),
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            request: Arc::default(),
        }
    }

    /// Stops also when this request ends.
    pub(in crate::api) fn end_with(&self, request: &Arc<RequestHandle>) {
        // Called once for each request, so the cell is empty.
        let _ = self.request.set(Arc::clone(request));
    }

    /// Whether the request's time has passed.
    pub(in crate::api) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The question that a rendering asks.
    pub(super) fn for_template(&self) -> StopSignal {
        let this = self.clone();
        Arc::new(move || {
            this.stopping.load(Ordering::Relaxed)
                || this.is_overdue()
                || this.request.get().is_some_and(|request| request.phase() == Phase::Finished)
        })
    }

    /// The error of a rendering, which says why it was interrupted.
    pub(super) fn explained(&self, error: Error) -> Error {
        if error.code() == Code::Cancelled && !self.stopping.load(Ordering::Relaxed) && self.is_overdue() {
            return Error::invalid("timeout_ms: passed before the chat template had rendered the messages");
        }
        error
    }
}
