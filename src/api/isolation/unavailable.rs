//! Replaces `isolation` on systems that have none. There is no value of [`NoRemoteEngine`].

use std::fs::File;
use std::sync::Arc;

use serde_json::Value;

use crate::api::Function;
use crate::api::loaded::calls::PollSource;
use crate::api::loaded::registry::{RequestRecord, RequestRegistry, UpdateSignal};
use crate::api::wire::load::LoadRequest;
use crate::api::wire::request::{RequestArguments, RequestDefaults};
use crate::engine::{LogitsCallback, Notify};
use crate::error::{Error, Result};
use crate::host::Hook;
use crate::llama::PauseGate;

pub use self::NoIsolationSettings as IsolationSettings;
pub use self::NoRemoteEngine as RemoteEngine;

/// How an engine would be isolated.
pub struct NoIsolationSettings(());

/// An engine in a process of its own.
pub enum NoRemoteEngine {}

impl NoIsolationSettings {
    /// # Errors
    /// Always: this system has no isolation.
    pub fn read(_command: &[u8], _warnings: Vec<String>) -> Result<Self> {
        Err(Error::invalid("isolate: not available on this platform"))
    }

    /// # Errors
    /// Always.
    pub fn share_pauses(&self) -> Result<(PauseGate, File)> {
        Err(Error::invalid("isolate: not available on this platform"))
    }
}

impl NoRemoteEngine {
    pub fn start(
        _settings: NoIsolationSettings,
        _load: LoadRequest,
        _pauses: File,
        _notify: Arc<Notify>,
        _logits: Arc<Hook<LogitsCallback>>,
        _progress: impl FnMut(f32) -> bool,
    ) -> Result<Self> {
        Err(Error::invalid("isolate: not available on this platform"))
    }

    pub fn begin_stop(&self) {
        match *self {}
    }

    pub fn stop(&self) {
        match *self {}
    }

    pub fn close(&self) {
        match *self {}
    }

    pub fn status(&self) -> Value {
        match *self {}
    }

    pub fn call(
        &self,
        _function: Function,
        _request: &[u8],
        _arguments: RequestArguments,
        _announce: &dyn Fn(u64),
    ) -> Result<Value> {
        match *self {}
    }

    pub fn is_open(&self) -> bool {
        match *self {}
    }

    pub fn defaults(&self) -> &RequestDefaults {
        match *self {}
    }
}

impl PollSource for NoRemoteEngine {
    fn requests(&self) -> &RequestRegistry {
        match *self {}
    }

    fn signal(&self) -> &UpdateSignal {
        match *self {}
    }

    fn cancel_record(&self, _record: &RequestRecord) -> Result<bool> {
        match *self {}
    }

    fn end_reasoning_of(&self, _record: &RequestRecord) -> Result<()> {
        match *self {}
    }
}
