//! The declarations of the C++ functions in this folder.

use std::ffi::c_char;

#[repr(C)]
pub struct Cache([u8; 0]);
#[repr(C)]
pub struct Models([u8; 0]);
#[repr(C)]
pub struct Request {
    pub prompt: *const i32,
    pub n_prompt: u64,
    pub kind: *const c_char,
    pub lookup_static: *const c_char,
    pub n_predict: i32,
    pub n_max: i32,
    pub temperature: f32,
    pub p_min: f32,
    pub seed: u32,
    pub probabilistic: i32,
    pub ignore_eos: i32,
    pub text: *const i32,
}

#[link(name = "foredraft_peer", kind = "static")]
unsafe extern "C" {
    pub safe fn peer_error() -> *const c_char;
    pub safe fn peer_heap() -> u64;
    pub safe fn peer_work() -> f64;
    pub safe fn peer_cache_new() -> *mut Cache;
    pub fn peer_cache_free(cache: *mut Cache);
    pub fn peer_cache_size(cache: *const Cache) -> u64;
    pub fn peer_cache_load(cache: *mut Cache, path: *const c_char, seconds: *mut f64) -> i32;
    pub fn peer_cache_save(cache: *mut Cache, path: *const c_char, seconds: *mut f64) -> i32;
    pub fn peer_cache_merge(cache: *mut Cache, other: *mut Cache, seconds: *mut f64) -> i32;
    pub fn peer_cache_update(
        cache: *mut Cache,
        tokens: *const i32,
        n: u64,
        ngram_min: i32,
        ngram_max: i32,
        step: u64,
        seconds: *mut f64,
    ) -> i32;
    pub fn peer_cache_drafts(
        context: *mut Cache,
        dynamic: *mut Cache,
        fixed: *mut Cache,
        tokens: *const i32,
        n: u64,
        from: u64,
        n_draft: i32,
        learn: i32,
        drafts: *mut i32,
        seconds: *mut f64,
    ) -> i32;
    pub fn peer_cache_may_draft(
        context: *const Cache,
        dynamic: *const Cache,
        fixed: *const Cache,
        tokens: *const i32,
        n: u64,
        token: i32,
    ) -> i32;
    pub fn peer_cache_stats(
        dynamic: *mut Cache,
        fixed: *mut Cache,
        tokens: *const i32,
        n: u64,
        n_ctx: u64,
        n_draft: i32,
        stats: *mut super::LookupStats,
    ) -> i32;
    pub fn peer_models_load(
        target: *const c_char,
        draft: *const c_char,
        settings: *const super::Settings,
        models: *mut *mut Models,
    ) -> i32;
    pub fn peer_models_free(models: *mut Models);
    pub fn peer_generate(
        models: *mut Models,
        request: *const Request,
        tokens: *mut i32,
        outcome: *mut super::Outcome,
    ) -> i32;
    pub fn peer_batch_seconds(
        models: *mut Models,
        draft: i32,
        n: i32,
        past: i32,
        repetitions: i32,
        seconds: *mut f64,
    ) -> i32;
}
