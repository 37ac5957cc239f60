//! Parses any bytes as an n-gram cache file.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks.rs"]
mod checks;

fuzz_target!(|bytes: &[u8]| checks::ngram_file(bytes));
