//! Requests of engines that were replaced or unloaded.
//!
//! A load or unload ends all requests as cancelled. The updates that no poll has taken of them stay pollable until the next engine stops,
//! and those of a kept request until it is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::api::loaded::calls::{PollCommand, poll_left};
use crate::api::loaded::local_engine::LoadedEngine;
use crate::error::Result;

/// The requests of engines that do not serve any more.
#[derive(Default)]
pub(super) struct LeftRequests(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// Engines that are being stopped.
    ending: Vec<Arc<dyn LoadedEngine>>,
    /// The updates that no poll has taken, by request, of the engine that stopped last and of kept requests.
    updates: BTreeMap<u64, Vec<Value>>,
    /// Requests that stay known.
    kept: BTreeSet<u64>,
}

impl LeftRequests {
    /// An engine begins to stop.
    pub(super) fn begin_stop(&self, loaded: &Arc<dyn LoadedEngine>) {
        self.0.lock().ending.push(Arc::clone(loaded));
    }

    /// An engine has stopped. Closes it, keeps the updates of its requests, and lets go of it.
    pub(super) fn stopped(&self, loaded: &Arc<dyn LoadedEngine>) {
        // Under the lock, so that a poll which finds the engine closed finds the updates here.
        let mut left = self.0.lock();
        loaded.close();
        left.ending.retain(|ending| !Arc::ptr_eq(ending, loaded));
        let Left { updates, kept, .. } = &mut *left;
        updates.retain(|id, _| kept.contains(id));
        updates.extend(loaded.left_requests());
        // Kept requests stay known, also if they were polled to their ends.
        for id in kept.iter().filter(|id| loaded.has_request(**id)) {
            updates.entry(*id).or_default();
        }
    }

    /// Keeps a request known in the place of another one, which is released.
    pub(super) fn keep(&self, id: u64, released: Option<u64>) {
        let mut left = self.0.lock();
        left.kept.insert(id);
        if let Some(released) = released {
            left.kept.remove(&released);
        }
    }

    /// Whether this is a request of an engine that does not serve any more.
    pub(super) fn has(&self, id: u64) -> bool {
        let left = self.0.lock();
        left.updates.contains_key(&id) || left.ending.iter().any(|ending| ending.has_request(id))
    }

    /// Polls a request. `command` names it. `None`: it is not here.
    pub(super) fn poll(&self, id: u64, command: &PollCommand) -> Option<Result<Value>> {
        loop {
            let ending = {
                let mut left = self.0.lock();
                if let Some(updates) = left.updates.get_mut(&id) {
                    return Some(Ok(poll_left(id, std::mem::take(updates), command)));
                }
                left.ending.iter().find(|ending| ending.has_request(id)).cloned()?
            };
            // Otherwise it has ended meanwhile.
            if let Some(answer) = ending.poll_while_open(command.clone()) {
                return Some(answer);
            }
        }
    }
}
