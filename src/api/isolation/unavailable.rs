//! Replaces `isolation` on systems that have none.

use std::sync::Arc;

use crate::api::loaded::local_engine::LoadedEngine;
use crate::api::loaded::pauses::HostPauses;
use crate::api::wire::load::LoadRequest;
use crate::engine::{LogitsCallback, Notify};
use crate::error::{Error, Result};
use crate::host::Hook;

/// # Errors
/// Always: this system has no isolation.
pub fn start(
    _command: &[u8],
    _warnings: Vec<String>,
    _load: LoadRequest,
    _pauses: &Arc<HostPauses>,
    _notify: Arc<Notify>,
    _logits: Arc<Hook<LogitsCallback>>,
    _progress: impl FnMut(f32) -> bool,
) -> Result<Arc<dyn LoadedEngine>> {
    Err(Error::invalid("isolate: not available on this platform"))
}
