use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::parse::parse;
use super::Class;

/// Asks a class all that can be asked about the characters of `span`, and compares with what its ranges say as they
/// were written, looked at one after the other.
fn compare(written: &[(u32, u32)], span: RangeInclusive<u32>) {
    let (start, end) = (*span.start(), *span.end());
    for negated in [false, true] {
        let class = Class::new(negated, written.to_vec());
        let holds = |char: u32| written.iter().any(|(first, last)| (*first..=*last).contains(&char)) != negated;
        for low in start..=end {
            assert_eq!(class.contains(low), holds(low), "{written:?}, negated: {negated}, {low}");
            let mut met = false;
            for high in low..=end {
                met |= holds(high);
                assert_eq!(class.meets(low, high), met, "{written:?}, negated: {negated}, {low} to {high}");
            }
            assert!((start..low).all(|high| !class.meets(low, high)), "{written:?}: from {low} down there is nothing");
        }
    }
}

/// All classes of up to three ranges of six characters, the first ones and the last ones there are.
#[test]
fn a_class_means_what_was_written() {
    for start in [0, u32::MAX - 5] {
        let all: Vec<(u32, u32)> = (0..36).map(|pair| (start + pair / 6, start + pair % 6)).collect();
        let span = start..=start + 5;
        compare(&[], span.clone());
        for &one in &all {
            compare(&[one], span.clone());
            for &two in &all {
                compare(&[one, two], span.clone());
                for &three in &all {
                    compare(&[one, two, three], span.clone());
                }
            }
        }
    }
}

proptest! {
    /// Short ranges, so that many are left: between them there is something to search.
    #[test]
    fn a_class_of_many_ranges_means_what_was_written(begun in vec((2_u32..100, 0_u32..6), 0..32)) {
        let written: Vec<(u32, u32)> = begun.into_iter().map(|(first, more)| (first, first + more - 2)).collect();
        compare(&written, 0..=105);
    }
}

/// A grammar's length allows two hundred thousand, and each question about it would look at all of them.
#[test]
fn a_class_written_character_by_character_is_a_few_ranges() {
    let many: String = ('\u{10000}'..='\u{3FFFF}').rev().collect();
    let rules = parse(&format!("root ::= [^{many}a-ceg-fd]"), &|_| None).unwrap();
    let letters = (u32::from('a'), u32::from('e'));
    assert_eq!(rules.classes, [Class { negated: true, ranges: vec![letters, (0x1_0000, 0x3_FFFF)] }]);
}
