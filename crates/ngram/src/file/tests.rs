use std::io::BufReader;
use std::path::Path;

use proptest::prelude::*;

use super::super::{Cache, Sizes};
use super::CacheFileReader;
use crate::tests::naive::cache_and_naive;
use foredraft_base::error::Code;

#[path = "../../../../fuzz/checks.rs"]
mod checks;

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn parse(numbers: &[i32]) -> foredraft_base::error::Result<Cache> {
    Cache::parse(&bytes(numbers), Path::new("memory"), None)
}

fn written(cache: &Cache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.write(&mut bytes).unwrap();
    bytes
}

proptest! {
    /// Written files match the format, sorted; reading gives the same cache.
    #[test]
    fn files_round_trip(text in prop::collection::vec(0..7_i32, 0..300), min in 1..=4_usize) {
        let (cache, naive) = cache_and_naive(&text, &[], (min, 4));
        let bytes = written(&cache);
        prop_assert_eq!(&bytes, &naive.bytes());
        let mut read = Cache::parse(&bytes, Path::new("memory"), None).unwrap();
        naive.check(&read);
        prop_assert_eq!(written(&read), bytes);
        // A loaded cache can be updated.
        let mut more = naive;
        read.update(&text, text.len(), Sizes::ALL);
        more.update(&text, text.len(), 1, 4);
        more.check(&read);
    }

    /// Numbers that are often valid.
    #[test]
    fn almost_valid_files_give_an_error_or_a_valid_cache(
        numbers in prop::collection::vec(prop::sample::select(vec![-2, -1, -1, 0, 1, 1, 2, 3, i32::MAX, i32::MIN]), 0..60),
        truncated in 0..4_usize,
    ) {
        let bytes = bytes(&numbers);
        checks::ngram_file(&bytes[..bytes.len().saturating_sub(truncated)]);
    }

    #[test]
    fn any_bytes_give_an_error_or_a_valid_cache(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        checks::ngram_file(&bytes);
    }

    /// Changing one number of a valid file gives an error or a different file.
    #[test]
    fn changed_number_is_detected_or_read(text in prop::collection::vec(0..5_i32, 3..40), at in any::<prop::sample::Index>(), wrong in any::<i32>()) {
        let (cache, _) = cache_and_naive(&text, &[], (1, 4));
        let mut bytes = written(&cache);
        let at = at.index(bytes.len() / 4) * 4;
        bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        checks::ngram_file(&bytes);
        if let Err(error) = Cache::parse(&bytes, Path::new("memory"), None) {
            prop_assert_eq!(error.code(), Code::InvalidRequest);
            let (_, rest) = error.message().split_once("memory: byte ").expect("the file and the offset");
            let offset: usize = rest.split(':').next().unwrap().parse().unwrap();
            prop_assert!(offset <= bytes.len() && offset + 20 > at, "byte {} is wrong: {}", at, error);
        }
    }
}

#[test]
fn written_bytes_match_the_format() {
    let (cache, _) = cache_and_naive(&[3, 1, 2, 3, 1, 4], &[], (2, 3));
    let expected = [
        [1, 2, -1, -1, 1, 3, 1].as_slice(),
        &[1, 2, 3, -1, 1, 1, 1],
        &[2, 3, -1, -1, 1, 1, 1],
        &[2, 3, 1, -1, 1, 4, 1],
        &[3, 1, -1, -1, 2, 2, 1, 4, 1],
        &[3, 1, 2, -1, 1, 3, 1],
    ];
    assert_eq!(written(&cache), bytes(&expected.concat()));
    assert!(written(&Cache::new()).is_empty());
    assert!(parse(&[]).unwrap().is_empty());
}

#[test]
fn first_of_equal_keys_and_tokens_counts() {
    let cache = parse(
        &[
            [1, -1, -1, -1, 3, 7, 2, 5, 1, 7, 9].as_slice(), // token 7 twice
            &[2, -1, -1, -1, 1, 1, 1],
            &[1, -1, -1, -1, 1, 8, 8], // the key again
            &[3, -1, -1, -1, 1, 4, 6],
        ]
        .concat(),
    );
    let cache = cache.unwrap();
    let expected = [[1, -1, -1, -1, 2, 5, 1, 7, 2].as_slice(), &[2, -1, -1, -1, 1, 1, 1], &[3, -1, -1, -1, 1, 4, 6]];
    assert_eq!(written(&cache), bytes(&expected.concat()));
    assert_eq!((cache.len(), cache.get(&[3]).unwrap().best.token), (3, 4));
}

