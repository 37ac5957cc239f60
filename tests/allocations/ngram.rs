//! Drafting from n-gram caches allocates nothing once the draft's vector has grown.

use crate::counting::allocations;
use foredraft::ngram::{Cache, CacheLevels, Sizes};

#[test]
fn drafting_allocates_nothing() {
    assert!(allocations(|| vec![0_u8; 100]) > 0, "the counter works");
    let text: Vec<i32> = (0..20_000).map(|i| (i * i / 7) % 50 + i % 3).collect();
    let (before, text) = text.split_at(10_000);
    let [mut context, mut dynamic, mut static_cache] = [Cache::new(), Cache::new(), Cache::new()];
    dynamic.update(before, before.len(), Sizes::ALL);
    static_cache.update(before, before.len(), Sizes::STATIC);
    context.update(text, 5000, Sizes::ALL);
    let levels = CacheLevels { context: &context, dynamic: &dynamic, static_cache: &static_cache, sizes: Sizes::ALL };
    let mut draft = Vec::with_capacity(16);
    let mut drafted = 0;
    let allocated = allocations(|| {
        for end in 0..5000 {
            levels.draft(&text[..end], 16, &mut draft);
            drafted += draft.len();
        }
    });
    assert_eq!((allocated, drafted > 1000), (0, true), "{drafted} tokens");
    // A cleared cache keeps its allocations, so the same input needs none.
    let text = &text[5000..];
    assert!(context.bytes() > 100_000);
    context.clear();
    assert_eq!(allocations(|| context.update(text, text.len(), Sizes::ALL)), 0);
}
