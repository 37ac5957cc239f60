//! The newest requests of the old names, after their engine was replaced or unloaded.
//!
//! In the old server the queue of updates was a global, which neither `init` nor `deinit` touched. So the last request of each group
//! stays pollable without an id, ended as cancelled, until the next request of the group.

use parking_lot::Mutex;
use serde_json::Value;

use super::loaded::LoadedEngine;
use crate::api::calls::{LeftRequest, PollCommand};
use crate::api::request::Endpoint;
use crate::error::Result;

/// The last request of each group, by [`Endpoint::old_index`].
#[derive(Default)]
pub(super) struct LastRequests(Mutex<[Option<LastRequest>; 2]>);

enum LastRequest {
    /// Its engine is being stopped.
    Ending(LoadedEngine),
    /// Its engine has stopped.
    Ended(LeftRequest),
}

impl LastRequests {
    /// An engine begins to stop. Its newest requests are the last ones.
    pub(super) fn begin_stop(&self, loaded: &LoadedEngine) {
        Self::each(&mut self.0.lock(), |endpoint, last| {
            if loaded.has_newest(endpoint) {
                *last = Some(LastRequest::Ending(loaded.clone()));
            }
        });
    }

    /// An engine has stopped. Closes it, keeps the updates of its last requests, and lets go of it.
    pub(super) fn stopped(&self, loaded: &LoadedEngine) {
        // Under the lock, so that a poll which finds the engine closed finds the updates here.
        let mut all = self.0.lock();
        loaded.close();
        Self::each(&mut all, |endpoint, last| {
            if matches!(last, Some(LastRequest::Ending(ending)) if ending.is(loaded)) {
                *last = loaded.left_request(endpoint).map(LastRequest::Ended);
            }
        });
    }

    /// Polls the last request of an endpoint. `None`: there is none.
    pub(super) fn poll(&self, endpoint: Endpoint, command: &PollCommand) -> Option<Result<Value>> {
        loop {
            let ending = match self.0.lock().get_mut(endpoint.old_index()?)?.as_mut()? {
                LastRequest::Ended(left) => return Some(Ok(left.poll(command.clone()))),
                LastRequest::Ending(loaded) => loaded.clone(),
            };
            // Otherwise it has ended meanwhile.
            if let Some(answer) = ending.poll(endpoint, command.clone()) {
                return Some(answer);
            }
        }
    }

    fn each(all: &mut [Option<LastRequest>; 2], mut change: impl FnMut(Endpoint, &mut Option<LastRequest>)) {
        for endpoint in [Endpoint::Completion, Endpoint::Speculative] {
            if let Some(last) = endpoint.old_index().and_then(|index| all.get_mut(index)) {
                change(endpoint, last);
            }
        }
    }
}
