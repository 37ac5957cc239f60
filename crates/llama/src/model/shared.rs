//! Shares a model between all engines of the process that load the same unchanged file with the same settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::platform::{FileIdentity, file_identity, identity_of_descriptor};
use crate::sources::shards;
use crate::{GgufSource, Model, ModelParams, WeightType};
use foredraft_base::error::{Code, Error, Result};

static LOADED: Mutex<Vec<Arc<SharedModel>>> = Mutex::new(Vec::new());

/// The interval at which a load that waits for another load of the same model calls `progress`.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

struct SharedModel {
    key: SharedKey,
    /// Whether its panels may have fewer bits than the file ([`WeightType::Measured`]).
    may_shrink: bool,
    /// Locked while the model is being loaded.
    model: Mutex<Weak<Model>>,
}

impl SharedModel {
    /// Whether its model is the one of a key. A draft model takes one with the file's panels, too, which needs no more memory.
    fn serves(&self, key: &SharedKey, may_shrink: bool) -> bool {
        let has_panels_of_the_file = || {
            // A locked one is being loaded.
            let model = self.model.try_lock().and_then(|model| model.upgrade());
            model.is_some_and(|model| model.weight_layouts().iter().all(|layout| !layout.becomes_smaller))
        };
        self.key == *key && (may_shrink || !self.may_shrink || has_panels_of_the_file())
    }
}

#[derive(PartialEq)]
struct SharedKey {
    /// With canonical paths, and without [`WeightType::Measured`].
    params: ModelParams,
    /// The model's files, then its adapters'.
    files: Vec<ModelFileVersion>,
}

/// File metadata that differs if the file is another one or has changed.
#[derive(PartialEq)]
struct ModelFileVersion {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    /// `None`: unknown.
    identity: Option<FileIdentity>,
}

impl ModelFileVersion {
    fn of(path: &Path) -> Option<ModelFileVersion> {
        let path = fs::canonicalize(path).ok()?;
        let metadata = fs::metadata(&path).ok()?;
        let identity = file_identity(&path);
        Some(ModelFileVersion { path, len: metadata.len(), modified: metadata.modified().ok(), identity })
    }

    fn of_descriptor(fd: i32) -> Option<ModelFileVersion> {
        let (metadata, identity) = identity_of_descriptor(fd)?;
        let modified = metadata.modified().ok();
        Some(ModelFileVersion { path: PathBuf::new(), len: metadata.len(), modified, identity: Some(identity) })
    }
}

impl SharedKey {
    /// `None`: the model is not shared, because it is in memory, or because the metadata of a file cannot be read. The load will report it.
    fn of(params: &ModelParams) -> Option<SharedKey> {
        let mut params = params.clone();
        if may_shrink(&params) {
            params.weights = WeightType::AsInFile;
        }
        let mut files = Vec::new();
        for source in std::iter::once(&mut params.source).chain(params.lora.iter_mut().map(|lora| &mut lora.source)) {
            match source {
                GgufSource::Path(path) => {
                    *path = fs::canonicalize(&path).ok()?;
                    for file in shards::of(path) {
                        files.push(ModelFileVersion::of(&file)?);
                    }
                }
                GgufSource::Descriptor { fd, .. } => {
                    files.push(ModelFileVersion::of_descriptor(*fd)?);
                    // Other descriptors of the same file are equivalent.
                    *fd = -1;
                }
                GgufSource::Memory { .. } => return None,
            }
        }
        Some(SharedKey { params, files })
    }
}

fn may_shrink(params: &ModelParams) -> bool {
    params.weights == WeightType::Measured
}

/// Finds or adds the entry of a key. Entries of unloaded models are removed.
fn entry(key: SharedKey, may_shrink: bool) -> Arc<SharedModel> {
    let mut loaded = LOADED.lock();
    // An entry with other owners is being loaded.
    loaded.retain(|entry| Arc::strong_count(entry) > 1 || entry.model.lock().strong_count() > 0);
    if let Some(entry) = loaded.iter().find(|entry| entry.serves(&key, may_shrink)) {
        return Arc::clone(entry);
    }
    let entry = Arc::new(SharedModel { key, may_shrink, model: Mutex::default() });
    loaded.push(Arc::clone(&entry));
    entry
}

impl Model {
    /// Whether an engine of this process has the model with these settings, so that [`Model::shared`] would load nothing.
    pub fn is_loaded(params: &ModelParams) -> bool {
        let Some(key) = SharedKey::of(params) else { return false };
        let loaded = LOADED.lock();
        let entry = loaded.iter().find(|entry| entry.serves(&key, may_shrink(params)));
        // A locked entry is being loaded.
        entry.is_some_and(|entry| entry.model.try_lock().is_none_or(|model| model.strong_count() > 0))
    }

    /// Returns the model if it is already loaded, else loads it with `load`, which is [`Model::load`] or [`Model::load_draft`]. Waits while
    /// another engine loads the same model. `progress` is called repeatedly, and aborts by returning false.
    ///
    /// # Errors
    /// Those of `load`; [`Code::Cancelled`]: the load was aborted.
    pub fn shared<P: FnMut(f32) -> bool>(
        params: &ModelParams,
        mut progress: P,
        load: impl FnOnce(&ModelParams, P) -> Result<Model>,
    ) -> Result<Arc<Model>> {
        let Some(key) = SharedKey::of(params) else { return Ok(Arc::new(load(params, progress)?)) };
        let entry = entry(key, may_shrink(params));
        let mut model = loop {
            if let Some(model) = entry.model.try_lock_for(POLL_INTERVAL) {
                break model;
            }
            if !progress(0.0) {
                return Err(Error::new(Code::Cancelled, "the load was aborted"));
            }
        };
        if let Some(loaded) = model.upgrade() {
            return Ok(loaded);
        }
        let loaded = Arc::new(load(params, progress)?);
        *model = Arc::downgrade(&loaded);
        Ok(loaded)
    }
}
