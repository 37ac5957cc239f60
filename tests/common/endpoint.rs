//! The functions by which hosts make requests: the engine's own, and the old server's two groups.

use foredraft::api::{Endpoint as OldEndpoint, JsonEngine, OldServer};
use foredraft::{Function, Result};
use serde_json::{Map, Value};

/// A group of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `foredraft_*`.
    Foredraft,
    /// `foredraft_*`, with `"speculative": false` in each request that does not name it.
    Plain,
    /// `get_completion`, `async_completion_*`. For the old server's tests.
    Completion,
    /// `speculative_completion*`. For the old server's tests.
    Speculative,
}

impl Endpoint {
    /// The old server's group.
    fn old(self) -> Option<OldEndpoint> {
        match self {
            Endpoint::Completion => Some(OldEndpoint::Completion),
            Endpoint::Speculative => Some(OldEndpoint::Speculative),
            Endpoint::Foredraft | Endpoint::Plain => None,
        }
    }

    /// A request as it is sent.
    fn sent(self, request: &[u8]) -> Vec<u8> {
        match serde_json::from_slice::<Map<String, Value>>(request) {
            Ok(mut object) if self == Endpoint::Plain && !object.keys().any(|key| key.starts_with("speculative")) => {
                object.insert("speculative".into(), false.into());
                Value::from(object).to_string().into_bytes()
            }
            _ => request.to_owned(),
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
            None => self.call(Function::Complete, Ok(&endpoint.sent(request))),
        }
    }

    fn submit_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value> {
        match endpoint.old() {
            Some(old) => OldServer::new(self.clone()).submit(old, Ok(request)),
            None => self.call(Function::Submit, Ok(&endpoint.sent(request))),
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
