//! The groups of functions by which hosts make requests: the old server's two, and the engine's own.

use foredraft::api::{Endpoint as OldEndpoint, JsonEngine, OldServer};
use foredraft::{Function, Result};
use serde_json::Value;

/// A group of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `get_completion`, `async_completion_*`.
    Completion,
    /// `speculative_completion*`.
    Speculative,
    /// `foredraft_*`.
    Foredraft,
}

impl Endpoint {
    /// The old server's group.
    fn old(self) -> Option<OldEndpoint> {
        match self {
            Endpoint::Completion => Some(OldEndpoint::Completion),
            Endpoint::Speculative => Some(OldEndpoint::Speculative),
            Endpoint::Foredraft => None,
        }
    }
}

/// Requests through a group of functions.
pub trait Requests {
    fn complete_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value>;
    fn submit_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value>;
    fn poll_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value>;
    fn cancel_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value>;
}

impl Requests for JsonEngine {
    fn complete_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value> {
        match endpoint.old() {
            Some(old) => OldServer::new(self.clone()).complete(old, Ok(request)),
            None => self.call(Function::Complete, Ok(request)),
        }
    }

    fn submit_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value> {
        match endpoint.old() {
            Some(old) => OldServer::new(self.clone()).submit(old, Ok(request)),
            None => self.call(Function::Submit, Ok(request)),
        }
    }

    fn poll_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        match endpoint.old() {
            Some(old) => OldServer::new(self.clone()).poll(old, command),
            None => self.poll(command),
        }
    }

    fn cancel_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        match endpoint.old() {
            Some(old) => OldServer::new(self.clone()).cancel(old, command),
            None => self.cancel(command),
        }
    }
}
