use super::super::parse::parse;
use super::mask::{MaskBits, PartialMask};
use super::*;
use crate::tests::masks::{Pieces, pieces};

fn automaton(gbnf: &str) -> Automaton {
    let (tree, root) = parse(gbnf, &|_| None, &foredraft_base::work::Work::unlimited()).unwrap();
    Automaton::new(Arc::new(tree), root)
}

fn start(gbnf: &str) -> (Automaton, GrammarState) {
    let mut automaton = automaton(gbnf);
    let state = automaton.start().unwrap();
    automaton.begin_work();
    (automaton, state)
}

/// The size of the class does not matter.
#[test]
fn incomplete_character_is_cheap_in_a_huge_class() {
    let class: String = ('\u{10000}'..='\u{3FFFF}').collect();
    let (mut automaton, state) = start(&format!("root ::= c \"a\" | c \"b\"\nc ::= [^{class}]"));
    assert!(
        automaton.follow(state, 1, b"\xF0", b"\xF0").unwrap().is_rejected(),
        "all characters that it can become are in the class"
    );
    assert_eq!(automaton.work, 1);
    assert!(!automaton.follow(state, 1, b"\xF1", b"\xF1").unwrap().is_rejected());
    assert_eq!(automaton.work, 4);
}

/// Only the first of several bytes that no node tells apart is work.
#[test]
fn transition_is_computed_once_for_bytes_that_are_alike() {
    let wide: String = (0..10_000).map(|i| format!("| \"{i}\" ")).collect();
    let (mut automaton, state) = start(&format!("root ::= \"a\" {wide} | [^a-z0-9]"));
    let mut work = Vec::new();
    for text in [&b"\xC3"[..], b"\xC3", b"\xC4", b"\xDF", b"\xE1", b"\xE2", b"1", b"1", b"2"] {
        automaton.begin_work();
        assert!(!automaton.follow(state, 1, text, text).unwrap().is_rejected());
        work.push(automaton.work > 10_000 / STACKS_PER_WORK);
    }
    assert_eq!(work, [true, false, false, false, true, false, true, false, true]);
}

/// All but a few tokens lead to the same set, which is computed once.
#[test]
fn transition_by_unnamed_tokens_is_computed_once() {
    let wide: String = (0..5000).map(|i| format!("| \"{i}\" ")).collect();
    let (mut automaton, state) = start(&format!("root ::= !<[5]> \"a\" | <[6]> \"b\" {wide}"));
    let (mut first, mut others) = (0, 0);
    for token in 0..100_000 {
        let before = automaton.work;
        let next = automaton.follow(state, token, b"x", b"x").unwrap();
        assert_eq!(next.is_rejected(), token == 5, "{token}");
        let can_continue =
            |automaton: &mut Automaton, text: &[u8]| !automaton.follow(next, 1, text, text).unwrap().is_rejected();
        if token < 10 && token != 5 {
            assert!(can_continue(&mut automaton, b"a"));
            assert_eq!(can_continue(&mut automaton, b"b"), token == 6);
        }
        let work = automaton.work - before;
        if token < 10 { first += work } else { others += work }
    }
    assert!(first > 300 && others == 0, "{first} {others}");
}

/// The work counter of a call survives a rebuild.
#[test]
fn rebuild_keeps_the_work_counter() {
    let letters: String = ('a'..='z').chain('A'..='Z').map(|c| format!("| \"{c}\" root \"{c}\" ")).collect();
    let (mut automaton, mut state) = start(&format!("root ::= \"0\" {letters}"));
    let (start, mut rebuilds, mut spent) = (state, 0, 0);
    for number in 0_u32.. {
        let text: Vec<u8> = (0..4).map(|place| b'a' + (number / 26_u32.pow(place) % 26) as u8).collect();
        assert!(automaton.work >= spent);
        spent = automaton.work;
        if automaton.follow(state, 1, &text, &text).is_err() {
            break;
        }
        match automaton.rebuilt(state) {
            Ok(Some((fresh, same))) => {
                (automaton, state) = (fresh, same);
                rebuilds += 1;
            }
            Ok(None) => {}
            Err(TooAmbiguous) => break,
        }
        assert!(number < 26_u32.pow(4), "the work of a call is limited: {spent}");
    }
    assert!(rebuilds > 1 && start != GrammarState::REJECTED, "{rebuilds}");
}

