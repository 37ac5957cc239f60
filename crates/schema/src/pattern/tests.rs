//! Patterns against the `regex` crate's search, and what is refused.

use super::{PatternNode, SetFault, TextSet, whole_texts};
use crate::tests::work;

/// The texts in which a pattern is found, if it has no lookahead.
fn whole_text(pattern: &str) -> Result<PatternNode, String> {
    let (mut all, mut none) = (Vec::new(), Vec::new());
    whole_texts(pattern, &mut all, &mut none, &work())?;
    assert!(all.len() == 1 && none.is_empty(), "{pattern}");
    Ok(all.remove(0))
}

/// The set of a tree's texts. `None`: it has none.
fn set(node: &PatternNode) -> Option<TextSet> {
    match TextSet::new(vec![node.clone()], Vec::new(), None, &work()) {
        Ok(set) => Some(set),
        Err(fault) => {
            assert_eq!(fault, SetFault::Empty);
            None
        }
    }
}

/// All texts of at most `len` of these characters.
fn texts(chars: &str, len: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..len {
        last = last.iter().flat_map(|text| chars.chars().map(move |char| format!("{text}{char}"))).collect();
        all.extend_from_slice(&last);
    }
    all
}

#[test]
fn tree_matches_where_a_search_finds_the_pattern() {
    for pattern in [
        "",
        "a",
        "^a",
        "a$",
        "^a$",
        "ab|b",
        "^a|b$",
        "^a$|^b$",
        "^(a|b)$",
        "(^|b)a(b|$)",
        "^a*?b",
        "^(?<n>a)b$",
        "(?P<n>a)b$",
        "[^a]",
        "[\\S\\s]",
        "[^\\W]$",
        "[\\Wa]b",
        "(a|)*b",
        "^(a*)*$",
        "^(a?b?)*$",
        "(a|b*)+$",
        "^(a|b?){2}$",
        "a^b",
        "a*^b",
        "a$b*",
        "$^",
        "^$",
        "(^a)?b$",
        "(a$|^b$)",
        "^a{2}$",
        "^a{1,2}?b",
        "a{2,}",
        "(ab){1,2}$",
        "^(?:)$",
        "()",
        "^.b",
        "x|^",
        "(?:^(a)|(b))$",
        "^(ab|a)(b|$)",
        "((a)|(b))|^x$",
        "^(a+b*)+$",
        "(a{0,2}){2}$",
        "a{0}b",
    ] {
        let classes = [("\\S", "[^ ]"), ("\\s", "[ ]"), ("\\W", "[^0-9A-Z_a-z]")];
        let ascii = classes.iter().fold(pattern.to_owned(), |pattern, (escape, class)| pattern.replace(escape, class));
        let regex = regex::Regex::new(&ascii).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let tree = whole_text(pattern);
        let set = tree.as_ref().ok().and_then(set);
        for text in texts("abx", 5) {
            let is_found = set.as_ref().is_some_and(|set| set.has(&text));
            assert_eq!(is_found, regex.is_match(&text), "{pattern:?} in {text:?}: {tree:?}");
        }
    }
}

#[test]
fn refused_patterns_say_why() {
    for (pattern, why) in [
        ("(?=a)b", "a lookahead"),
        ("^b(?!a)", "a lookahead"),
        ("(?<=a)b", "a lookbehind"),
        ("(?<!a)b", "a lookbehind"),
        ("(?i)a", "a group with flags"),
        ("(?<>a)", "an invalid name of a group"),
        ("(?<1a>a)", "an invalid name of a group"),
        ("(a)\\1", "a reference to a group (\\1)"),
        ("(?<n>a)\\k<n>", "a reference to a group (\\k)"),
        ("\\bword\\b", "a word boundary (\\b)"),
        ("\\p{L}", "a Unicode property (\\p)"),
        ("(^a)*", "a repeated anchor"),
        ("a^b", "anchors that no text matches"),
        ("a**", "'*' without an item to repeat"),
        ("a)", "unbalanced parentheses"),
        ("(a", "unbalanced parentheses"),
        ("[a", "unterminated character class"),
        ("\\u{110000}", "an invalid escape"),
        ("\\q", "the escape \\q"),
        ("^[]$", "an empty class"),
        (&"(^|a?)".repeat(8), "more than 64 anchored alternatives"),
        ("(a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p?q?)*", "more than 16 optional parts"),
        (&"é".repeat(9000), "more than 8192 characters"),
    ] {
        let error = whole_text(pattern).expect_err(pattern);
        assert!(error.contains(why), "{pattern}: {error}");
    }
}

