use std::ops::ControlFlow;

use proptest::prelude::*;

use super::super::{Cache, Sizes, create, merge};
use super::{Acceptance, lookup_stats};
use crate::tests::naive::{Naive, cache_and_naive, draft};
use foredraft_base::error::Code;

fn continue_(_: f32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A direct translation of the loop of `llama-lookup-stats`: (n_predict, n_drafted, n_accept).
fn naive_stats(input: &[i32], n_draft: usize, n_ctx: usize, dynamic: &mut Naive, static_cache: &Naive) -> [usize; 3] {
    let (mut n_drafted, mut n_accept) = (0, 0);
    let mut i_start = 0;
    while i_start + n_ctx < input.len() {
        let slice = &input[i_start..i_start + n_ctx];
        let mut context = Naive::default();
        let mut output = vec![slice[0]];
        while output.len() < n_ctx {
            let drafted = draft(&output, n_draft, (1, 4), [&context, dynamic, static_cache]);
            n_drafted += drafted.len();
            for token in drafted {
                if output.len() >= n_ctx || slice[output.len()] != token {
                    break;
                }
                n_accept += 1;
                output.push(token);
                context.update(&output, 1, 1, 4);
            }
            if output.len() < n_ctx {
                output.push(slice[output.len()]);
                context.update(&output, 1, 1, 4);
            }
        }
        dynamic.merge(&context);
        i_start += n_ctx;
    }
    [input.len() - input.len() % n_ctx, n_drafted, n_accept]
}

proptest! {
    #[test]
    fn statistics_match_llama_lookup_stats(
        text in prop::collection::vec(0..5_i32, 0..200), before in prop::collection::vec(0..5_i32, 0..200),
        corpus in prop::collection::vec(0..5_i32, 0..200), n_draft in 0..9_usize, n_ctx in 1..80_usize,
    ) {
        let (mut dynamic, mut naive_dynamic) = cache_and_naive(&before, &[], (1, 4));
        let (static_cache, naive_static) = cache_and_naive(&corpus, &[], (2, 2));
        let stats = lookup_stats(&text, n_draft, n_ctx, &mut dynamic, &static_cache, &mut continue_).unwrap();
        let expected = naive_stats(&text, n_draft, n_ctx, &mut naive_dynamic, &naive_static);
        let all = stats.all();
        prop_assert_eq!([stats.n_predict, all.drafted, all.accepted], expected);
        naive_dynamic.check(&dynamic);
        // The tables have the same tokens, except those drafted beyond the last position of a chunk.
        if n_draft <= n_ctx {
            let sizes: Acceptance = stats.by_size.iter().chain([&stats.static_cache]).flatten().copied().sum();
            prop_assert_eq!(sizes, all);
        }
        for counts in stats.by_size.iter().chain([&stats.static_cache]) {
            prop_assert!(counts.iter().all(|count| count.accepted <= count.drafted));
        }
    }

    /// Creating in steps gives the same file as one update.
    #[test]
    fn create_equals_update(text in prop::collection::vec(0..9_i32, 0..100)) {
        let cache = create(&text, Sizes::STATIC, &mut continue_).unwrap();
        cache_and_naive(&text, &[], (2, 2)).1.check(&cache);
    }
}

/// 1 2 3 4 three times: 1-grams and 2-grams need two cases, 3-grams and 4-grams one.
#[test]
fn small_example_worked_out_by_hand() {
    let text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1];
    let empty = Cache::new();
    let stats = lookup_stats(&text, 2, 12, &mut Cache::new(), &empty, &mut continue_).unwrap();
    // After the second 1 2 3, that 3-gram predicts 4, and then 1 2 3 4 predicts 1: both correct. 2 is sampled. Of the last
    // two tokens, 3 is predicted after 3 4 1 2, and 4 after 4 1 2 3.
    let count = |drafted, accepted| Acceptance { drafted, accepted };
    assert_eq!(stats.all(), count(4, 4));
    assert_eq!(stats.by_size[2], [count(1, 1), count(0, 0)]);
    assert_eq!(stats.by_size[3], [count(1, 1), count(2, 2)]);
    assert_eq!(stats.by_level[0], count(4, 4));
    assert_eq!(stats.n_predict, 12);
}

#[test]
fn create_counts_long_inputs_in_bulk() {
    let text: Vec<i32> = (0..100_000).map(|i| i * 7919 % 1009).collect();
    let whole = create(&text, Sizes::ALL, &mut continue_).unwrap();
    let mut once = Cache::new();
    once.update(&text, text.len(), Sizes::ALL);
    assert_eq!(whole.statistics().observations, once.statistics().observations);
}

#[test]
fn long_operations_report_progress_and_can_be_cancelled() {
    let text: Vec<i32> = (0..100_000).map(|i| i % 1000).collect();
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3).map(|i| folder.path().join(i.to_string())).collect();
    files.iter().for_each(|file| cache_and_naive(&[1, 2, 3], &[], (2, 2)).0.save(file).unwrap());
    type Work<'a> = &'a dyn Fn(&mut super::WorkProgress) -> foredraft_base::error::Result<()>;
    let works: [Work; 3] = [
        &|progress| create(&text, Sizes::ALL, progress).map(drop),
        &|progress| lookup_stats(&text, 4, 30_000, &mut Cache::new(), &Cache::new(), progress).map(drop),
        &|progress| merge(&files, None, progress).map(drop),
    ];
    for work in works {
        let mut reported = Vec::new();
        work(&mut |done| {
            reported.push(done);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(
            reported.len() >= 3 && reported.is_sorted() && reported.iter().all(|done| (0.0..=1.0).contains(done)),
            "{reported:?}"
        );
        assert_eq!(reported.last(), Some(&1.0));
        for stop in 1..reported.len() {
            let mut calls = 0;
            let result = work(&mut |_| {
                calls += 1;
                if calls == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!((result.expect_err("it was stopped").code(), calls), (Code::Cancelled, stop));
        }
    }
}

#[test]
fn merge_adds_the_counts_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut sum = Naive::default();
    let mut files = Vec::new();
    for (i, text) in [&[1, 2, 3, 1, 2][..], &[2, 3, 1, 2, 4], &[7, 7, 7]].into_iter().enumerate() {
        let (cache, naive) = cache_and_naive(text, &[], (1, 4));
        files.push(folder.path().join(i.to_string()));
        cache.save(&files[i]).unwrap();
        sum.merge(&naive);
        sum.check(&merge(&files, None, &mut continue_).unwrap());
    }
    assert!(merge::<&str>(&[], None, &mut continue_).unwrap().is_empty());
    files.push(folder.path().join("none"));
    assert_eq!(merge(&files, None, &mut continue_).err().expect("a file is missing").code(), Code::NotFound);
    assert!(
        merge(&files[..3], Some(7), &mut continue_)
            .err()
            .expect("token 7 is outside the vocabulary")
            .message()
            .contains("token 7")
    );
    let cause = lookup_stats(&[1, 2], 1, 0, &mut Cache::new(), &Cache::new(), &mut continue_).expect_err("n_ctx is 0");
    assert_eq!(cause.code(), Code::InvalidRequest);
}
