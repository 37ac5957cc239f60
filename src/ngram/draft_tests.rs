use proptest::prelude::*;

use super::super::naive::{Naive, both, draft};
use super::super::{Cache, Drafted, Level, Levels, Sizes};

fn text(length: usize) -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(0..5_i32, 0..length)
}

fn tokens(levels: &Levels, history: &[i32], n_draft: usize) -> Vec<i32> {
    let mut drafted = Vec::new();
    levels.draft(history, n_draft, &mut drafted);
    drafted.into_iter().map(|drafted| drafted.token).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// On every position of a text, what llama.cpp drafts.
    #[test]
    fn drafts_are_those_of_llama_cpp(
        history in text(60), before in text(200), corpus in text(400), n_draft in 0..9_usize,
        sizes in prop::sample::select(vec![(1, 4), (1, 2), (2, 3), (3, 4), (4, 4)]),
    ) {
        let dynamic = both(&before, &[], sizes);
        let static_cache = both(&corpus, &[], (2, 2));
        for end in 0..history.len() {
            let history = &history[..end];
            let context = both(history, &[], sizes);
            let levels = Levels {
                context: &context.0, dynamic: &dynamic.0, static_cache: &static_cache.0, sizes: Sizes::new(sizes.0, sizes.1).unwrap(),
            };
            prop_assert_eq!(
                tokens(&levels, history, n_draft),
                draft(history, n_draft, sizes, [&context.1, &dynamic.1, &static_cache.1]),
                "after {:?}", history
            );
        }
    }

    /// What a cache drafts does not depend on how it was made: at once, merged, or read from a file.
    #[test]
    fn the_way_does_not_matter(a in text(100), b in text(100), corpus in text(200), history in text(20)) {
        let (mut ab, mut ba) = (both(&a, &[], (1, 4)).0, both(&b, &[], (1, 4)).0);
        let (first, second) = (both(&a, &[], (1, 4)).0, both(&b, &[], (1, 4)).0);
        ab.merge(&second);
        ba.merge(&first);
        let mut bytes = Vec::new();
        ba.write(&mut bytes).unwrap();
        let read = Cache::parse(&bytes, "memory".as_ref(), None).unwrap();
        let (static_cache, _) = both(&corpus, &[], (2, 2));
        let empty = Cache::new();
        let drafts = [&ab, &ba, &read].map(|cache| {
            let levels = Levels { context: cache, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
            tokens(&levels, &history, 8)
        });
        prop_assert_eq!(&drafts[0], &drafts[1]);
        prop_assert_eq!(&drafts[0], &drafts[2]);
    }
}

/// An n-gram and what follows it.
type Known<'a> = (&'a [i32], &'a [(i32, u64)]);

fn cache(known: &[Known]) -> Cache {
    let naive = Naive(known.iter().map(|(ngram, part)| (ngram.to_vec(), part.iter().copied().collect())).collect());
    Cache::parse(&naive.bytes(), "memory".as_ref(), None).unwrap()
}

/// The thresholds of llama.cpp's `ngram-cache.cpp`: just enough, and one less.
#[test]
fn thresholds() {
    let history = [1, 2, 3, 4];
    // Size, sure and unsure parts in a context, sure and unsure ones in a dynamic cache.
    type Part = [(i32, u64); 2];
    let cases: [(usize, [Part; 4]); 4] = [
        (1, [[(5, 66), (6, 34)], [(5, 65), (6, 35)], [(5, 75), (6, 25)], [(5, 74), (6, 26)]]),
        (2, [[(5, 2), (6, 2)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
        (3, [[(5, 1), (6, 1)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
        (4, [[(5, 1), (6, 1)], [(6, 49), (7, 51)], [(5, 66), (6, 34)], [(5, 65), (6, 35)]]),
    ];
    let empty = Cache::new();
    for (size, parts) in cases {
        let next = |part: Part, dynamic: bool| {
            let known = cache(&[(&history[4 - size..], &part)]);
            let (context, dynamic) = if dynamic { (&empty, &known) } else { (&known, &empty) };
            let levels = Levels { context, dynamic, static_cache: &empty, sizes: Sizes::ALL };
            levels.next(&history).map(|drafted| drafted.token)
        };
        assert_eq!(next(parts[0], false), Some(5), "{size}, lax");
        // 51 % are enough for all but single tokens: the other token is drafted.
        assert_eq!(next(parts[1], false), (size > 1).then_some(7), "{size}, lax");
        assert_eq!(next(parts[2], true), Some(5), "{size}, strict");
        assert_eq!(next(parts[3], true), None, "{size}, strict");
    }
    // How often it must have been seen.
    for (size, lax, strict) in [(1, 2, 4), (2, 2, 3), (3, 1, 2), (4, 1, 2)] {
        for seen in 1..=4 {
            let known = cache(&[(&history[4 - size..], &[(5, seen)])]);
            let level = |context, dynamic| Levels { context, dynamic, static_cache: &empty, sizes: Sizes::ALL };
            assert_eq!(level(&known, &empty).next(&history).is_some(), seen >= lax, "{size} {seen}, lax");
            assert_eq!(level(&empty, &known).next(&history).is_some(), seen >= strict, "{size} {seen}, strict");
        }
    }
}

#[test]
fn levels_and_sizes_in_order() {
    let static_cache = cache(&[(&[3, 4], &[(30, 9)])]);
    let dynamic = cache(&[(&[4], &[(20, 9)]), (&[3, 4], &[(21, 9)])]);
    let context = cache(&[(&[4], &[(10, 9)]), (&[3, 4], &[(11, 1)]), (&[2, 3, 4], &[(12, 1), (13, 2)])]);
    let empty = Cache::new();
    let drafted = |token, (count, total), size, level| Drafted { token, count, total, size, level };
    for (context, dynamic, history, expected) in [
        (&context, &dynamic, &[1, 2, 3, 4][..], drafted(13, (2, 3), 3, Level::Context)),
        // Seen once is not enough for two tokens; one token is.
        (&context, &dynamic, &[3, 4], drafted(10, (9, 9), 1, Level::Context)),
        (&empty, &dynamic, &[9, 3, 4], drafted(21, (9, 9), 2, Level::Dynamic)),
        (&empty, &empty, &[9, 3, 4], drafted(30, (9, 9), 2, Level::Static)),
    ] {
        let levels = Levels { context, dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
        assert_eq!(levels.next(history), Some(expected), "{history:?}");
    }
    // One token of text is too few (llama.cpp), and a token that is none is nothing to go on.
    let levels = Levels { context: &context, dynamic: &dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
    for history in [&[][..], &[4], &[3, -1], &[-1, 4]] {
        assert_eq!(levels.next(history), None, "{history:?}");
    }
}

#[test]
fn the_static_cache_weighs() {
    let empty = Cache::new();
    for (part, known, expected) in [
        // Half of all cases each: what the corpus knows wins over the lower id.
        (&[(5, 2), (6, 2)][..], &[(6, 1)][..], Some(6)),
        (&[(5, 2), (6, 2)], &[(5, 1), (6, 2)], Some(6)),
        (&[(5, 2), (6, 2)], &[(5, 2), (6, 2)], Some(5)),
        (&[(5, 2), (6, 2)], &[(9, 7)], Some(5)),
        // It wins, but is too rare itself: nothing is drafted.
        (&[(5, 3), (6, 1)], &[(6, 1)], None),
        // 2 × 100 × 1 against 1 × 100 × 2: equal, and the lower id has too few.
        (&[(5, 1), (6, 2)], &[(5, 2), (6, 1)], None),
        (&[(5, 2), (6, 1)], &[(5, 1), (6, 2)], Some(5)),
    ] {
        let context = cache(&[(&[2, 3, 4], part)]);
        let static_cache = cache(&[(&[3, 4], known)]);
        let levels = Levels { context: &context, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
        let next = levels.next(&[2, 3, 4]).filter(|drafted| drafted.level == Level::Context);
        assert_eq!(next.map(|drafted| drafted.token), expected, "{part:?} {known:?}");
    }
}

/// Counts that llama.cpp's 32 bits could not multiply.
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
        let levels = Levels { context: &context, dynamic: &empty, static_cache: &static_cache, sizes: Sizes::ALL };
        let next = levels.next(&[2, 3, 4]).filter(|drafted| drafted.level == Level::Context);
        assert_eq!(next.map(|drafted| drafted.token), expected, "{part:?} {known:?}");
    }
}