/// A control token's name is not text.
#[test]
fn tokens_without_text_match_only_by_id() {
    let (mut automaton, state) = start("root ::= \"<s>\" | <[7]> | !<[8]> \"x\"");
    assert!(automaton.follow(state, 8, b"<s>", b"").unwrap().is_rejected());
    let seven = automaton.follow(state, 7, b"<t>", b"").unwrap();
    assert!(automaton.may_end(seven));
    let nine = automaton.follow(state, 9, b"<u>", b"").unwrap();
    assert!(!nine.is_rejected() && !automaton.may_end(nine));
    let spelt = automaton.follow(state, 8, b"<s>", b"<s>").unwrap();
    assert!(automaton.may_end(spelt));
}

/// The stacks alone may exceed the cache limit.
#[test]
fn rebuild_counts_as_work() {
    let rules: String = (1..20_000).map(|i| format!("r{i} ::= r{} \"b\"\n", i + 1)).collect();
    let (mut automaton, mut state) = start(&format!("root ::= r1 \"b\"\n{rules}r20000 ::= \"(\" root"));
    for _ in 0..40 {
        automaton.begin_work();
        state = automaton.follow(state, 1, b"(", b"(").unwrap();
    }
    automaton.begin_work();
    let calls = (0..1000).take_while(|_| match automaton.rebuilt(state) {
        Ok(Some((fresh, same))) => {
            (automaton, state) = (fresh, same);
            true
        }
        other => other.is_ok(),
    });
    assert!(calls.count() < 100, "a call that only rebuilds ends");
}

/// The result after the pieces, one token each: `None` if the grammar rejects them, otherwise whether the output may end.
fn after(gbnf: &str, pieces: &[&[u8]]) -> Option<bool> {
    let (mut automaton, mut state) = start(gbnf);
    for piece in pieces {
        state = automaton.follow(state, 1, piece, piece).unwrap();
        if state.is_rejected() {
            return None;
        }
    }
    Some(automaton.may_end(state))
}

#[test]
fn characters_split_across_tokens_are_matched() {
    let e: [&[u8]; 2] = [b"\xC3", b"\xA9"];
    assert_eq!(after("root ::= \"é\"", &e), Some(true));
    assert_eq!(after("root ::= \"é\"?", &e[..1]), Some(false), "an incomplete character cannot end the output");
    assert_eq!(after("root ::= \"é\"", &[b"\xC4"]), None);
    assert_eq!(after("root ::= \"é\"", &[b"\xC3", b"\xAA"]), None);
    assert_eq!(after("root ::= [^é]", &[b"\xC3"]), Some(false), "it can become another character");
    assert_eq!(after("root ::= [^é]", &e), None);
    assert_eq!(
        after("root ::= [^\\u00c0-\\u00ff]", &[b"\xC3"]),
        None,
        "all characters that it can become are excluded"
    );
    assert_eq!(after("root ::= [à-ÿ] \"x\"", &[b"\xC3", b"\xA9x"]), Some(true));
    assert_eq!(after("root ::= .+", &[b"\xF0\x9F", b"\x98", b"\x80"]), Some(true));
    for invalid in [&b"\x80"[..], b"\xC0", b"\xFF", b"\xC3\xC3", b"\xE0\x80", b"\xF4\x90"] {
        assert_eq!(after("root ::= .+", &[invalid]), None, "{invalid:?}");
    }
}

#[test]
fn empty_and_nul_tokens_never_match() {
    assert_eq!(after("root ::= .*", &[]), Some(true));
    assert_eq!(after("root ::= .*", &[b""]), None);
    assert_eq!(after("root ::= .*", &[b"\0"]), None);
    assert_eq!(after("root ::= \"\"", &[]), Some(true));
    assert_eq!(after("root ::= [z-a]", &[b"m"]), None);
    assert_eq!(after("root ::= [^z-a]", &[b"m"]), Some(true), "the complement of an empty class is every character");
}

#[test]
fn tokens_match_by_id() {
    let (mut automaton, state) = start("root ::= <[5]> \"b\" | \"a\" | !<[6]> \"c\"");
    let five = automaton.follow(state, 5, b"anything", b"anything").unwrap();
    assert!(!automaton.follow(five, 1, b"b", b"b").unwrap().is_rejected());
    assert!(!automaton.follow(five, 1, b"c", b"c").unwrap().is_rejected());
    let six = automaton.follow(state, 6, b"a", b"a").unwrap();
    assert!(automaton.may_end(six) && automaton.follow(six, 1, b"c", b"c").unwrap().is_rejected());
}

