//! llama.cpp's n-gram caches and speculation, for comparison (feature `peer`): safe wrappers of the C++ files in this folder.
//!
//! Only this file links the archive, so the library never contains it.
#![allow(dead_code)] // each benchmark uses a part

mod sys;

use std::ffi::{CStr, CString};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};

use llama_cpp_sys_2 as _; // contains libllama-common.a

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

/// The settings of the contexts.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub n_ctx: i32,
    pub n_threads: i32,
    pub n_threads_draft: i32,
    /// The polling level of idle threads, 0..=100. llama.cpp's default is 50.
    pub poll: i32,
    /// Flash attention is left to llama.cpp's default (on). If false, it is off.
    pub flash_attn: bool,
}

/// A generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// llama.cpp's name of the drafter. `none`: no speculation.
    pub kind: &'static str,
    /// The file of the static cache of `ngram-cache`.
    pub lookup_static: Option<PathBuf>,
    pub n_predict: usize,
    /// The maximum draft length. 0: llama.cpp's default for the type.
    pub n_max: i32,
    /// 0: greedy.
    pub temperature: f32,
    pub p_min: f32,
    pub seed: u32,
    /// Lets `draft-simple` use rejection sampling instead of comparing.
    pub probabilistic: bool,
    pub ignore_eos: bool,
    /// `n_predict` tokens that replace the sampled ones, because the text of another seed may be much easier to draft.
    pub text: Option<Vec<i32>>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            kind: "none",
            lookup_static: None,
            n_predict: 64,
            n_max: 0,
            temperature: 0.0,
            p_min: 0.0,
            seed: 1,
            probabilistic: false,
            ignore_eos: false,
            text: None,
        }
    }
}

/// The result of a generation, without the time for the prompt.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    pub n_tokens: u64,
    pub n_steps: u64,
    pub n_drafted: u64,
    pub n_accepted: u64,
    pub seconds: f64,
}

/// A target and optionally its draft, loaded once for many generations.
pub struct Models(NonNull<sys::Models>);

impl Models {
    /// Loads them.
    pub fn load(target: &Path, draft: Option<&Path>, settings: Settings) -> Result<Models> {
        let target = c_path(target)?;
        let draft = draft.map(c_path).transpose()?;
        let mut models = null_mut();
        let draft = draft.as_ref().map_or(null(), |draft| draft.as_ptr());
        // SAFETY: all arguments are alive during the call. NULL means no draft.
        check(unsafe { sys::peer_models_load(target.as_ptr(), draft, &settings, &mut models) })?;
        Ok(Models(NonNull::new(models).ok_or("no models")?))
    }

    /// Continues a prompt, from empty contexts.
    pub fn generate(&mut self, prompt: &[i32], request: &Request) -> Result<(Vec<i32>, Outcome)> {
        let kind = CString::new(request.kind)?;
        let lookup = request.lookup_static.as_deref().map(c_path).transpose()?;
        if request.text.as_ref().is_some_and(|text| text.len() != request.n_predict) {
            return Err("a text of another length than n_predict".into());
        }
        let mut tokens = vec![0; request.n_predict];
        let mut outcome = Outcome::default();
        let request = sys::Request {
            prompt: prompt.as_ptr(),
            n_prompt: prompt.len() as u64,
            kind: kind.as_ptr(),
            lookup_static: lookup.as_ref().map_or(null(), |path| path.as_ptr()),
            n_predict: i32::try_from(request.n_predict)?,
            n_max: request.n_max,
            temperature: request.temperature,
            p_min: request.p_min,
            seed: request.seed,
            probabilistic: request.probabilistic.into(),
            ignore_eos: request.ignore_eos.into(),
            text: request.text.as_ref().map_or(null(), |text| text.as_ptr()),
        };
        // SAFETY: the models are alive, and the prompt has the given length. A text has `n_predict` tokens, and at most `n_predict` tokens
        // are read or written.
        check(unsafe { sys::peer_generate(self.0.as_ptr(), &request, tokens.as_mut_ptr(), &mut outcome) })?;
        tokens.truncate(usize::try_from(outcome.n_tokens)?);
        Ok((tokens, outcome))
    }

    /// The median time in seconds of decoding `n` tokens at once after `past` others, by the target or by the draft.
    pub fn batch_seconds(&mut self, draft: bool, n: usize, past: usize, repetitions: usize) -> Result<f64> {
        let (n, past, repetitions) = (i32::try_from(n)?, i32::try_from(past)?, i32::try_from(repetitions)?);
        let mut seconds = 0.0;
        // SAFETY: the models are alive.
        check(unsafe { sys::peer_batch_seconds(self.0.as_ptr(), draft.into(), n, past, repetitions, &mut seconds) })?;
        Ok(seconds)
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        // SAFETY: they are alive, and not used afterwards.
        unsafe { sys::peer_models_free(self.0.as_ptr()) }
    }
}