#[test]
fn damage_is_reported_with_its_offset() {
    let good = [1, 2, -1, -1, 1, 3, 1]; // 28 bytes
    let cases: [(&[i32], &str); 14] = [
        (&[-1, -1, -1, -1, 1, 3, 1], "byte 28: [-1, -1, -1, -1] is not an n-gram"),
        (&[-1, 2, -1, -1, 1, 3, 1], "byte 28: [-1, 2, -1, -1] is not an n-gram"),
        (&[1, -1, 2, -1, 1, 3, 1], "byte 28: [1, -1, 2, -1] is not an n-gram"),
        (&[1, -7, -1, -1, 1, 3, 1], "byte 32: -7 is not a token"),
        (&[1, 2, -1, -1, 0, 3, 1], "byte 44: an n-gram followed by 0 tokens"),
        (&[1, 2, -1, -1, -1, 3, 1], "byte 44: an n-gram followed by -1 tokens"),
        (&[1, 2, -1, -1, i32::MIN], "byte 44: an n-gram followed by -2147483648 tokens"),
        (
            &[1, 2, -1, -1, i32::MAX, 3, 1],
            "byte 44: an n-gram followed by 2147483647 tokens, where the file has room for 1 to 1",
        ),
        (&[1, 2, -1, -1, 2, 3, 1, 4], "byte 44: an n-gram followed by 2 tokens, where the file has room for 1 to 1"),
        (&[1, 2, -1, -1, 2, 3, 1, -4, 1], "byte 56: -4 is not a token"),
        (&[1, 2, -1, -1, 2, 3, 1, 4, 0], "byte 60: a count that is not positive"),
        (&[1, 2, -1, -1, 1, 3, i32::MIN], "byte 52: a count that is not positive"),
        (&[1, 2, -1], "byte 28: the file ends within an n-gram, after 12 bytes of it"),
        (&[1, 2, -1, -1, 1, 100, 1], "byte 48: token 100 is outside the vocabulary of 100"),
    ];
    for (damaged, expected) in cases {
        let bytes = bytes(&[good.as_slice(), damaged].concat());
        let error =
            Cache::parse(&bytes, Path::new("some.bin"), Some(100)).err().unwrap_or_else(|| panic!("{damaged:?}"));
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().starts_with(&format!("some.bin: {expected}")), "{damaged:?}: {error}");
    }
}

/// A valid file truncated anywhere except between two n-grams: an error at or before the end.
#[test]
fn every_truncation_is_an_error() {
    let (cache, naive) = cache_and_naive(&[3, 1, 2, 3, 1, 4, 3, 1, 5], &[], (1, 4));
    let bytes = written(&cache);
    let mut ends = vec![0];
    naive.0.values().for_each(|part| ends.push(ends[ends.len() - 1] + 20 + 8 * part.len()));
    for length in 0..bytes.len() {
        let result = Cache::parse(&bytes[..length], Path::new("memory"), None);
        assert_eq!(result.is_ok(), ends.contains(&length), "{length}: {:?}", result.err());
    }
}

/// A reader with a small buffer, so that numbers cross buffer boundaries, of a file whose length changes.
#[test]
fn file_that_changes_while_read_is_an_error() {
    let (cache, naive) = cache_and_naive(&[3, 1, 2, 3, 1, 4, 3, 1, 5], &[], (1, 4));
    let bytes = written(&cache);
    let read = |length: u64, buffer: usize| {
        let input = BufReader::with_capacity(buffer, bytes.as_slice());
        CacheFileReader { input, offset: 0, length, path: Path::new("memory"), n_vocab: None }.cache()
    };
    let length = bytes.len() as u64;
    for buffer in 1..60 {
        naive.check(&read(length, buffer).unwrap());
        for (length, expected) in [
            (length + 100, format!("memory: byte {length}: the file ends here")),
            (0, "memory: byte 0: the file continues".to_owned()),
        ] {
            let error = read(length, buffer).err().expect("its length is wrong");
            assert!(error.message().starts_with(&expected), "{error}");
        }
    }
}

#[test]
fn missing_and_unreadable_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.bin");
    let (cache, naive) = cache_and_naive(&[3, 1, 2, 3, 1, 4, 3, 1, 5], &[], (1, 4));
    let (small, naive_small) = cache_and_naive(&[1, 2, 3], &[], (2, 2));
    cache.save(&path).unwrap();
    naive.check(&Cache::load(&path, Some(6)).unwrap());
    small.save(&path).unwrap();
    naive_small.check(&Cache::load(&path, None).unwrap());
    let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(entries.collect::<Vec<_>>(), ["cache.bin"]);
    let code = |result: foredraft_base::error::Result<Cache>, expected: &str| {
        let error = result.err().expect("an error");
        assert!(error.message().contains(expected), "{error}");
        error.code()
    };
    assert_eq!(code(Cache::load(&path, Some(3)), "cache.bin: byte 20: token 3 is outside"), Code::InvalidRequest);
    assert_eq!(code(Cache::load(folder.path(), None), "is a folder"), Code::InvalidRequest);
    assert_eq!(code(Cache::load(&folder.path().join("none"), None), "none: "), Code::NotFound);
}

/// A file that claims huge sizes: no memory is allocated for them.
#[test]
fn claimed_sizes_allocate_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.bin");
    std::fs::write(&path, bytes(&[1, 2, -1, -1, i32::MAX])).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.set_len(20 + 8 * i32::MAX as u64).is_err() {
        return; // no file system for that
    }
    let error = Cache::load(&path, None).err().expect("an error");
    assert!(error.message().contains("byte 24: a count that is not positive"), "{error}");
}
