//! The engine that the typed interface wraps, and the tasks that wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use serde_json::json;

use super::config::HostConfig as Config;
use crate::api::JsonEngine;
use foredraft_base::error::Result;

/// The state that clones of an engine and its streams share.
pub(super) struct LoadedModel {
    pub(super) engine: JsonEngine,
    /// The tasks that wait for updates of streams.
    pub(super) wakers: Arc<Wakers>,
}

impl LoadedModel {
    /// An engine without a model yet.
    pub(super) fn new() -> LoadedModel {
        let (engine, wakers) = (JsonEngine::new(), Arc::<Wakers>::default());
        let woken = Arc::clone(&wakers);
        engine.set_update_hook(Some(Box::new(move |id| woken.wake(id))));
        LoadedModel { engine, wakers }
    }

    /// Loads the models of a configuration, and downloads them before if that is needed.
    pub(super) fn load(&self, config: &Config) -> Result<()> {
        #[cfg(feature = "hub")]
        let config = &config.downloaded()?;
        self.engine.load(json!(config).to_string().as_bytes())
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        self.engine.close();
    }
}

/// The tasks that wait for updates, by request.
#[derive(Default)]
pub(super) struct Wakers(Mutex<HashMap<u64, Waker>>);

impl Wakers {
    /// A request has an update, or has ended.
    pub(super) fn wake(&self, id: u64) {
        let waker = self.0.lock().remove(&id);
        // The lock is free, because a waker may run the task.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn set(&self, id: u64, waker: &Waker) {
        self.0.lock().insert(id, waker.clone());
    }

    pub(super) fn remove(&self, id: u64) {
        self.0.lock().remove(&id);
    }
}
