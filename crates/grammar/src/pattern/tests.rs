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
    ] {
        assert_eq!(find(pattern, text), expected, "{pattern} in {text:?}");
    }
}

#[test]
fn invalid_patterns_name_the_place() {
    for (pattern, why) in [
        ("(a", "missing ) at byte 2"),
        ("a)", "unmatched ) at byte 1"),
        ("[a", "missing ] at byte 2"),
        ("*", "nothing to repeat at byte 1"),
        (r"(a)\1", "unsupported backreference at byte 5"),
        ("(?<=a)", "unsupported group at byte 2"),
        ("a{3,2}", "invalid count at byte 6"),
        ("a{99999}", "too large a count at byte 6"),
        ("(?:(?:a{99}){99}){99}", "too large"),
        (&"(".repeat(100), "too many nested groups at byte 64"),
        (r"\", "unexpected end at byte 1"),
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
