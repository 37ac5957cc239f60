//! Compares the automaton over bytes with the former one over characters, on random grammars and texts.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::former;
use crate::automaton::Automaton;
use crate::parse::parse;

/// A random rule's body. Rules are `r0` to `r3`.
fn body() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => prop::sample::select(vec!["\"a\"", "\"ab\"", "\"é\"", "\"aé\"", "\"\"", "\"\\u00e8x\"", "\"\\uD800\"", "\"\\U00110000\""]),
        4 => prop::sample::select(vec!["[a-c]", "[^a]", "[^é]", "[à-ÿ]", "[aé€😀]", "[^\\u0080-\\uFFFF]", ".", "[b-a]", "[^b-a]", "[]", "[\\uD800-\\uDFFF]"]),
        3 => prop::sample::select(vec!["r0", "r1", "r2", "r3", "root"]),
        1 => prop::sample::select(vec!["<[1]>", "!<[2]>", "<[3]>"]),
    ];
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
        let counts = prop::sample::select(vec!["*", "+", "?", "{2}", "{0}", "{1,2}", "{0,3}", "{2,}", "{0,0}"]);
        prop_oneof![
            3 => vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            2 => vec(inner.clone(), 1..4).prop_map(|parts| format!("({})", parts.join(" | "))),
            1 => inner.clone().prop_map(|part| format!("({part} | )")),
            3 => (inner, counts).prop_map(|(part, count)| format!("({part}){count}")),
        ]
    })
}

pub(super) fn grammar() -> impl Strategy<Value = String> {
    (vec(body(), 5), 0_usize..8).prop_map(|(bodies, n_redefined)| {
        let mut text = String::new();
        for (name, body) in ["root", "r0", "r1", "r2", "r3"].iter().zip(&bodies).skip(usize::from(n_redefined == 7)) {
            text.push_str(&format!("{name} ::= {body}\n"));
        }
        if n_redefined == 0 {
            text.push_str("r1 ::= \"b\" | r2\n");
        }
        text
    })
}

const PIECES: [&[u8]; 20] = [
    b"a",
    b"b",
    b"ab",
    b"abc",
    b"x",
    "é".as_bytes(),
    b"\xC3",
    b"\xA9",
    b"\xA8",
    b"\xA9a",
    "€".as_bytes(),
    b"\xE2\x82",
    b"\xAC",
    "😀".as_bytes(),
    b"\xF0\x9F",
    b"\x98\x80",
    b"\xED\xA0\x80",
    b"\xED",
    b"\xFF",
    b"\xC0\x80",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn random_grammars_allow_what_they_allowed(gbnf in grammar(), walk in vec((0_usize..100, 0_i32..5), 0..12)) {
        let (ours, theirs) = (parse(&gbnf, &|_| None, &foredraft_base::work::Work::unlimited()), former::parse(&gbnf, &|_| None));
        let theirs = match (ours.as_ref().err(), theirs) {
            (error, Err(former)) => {
                prop_assert_eq!(error, Some(&former), "{}", gbnf);
                return Ok(());
            }
            (error, Ok(theirs)) => {
                prop_assert_eq!(error, None, "{}", gbnf);
                theirs
            }
        };
        let (tree, root) = ours.unwrap();
        let mut ours = Automaton::new(Arc::new(tree), root);
        let mut theirs = former::automaton::Automaton::new(Arc::new(theirs));
        let (our_state, their_state) = (ours.start(), theirs.start());
        prop_assert_eq!(our_state.is_err(), their_state.is_err(), "{}", gbnf);
        let (Ok(mut our_state), Ok(mut their_state)) = (our_state, their_state) else { return Ok(()) };
        for (choice, token) in walk {
            prop_assert_eq!(ours.may_end(our_state), theirs.may_end(their_state), "{}", gbnf);
            let mut allowed = Vec::new();
            // The former automaton mixed up a token by its id with the beginning of a character.
            let is_compared = |piece: &&[u8]| !gbnf.contains('<') || std::str::from_utf8(piece).is_ok();
            for piece in PIECES.into_iter().filter(is_compared) {
                ours.begin_work();
                theirs.begin_work();
                let (Ok(our_next), Ok(their_next)) =
                    (ours.follow(our_state, token, piece, piece), theirs.follow(their_state, token, piece, piece))
                else {
                    return Ok(());
                };
                prop_assert_eq!(our_next.is_rejected(), their_next.is_rejected(), "{} {:?} {}", gbnf, piece, token);
                allowed.extend((!our_next.is_rejected()).then_some((our_next, their_next)));
            }
            if allowed.is_empty() {
                break;
            }
            (our_state, their_state) = allowed[choice % allowed.len()];
        }
    }
}
