use super::*;

fn find(pattern: &str, text: &str) -> Option<usize> {
    let pattern = Pattern::new(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
    pattern.find(text.as_bytes(), &mut (1 << 28))
}

#[test]
fn patterns_of_chat_formats_are_found() {
    let channel = r"^<\|channel\|>(?:commentary|analysis)\s+to=functions$";
    let start = r"<\|start\|>assistant(<\|channel\|>(?:commentary|analysis)\s+to)";
    for (pattern, text, expected) in [
        (r"^\s+to$", " to", Some(0)),
        (r"^\s+to$", " to=", None),
        (r"^\s+to$", "x to", None),
        (channel, "<|channel|>analysis to=functions", Some(0)),
        (channel, "<|channel|>final", None),
        (start, "a<|start|>assistant<|channel|>commentary to", Some(19)),
        (r">>>(?!all)", "text>>>get", Some(4)),
        (r">>>(?!all)", "text>>>all>>>", Some(10)),
        (r">>>(?!all)", "text>>>all", None),
    ] {
        assert_eq!(find(pattern, text), expected, "{pattern} in {text:?}");
    }
}

#[test]
fn constructs_mean_what_they_mean_in_ecmascript() {
    for (pattern, text, expected) in [
        ("", "", Some(0)),
        ("b", "abc", Some(1)),
        ("a|bc|", "xbc", Some(0)),
        ("(x)?(b)", "ab", Some(1)),
        ("a(b*)(c)", "ac", Some(1)),
        ("a{2,3}$", "aaaa", Some(1)),
        ("a{2}", "ba", None),
        ("^(?:a+?)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", None),
        (r"[^\d\]-]x", "1x]x-xyx", Some(6)),
        (r"[a-c\s]{3}", "xb c a", Some(1)),
        (r"\bto\B", "to tom", Some(3)),
        (r"\x41\u00e9", "A\u{e9}", Some(0)),
        (r"a.c", "a\nc", None),
        ("(?=ab)a", "aab", Some(1)),
        ("(a|ab)(c|bcd)$", "abcd", Some(0)),
        (r"\{\.\*", "a{.*", Some(1)),
        ("(?=a(?!b))a", "abaca", Some(2)),
        ("(?!a(?=b))a", "abaca", Some(2)),
        ("(?=(?:ab?)*c)a+", "aadabac", Some(3)),
        ("(?=(?:(?:a*)*b)*$)a", "aacaab", Some(3)),
        (r"(?!.*\bend\b)x(?=y|$)", "xy end xy xz x", Some(7)),
        ("(?:(?=a)[ab]|(?=b)[bc])+d", "abad", Some(0)),
        ("(?=^a)a", "ba", None),
        ("[é-ü]+x", "aéôx", Some(1)),
        ("^.$", "é", Some(0)),
        (r"\u{1F600}b", "\u{1f600}\u{1f600}b", Some(4)),
    ] {
        assert_eq!(find(pattern, text), expected, "{pattern} in {text:?}");
    }
}

#[test]
fn invalid_patterns_name_the_place() {
    for (pattern, why) in [
        ("(a", "unbalanced parentheses at character 2"),
        ("a)", "unbalanced parentheses at character 2"),
        ("[a", "unterminated character class at character 2"),
        ("*", "'*' without an item to repeat at character 1"),
        (r"(a)\1", "a reference to a group (\\1) at character 5"),
        ("(?<=a)", "a lookbehind at character 3"),
        ("a{3,2}", "{3,2} (expected whole numbers up to 8192) at character 6"),
        ("a{99999}", "{99999} (expected whole numbers up to 8192) at character 8"),
        ("(?:(?:a{99}){99}){99}", "too large"),
        (&"(".repeat(100), "groups nested deeper than 64 at character 65"),
        (r"\", "trailing backslash at character 1"),
    ] {
        assert_eq!(Pattern::new(pattern).unwrap_err(), why, "{pattern}");
    }
}

#[test]
fn hostile_patterns_end() {
    let text = "a".repeat(20_000);
    for pattern in ["(a*)*b", "(a|aa)+$b", "(?:a?){50}a{50}b", "(?=(a*)*b)a"] {
        assert_eq!(find(pattern, &text), None, "{pattern}");
    }
}
