//! Requests that no loaded engine has: those of engines that were replaced or unloaded, and those that were refused.
//!
//! A load or unload ends all requests as cancelled. What no poll has taken of them stays pollable by id until the next engine stops.
//! In the old server the queue of updates was a global, which neither `init` nor `deinit` touched. So the last request of each group
//! of old names also stays pollable without an id, until the next request of the group. Its hosts do not look at the answer of a submit, but
//! poll. So a refused request of a group is its last one, too, already ended.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value;

use super::loaded::LoadedEngine;
use crate::api::calls::{PollCommand, poll_left, poll_refused};
use crate::api::request::Endpoint;
use crate::error::{Error, Result};

/// The requests of engines that do not serve any more.
#[derive(Default)]
pub(super) struct LeftRequests(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// Engines that are being stopped.
    ending: Vec<LoadedEngine>,
    /// Of the engine that stopped last, and of `newest`: the updates that no poll has taken, by request.
    updates: BTreeMap<u64, Vec<Value>>,
    /// The last request of each group of old names, by [`Endpoint::old_index`].
    newest: [Option<u64>; 2],
    /// Of each group of old names, the reason why its last request was refused, if it was.
    refused: [Option<RefusedRequest>; 2],
}

/// A request that never began.
struct RefusedRequest {
    error: Error,
    /// A poll has taken its only update.
    is_polled: bool,
}

impl LeftRequests {
    /// A request of an endpoint was accepted, or refused with an error. It is the endpoint's last one.
    pub(super) fn set_refused(&self, endpoint: Endpoint, error: Option<&Error>) {
        let mut left = self.0.lock();
        if let Some(last) = endpoint.old_index().and_then(|index| left.refused.get_mut(index)) {
            *last = error.map(|error| RefusedRequest { error: error.clone(), is_polled: false });
        }
    }

    /// Polls the endpoint's last request, if it was refused.
    pub(super) fn poll_refused(&self, endpoint: Endpoint, command: &PollCommand) -> Option<Value> {
        let mut left = self.0.lock();
        let refused = left.refused.get_mut(endpoint.old_index()?)?.as_mut()?;
        let is_new = !std::mem::replace(&mut refused.is_polled, true);
        Some(poll_refused(is_new.then_some(&refused.error), command))
    }

    /// An engine begins to stop. Its newest requests are the last ones.
    pub(super) fn begin_stop(&self, loaded: &LoadedEngine) {
        let mut left = self.0.lock();
        for endpoint in [Endpoint::Completion, Endpoint::Speculative] {
            let last = endpoint.old_index().and_then(|index| left.newest.get_mut(index));
            if let (Some(last), Some(id)) = (last, loaded.newest(endpoint)) {
                *last = Some(id);
            }
        }
        left.ending.push(loaded.clone());
    }

    /// An engine has stopped. Closes it, keeps the updates of its requests instead of those of the one before, and lets go of it.
    pub(super) fn stopped(&self, loaded: &LoadedEngine) {
        // Under the lock, so that a poll which finds the engine closed finds the updates here.
        let mut left = self.0.lock();
        loaded.close();
        left.ending.retain(|ending| !ending.is(loaded));
        let newest = left.newest;
        left.updates.retain(|id, _| newest.contains(&Some(*id)));
        left.updates.extend(loaded.left_requests());
        // The last request of a group stays known, even if it was polled to its end.
        let last = [Endpoint::Completion, Endpoint::Speculative].map(|endpoint| loaded.newest(endpoint));
        for id in last.into_iter().flatten() {
            left.updates.entry(id).or_default();
        }
    }

    /// The last request of an endpoint.
    pub(super) fn newest(&self, endpoint: Endpoint) -> Option<u64> {
        self.0.lock().newest.get(endpoint.old_index()?).copied().flatten()
    }

    /// Whether this is a request of an engine that does not serve any more.
    pub(super) fn has(&self, id: u64) -> bool {
        let left = self.0.lock();
        left.updates.contains_key(&id) || left.ending.iter().any(|ending| ending.has_request(id))
    }

    /// Polls a request. `command` names it. `None`: it is not here.
    pub(super) fn poll(&self, endpoint: Endpoint, id: u64, command: &PollCommand) -> Option<Result<Value>> {
        loop {
            let ending = {
                let mut left = self.0.lock();
                if let Some(updates) = left.updates.get_mut(&id) {
                    return Some(Ok(poll_left(id, std::mem::take(updates), command)));
                }
                left.ending.iter().find(|ending| ending.has_request(id)).cloned()?
            };
            // Otherwise it has ended meanwhile.
            if let Some(answer) = ending.poll(endpoint, command.clone()) {
                return Some(answer);
            }
        }
    }
}
