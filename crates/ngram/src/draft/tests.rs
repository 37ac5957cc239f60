use proptest::prelude::*;

use super::super::{Cache, CacheLevel, CacheLevels, DraftedToken, Sizes};
use crate::tests::naive::{Naive, cache_and_naive, draft};

fn text(length: usize) -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(0..5_i32, 0..length)
}

fn tokens(levels: &CacheLevels, history: &[i32], n_draft: usize) -> Vec<i32> {
    let mut drafted = Vec::new();
    levels.draft(history, n_draft, &mut drafted);
    drafted.into_iter().map(|drafted| drafted.token).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Drafts match at every position of an input.
    #[test]
    fn drafts_match_llama_cpp(
        history in text(60), before in text(200), corpus in text(400), n_draft in 0..9_usize,
        sizes in prop::sample::select(vec![(1, 4), (1, 2), (2, 3), (3, 4), (4, 4)]),
    ) {
        let dynamic = cache_and_naive(&before, &[], sizes);
        let static_cache = cache_and_naive(&corpus, &[], (2, 2));
        for end in 0..history.len() {
            let history = &history[..end];
            let context = cache_and_naive(history, &[], sizes);
            let levels = CacheLevels {
                context: &context.0, dynamic: &dynamic.0, static_cache: &static_cache.0, sizes: Sizes::new(sizes.0, sizes.1).unwrap(),
            };
            prop_assert_eq!(
                tokens(&levels, history, n_draft),
                draft(history, n_draft, sizes, [&context.1, &dynamic.1, &static_cache.1]),
                "after {:?}", history
            );
        }
    }

    /// Drafts do not depend on how a cache was made: by one update, merged, or read from a file.
    #[test]
    fn drafts_do_not_depend_on_how_the_cache_was_made(a in text(100), b in text(100), corpus in text(200), history in text(20)) {
        let (mut ab, mut ba) = (cache_and_naive(&a, &[], (1, 4)).0, cache_and_naive(&b, &[], (1, 4)).0);
        let (first, second) = (cache_and_naive(&a, &[], (1, 4)).0, cache_and_naive(&b, &[], (1, 4)).0);
        ab.merge(&second);
        ba.merge(&first);
        let mut bytes = Vec::new();
        ba.write(&mut bytes).unwrap();
        let read = Cache::parse(&bytes, "memory".as_ref(), None).unwrap();
        let (static_cache, _) = cache_and_naive(&corpus, &[], (2, 2));
        let empty = Cache::new();
        let drafts = [&ab, &ba, &read].map(|cache| {
            let levels = CacheLevels { context: cache, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
            tokens(&levels, &history, 8)
        });
        prop_assert_eq!(&drafts[0], &drafts[1]);
        prop_assert_eq!(&drafts[0], &drafts[2]);
    }
}

/// An n-gram and its counts.
type Known<'a> = (&'a [i32], &'a [(i32, u64)]);

fn cache(known: &[Known]) -> Cache {
    let naive = Naive(known.iter().map(|(ngram, part)| (ngram.to_vec(), part.iter().copied().collect())).collect());
    Cache::parse(&naive.bytes(), "memory".as_ref(), None).unwrap()
}

/// The thresholds of llama.cpp's `ngram-cache.cpp`: a count that just passes, and one less.
#[test]
fn thresholds_match_llama_cpp() {
    let history = [1, 2, 3, 4];
    // Size, counts that pass and fail in a context cache, counts that pass and fail in a dynamic cache.
    type NgramCounts = [(i32, u64); 2];
    let cases: [(usize, [NgramCounts; 4]); 4] = [
        (1, [[(5, 66), (6, 34)], [(5, 65), (6, 35)], [(5, 75), (6, 25)], [(5, 74), (6, 26)]]),
        (2, [[(5, 2), (6, 2)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
        (3, [[(5, 1), (6, 1)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
        (4, [[(5, 1), (6, 1)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
    ];
    let empty = Cache::new();
    for (size, parts) in cases {
        let next = |part: NgramCounts, dynamic: bool| {
            let known = cache(&[(&history[4 - size..], &part)]);
            let (context, dynamic) = if dynamic { (&empty, &known) } else { (&known, &empty) };
            let levels = CacheLevels { context, dynamic, static_cache: &empty, sizes: Sizes::ALL };
            levels.next(&history).map(|drafted| drafted.token)
        };
        assert_eq!(next(parts[0], false), Some(5), "{size}, lax");
        // 51 % is enough for all sizes but 1: the other token is drafted.
        assert_eq!(next(parts[1], false), (size > 1).then_some(7), "{size}, lax");
        assert_eq!(next(parts[2], true), Some(5), "{size}, strict");
        assert_eq!(next(parts[3], true), None, "{size}, strict");
    }
    // The minimum total.
    for (size, lax, strict) in [(1, 2, 4), (2, 2, 3), (3, 1, 2), (4, 1, 2)] {
        for seen in 1..=4 {
            let known = cache(&[(&history[4 - size..], &[(5, seen)])]);
            let level = |context, dynamic| CacheLevels { context, dynamic, static_cache: &empty, sizes: Sizes::ALL };
            assert_eq!(level(&known, &empty).next(&history).is_some(), seen >= lax, "{size} {seen}, lax");
            assert_eq!(level(&empty, &known).next(&history).is_some(), seen >= strict, "{size} {seen}, strict");
        }
    }
}

#[test]
fn caches_and_sizes_are_searched_in_order() {
    let static_cache = cache(&[(&[3, 4], &[(30, 9)])]);
    let dynamic = cache(&[(&[4], &[(20, 9)]), (&[3, 4], &[(21, 9)])]);
    let context = cache(&[(&[4], &[(10, 9)]), (&[3, 4], &[(11, 1)]), (&[2, 3, 4], &[(12, 1), (13, 2)])]);
    let empty = Cache::new();
    let drafted = |token, (count, total), size, level| DraftedToken { token, count, total, size, level };
    for (context, dynamic, history, expected) in [
        (&context, &dynamic, &[1, 2, 3, 4][..], drafted(13, (2, 3), 3, CacheLevel::Context)),
        // BulkCount once is not enough for two tokens; one token is.
        (&context, &dynamic, &[3, 4], drafted(10, (9, 9), 1, CacheLevel::Context)),
        (&empty, &dynamic, &[9, 3, 4], drafted(21, (9, 9), 2, CacheLevel::Dynamic)),
        (&empty, &empty, &[9, 3, 4], drafted(30, (9, 9), 2, CacheLevel::Static)),
    ] {
        let levels = CacheLevels { context, dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
        assert_eq!(levels.next(history), Some(expected), "{history:?}");
    }
    // A history of one token is too short (as in llama.cpp); negative tokens match nothing.
    let levels = CacheLevels { context: &context, dynamic: &dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
    for history in [&[][..], &[4], &[3, -1], &[-1, 4]] {
        assert_eq!(levels.next(history), None, "{history:?}");
    }
}

#[test]
fn static_cache_weights_candidates() {
    let empty = Cache::new();
    for (part, known, expected) in [
        // Equal shares: the token in the static cache wins over the lower id.
        (&[(5, 2), (6, 2)][..], &[(6, 1)][..], Some(6)),
        (&[(5, 2), (6, 2)], &[(5, 1), (6, 2)], Some(6)),
        (&[(5, 2), (6, 2)], &[(5, 2), (6, 2)], Some(5)),
        (&[(5, 2), (6, 2)], &[(9, 7)], Some(5)),
        // It has the largest score but too small a share: nothing is drafted.
        (&[(5, 3), (6, 1)], &[(6, 1)], None),
        // 2 × 100 × 1 and 1 × 100 × 2 are equal, and the lower id has too small a share.
        (&[(5, 1), (6, 2)], &[(5, 2), (6, 1)], None),
        (&[(5, 2), (6, 1)], &[(5, 1), (6, 2)], Some(5)),
    ] {
        let context = cache(&[(&[2, 3, 4], part)]);
        let static_cache = cache(&[(&[3, 4], known)]);
        let levels = CacheLevels { context: &context, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
        let next = levels.next(&[2, 3, 4]).filter(|drafted| drafted.level == CacheLevel::Context);
        assert_eq!(next.map(|drafted| drafted.token), expected, "{part:?} {known:?}");
    }
}

/// Counts whose products overflow 32 bits.
#[test]
fn large_counts_do_not_overflow() {
    let most = i32::MAX as u64;
    let empty = Cache::new();
    for (part, known, expected) in [
        (&[(5, most), (6, most)][..], &[(5, most), (6, most)][..], Some(5)),
        (&[(5, most), (6, most)], &[(5, most - 1), (6, most)], Some(6)),
        (&[(5, most), (6, most), (7, most)], &[(5, most)], None),
    ] {
        let context = cache(&[(&[2, 3, 4], part)]);
        let static_cache = cache(&[(&[3, 4], known)]);
        let levels = CacheLevels { context: &context, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
        let next = levels.next(&[2, 3, 4]).filter(|drafted| drafted.level == CacheLevel::Context);
        assert_eq!(next.map(|drafted| drafted.token), expected, "{part:?} {known:?}");
    }
}
