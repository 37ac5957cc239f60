//! Masks of whole vocabularies allow what each token by itself is allowed.

use std::sync::{Arc, OnceLock};

use foredraft_base::error::Result;
use foredraft_base::{Token, TokenData, TokenTree, Vocabulary};
use proptest::collection::vec;
use proptest::prelude::*;

use super::chats::{FORMATS, answers, tools};
use super::formats::How;
use crate::tree::{NodeId, Tree};
use crate::{Grammar, PreservingVocabulary};

/// A vocabulary with a tree of its tokens, or without. Token 0 ends a completion; tokens 1 and 4 add no text.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: Vec<Vec<u8>>,
    tree: Option<OnceLock<TokenTree>>,
}

impl Pieces {
    pub(crate) fn with_tree(pieces: Vec<Vec<u8>>) -> Pieces {
        Pieces { pieces, tree: Some(OnceLock::new()) }
    }
}

impl Vocabulary for Pieces {
    fn n_tokens(&self) -> usize {
        self.pieces.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.pieces.get(token as usize).map_or(&[], Vec::as_slice)
    }

    fn text(&self, token: Token) -> &[u8] {
        if [1, 4].contains(&token) { &[] } else { self.piece(token) }
    }

    fn is_eog(&self, token: Token) -> bool {
        token == 0
    }

    fn token_tree(&self) -> Option<&TokenTree> {
        self.tree.as_ref().map(|tree| tree.get_or_init(|| self.make_token_tree()))
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(Vec::new())
    }
}

/// Many tokens begin with "a", some with characters behind it, some with a part of one.
pub(crate) fn pieces() -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = ["", "<t>", "b", "ab", "<u>", "", "x", "a", "é", "aé", "abc", "\0", "b\0"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec();
    pieces.extend((b'a'..=b'z').map(|byte| vec![b'a', byte, b'b']));
    pieces.extend((0..20).map(|n| format!("ab{}", "é€😀a".repeat(n)).into_bytes()));
    pieces.extend(
        [&b"\xC3"[..], b"\xA9", b"\xA9a", b"a\xE2\x82", b"\xAC", b"a\xED\xA0\x80", b"\xFF"].map(<[u8]>::to_vec),
    );
    pieces
}

/// Compares the masks of two equal grammars along a random completion.
fn compare(gbnf: &str, preserved: &[Token], walk: &[usize]) -> std::result::Result<(), TestCaseError> {
    let with = |tree| Arc::new(Pieces { pieces: pieces(), tree });
    let preserving = |vocabulary| Arc::new(PreservingVocabulary::new(vocabulary, preserved.into()));
    let by_tree =
        Grammar::new(&preserving(with(Some(OnceLock::new()))), gbnf, &foredraft_base::work::Work::unlimited());
    let by_token = Grammar::new(&preserving(with(None)), gbnf, &foredraft_base::work::Work::unlimited());
    let (Ok(mut by_tree), Ok(mut by_token)) = (by_tree, by_token) else { return Ok(()) };
    for choice in walk {
        let all: Vec<TokenData> = (-2..80).map(|id| TokenData { id, logit: 1.0, p: 0.0 }).collect();
        let (mut masked, mut expected) = (all.clone(), all);
        let (ours, theirs) = (by_tree.filter(&mut masked), by_token.filter(&mut expected));
        // Token by token, a limit can be reached that one walk does not reach.
        prop_assert!(ours.is_ok() || theirs.is_err(), "{}", gbnf);
        if theirs.is_err() {
            break;
        }
        prop_assert_eq!(&masked, &expected, "{}", gbnf);
        // A copy, which shares the masks, and a single token find the same.
        let allowed: Vec<Token> =
            expected.iter().filter(|candidate| candidate.logit == 1.0).map(|candidate| candidate.id).collect();
        prop_assert!((-2..80).all(|token| by_tree.clone().allows(token).unwrap() == allowed.contains(&token)));
        let Some(token) = allowed.get(choice % allowed.len().max(1)) else { break };
        prop_assert!(by_tree.accept(*token).is_ok() && by_token.accept(*token).is_ok(), "{} {}", gbnf, token);
    }
    Ok(())
}

