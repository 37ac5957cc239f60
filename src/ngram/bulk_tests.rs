use proptest::prelude::*;

use super::super::naive::{Naive, both};
use super::super::{Cache, Sizes};
use super::{Bulk, PLACES};

proptest! {
    /// Whatever the tables have room for, and wherever a text has no tokens, bulk is one by one.
    #[test]
    fn bulk_is_one_by_one(
        before in prop::collection::vec(0..6_i32, 0..50), text in prop::collection::vec(-1..6_i32, 0..400),
        pieces in prop::collection::vec(0..90_usize, 0..6), places in 1..200_usize, (a, b) in (1..=4_usize, 1..=4_usize),
    ) {
        let sizes = Sizes::new(a.min(b), a.max(b)).unwrap();
        // Caches that know something already.
        let [mut bulk, mut single] = [(); 2].map(|()| both(&before, &[], (1, 4)).0);
        let mut counting = Bulk::with_places(&mut bulk, sizes, 2 + places);
        let mut end = 0;
        for piece in pieces.into_iter().chain([text.len()]) {
            let new = piece.min(text.len() - end);
            end += new;
            counting.update(&text[..end], new);
        }
        counting.finish();
        for end in 1..=text.len() {
            single.update(&text[..end], 1, sizes);
        }
        let [ours, expected] = [&bulk, &single].map(|cache| {
            let mut bytes = Vec::new();
            cache.write(&mut bytes).unwrap();
            bytes
        });
        prop_assert_eq!(ours, expected);
        prop_assert_eq!(bulk.statistics().observations, single.statistics().observations);
    }
}

/// [`Cache::update`] with more than fits into the tables.
#[test]
fn a_long_text_is_counted_as_a_whole() {
    let mut state = 1_u64;
    let text: Vec<i32> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 60) as i32
    })
    .take(PLACES)
    .collect();
    let mut naive = Naive::default();
    naive.update(&text, text.len(), 1, 4);
    let longest: usize = naive.0.iter().filter(|(ngram, _)| ngram.len() == 4).map(|(_, next)| next.len()).sum();
    assert!(longest > PLACES / 2, "{longest}");
    let mut cache = Cache::new();
    cache.update(&text, text.len(), Sizes::ALL);
    naive.check(&cache);
}
