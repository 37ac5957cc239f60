//! The requests of a server by id: running ones, and finished ones that have not been polled to their end.

mod record;
mod update_signal;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

pub(super) use self::record::{CompletionRecord, PolledTokens, RequestRecord};
pub(super) use self::update_signal::{UpdateSignal, notify_and_signal};
use super::request::Endpoint;
use crate::error::{Code, Error, Result};

/// The maximum number of finished requests whose results wait to be polled. Beyond it, those that finished first are dropped.
pub const MAX_UNPOLLED: usize = 256;
/// The maximum number of requests that were polled to their end and are still reported as `finished`, without results.
pub const MAX_ENDED: usize = 4096;

/// All requests of a server.
#[derive(Default)]
pub(super) struct RequestRegistry {
    entries: Mutex<RegistryEntries>,
}

#[derive(Default)]
struct RegistryEntries {
    /// By id. Ids ascend in the order of submission.
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Ids of requests that were polled to their end.
    ended: VecDeque<u64>,
    /// For each old endpoint, the newest request that is not awaited.
    newest: [Option<u64>; 2],
}

/// The result of looking up a request.
pub(super) enum FoundRequest {
    /// Its updates can be taken.
    Live(Arc<RequestRecord>),
    /// It was polled to its end.
    Ended,
}

/// The index of an endpoint in [`RegistryEntries::newest`]. `foredraft_*` functions always name a request by its id.
fn newest_index(endpoint: Endpoint) -> Option<usize> {
    match endpoint {
        Endpoint::Completion => Some(0),
        Endpoint::Speculative => Some(1),
        Endpoint::Foredraft => None,
    }
}

impl RequestRegistry {
    /// Adds a request. It becomes its endpoint's newest one unless it is awaited.
    pub(super) fn add(&self, record: Arc<RequestRecord>) {
        let mut entries = self.entries.lock();
        let id = record.handle.id();
        if !record.is_awaited
            && let Some(newest) = newest_index(record.endpoint).and_then(|index| entries.newest.get_mut(index))
        {
            // Two threads that submit at the same time can arrive here in the reverse order.
            *newest = (*newest).max(Some(id));
        }
        entries.records.insert(id, record);
        let mut ended: Vec<_> =
            entries.records.iter().filter_map(|(id, record)| Some((record.handle.ended()?, *id))).collect();
        let surplus = ended.len().saturating_sub(MAX_UNPOLLED);
        if surplus > 0 {
            ended.sort_unstable();
        }
        for (_, id) in ended.iter().take(surplus) {
            entries.records.remove(id);
        }
    }

    /// The id of the endpoint's newest request.
    pub(super) fn newest(&self, endpoint: Endpoint) -> Option<u64> {
        self.entries.lock().newest.get(newest_index(endpoint)?).copied().flatten()
    }

    /// Finds a request.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub(super) fn find(&self, id: u64) -> Result<FoundRequest> {
        let entries = self.entries.lock();
        if let Some(record) = entries.records.get(&id) {
            return Ok(FoundRequest::Live(Arc::clone(record)));
        }
        if entries.ended.contains(&id) {
            return Ok(FoundRequest::Ended);
        }
        Err(no_such_request(id))
    }

    /// Marks a request as polled to its end and drops its results.
    pub(super) fn end(&self, id: u64) {
        let mut entries = self.entries.lock();
        if entries.records.remove(&id).is_some() {
            entries.ended.push_back(id);
        }
        while entries.ended.len() > MAX_ENDED {
            entries.ended.pop_front();
        }
    }
}

/// The error for an id that no request of this engine has, or no longer has.
pub(super) fn no_such_request(id: u64) -> Error {
    Error::new(Code::NotFound, format!("id: there is no request {id}"))
}