/// With each of these llama.cpp's code runs for minutes or exhausts the memory.
#[test]
fn ambiguity_is_bounded() {
    let empty: String = (0..40).map(|i| format!("r{i} ::= | r{0} r{0}\n", i + 1)).collect();
    let wide: String = (0..60_000).map(|i| format!("| \"{i}\" ")).collect();
    for gbnf in [
        format!("root ::= r0\n{empty}r40 ::= \"a\""),
        format!("root ::= \"a\" {wide}"),
        "root ::= b root \"y\" | \"x\"\nb ::= c\nc ::= \"\"".to_owned(),
    ] {
        assert!(automaton(&gbnf).start().is_err(), "{}", gbnf.chars().take(60).collect::<String>());
    }
    let (mut automaton, mut state) = start("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"");
    let steps =
        (0..100).take_while(|_| automaton.follow(state, 1, b"a", b"a").map(|next| state = next).is_ok()).count();
    assert!((8..20).contains(&steps), "the number of stacks doubles per token: {steps}");
    // These only look ambiguous.
    let plain: String = (0..40).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    assert_eq!(after(&format!("root ::= r0\n{plain}r40 ::= \"a\""), &[b"aaaa"]), Some(false));
    let either: String = (0..40).map(|i| format!("r{i} ::= r{0} | r{0}\n", i + 1)).collect();
    assert_eq!(after(&format!("root ::= r0\n{either}r40 ::= \"a\""), &[b"a"]), Some(true));
    assert_eq!(after("root ::= ((\"a\"? \"b\"*)* \"c\"?)*", &[b"abbacab"]), Some(true));
}

/// Rebuilding the automaton does not change its results: as many brackets close as were opened.
#[test]
fn rebuilt_automaton_continues_from_the_state() {
    let (mut automaton, mut state) = start("root ::= \"(\" root? \")\"");
    let (mut rebuilds, depth) = (0, 250_000);
    for piece in [b"(", b")"].iter().flat_map(|piece| std::iter::repeat_n(piece, depth)) {
        assert!(!automaton.may_end(state));
        automaton.begin_work();
        state = automaton.follow(state, 1, *piece, *piece).unwrap();
        assert!(!state.is_rejected());
        if let Some((fresh, same)) = automaton.rebuilt(state).unwrap() {
            (automaton, state) = (fresh, same);
            rebuilds += 1;
        }
    }
    assert!(automaton.may_end(state) && rebuilds > 0, "{rebuilds}");
}

/// The work of finding the mask after a text.
fn mask_work(automaton: &mut Automaton, state: GrammarState, vocabulary: &Pieces, text: &str) -> usize {
    let state = automaton.follow_text(state, text.as_bytes()).unwrap();
    assert!(!state.is_rejected());
    automaton.begin_work();
    automaton.mask(state, vocabulary, vocabulary.token_tree().unwrap()).unwrap().unwrap();
    automaton.work
}

/// The tokens that stay in a string are found once for all strings.
#[test]
fn masks_share_what_the_places_on_top_allow() {
    let vocabulary = Pieces::with_tree(pieces());
    let key = |name: &str| format!("\"\\\"{name}\\\":\"");
    let gbnf = format!("root ::= {} text {} text [b-y]*\ntext ::= \"\\\"\" [^\"]{{0,9}} \"\\\"\"", key("a"), key("bc"));
    let (mut automaton, state) = start(&gbnf);
    let first = mask_work(&mut automaton, state, &vocabulary, "\"a\":\"x");
    let other = mask_work(&mut automaton, state, &vocabulary, "\"a\":\"x\"\"bc\":\"y");
    assert!(first > 100 && other < first / 4, "{first} {other}");
}

/// The memory of masks is bounded.
#[test]
fn old_masks_are_dropped() {
    let mut masks = Masks::default();
    let n_tokens = 1 << 20;
    for set in 0..200 {
        masks.keep(set, MaskBits::new(n_tokens));
        masks.keep_partial(set, PartialMask::new(MaskBits::new(n_tokens), vec![(0, 0); 1 << 14]));
    }
    let n_kept = (0..200).filter(|set| masks.kept(*set).is_some()).count();
    assert!((1..70).contains(&n_kept) && masks.kept(199).is_some(), "{n_kept}");
}
