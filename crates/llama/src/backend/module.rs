//! The facts about a module of a GPU's backend.

use std::path::PathBuf;

/// A module with a backend of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendModule {
    /// Its file.
    pub path: PathBuf,
    /// Whether it is used, or why not. `None`: there is no such file.
    pub use_or_error: Option<Result<(), String>>,
}
