use proptest::collection::vec;
use proptest::prelude::*;

use super::machine::{self, MachineStep, TextEnd, TextWithout};
use super::{MAX_SIZE, Machine, Mark, Node, NodeId, Tree, TreeBuilder};

/// Whether a machine reads the whole text and may end then.
fn reads(machine: &Machine, text: &[u8]) -> bool {
    let mut state = 0;
    for (index, byte) in text.iter().enumerate() {
        state = match machine.step(state, *byte) {
            MachineStep::Dead => return false,
            MachineStep::State(next) => next,
            MachineStep::Done => return index + 1 == text.len(),
        };
    }
    machine.may_end(state)
}

/// UTF-8 that also has surrogates.
fn encode(char: u32) -> Vec<u8> {
    let last = |shift: u32| 0x80 | (char >> shift & 0x3F) as u8;
    match char {
        0..0x80 => vec![char as u8],
        0x80..0x800 => vec![0xC0 | (char >> 6) as u8, last(0)],
        0x800..0x1_0000 => vec![0xE0 | (char >> 12) as u8, last(6), last(0)],
        _ => vec![0xF0 | (char >> 18) as u8, last(12), last(6), last(0)],
    }
}

/// Compares a class with the ranges as they were written, for the characters around their ends.
fn compare_class(written: &[(u32, u32)]) {
    for is_negated in [false, true] {
        let machine = machine::class(is_negated, written);
        let ends = written.iter().flat_map(|(first, last)| [*first, *last]);
        let near = ends
            .chain([0, 0x7F, 0x7FF, 0xD800, 0xFFFF, 0x10_FFFF])
            .flat_map(|end| end.saturating_sub(2)..end.saturating_add(3));
        for char in near.filter(|char| *char <= 0x10_FFFF) {
            let is_inside = written.iter().any(|(first, last)| (*first..=*last).contains(&char)) != is_negated;
            let is_read = reads(&machine, &encode(char));
            assert_eq!(is_read, is_inside, "{written:x?}, negated: {is_negated}, {char:x}");
        }
    }
}

#[test]
fn class_has_the_characters_of_its_ranges() {
    compare_class(&[]);
    compare_class(&[(0, 0x10_FFFF)]);
    compare_class(&[(0, u32::MAX)]);
    compare_class(&[(5, 4), (0x61, 0x7A), (0x63, 0x65), (0x7B, 0x7B)]);
    compare_class(&[(0xD800, 0xDFFF)]);
    compare_class(&[(0xE9, 0x10_0000), (u32::MAX - 1, u32::MAX)]);
}

#[test]
fn invalid_utf8_is_no_character() {
    let any = machine::class(true, &[]);
    for invalid in [
        &b"\x80"[..],
        b"\xC0\x80",
        b"\xC1\xBF",
        b"\xE0\x80\x80",
        b"\xF0\x80\x80\x80",
        b"\xF4\x90\x80\x80",
        b"\xFF",
        b"\xC3",
    ] {
        assert!(!reads(&any, invalid), "{invalid:x?}");
    }
}

/// A grammar may list two hundred thousand characters.
#[test]
fn machine_of_a_huge_class_is_small() {
    let all: Vec<(u32, u32)> = (0x1_0000..=0x3_FFFF).rev().map(|char| (char, char)).collect();
    let machine = machine::class(true, &all);
    assert!(machine.size() < 1000, "{}", machine.size());
    assert!(!reads(&machine, &encode(0x2_0000)) && reads(&machine, &encode(0x4_0000)));
}

proptest! {
    #[test]
    fn class_of_many_ranges_matches_its_ranges(begun in vec((0_u32..0x11_0010, 0_u32..300), 0..24)) {
        let written: Vec<(u32, u32)> = begun.into_iter().map(|(first, more)| (first, first + more)).collect();
        compare_class(&written);
    }

    /// Delimiters of few letters, so that they overlap with themselves and with others.
    #[test]
    fn text_without_delimiters_is_what_a_search_says(
        delimiters in vec("[ab]{1,3}", 0..3),
        text in "[abcé]{0,7}",
    ) {
        let delimiters: Vec<&str> = delimiters.iter().map(String::as_str).collect();
        let has_none = delimiters.iter().all(|it| !text.contains(it));
        let end_of = |end: TextEnd| {
            let without = TextWithout { delimiters: &delimiters, excluded: &[(0x63, 0x63)], end, is_utf8: true };
            reads(&machine::text_without(&without).unwrap(), text.as_bytes())
        };
        let is_text = has_none && !text.contains('c');
        prop_assert_eq!(end_of(TextEnd::Anywhere), is_text);
        let begins = |it: &&str| (1..it.len()).any(|len| text.ends_with(&it[..len]));
        prop_assert_eq!(end_of(TextEnd::OutsideOfDelimiters), is_text && !delimiters.iter().any(begins));
        // A delimiter inside of which another one ends never ends a text.
        let mut reached = delimiters.iter().filter(|it| !delimiters.iter().any(|other| it[..it.len() - 1].contains(other)));
        let is_first = |it: &&str| {
            let both = format!("{text}{it}");
            delimiters.iter().all(|other| both.find(other).is_none_or(|at| at >= text.len() || at + other.len() == both.len() && other.len() <= it.len()))
        };
        prop_assert_eq!(end_of(TextEnd::BeforeDelimiter), is_text && reached.all(is_first));
    }
}

#[test]
fn equal_nodes_are_one() {
    let tree = TreeBuilder::new();
    let parts = [tree.text("a"), tree.text("b"), tree.none_of("xy")];
    let first = tree.seq(&parts);
    let parts = [tree.text("ab"), tree.none_of("yx")];
    assert_eq!(first, tree.seq(&parts));
    assert_eq!(tree.empty(), tree.text(""));
    let one = tree.text("one");
    assert_eq!((tree.seq(&[one]), tree.alt(&[one]), tree.repeat(one, 1, Some(1))), (one, one, one));
    let (rule, is_new) = tree.rule("value");
    assert!(is_new && tree.rule("value") == (rule, false) && tree.declare() != rule);
}

#[test]
fn tree_that_becomes_too_large_says_so() {
    let tree = TreeBuilder::new();
    let many = vec![tree.text("a"); MAX_SIZE / 4];
    for n in 0..5 {
        let last = tree.text(n.to_string());
        tree.alt(&[many.as_slice(), &[last]].concat());
        assert_eq!(tree.is_too_large(), n > 2, "{n}");
    }
    assert!(tree.size() <= MAX_SIZE);
    let long = "x".repeat(5000);
    let tree = TreeBuilder::new();
    tree.until(&[&long]);
    assert!(tree.is_too_large());
}

#[test]
fn only_marks_make_order_count() {
    let tree = TreeBuilder::new();
    let text = tree.free_text(&["<"]);
    let unmarked = Tree::from(tree.clone());
    assert!(!unmarked.is_ordered() && matches!(unmarked.node(text), Some(Node::Machine(_))));
    tree.mark(Mark::Content, text);
    let tree = Tree::from(tree);
    assert!(tree.is_ordered());
    assert!(tree.node(NodeId(99)).is_none());
}
