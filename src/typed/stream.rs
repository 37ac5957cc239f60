//! Completions while they are generated: for threads an iterator, for tasks a stream.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use serde_json::{Value, json};

use super::completion::{FinalResponse, StreamUpdate, error_of, unexpected};
use super::loaded::LoadedModel;
use crate::api::PollCommand;
use foredraft_base::error::{Code, Error, Result};

/// How long a poll of the iterator waits. Then it polls again, so the number does not matter.
const WAIT: Duration = Duration::from_secs(10);

/// The updates of a completion as they come: an iterator that waits, and a [`Stream`] that does not (`futures::TryStreamExt` gives it
/// `try_next`). Dropping it cancels the request.
pub struct CompletionStream {
    loaded: Arc<LoadedModel>,
    id: u64,
    updates: VecDeque<StreamUpdate>,
    /// The text so far and the final response of each completion, by its index.
    texts: BTreeMap<usize, String>,
    ends: BTreeMap<usize, Value>,
    /// The last update has been taken from the engine.
    is_finished: bool,
    /// The iterator has returned the request's error.
    has_failed: bool,
}

impl CompletionStream {
    pub(super) fn new(loaded: Arc<LoadedModel>, id: u64) -> CompletionStream {
        CompletionStream {
            loaded,
            id,
            updates: VecDeque::new(),
            texts: BTreeMap::new(),
            ends: BTreeMap::new(),
            is_finished: false,
            has_failed: false,
        }
    }

    /// The request's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Ends the request. What it has generated can still be read.
    ///
    /// # Errors
    /// The engine was unloaded.
    pub fn cancel(&self) -> Result<()> {
        self.loaded.engine.run_cancel(PollCommand::one(self.id, Duration::ZERO)).map(|_| ())
    }

    /// Waits for the end of the request, and returns its completion with the whole text.
    ///
    /// # Errors
    /// The request failed.
    pub fn finish(mut self) -> Result<FinalResponse> {
        while !self.is_finished {
            self.poll_engine(WAIT)?;
        }
        let mut texts = std::mem::take(&mut self.texts);
        let read = |(index, end)| {
            let content = texts.remove(&index).unwrap_or_default();
            FinalResponse::read(end).map(|end| FinalResponse { content, ..end })
        };
        let mut results = std::mem::take(&mut self.ends).into_iter().map(read).collect::<Result<Vec<_>>>()?;
        match results.pop() {
            Some(only) if results.is_empty() => Ok(only),
            Some(last) => {
                results.push(last);
                FinalResponse::read(json!({"id": self.id})).map(|all| FinalResponse { results, ..all })
            }
            None => Err(Error::new(Code::Internal, "the request ended without a completion")),
        }
    }

    /// Takes the updates that have come, and waits for one for at most `wait`.
    fn poll_engine(&mut self, wait: Duration) -> Result<()> {
        let mut answer = self.loaded.engine.run_poll(PollCommand::one(self.id, wait))?;
        self.is_finished = answer.get("finished") == Some(&Value::Bool(true));
        let updates = answer.get_mut("completion_updates").and_then(Value::as_array_mut).map(std::mem::take);
        for update in updates.unwrap_or_default() {
            let index = update.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
            let index = index.unwrap_or(0);
            if update.get("stop") == Some(&Value::Bool(true)) {
                self.ends.insert(index, update);
                continue;
            }
            let update: StreamUpdate = serde_json::from_value(update).map_err(unexpected)?;
            self.texts.entry(index).or_default().push_str(&update.content);
            self.updates.push_back(update);
        }
        Ok(())
    }

    /// The next update that has come; an error after the last one if the request failed.
    fn take_next(&mut self) -> Option<Result<StreamUpdate>> {
        if let Some(update) = self.updates.pop_front() {
            return Some(Ok(update));
        }
        if !self.is_finished || self.has_failed {
            return None;
        }
        let failed = self.ends.values().find(|end| end.get("success") == Some(&Value::Bool(false)))?;
        self.has_failed = true;
        Some(Err(error_of(failed)))
    }

    /// Ends the stream with an error of the engine.
    fn fail(&mut self, error: Error) -> Result<StreamUpdate> {
        self.is_finished = true;
        Err(error)
    }
}

impl Iterator for CompletionStream {
    type Item = Result<StreamUpdate>;

    fn next(&mut self) -> Option<Result<StreamUpdate>> {
        loop {
            if let Some(update) = self.take_next() {
                return Some(update);
            }
            if self.is_finished {
                return None;
            }
            if let Err(error) = self.poll_engine(WAIT) {
                return Some(self.fail(error));
            }
        }
    }
}

impl Stream for CompletionStream {
    type Item = Result<StreamUpdate>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<StreamUpdate>>> {
        if let Some(update) = self.take_next() {
            return Poll::Ready(Some(update));
        }
        if !self.is_finished {
            // The waker is set before the poll, so that an update after it wakes the task.
            self.loaded.wakers.set(self.id, task.waker());
            if let Err(error) = self.poll_engine(Duration::ZERO) {
                return Poll::Ready(Some(self.fail(error)));
            }
        }
        match (self.take_next(), self.is_finished) {
            (Some(update), _) => Poll::Ready(Some(update)),
            (None, true) => Poll::Ready(None),
            (None, false) => Poll::Pending,
        }
    }
}

impl Drop for CompletionStream {
    fn drop(&mut self) {
        self.loaded.wakers.remove(self.id);
        if !self.is_finished {
            // An engine that was unloaded has ended it.
            let _ = self.cancel();
        }
    }
}