/// Lengths beside a pattern are enforced where one repeated class takes them up, or the pattern implies them.
#[test]
fn lengths_beside_a_pattern_limit_its_repetition() {
    for (pattern, least, most) in [
        ("^[ab]+$", 2, Some(3)),
        ("^[ab]*$", 0, Some(2)),
        ("^a[ab]*x$", 3, None),
        ("^ab", 3, Some(4)),
        ("a", 1, None),
        ("^a{2,4}$", 3, Some(9)),
        ("^(a|b)$|^abx$", 1, Some(3)),
    ] {
        let limited = set(&whole_text(pattern).unwrap().limit(least, most).expect(pattern)).unwrap();
        let regex = regex::Regex::new(pattern).unwrap();
        for text in texts("abx", 5) {
            let fits = text.len() as u64 >= least && most.is_none_or(|most| text.len() as u64 <= most);
            assert_eq!(limited.has(&text), fits && regex.is_match(&text), "{pattern} {least} {most:?} {text:?}");
        }
    }
    for (pattern, least, most) in [("a", 2, None), ("^(ab)*$", 0, Some(3)), ("^a*b*$", 1, None), ("^a$", 2, None)] {
        assert_eq!(whole_text(pattern).unwrap().limit(least, most), None, "{pattern}");
    }
}

/// A set has the texts that all of its patterns match, and none of the others.
#[test]
fn sets_are_intersections_without_other_sets() {
    for (wanted, forbidden) in [
        (vec!["^(ab|b)*$", "^.{2,3}$"], vec![]),
        (vec!["a", "b"], vec!["x"]),
        (vec!["^[ab]+$"], vec!["^ab?$", "bb"]),
        (vec![], vec!["^a", "x$"]),
        (vec!["^(a?b?)*$"], vec!["^(a*)*$"]),
        (vec!["^a", "^b"], vec![]),
    ] {
        let nodes = |patterns: &[&str]| patterns.iter().map(|pattern| whole_text(pattern).unwrap()).collect();
        let set = TextSet::new(nodes(&wanted), nodes(&forbidden), None, &work());
        let find = |pattern: &&str, text: &str| regex::Regex::new(pattern).unwrap().is_match(text);
        let mut is_empty = true;
        for text in texts("abx", 4) {
            let has = wanted.iter().all(|one| find(one, &text)) && !forbidden.iter().any(|one| find(one, &text));
            is_empty &= !has;
            assert_eq!(set.as_ref().is_ok_and(|set| set.has(&text)), has, "{wanted:?} {forbidden:?} {text:?}");
        }
        assert_eq!(set.err(), is_empty.then_some(SetFault::Empty), "{wanted:?} {forbidden:?}");
    }
}

/// Lookaheads at the beginning of a pattern are further patterns of the whole text.
#[test]
fn lookaheads_at_the_beginning_are_enforced() {
    for (pattern, is_found) in [
        (
            "^(?=.*b)(?!.*x)a",
            (|text: &str| text.starts_with('a') && text.contains('b') && !text.contains('x')) as fn(&str) -> bool,
        ),
        ("^(?!ab$)[ab]+$", |text| text != "ab" && !text.is_empty() && !text.contains('x')),
        ("^(?!a)", |text| !text.starts_with('a')),
    ] {
        let set = super::found(pattern, &work()).expect(pattern);
        for text in texts("abx", 4) {
            assert_eq!(set.has(&text), is_found(&text), "{pattern} {text:?}");
        }
    }
}
