//! Making caches and files of them: what llama.cpp's `llama-lookup-create` and `llama-lookup-merge` do.

use std::ops::ControlFlow;
use std::path::Path;

use super::bulk::Bulk;
use super::cache::Cache;
use super::key::Sizes;
use crate::error::{Code, Error, Result};

/// Is told how far a long work is, 0..=1, at least every few milliseconds unless a file is being read, and may stop it.
pub type Progress<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// So many tokens are counted, or n-grams added, between two looks at the [`Progress`].
const STEP: usize = 1 << 15;

/// Reports progress; an error when the work is to stop.
pub(super) fn report(progress: &mut Progress, done: usize, all: usize) -> Result<()> {
    match progress(done as f32 / all.max(1) as f32) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::new(Code::Cancelled, "it was stopped")),
    }
}

/// The cache of a text: as [`Cache::update`] with all of it.
///
/// # Errors
/// [`Code::Cancelled`]: `progress` stopped it.
pub fn create(tokens: &[i32], sizes: Sizes, progress: &mut Progress) -> Result<Cache> {
    let mut cache = Cache::new();
    let mut bulk = Bulk::new(&mut cache, sizes, tokens.len());
    for start in (0..tokens.len()).step_by(STEP) {
        report(progress, start, tokens.len())?;
        let end = tokens.len().min(start + STEP);
        bulk.update(tokens.get(..end).unwrap_or(tokens), end - start);
    }
    bulk.finish();
    report(progress, 1, 1)?;
    Ok(cache)
}

/// The sum of caches in files.
///
/// # Errors
/// Those of [`Cache::load`]; [`Code::Cancelled`]: `progress` stopped it.
pub fn merge<P: AsRef<Path>>(files: &[P], n_vocab: Option<usize>, progress: &mut Progress) -> Result<Cache> {
    let mut merged = Cache::new();
    for (done, file) in files.iter().enumerate() {
        report(progress, done, files.len())?;
        let next = Cache::load(file.as_ref(), n_vocab)?;
        if merged.is_empty() {
            merged = next;
            continue;
        }
        for start in (0..next.len()).step_by(STEP) {
            report(progress, done * next.len() + start, files.len() * next.len())?;
            merged.merge_records(&next, start..next.len().min(start + STEP));
        }
    }
    report(progress, 1, 1)?;
    Ok(merged)
}
