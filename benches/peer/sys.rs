//! The declarations of the C++ functions in this folder.

use std::ffi::c_char;

#[repr(C)]
pub struct Cache([u8; 0]);

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
}
