//! Patterns against the `regex` crate's search, and what is refused.

use super::{PatternNode, whole_text};
use crate::matching::Matcher;
use crate::tests::work;

/// Whether the tree matches all of the text.
fn is_match(node: &PatternNode, text: &str) -> bool {
    Matcher::new(node, &work()).expect("a tree").matches(text, &work()).expect("within the limits")
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
        let tree = whole_text(pattern, &work());
        for text in texts("abx", 5) {
            let is_found = tree.as_ref().is_ok_and(|tree| is_match(tree, &text));
            assert_eq!(is_found, regex.is_match(&text), "{pattern:?} in {text:?}: {tree:?}");
        }
    }
}

#[test]
fn refused_patterns_say_why() {
    for (pattern, why) in [
        ("^(?=a)b", "a lookahead"),
        ("^(?!a)b", "a lookahead"),
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
        let written = whole_text(pattern, &work()).and_then(PatternNode::expressible);
        let error = written.expect_err(pattern);
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
        let tree = whole_text(pattern, &work()).unwrap().limit(least, most).expect(pattern);
        let regex = regex::Regex::new(pattern).unwrap();
        for text in texts("abx", 5) {
            let fits = text.len() as u64 >= least && most.is_none_or(|most| text.len() as u64 <= most);
            assert_eq!(is_match(&tree, &text), fits && regex.is_match(&text), "{pattern} {least} {most:?} {text:?}");
        }
    }
    for (pattern, least, most) in [("a", 2, None), ("^(ab)*$", 0, Some(3)), ("^a*b*$", 1, None), ("^a$", 2, None)] {
        assert_eq!(whole_text(pattern, &work()).unwrap().limit(least, most), None, "{pattern}");
    }
}
