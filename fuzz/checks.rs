//! What is to hold of any bytes; for the fuzz targets, and for unit tests, which also see to it that this compiles.

use std::path::Path;

use crate::ngram::{Cache, Levels, Sizes};

fn written(cache: &Cache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.write(&mut bytes).expect("a vector takes everything");
    bytes
}

/// An n-gram cache file: an error that names a byte of it, or a cache that is written, read, changed and asked.
pub fn ngram_file(bytes: &[u8]) {
    let path = Path::new("fuzz");
    let mut cache = match Cache::parse(bytes, path, None) {
        Ok(cache) => cache,
        Err(error) => {
            let offset = error.message().strip_prefix("fuzz: byte ").and_then(|rest| rest.split(':').next());
            let offset: usize = offset.and_then(|offset| offset.parse().ok()).expect("a byte is named");
            assert!(offset <= bytes.len(), "{error}");
            return;
        }
    };
    // What is read is written in order, and then always the same.
    let once = written(&cache);
    assert_eq!(written(&Cache::parse(&once, path, None).expect("it was written")), once);
    assert_eq!(once.len() as u64, cache.statistics().file_bytes);

    // Its own numbers as a text: whatever they are, counting and drafting works.
    let text: Vec<i32> = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let mut other = Cache::new();
    other.update(&text, text.len(), Sizes::ALL);
    cache.merge(&other);
    let levels = Levels { context: &other, dynamic: &cache, static_cache: &cache, sizes: Sizes::ALL };
    let mut draft = Vec::new();
    for end in 0..text.len().min(64) {
        levels.draft(&text[..end], 8, &mut draft);
        assert!(draft.iter().all(|drafted| drafted.token >= 0 && (1..=drafted.total).contains(&drafted.count)));
    }
    Cache::parse(&written(&cache), path, None).expect("it was written");
}
