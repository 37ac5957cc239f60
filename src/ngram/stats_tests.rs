use std::ops::ControlFlow;

use proptest::prelude::*;

use super::super::naive::{Naive, both, draft};
use super::super::{Cache, Sizes, create, merge};
use super::{Tally, lookup_stats};
use crate::error::Code;

fn go_on(_: f32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The loop of `llama-lookup-stats`, word for word: (n_predict, n_drafted, n_accept).
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
    fn numbers_are_those_of_llama_lookup_stats(
        text in prop::collection::vec(0..5_i32, 0..200), before in prop::collection::vec(0..5_i32, 0..200),
        corpus in prop::collection::vec(0..5_i32, 0..200), n_draft in 0..9_usize, n_ctx in 1..80_usize,
    ) {
        let (mut dynamic, mut naive_dynamic) = both(&before, &[], (1, 4));
        let (static_cache, naive_static) = both(&corpus, &[], (2, 2));
        let stats = lookup_stats(&text, n_draft, n_ctx, &mut dynamic, &static_cache, &mut go_on).unwrap();
        let expected = naive_stats(&text, n_draft, n_ctx, &mut naive_dynamic, &naive_static);
        let all = stats.all();
        prop_assert_eq!([stats.n_predict, all.drafted, all.accepted], expected);
        naive_dynamic.check(&dynamic);
        // The tables are the same tokens once more, except for what is drafted beyond positions of a context.
        if n_draft <= n_ctx {
            let sizes: Tally = stats.by_size.iter().chain([&stats.static_cache]).flatten().copied().sum();
            prop_assert_eq!(sizes, all);
        }
        for tallies in stats.by_size.iter().chain([&stats.static_cache]) {
            prop_assert!(tallies.iter().all(|tally| tally.accepted <= tally.drafted));
        }
    }

    /// A file of a text in steps is that of the text.
    #[test]
    fn creating_is_updating(text in prop::collection::vec(0..9_i32, 0..100)) {
        let cache = create(&text, Sizes::STATIC, &mut go_on).unwrap();
        both(&text, &[], (2, 2)).1.check(&cache);
    }
}

/// 1 2 3 4 three times: 1-grams and 2-grams need two cases, 3-grams and 4-grams one.
#[test]
fn a_text_by_hand() {
    let text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1];
    let empty = Cache::new();
    let stats = lookup_stats(&text, 2, 12, &mut Cache::new(), &empty, &mut go_on).unwrap();
    // After the second 1 2 3, that 3-gram was followed by 4, and then 1 2 3 4 by 1: both right. 2 is sampled. Of the last
    // two tokens, 3 is known after 3 4 1 2, and 4 after 4 1 2 3.
    let tally = |drafted, accepted| Tally { drafted, accepted };
    assert_eq!(stats.all(), tally(4, 4));
    assert_eq!(stats.by_size[2], [tally(1, 1), tally(0, 0)]);
    assert_eq!(stats.by_size[3], [tally(1, 1), tally(2, 2)]);
    assert_eq!(stats.by_level[0], tally(4, 4));
    assert_eq!(stats.n_predict, 12);
    assert_eq!(tally(4, 3).rate(), Some(0.75));
    assert_eq!(tally(0, 0).rate(), None);
}

#[test]
fn a_chunk_of_a_large_text_is_long() {
    let text: Vec<i32> = (0..100_000).map(|i| i * 7919 % 1009).collect();
    let whole = create(&text, Sizes::ALL, &mut go_on).unwrap();
    let mut once = Cache::new();
    once.update(&text, text.len(), Sizes::ALL);
    assert_eq!(whole.statistics().observations, once.statistics().observations);
}

#[test]
fn long_work_says_how_far_it_is_and_stops() {
    let text: Vec<i32> = (0..100_000).map(|i| i % 1000).collect();
    let folder = super::super::naive::Folder::new();
    let files: Vec<_> = (0..3).map(|i| folder.0.join(i.to_string())).collect();
    files.iter().for_each(|file| both(&[1, 2, 3], &[], (2, 2)).0.save(file).unwrap());
    type Work<'a> = &'a dyn Fn(&mut super::Progress) -> crate::error::Result<()>;
    let works: [Work; 3] = [
        &|progress| create(&text, Sizes::ALL, progress).map(drop),
        &|progress| lookup_stats(&text, 4, 30_000, &mut Cache::new(), &Cache::new(), progress).map(drop),
        &|progress| merge(&files, None, progress).map(drop),
    ];
    for work in works {
        let mut told = Vec::new();
        work(&mut |done| {
            told.push(done);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(told.len() >= 3 && told.is_sorted() && told.iter().all(|done| (0.0..=1.0).contains(done)), "{told:?}");
        assert_eq!(told.last(), Some(&1.0));
        for stop in 1..told.len() {
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
fn merged_files_are_the_sum() {
    let folder = super::super::naive::Folder::new();
    let mut sum = Naive::default();
    let mut files = Vec::new();
    for (i, text) in [&[1, 2, 3, 1, 2][..], &[2, 3, 1, 2, 4], &[7, 7, 7]].into_iter().enumerate() {
        let (cache, naive) = both(text, &[], (1, 4));
        files.push(folder.0.join(i.to_string()));
        cache.save(&files[i]).unwrap();
        sum.merge(&naive);
        sum.check(&merge(&files, None, &mut go_on).unwrap());
    }
    assert!(merge::<&str>(&[], None, &mut go_on).unwrap().is_empty());
    files.push(folder.0.join("none"));
    assert_eq!(merge(&files, None, &mut go_on).err().expect("a file is missing").code(), Code::NotFound);
    assert!(merge(&files[..3], Some(7), &mut go_on).err().expect("7 is too much").message().contains("token 7"));
    let cause = lookup_stats(&[1, 2], 1, 0, &mut Cache::new(), &Cache::new(), &mut go_on).expect_err("n_ctx is 0");
    assert_eq!(cause.code(), Code::InvalidRequest);
}
