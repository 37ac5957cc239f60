use super::*;
use crate::Vocabulary;
use crate::error::Result;
use proptest::prelude::*;

/// Token 0 ends a completion, and token 1 adds no text.
#[derive(Debug)]
struct Words(Vec<Vec<u8>>);

impl Vocabulary for Words {
    fn n_tokens(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        &self.0[token as usize]
    }

    fn text(&self, token: Token) -> &[u8] {
        if token == 1 { &[] } else { self.piece(token) }
    }

    fn is_eog(&self, token: Token) -> bool {
        token == 0
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(Vec::new())
    }
}

fn words(words: &[&[u8]]) -> Words {
    Words(words.iter().map(|word| word.to_vec()).collect())
}

/// The tokens of these ranks.
fn tokens(vocabulary: &Words, tree: &TokenTree, ranks: Range<usize>) -> Vec<Token> {
    let all = 0..vocabulary.n_tokens() as Token;
    ranks.filter_map(|rank| all.clone().find(|token| tree.rank(*token) == rank)).collect()
}

/// The text of each token in the tree, by a walk over all nodes.
fn walk(vocabulary: &Words, tree: &TokenTree) -> Vec<(Vec<u8>, Token)> {
    let (mut path, mut found) = (Vec::new(), Vec::new());
    for at in 0..tree.n_nodes() {
        let node = tree.node(at).unwrap();
        path.truncate(usize::from(node.depth) - 1);
        path.push(node.byte);
        found.extend(tokens(vocabulary, tree, tree.own(at)).into_iter().map(|token| (path.clone(), token)));
    }
    found
}

#[test]
fn tokens_that_match_no_text_are_not_in_the_tree() {
    let vocabulary = words(&[b"</s>", b"<call>", b"ab", b"", b"a", b"\0x", b"ab", b"b\0"]);
    let tree = vocabulary.make_token_tree();
    let found: Vec<(Vec<u8>, Token)> =
        vec![(b"a".to_vec(), 4), (b"ab".to_vec(), 2), (b"ab".to_vec(), 6), (b"b\0".to_vec(), 7)];
    assert_eq!(walk(&vocabulary, &tree), found);
    assert_eq!(tree.others(), [0, 1]);
    assert_eq!(tokens(&vocabulary, &tree, tree.all(0)), [4, 2, 6]);
    // The others have the last ranks, and tokens that match nothing have none.
    assert_eq!(tokens(&vocabulary, &tree, tree.all_texts().end..tree.n_ranks()), [0, 1]);
    assert!([3, 5, 8, -1].iter().all(|token| tree.rank(*token) >= tree.n_ranks()));
    let empty = words(&[]).make_token_tree();
    assert!(empty.node(0).is_none() && empty.n_ranks() == 0);
}

#[test]
fn summary_tells_the_characters_of_tokens() {
    let with = |more: &[u8]| {
        let mut all: Vec<Vec<u8>> = [&b"</s>"[..], b"<call>", b"a"].map(<[u8]>::to_vec).to_vec();
        all.extend((b'b'..b'b' + 16).map(|byte| vec![b'a', byte, b'1']));
        all.push([b"a", more].concat());
        let tree = Words(all).make_token_tree();
        tree.summary(tree.node(0).unwrap())
    };
    let ascii = (b'a'..b'b' + 16).fold(1 << b'1', |ascii: u128, byte| ascii | 1 << byte);
    assert_eq!(with(b"b1"), Some(TextSummary { ascii, has_others: false, n_chars: 3, n_before: 0 }));
    assert_eq!(with("éaéa".as_bytes()), Some(TextSummary { ascii, has_others: true, n_chars: 5, n_before: 0 }));
    assert_eq!(with(b"a\xE2\x82"), Some(TextSummary { ascii, has_others: true, n_chars: 3, n_before: 0 }));
    assert_eq!(with(b"\xA9"), None);
    assert_eq!(with(b"\xED\xA0\x80"), None, "a surrogate");
    let few = words(&[b"</s>", b"<call>", b"ab", b"ac"]).make_token_tree();
    assert_eq!(few.summary(few.node(0).unwrap()), None);
    let long: Vec<Vec<u8>> = (0..100).map(|n| vec![b'a'; n]).collect();
    let tree = Words(long).make_token_tree();
    let summaries = (0..tree.n_nodes()).filter_map(|at| tree.summary(tree.node(at).unwrap()));
    assert_eq!(summaries.count(), usize::from(DEEPEST_SUMMARIZED));
}

proptest! {
    #[test]
    fn walk_finds_each_token_with_its_text(
        texts in prop::collection::vec(prop::collection::vec(prop_oneof![3 => 97..100_u8, 1 => any::<u8>()], 0..6), 2..80),
    ) {
        let vocabulary = Words(texts);
        let tree = vocabulary.make_token_tree();
        let found = walk(&vocabulary, &tree);
        prop_assert!(found.is_sorted());
        let mut expected: Vec<(Vec<u8>, Token)> = (2..vocabulary.n_tokens() as Token)
            .map(|token| (vocabulary.piece(token).to_vec(), token))
            .filter(|(text, _)| text.first().is_some_and(|byte| *byte != 0))
            .collect();
        expected.sort_unstable();
        prop_assert_eq!(&found, &expected);
        for at in 0.. {
            let Some(node) = tree.node(at) else { break };
            let begins = |other: &[u8]| found.iter().filter(|(text, _)| text.starts_with(other)).count();
            let text = &found[tree.first(at)].0[..usize::from(node.depth)];
            prop_assert_eq!(tree.all(at).len(), begins(text));
        }
    }
}
