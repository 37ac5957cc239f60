//! Properties that hold for any input bytes. Used by the fuzz targets and by unit tests.

use std::path::Path;

use foredraft_ngram::{Cache, CacheLevels, Sizes};

fn written(cache: &Cache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.write(&mut bytes).expect("writing to a vector");
    bytes
}

/// Parses an n-gram cache file: the result is an error with a byte offset, or a cache that can be written, read, merged and
/// drafted from.
pub fn ngram_file(bytes: &[u8]) {
    let path = Path::new("fuzz");
    let mut cache = match Cache::parse(bytes, path, None) {
        Ok(cache) => cache,
        Err(error) => {
            let offset = error.message().strip_prefix("fuzz: byte ").and_then(|rest| rest.split(':').next());
            let offset: usize = offset.and_then(|offset| offset.parse().ok()).expect("the error has a byte offset");
            assert!(offset <= bytes.len(), "{error}");
            return;
        }
    };
    // Writing sorts the n-grams; reading and writing again gives the same bytes.
    let once = written(&cache);
    assert_eq!(written(&Cache::parse(&once, path, None).expect("a written file can be read")), once);
    assert_eq!(once.len() as u64, cache.statistics().file_bytes);

    // Count and draft with the numbers of the file as tokens.
    let tokens: Vec<i32> = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let mut other = Cache::new();
    other.update(&tokens, tokens.len(), Sizes::ALL);
    cache.merge(&other);
    let levels = CacheLevels { context: &other, dynamic: &cache, static_cache: &cache, sizes: Sizes::ALL };
    let mut draft = Vec::new();
    for end in 0..tokens.len().min(64) {
        levels.draft(&tokens[..end], 8, &mut draft);
        assert!(draft.iter().all(|drafted| drafted.token >= 0 && (1..=drafted.total).contains(&drafted.count)));
    }
    Cache::parse(&written(&cache), path, None).expect("a written file can be read");
}
