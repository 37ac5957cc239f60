//! Requests with and without speculation.

use foredraft::api::JsonEngine;
use foredraft::{Function, Result};
use serde_json::{Map, Value};

/// How a test makes its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `foredraft_*`.
    Foredraft,
    /// `foredraft_*`, with `"speculative": false` in each request that does not name it.
    Plain,
}

impl Endpoint {
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

/// Requests with and without speculation. Both are polled and cancelled alike.
pub trait Requests {
    fn complete_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value>;
    fn submit_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value>;
    fn poll_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value>;
    fn cancel_as(&self, endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value>;
}

impl Requests for JsonEngine {
    fn complete_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value> {
        self.call(Function::Complete, Ok(&endpoint.sent(request)))
    }

    fn submit_as(&self, endpoint: Endpoint, request: &[u8]) -> Result<Value> {
        self.call(Function::Submit, Ok(&endpoint.sent(request)))
    }

    fn poll_as(&self, _endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        self.poll(command)
    }

    fn cancel_as(&self, _endpoint: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        self.cancel(command)
    }
}
