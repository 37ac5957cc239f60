//! Any bytes as an n-gram cache file.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks.rs"]
mod checks;
#[allow(dead_code)]
#[path = "../../src/error.rs"]
mod error;
#[allow(dead_code, unused_imports)]
#[path = "../../src/ngram/mod.rs"]
mod ngram;
#[allow(dead_code)]
#[path = "../../src/atomic_write.rs"]
mod atomic_write;

fuzz_target!(|bytes: &[u8]| checks::ngram_file(bytes));