/// Compares the mask after each byte of a text, which may break off, with what each token by itself is allowed. The tokens are all parts of
/// the texts that have at most five bytes.
pub(crate) fn compare_along(tree: impl Into<Arc<Tree>>, root: NodeId, texts: &[&str]) {
    let parts = |n| texts.iter().flat_map(move |text| text.as_bytes().windows(n).map(<[u8]>::to_vec));
    let mut all: Vec<Vec<u8>> = (1..6).flat_map(parts).chain((0..=255).map(|byte| vec![byte])).collect();
    all.sort_unstable();
    all.dedup();
    all.splice(0..0, [b"".to_vec(), b"<t>".to_vec(), b"b".to_vec(), b"ab".to_vec(), b"<u>".to_vec()]);
    let n_tokens = all.len() as Token;
    let tree = tree.into();
    let with = |token_tree| {
        let vocabulary = Arc::new(Pieces { pieces: all.clone(), tree: token_tree });
        Grammar::from_tree(vocabulary, Arc::clone(&tree), root, &foredraft_base::work::Work::unlimited()).unwrap()
    };
    let (masked, alone) = (with(Some(OnceLock::new())), with(None));
    for text in texts {
        let (mut masked, mut alone) = (masked.clone(), alone.clone());
        for byte in text.as_bytes() {
            let candidates = (0..n_tokens).map(|id| TokenData { id, logit: 1.0, p: 0.0 });
            let (mut ours, mut theirs) = (candidates.clone().collect::<Vec<_>>(), candidates.collect::<Vec<_>>());
            masked.filter(&mut ours).unwrap();
            alone.filter(&mut theirs).unwrap();
            let mut both = ours.iter().zip(&theirs).zip(&all);
            let other = both.find(|((ours, theirs), _)| ours.logit.to_bits() != theirs.logit.to_bits());
            assert!(other.is_none(), "{text:?} before {byte}: {other:?}");
            if masked.accept_text(&[*byte]).is_err() {
                break;
            }
            alone.accept_text(&[*byte]).unwrap();
        }
    }
}

#[test]
fn masks_of_chats_are_those_of_tokens() {
    for (name, build) in FORMATS {
        let answers = answers(name);
        let texts: Vec<&str> = answers.iter().map(|(text, _)| text.as_str()).collect();
        for is_lenient in [false, true] {
            let (tree, root) = build(&tools(), How { is_lenient, is_required: false });
            compare_along(tree, root, &texts);
        }
    }
}

#[test]
fn masks_of_special_cases_are_those_of_tokens() {
    let check = |gbnf: &str| compare(gbnf, &[4], &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    // All characters, some, none beyond ASCII, and all but a few.
    check("root ::= .*");
    check("root ::= [^\"]* \"a\"");
    check("root ::= [a-z]+");
    check("root ::= [^é]*");
    check("root ::= ([^€] | \"a\"){3,}");
    // Limits, and characters that only some stacks read.
    check("root ::= \"a\" [^\"]{0,3} \"a\"");
    check("root ::= ([^b] | \"b\" [a-z]){0,4} \"b\"");
    check("root ::= [a-z]{0,2} \"b\" | .{0,3} | \"a\" [é-\u{FFFD}]{0,2}");
    check("root ::= (a | b)*\na ::= \"a\" [^é]{1,2}\nb ::= .{2} \"x\"");
    // Many texts, which end inside of tokens.
    check(
        r#"root ::= ("a" | "ab" | "aab" | "abc" | "acb" | "aé" | "b" | "x" | "adb" | "aéx" | "ac") ("b" | "é")* "a""#,
    );
    // Tokens by their ids, and any token.
    check("root ::= <[1]> | <[2]> \"b\" | \"a\"");
    check("root ::= (!<[2]>)* \"ab\"");
    check("root ::= \"<u>\" | \"<t>\"");
    check("root ::= \"\"");
}

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

fn grammar() -> impl Strategy<Value = String> {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn masks_of_random_grammars_are_those_of_tokens(gbnf in grammar(), walk in vec(0_usize..100, 1..6), preserve in any::<bool>()) {
        compare(&gbnf, if preserve { &[4] } else { &[] }, &walk)?;
    }
}
