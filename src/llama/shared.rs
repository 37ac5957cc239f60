//! Models that are in memory once, however many engines of the process load them: those of the same file, not changed
//! since, with the same settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::{GgufSource, Model, ModelParams, shards};
use crate::error::{Code, Error, Result};

static LOADED: Mutex<Vec<Arc<SharedModel>>> = Mutex::new(Vec::new());

/// How often a load that waits for another one of the same model asks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(20);

struct SharedModel {
    key: SharedKey,
    /// Locked while the model is being loaded.
    model: Mutex<Weak<Model>>,
}

#[derive(PartialEq)]
struct SharedKey {
    /// With resolved paths.
    params: ModelParams,
    /// The model's files, then its adapters'.
    files: Vec<FileVersion>,
}

/// What shows that a file is another one or was changed.
#[derive(PartialEq)]
struct FileVersion {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    /// Device and number; 0 where there is no such thing.
    inode: (u64, u64),
}

impl FileVersion {
    fn of(path: &Path) -> Option<FileVersion> {
        let path = fs::canonicalize(path).ok()?;
        let metadata = fs::metadata(&path).ok()?;
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let inode = (0, 0);
        Some(FileVersion { path, len: metadata.len(), modified: metadata.modified().ok(), inode })
    }

    /// `None` for a file without a name: writing to a mapping of a memfd does not change its time.
    #[cfg(unix)]
    fn of_descriptor(fd: i32) -> Option<FileVersion> {
        use std::os::unix::fs::MetadataExt;
        // `metadata` follows the link to the open file, also where its name is gone.
        let metadata = fs::metadata(format!("/proc/self/fd/{fd}")).ok().filter(|file| file.nlink() > 0)?;
        let inode = (metadata.dev(), metadata.ino());
        Some(FileVersion { path: PathBuf::new(), len: metadata.len(), modified: metadata.modified().ok(), inode })
    }

    #[cfg(not(unix))]
    fn of_descriptor(_: i32) -> Option<FileVersion> {
        None
    }
}

impl SharedKey {
    /// `None`: the model is not shared, because it is in memory, or a file cannot be looked at, which the load will report.
    fn of(params: &ModelParams) -> Option<SharedKey> {
        let mut params = params.clone();
        let mut files = Vec::new();
        for source in std::iter::once(&mut params.source).chain(params.lora.iter_mut().map(|lora| &mut lora.source)) {
            match source {
                GgufSource::Path(path) => {
                    *path = fs::canonicalize(&path).ok()?;
                    for file in shards::of(path) {
                        files.push(FileVersion::of(&file)?);
                    }
                }
                GgufSource::Descriptor { fd, .. } => {
                    files.push(FileVersion::of_descriptor(*fd)?);
                    // Another descriptor of the same file is as good.
                    *fd = -1;
                }
                GgufSource::Memory { .. } => return None,
            }
        }
        Some(SharedKey { params, files })
    }
}

/// The entry of that key, made if there is none; those of models that are gone are dropped.
fn entry(key: SharedKey) -> Arc<SharedModel> {
    let mut loaded = LOADED.lock();
    // One that others hold is being loaded.
    loaded.retain(|entry| Arc::strong_count(entry) > 1 || entry.model.lock().strong_count() > 0);
    if let Some(entry) = loaded.iter().find(|entry| entry.key == key) {
        return Arc::clone(entry);
    }
    let entry = Arc::new(SharedModel { key, model: Mutex::default() });
    loaded.push(Arc::clone(&entry));
    entry
}

impl Model {
    /// The model that `load` would load, from memory when it is there. `load` is [`Model::load`] or [`Model::load_draft`];
    /// `progress` is called now and then and aborts by returning false. Waits while another engine loads the same model.
    ///
    /// # Errors
    /// Those of `load`; the load was aborted ([`Code::Cancelled`]).
    pub fn shared<P: FnMut(f32) -> bool>(
        params: &ModelParams,
        mut progress: P,
        load: impl FnOnce(&ModelParams, P) -> Result<Model>,
    ) -> Result<Arc<Model>> {
        let Some(key) = SharedKey::of(params) else { return Ok(Arc::new(load(params, progress)?)) };
        let entry = entry(key);
        let mut place = loop {
            if let Some(place) = entry.model.try_lock_for(GLANCE) {
                break place;
            }
            if !progress(0.0) {
                return Err(Error::new(Code::Cancelled, "the load was aborted"));
            }
        };
        if let Some(model) = place.upgrade() {
            return Ok(model);
        }
        let model = Arc::new(load(params, progress)?);
        *place = Arc::downgrade(&model);
        Ok(model)
    }
}
