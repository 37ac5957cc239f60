use proptest::prelude::*;

use super::super::{Cache, CacheStatistics, Sizes, TokenCount};
use crate::tests::naive::{Naive, cache_and_naive};

/// Few different tokens, so that n-grams repeat often.
fn text() -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(0..6_i32, 0..200)
}

fn sizes() -> impl Strategy<Value = (usize, usize)> {
    (1..=4_usize, 1..=4_usize).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

proptest! {
    /// The counts do not depend on how the input is split.
    #[test]
    fn updates_in_pieces_equal_one_update(text in text(), pieces in prop::collection::vec(0..9_usize, 0..60), sizes in sizes()) {
        let (cache, naive) = cache_and_naive(&text, &pieces, sizes);
        naive.check(&cache);
        let (whole, _) = cache_and_naive(&text, &[], sizes);
        naive.check(&whole);
    }

    /// A merged cache equals a cache updated with both inputs.
    #[test]
    fn merge_adds_counts(a in text(), b in text(), sizes in sizes()) {
        let ((mut cache, mut naive), (other, naive_other)) = (cache_and_naive(&a, &[], sizes), cache_and_naive(&b, &[], sizes));
        cache.merge(&other);
        naive.merge(&naive_other);
        naive.check(&cache);
        naive_other.check(&other);
        cache.merge(&Cache::new());
        naive.check(&cache);
    }

    /// A cleared cache behaves like a new one.
    #[test]
    fn clear_removes_everything(a in text(), b in text()) {
        let (mut cache, _) = cache_and_naive(&a, &[], (1, 4));
        cache.clear();
        Naive::default().check(&cache);
        cache.update(&b, b.len(), Sizes::ALL);
        cache_and_naive(&b, &[], (1, 4)).1.check(&cache);
    }

    /// Many tokens after few n-grams: lists grow, move and reuse free blocks.
    #[test]
    fn long_lists_are_counted_correctly(tokens in prop::collection::vec((0..3_i32, 0..400_i32), 0..2000)) {
        let text: Vec<i32> = tokens.into_iter().flat_map(|(a, b)| [a, 1000 + b]).collect();
        let (cache, naive) = cache_and_naive(&text, &[7, 100], (1, 2));
        naive.check(&cache);
    }
}

#[test]
fn updates_match_llama_cpp() {
    // Tokens, number of new ones, sizes, and each n-gram with its counts.
    type Expected<'a> = &'a [(&'a [i32], &'a [(i32, u32)])];
    type Case<'a> = (&'a [i32], usize, (usize, usize), Expected<'a>);
    let cases: [Case; 8] = [
        (&[1, 2, 3], 3, (1, 1), &[(&[1], &[(2, 1)]), (&[2], &[(3, 1)])]),
        (&[1, 2, 3], 1, (1, 2), &[(&[2], &[(3, 1)]), (&[1, 2], &[(3, 1)])]),
        (&[1, 2, 3], 0, (1, 4), &[]),
        (&[1, 2, 3], 99, (2, 4), &[(&[1, 2], &[(3, 1)])]),
        (&[1], 1, (1, 4), &[]),
        (&[], 0, (1, 4), &[]),
        (&[7, 7, 7, 7], 4, (2, 2), &[(&[7, 7], &[(7, 2)])]),
        (&[1, -1, 2, 3, 4], 5, (1, 2), &[(&[2], &[(3, 1)]), (&[3], &[(4, 1)]), (&[2, 3], &[(4, 1)])]),
    ];
    for (text, new, (min, max), expected) in cases {
        let mut cache = Cache::new();
        cache.update(text, new, Sizes::new(min, max).unwrap());
        assert_eq!(cache.len(), expected.len(), "{text:?} {new}");
        for (ngram, counts) in expected {
            let part = cache.get(ngram).unwrap_or_else(|| panic!("{text:?} {new}: no {ngram:?}"));
            let found: Vec<(i32, u32)> = part.by_id().map(|pair| (pair.token, pair.count)).collect();
            assert_eq!(found, *counts, "{text:?} {new} {ngram:?}");
        }
    }
}

#[test]
fn invalid_ngrams_are_not_found() {
    let (cache, _) = cache_and_naive(&[1, 2, 3, 4, 5, 6], &[], (1, 4));
    for ngram in [&[][..], &[-1], &[1, -1], &[-1, 1], &[1, 2, 3, 4, 5], &[6], &[2, 1], &[i32::MIN]] {
        assert!(cache.get(ngram).is_none(), "{ngram:?}");
    }
    assert!(cache.get(&[1, 2, 3, 4]).is_some());
}

#[test]
fn best_is_the_lowest_token_among_equals() {
    let best = |after: &[i32]| {
        let text: Vec<i32> = after.iter().flat_map(|token| [0, *token]).collect();
        let (cache, _) = cache_and_naive(&text, &[], (1, 1));
        cache.get(&[0]).unwrap().best.token
    };
    for (after, expected) in [
        (&[5, 3][..], 3),
        (&[3, 5], 3),
        (&[3, 5, 5], 5),
        (&[5, 5, 3, 3], 3),
        (&[9, 8, 7, 9, 8, 7], 7),
        (&[9, 8, 7, 9, 8, 7, 8], 8),
    ] {
        assert_eq!(best(after), expected, "{after:?}");
    }
}

/// The n-gram 7 with `count` for token 1 and 5 for token 2.
fn counted(count: i32) -> Cache {
    let numbers = [7, -1, -1, -1, 2, 1, count, 2, 5];
    let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
    Cache::parse(&bytes, "memory".as_ref(), None).unwrap()
}

#[test]
fn counts_saturate_at_the_files_limit() {
    let mut cache = counted(i32::MAX - 1);
    for expected in [i32::MAX - 1, i32::MAX, i32::MAX] {
        let part = cache.get(&[7]).unwrap();
        assert_eq!(i64::from(part.count(1)), i64::from(expected));
        assert_eq!(u64::from(part.total), u64::from(part.count(1)) + u64::from(part.count(2)));
        cache.update(&[7, 1], 1, Sizes::ALL);
    }
    cache.merge(&counted(i32::MAX));
    assert_eq!(cache.get(&[7]).unwrap().count(1), i32::MAX as u32);
    // The sum of three such counts exceeds the total's limit.
    let mut numbers = vec![7, -1, -1, -1, 3];
    (1..=3).for_each(|token| numbers.extend([token, i32::MAX]));
    let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
    let mut cache = Cache::parse(&bytes, "memory".as_ref(), None).unwrap();
    assert_eq!(cache.get(&[7]).unwrap().total, u32::MAX);
    cache.update(&[7, 9], 1, Sizes::ALL);
    assert_eq!(cache.get(&[7]).unwrap().total, u32::MAX);
    assert_eq!(cache.statistics().observations, 3 * (i32::MAX as u64) + 1);
}

/// New tokens are merged in one pass; one by one this would take minutes.
#[test]
fn many_new_tokens_are_merged_in_one_pass() {
    const N: i32 = 400_000;
    let counted = |start: i32| {
        let mut cache = Cache::new();
        let numbers = (start..N).step_by(2).flat_map(|token| [token, 1 + token % 7]);
        let list: Vec<i32> = [7, -1, -1, -1, N / 2].into_iter().chain(numbers).collect();
        let bytes: Vec<u8> = list.into_iter().flat_map(i32::to_le_bytes).collect();
        cache.merge(&Cache::parse(&bytes, "memory".as_ref(), None).unwrap());
        cache
    };
    let (mut cache, odd) = (counted(0), counted(1));
    cache.merge(&odd);
    cache.merge(&odd);
    let part = cache.get(&[7]).unwrap();
    let expected =
        |token: i32| TokenCount { token, count: (1 + token % 7) as u32 * if token % 2 == 0 { 1 } else { 2 } };
    let best = (0..N).map(expected).reduce(|best, next| if next.beats(best) { next } else { best }).unwrap();
    assert_eq!(part.best, best);
    assert!(part.by_id().eq((0..N).map(expected)));
    assert_eq!(u64::from(part.total), (0..N).map(|token| u64::from(expected(token).count)).sum::<u64>());
}

#[test]
fn statistics_match_the_contents() {
    let text = [1, 2, 3, 1, 2, 4, 1, 2, 3];
    let (cache, naive) = cache_and_naive(&text, &[], (1, 3));
    let of = |size: usize| naive.0.keys().filter(|ngram| ngram.len() == size).count();
    assert_eq!(
        cache.statistics(),
        CacheStatistics {
            ngrams: [of(1), of(2), of(3), 0],
            continuations: naive.0.values().map(|part| part.len()).sum(),
            observations: 8 + 7 + 6,
            largest_token: Some(4),
            bytes: cache.bytes(),
            file_bytes: naive.bytes().len() as u64,
        }
    );
    assert_eq!(Cache::new().statistics(), CacheStatistics::default());
}

/// In a map of maps (libstdc++, 64 bits), an n-gram with one token takes two nodes of 96 and 32 bytes, 104 for the smallest
/// bucket array and 8 in the large one: 240.
#[test]
fn memory_is_at_most_a_fifth_of_a_map_of_maps() {
    let mut cache = Cache::new();
    for i in 0..300_000 {
        cache.update(&[i, 0, 1], 1, Sizes::STATIC);
        let few = cache.bytes() / cache.len();
        assert!(i < 1000 || few <= 240 / 5, "{few} bytes for each of {i} n-grams");
    }
}

#[test]
fn invalid_sizes_are_errors() {
    for (min, max, valid) in [(1, 1, true), (1, 4, true), (4, 4, true), (0, 2, false), (3, 2, false), (1, 5, false)] {
        assert_eq!(Sizes::new(min, max).is_ok(), valid, "{min} {max}");
    }
}
