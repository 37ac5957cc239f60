use super::*;

fn context(length: usize, best: u8, total: u8) -> Continuations {
    Continuations { length, total, best: (0, best), other: (0, 0) }
}

fn copied(length: usize, misses: u32, agreeing: u8, total: u8) -> Copied {
    Copied { length, before: 0, misses, total, agreeing }
}

#[test]
fn at_first_longer_and_clearer_is_likelier() {
    let bins = Bins::default();
    let of_context = |length, best, total| bins.context(Origin::Own, &context(length, best, total)).1;
    let of_copy =
        |length, misses, agreeing, total| bins.copied(Origin::Own, &copied(length, misses, agreeing, total)).1;
    let rising = |values: &[f32]| {
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)), "{values:?}");
    };
    rising(&[of_context(1, 1, 1), of_context(2, 1, 1), of_context(8, 1, 1), of_context(32, 1, 1)]);
    rising(&[of_context(2, 1, 1), of_context(2, 2, 2), of_context(2, 20, 20)]);
    rising(&[of_context(2, 3, 9), of_context(2, 5, 9), of_context(2, 8, 9), of_context(2, 9, 9)]);
    rising(&[
        of_copy(0, 3, 0, 0),
        of_copy(0, 1, 0, 0),
        of_copy(1, 0, 0, 0),
        of_copy(10, 0, 0, 0),
        of_copy(1000, 0, 0, 0),
    ]);
    rising(&[of_copy(9, 0, 0, 5), of_copy(9, 0, 2, 5), of_copy(9, 0, 5, 5)]);
    let after = |before| bins.copied(Origin::Own, &Copied { before, ..copied(0, 1, 0, 0) }).1;
    rising(&[after(0), after(5), after(30)]);
    assert!(bins.context(Origin::Earlier, &context(4, 1, 1)).1 < of_context(4, 1, 1));
    assert!(bins.copied(Origin::Earlier, &copied(4, 0, 0, 0)).1 < of_copy(4, 0, 0, 0));
}

#[test]
fn what_is_seen_outweighs_the_formula_for_its_kind_alone() {
    let mut bins = Bins::default();
    let single = context(1, 1, 1);
    let (kind, before) = bins.context(Origin::Own, &single);
    let others = |bins: &Bins| {
        let other = [(Origin::Own, 2, 1, 1), (Origin::Own, 1, 2, 2), (Origin::Earlier, 1, 1, 1)];
        let contexts = other.map(|(origin, length, best, total)| bins.context(origin, &context(length, best, total)));
        (contexts, bins.copied(Origin::Own, &copied(1, 0, 1, 1)))
    };
    let others_before = others(&bins);
    for _ in 0..1000 {
        bins.saw(kind, false);
    }
    assert!(bins.context(Origin::Own, &single).1 < 0.1 * before);
    for _ in 0..1000 {
        bins.saw(kind, true);
    }
    assert!(bins.context(Origin::Own, &single).1 > 0.9, "it can change again");
    assert_eq!(others(&bins), others_before);
}

#[test]
fn a_bin_is_the_share_of_what_was_right() {
    let mut bins = Bins::default();
    let copy = copied(20, 0, 0, 0);
    let (kind, _) = bins.copied(Origin::Own, &copy);
    for step in 0..400 {
        bins.saw(kind, step % 4 != 0);
    }
    let (_, learnt) = bins.copied(Origin::Own, &copy);
    assert!((learnt - 0.75).abs() < 0.05, "{learnt}");
}

#[test]
fn every_kind_has_a_bin_of_its_own() {
    let bins = Bins::default();
    let mut kinds = std::collections::HashSet::new();
    for origin in [Origin::Own, Origin::Earlier] {
        for length in LENGTHS {
            for (best, total) in [(1, 1), (2, 2), (9, 9), (8, 9), (5, 9), (2, 9)] {
                assert!(kinds.insert(bins.context(origin, &context(length, best, total)).0.0));
            }
        }
        for length in [0, 1, 2, 4, 8, 16, 32, 64] {
            for (agreeing, total) in [(0, 0), (5, 5), (4, 5), (0, 5)] {
                for misses in 0..3 {
                    assert!(kinds.insert(bins.copied(origin, &copied(length, misses, agreeing, total)).0.0));
                }
            }
        }
    }
    assert_eq!(kinds.len(), KINDS);
    assert!(kinds.iter().all(|kind| *kind < KINDS));
    let far = bins.copied(Origin::Earlier, &copied(usize::MAX, u32::MAX, u8::MAX, u8::MAX));
    assert!(far.0.0 < KINDS && far.1 <= 1.0);
}
