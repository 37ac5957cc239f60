use super::super::parse::parse;
use super::*;

fn start(gbnf: &str) -> (Automaton, State) {
    let mut automaton = Automaton::new(Arc::new(parse(gbnf, &|_| None).unwrap()));
    let state = automaton.start().unwrap();
    automaton.begin_work();
    (automaton, state)
}

/// One look at the two stacks, and what a look costs is the subject of `rules`.
#[test]
fn half_a_character_is_little_work_in_a_huge_class() {
    let class: String = ('\u{10000}'..='\u{3FFFF}').collect();
    let (mut automaton, state) = start(&format!("root ::= c \"a\" | c \"b\"\nc ::= [^{class}]"));
    assert!(
        automaton.follow(state, 1, b"\xF0", b"\xF0").unwrap().is_nowhere(),
        "all that can come of it are in the class"
    );
    assert_eq!(automaton.work, 1);
    assert!(!automaton.follow(state, 1, b"\xF1", b"\xF1").unwrap().is_nowhere());
    assert_eq!(automaton.work, 2);
}

#[test]
fn halves_of_characters_are_work_that_a_call_may_have_too_much_of() {
    let wide: String = (0..10_000).map(|i| format!("| \"{i}\" ")).collect();
    let (mut automaton, state) = start(&format!("root ::= \"a\" {wide}"));
    let asked = (0..40_000).take_while(|_| automaton.follow(state, 1, b"\xC3", b"\xC3").is_ok()).count();
    assert_eq!(asked, MAX_WORK / 10_001_usize.div_ceil(LOOKS), "stacks");
    automaton.begin_work();
    assert!(automaton.follow(state, 1, b"\xC3", b"\xC3").is_ok(), "the next call may have as much again");
}

/// All but a few tokens lead to the same set, which is found once.
#[test]
fn tokens_that_are_not_named_are_looked_at_once() {
    let wide: String = (0..5000).map(|i| format!("| \"{i}\" ")).collect();
    let (mut automaton, state) = start(&format!("root ::= !<[5]> \"a\" | <[6]> \"b\" {wide}"));
    let (mut first, mut others) = (0, 0);
    for token in 0..100_000 {
        let before = automaton.work;
        let next = automaton.follow(state, token, b"x", b"x").unwrap();
        assert_eq!(next.is_nowhere(), token == 5, "{token}");
        let goes_on =
            |automaton: &mut Automaton, text: &[u8]| !automaton.follow(next, 1, text, text).unwrap().is_nowhere();
        if token < 10 && token != 5 {
            assert!(goes_on(&mut automaton, b"a"));
            assert_eq!(goes_on(&mut automaton, b"b"), token == 6);
        }
        let work = automaton.work - before;
        if token < 10 { first += work } else { others += work }
    }
    assert!(first > 300 && others == 0, "{first} {others}");
}

/// What a call has cost is not forgotten with what was learnt.
#[test]
fn to_begin_again_costs_what_was_spent() {
    let letters: String = ('a'..='z').chain('A'..='Z').map(|c| format!("| \"{c}\" root \"{c}\" ")).collect();
    let (mut automaton, mut state) = start(&format!("root ::= \"0\" {letters}"));
    let (start, mut renewals, mut spent) = (state, 0, 0);
    for number in 0_u32.. {
        let text: Vec<u8> = (0..4).map(|place| b'a' + (number / 26_u32.pow(place) % 26) as u8).collect();
        assert!(automaton.work >= spent);
        spent = automaton.work;
        if automaton.follow(state, 1, &text, &text).is_err() {
            break;
        }
        match automaton.renewed(state) {
            Ok(Some((fresh, same))) => {
                (automaton, state) = (fresh, same);
                renewals += 1;
            }
            Ok(None) => {}
            Err(TooAmbiguous) => break,
        }
        assert!(number < 26_u32.pow(4), "the work of a call ends: {spent}");
    }
    assert!(renewals > 1 && start != State::NOWHERE, "{renewals}");
}

/// A control token's name is no text.
#[test]
fn what_adds_no_text_follows_by_its_number_alone() {
    let (mut automaton, state) = start("root ::= \"<s>\" | <[7]> | !<[8]> \"x\"");
    assert!(automaton.follow(state, 8, b"<s>", b"").unwrap().is_nowhere());
    let seven = automaton.follow(state, 7, b"<t>", b"").unwrap();
    assert!(automaton.may_end(seven));
    let nine = automaton.follow(state, 9, b"<u>", b"").unwrap();
    assert!(!nine.is_nowhere() && !automaton.may_end(nine));
    let spelt = automaton.follow(state, 8, b"<s>", b"<s>").unwrap();
    assert!(automaton.may_end(spelt));
}

/// The stacks of a text alone may be more than is remembered.
#[test]
fn to_begin_again_is_work_as_well() {
    let rules: String = (1..20_000).map(|i| format!("r{i} ::= r{} \"b\"\n", i + 1)).collect();
    let (mut automaton, mut state) = start(&format!("root ::= r1 \"b\"\n{rules}r20000 ::= \"(\" root"));
    for _ in 0..40 {
        automaton.begin_work();
        state = automaton.follow(state, 1, b"(", b"(").unwrap();
    }
    automaton.begin_work();
    let asked = (0..1000).take_while(|_| match automaton.renewed(state) {
        Ok(Some((fresh, same))) => {
            (automaton, state) = (fresh, same);
            true
        }
        other => other.is_ok(),
    });
    assert!(asked.count() < 100, "a call that only begins again ends");
}
