//! The configuration of an engine.

#[cfg(feature = "hub")]
use foredraft_base::error::Result;
#[cfg(feature = "hub")]
use foredraft_hub::{Beside, download, is_remote};
use serde::Serialize;
use serde_json::{Map, Value};

/// The models and settings of an engine: the keys of `foredraft_load`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HostConfig(Map<String, Value>);

impl HostConfig {
    /// Loads the GGUF file at this path, with the defaults of all settings.
    pub fn new(model: impl Into<String>) -> Self {
        Self(Map::new()).set("model", model.into())
    }

    /// The path of the draft model.
    #[must_use]
    pub fn model_draft(self, path: impl Into<String>) -> Self {
        self.set("model_draft", path.into())
    }

    /// The tokens that a slot's context holds.
    #[must_use]
    pub fn n_ctx(self, n_ctx: u32) -> Self {
        self.set("n_ctx", n_ctx)
    }

    /// The number of slots: of requests that are decoded in one batch.
    #[must_use]
    pub fn n_parallel(self, n_parallel: u32) -> Self {
        self.set("n_parallel", n_parallel)
    }

    /// The layers of the target that a GPU computes.
    #[must_use]
    pub fn n_gpu_layers(self, n_gpu_layers: u32) -> Self {
        self.set("n_gpu_layers", n_gpu_layers)
    }

    /// Runs the engine in a process of its own, which may end without ending this one. Linux only.
    #[must_use]
    pub fn isolate(self, isolate: bool) -> Self {
        self.set("isolate", isolate)
    }

    /// Any other key of `foredraft_load`.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// The configuration with paths in place of models to download. A drafter beside a target is its draft.
    #[cfg(feature = "hub")]
    pub(super) fn downloaded(&self) -> Result<Self> {
        let mut config = self.clone();
        for key in ["model", "model_draft"] {
            let Some(model) = config.0.get(key).and_then(Value::as_str).filter(|model| is_remote(model)) else {
                continue;
            };
            let asks_draft = key == "model" && !config.0.contains_key("model_draft");
            let beside = if asks_draft { Beside::Draft } else { Beside::Nothing };
            for (found, path) in download(model, beside, &mut |_, _, _| Ok(()))? {
                let key = if found == "model" { key } else { found };
                config.0.insert(key.to_owned(), path.to_string_lossy().into());
            }
        }
        Ok(config)
    }
}
