//! llama.cpp's n-gram caches, for comparison (feature `peer`): safe wrappers of `ngram.cpp`.
//!
//! Only this file links the archive, so the library never contains it.
#![allow(dead_code)] // each benchmark uses a part

mod sys;

use std::ffi::{CStr, CString};
use std::ops::RangeInclusive;
use std::path::Path;
use std::ptr::NonNull;

use super::host::Result;

/// The size of malloc's allocations in this process, including Rust's, in bytes. 0: unknown.
pub fn heap() -> u64 {
    sys::peer_heap()
}

/// Runs `f`. Also returns the CPU time of this thread in seconds, which other load does not increase. llama.cpp's n-gram caches are
/// measured with the same clock.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = sys::peer_work();
    let value = f();
    (value, sys::peer_work() - start)
}

/// Runs `f`. Also returns the growth of the heap in bytes.
pub fn grown<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = heap();
    let value = f();
    (value, heap().saturating_sub(before))
}

/// An error if a C++ function caught an exception.
fn check(status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: a string of this thread that stays unchanged until the next failure.
    let message = unsafe { CStr::from_ptr(sys::peer_error()) };
    Err(format!("llama.cpp: {}", message.to_string_lossy()).into())
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.to_string_lossy().as_bytes())?)
}

/// A `common_ngram_cache`.
pub struct Cache(NonNull<sys::Cache>);

impl Cache {
    /// An empty cache.
    pub fn new() -> Result<Cache> {
        Ok(Cache(NonNull::new(sys::peer_cache_new()).ok_or("out of memory")?))
    }

    /// Reads a file. Also returns the time in seconds.
    pub fn load(path: &Path) -> Result<(Cache, f64)> {
        let (cache, path, mut seconds) = (Cache::new()?, c_path(path)?, 0.0);
        // SAFETY: all arguments are alive during the call.
        check(unsafe { sys::peer_cache_load(cache.0.as_ptr(), path.as_ptr(), &mut seconds) })?;
        Ok((cache, seconds))
    }

    /// Writes a file. Returns the time in seconds.
    pub fn save(&self, path: &Path) -> Result<f64> {
        let (path, mut seconds) = (c_path(path)?, 0.0);
        // SAFETY: all of them live during the call, which changes nothing.
        check(unsafe { sys::peer_cache_save(self.0.as_ptr(), path.as_ptr(), &mut seconds) })?;
        Ok(seconds)
    }

    /// Adds the counts of another cache. Returns the time in seconds.
    pub fn merge(&mut self, other: &Cache) -> Result<f64> {
        let mut seconds = 0.0;
        // SAFETY: both are alive during the call, and they are different caches. The other one is only read.
        check(unsafe { sys::peer_cache_merge(self.0.as_ptr(), other.0.as_ptr(), &mut seconds) })?;
        Ok(seconds)
    }

    /// Counts the n-grams of a text, `step` tokens at a time as during generation, or all at once (0). Returns the time in seconds.
    pub fn update(&mut self, tokens: &[i32], sizes: RangeInclusive<i32>, step: u64) -> Result<f64> {
        let mut seconds = 0.0;
        let (n, least, most) = (tokens.len() as u64, *sizes.start(), *sizes.end());
        // SAFETY: the cache is alive, and the number of tokens is correct.
        check(unsafe { sys::peer_cache_update(self.0.as_ptr(), tokens.as_ptr(), n, least, most, step, &mut seconds) })?;
        Ok(seconds)
    }

    /// The number of n-grams.
    pub fn len(&self) -> u64 {
        // SAFETY: the cache is alive.
        unsafe { sys::peer_cache_size(self.0.as_ptr()) }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: it is alive, and not used afterwards.
        unsafe { sys::peer_cache_free(self.0.as_ptr()) }
    }
}

/// Whether the drafting rule allows a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Some order of the entries with equal scores allows the token.
    Yes,
    /// Unknown, because llama.cpp's product of two counts overflows its `int` here.
    Overflow,
    /// No order allows the token.
    No,
}

/// The numbers of `llama-lookup-stats`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct LookupStats {
    pub n_predict: u64,
    pub n_drafted: u64,
    pub n_accept: u64,
    pub draft_seconds: f64,
}

/// The three caches for drafting.
pub struct Caches {
    pub context: Cache,
    pub dynamic: Cache,
    pub fixed: Cache,
}

impl Caches {
    /// Drafts at most `n_draft` tokens after each position from `from` on, padded with -1. Also returns the time in seconds. With `learn`, the
    /// context cache adds each token after the draft at its position; the time includes that.
    pub fn drafts(&mut self, tokens: &[i32], from: usize, n_draft: usize, learn: bool) -> Result<(Vec<i32>, f64)> {
        let mut drafts = vec![-1; tokens.len().saturating_sub(from) * n_draft];
        let mut seconds = 0.0;
        // SAFETY: the three caches are alive, the number of tokens is correct, and the buffer has the required size.
        check(unsafe {
            sys::peer_cache_drafts(
                self.context.0.as_ptr(),
                self.dynamic.0.as_ptr(),
                self.fixed.0.as_ptr(),
                tokens.as_ptr(),
                tokens.len() as u64,
                from as u64,
                i32::try_from(n_draft)?,
                learn.into(),
                drafts.as_mut_ptr(),
                &mut seconds,
            )
        })?;
        Ok((drafts, seconds))
    }

    /// Whether `token` may be drafted after a text. -1: whether the draft may end.
    pub fn may_draft(&self, tokens: &[i32], token: i32) -> Result<May> {
        // SAFETY: as in `drafts`. Nothing is changed.
        let answer = unsafe {
            sys::peer_cache_may_draft(
                self.context.0.as_ptr(),
                self.dynamic.0.as_ptr(),
                self.fixed.0.as_ptr(),
                tokens.as_ptr(),
                tokens.len() as u64,
                token,
            )
        };
        match answer {
            0 => Ok(May::No),
            1 => Ok(May::Yes),
            2 => Ok(May::Overflow),
            _ => Err(check(1).err().unwrap_or_else(|| "peer_cache_may_draft failed".into())),
        }
    }

    /// The numbers of `llama-lookup-stats` for a text. The text is added to the dynamic cache.
    pub fn stats(&mut self, tokens: &[i32], n_ctx: usize, n_draft: usize) -> Result<LookupStats> {
        let mut stats = LookupStats::default();
        // SAFETY: as in `drafts`.
        check(unsafe {
            sys::peer_cache_stats(
                self.dynamic.0.as_ptr(),
                self.fixed.0.as_ptr(),
                tokens.as_ptr(),
                tokens.len() as u64,
                n_ctx as u64,
                i32::try_from(n_draft)?,
                &mut stats,
            )
        })?;
        Ok(stats)
    }
}
