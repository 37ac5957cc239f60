use std::sync::Arc;

use super::automaton::{Automaton, State};
use super::parse::parse;

/// An automaton and where its texts begin.
fn start(gbnf: &str) -> (Automaton, State) {
    let mut automaton = Automaton::new(Arc::new(parse(gbnf, &|_| None).unwrap()));
    let state = automaton.start().unwrap();
    (automaton, state)
}

/// After the pieces, one token each: `None` when they are no beginning of a text, else whether the text may end.
fn after(gbnf: &str, pieces: &[&[u8]]) -> Option<bool> {
    let (mut automaton, mut state) = start(gbnf);
    for piece in pieces {
        state = automaton.follow(state, 1, piece, piece).unwrap();
        if state.is_nowhere() {
            return None;
        }
    }
    Some(automaton.may_end(state))
}

#[test]
fn characters_cut_in_two() {
    let e: [&[u8]; 2] = [b"\xC3", b"\xA9"];
    assert_eq!(after("root ::= \"é\"", &e), Some(true));
    assert_eq!(after("root ::= \"é\"?", &e[..1]), Some(false), "half a character is no end");
    assert_eq!(after("root ::= \"é\"", &[b"\xC4"]), None);
    assert_eq!(after("root ::= \"é\"", &[b"\xC3", b"\xAA"]), None);
    assert_eq!(after("root ::= [^é]", &[b"\xC3"]), Some(false), "another character may come of it");
    assert_eq!(after("root ::= [^é]", &e), None);
    assert_eq!(after("root ::= [^\\u00c0-\\u00ff]", &[b"\xC3"]), None, "none can come of it");
    assert_eq!(after("root ::= [à-ÿ] \"x\"", &[b"\xC3", b"\xA9x"]), Some(true));
    assert_eq!(after("root ::= .+", &[b"\xF0\x9F", b"\x98", b"\x80"]), Some(true));
    for invalid in [&b"\x80"[..], b"\xC0", b"\xFF", b"\xC3\xC3", b"\xE0\x80", b"\xF4\x90"] {
        assert_eq!(after("root ::= .+", &[invalid]), None, "{invalid:?}");
    }
}

#[test]
fn nothing_and_nul_follow_nothing() {
    assert_eq!(after("root ::= .*", &[]), Some(true));
    assert_eq!(after("root ::= .*", &[b""]), None);
    assert_eq!(after("root ::= .*", &[b"\0"]), None);
    assert_eq!(after("root ::= \"\"", &[]), Some(true));
    assert_eq!(after("root ::= [z-a]", &[b"m"]), None);
    assert_eq!(after("root ::= [^z-a]", &[b"m"]), Some(true), "other than nothing is anything");
}

#[test]
fn tokens_by_number() {
    let (mut automaton, state) = start("root ::= <[5]> \"b\" | \"a\" | !<[6]> \"c\"");
    let five = automaton.follow(state, 5, b"anything", b"anything").unwrap();
    assert!(!automaton.follow(five, 1, b"b", b"b").unwrap().is_nowhere());
    assert!(!automaton.follow(five, 1, b"c", b"c").unwrap().is_nowhere());
    let six = automaton.follow(state, 6, b"a", b"a").unwrap();
    assert!(automaton.may_end(six) && automaton.follow(six, 1, b"c", b"c").unwrap().is_nowhere());
}

/// Each of these keeps llama.cpp's code busy for minutes, or fills the memory.
#[test]
fn ambiguity_is_bounded() {
    let empty: String = (0..40).map(|i| format!("r{i} ::= | r{0} r{0}\n", i + 1)).collect();
    let wide: String = (0..60_000).map(|i| format!("| \"{i}\" ")).collect();
    for gbnf in [
        format!("root ::= r0\n{empty}r40 ::= \"a\""),
        format!("root ::= \"a\" {wide}"),
        "root ::= b root \"y\" | \"x\"\nb ::= c\nc ::= \"\"".to_owned(),
    ] {
        let mut automaton = Automaton::new(Arc::new(parse(&gbnf, &|_| None).unwrap()));
        assert!(automaton.start().is_err(), "{}", gbnf.chars().take(60).collect::<String>());
    }
    let (mut automaton, mut state) = start("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"");
    let steps =
        (0..100).take_while(|_| automaton.follow(state, 1, b"a", b"a").map(|next| state = next).is_ok()).count();
    assert!((8..20).contains(&steps), "it doubles with each: {steps}");
    // Not these: they only look so.
    let plain: String = (0..40).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    assert_eq!(after(&format!("root ::= r0\n{plain}r40 ::= \"a\""), &[b"aaaa"]), Some(false));
    let either: String = (0..40).map(|i| format!("r{i} ::= r{0} | r{0}\n", i + 1)).collect();
    assert_eq!(after(&format!("root ::= r0\n{either}r40 ::= \"a\""), &[b"a"]), Some(true));
    assert_eq!(after("root ::= ((\"a\"? \"b\"*)* \"c\"?)*", &[b"abbacab"]), Some(true));
}

/// Forgetting what was learnt changes no answer: as many brackets close as were opened.
#[test]
fn a_renewed_automaton_goes_on() {
    let (mut automaton, mut state) = start("root ::= \"(\" root? \")\"");
    let (mut renewals, depth) = (0, 250_000);
    for piece in [b"(", b")"].iter().flat_map(|piece| std::iter::repeat_n(piece, depth)) {
        assert!(!automaton.may_end(state));
        automaton.begin_work();
        state = automaton.follow(state, 1, *piece, *piece).unwrap();
        assert!(!state.is_nowhere());
        if let Some((fresh, same)) = automaton.renewed(state).unwrap() {
            (automaton, state) = (fresh, same);
            renewals += 1;
        }
    }
    assert!(automaton.may_end(state) && renewals > 0, "{renewals}");
}
