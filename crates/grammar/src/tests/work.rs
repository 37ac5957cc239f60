//! All work of making a grammar is counted, and ends where the signal says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foredraft_base::error::{Code, Result};
use foredraft_base::work::Work;
use foredraft_base::{Token, Vocabulary};

use crate::Grammar;
use crate::tree::{Each, NodeId, TreeBuilder};

/// A vocabulary of one token.
#[derive(Debug)]
struct OneToken;

impl Vocabulary for OneToken {
    fn n_tokens(&self) -> usize {
        1
    }

    fn piece(&self, _: Token) -> &[u8] {
        b"a"
    }

    fn is_eog(&self, _: Token) -> bool {
        false
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(Vec::new())
    }
}

fn vocabulary() -> Arc<OneToken> {
    Arc::new(OneToken)
}

fn gbnf(text: &str, work: &Work) -> Result<Grammar> {
    Grammar::new(&vocabulary(), text, work)
}

fn many_rules(work: &Work) -> Result<()> {
    let rules: String =
        (0..20_000).map(|i| format!("r{i} ::= [a-{}] \"x\"\n", (b'b' + (i % 20) as u8) as char)).collect();
    gbnf(&format!("root ::= r0 | r1\n{rules}"), work).map(drop)
}

fn many_alternatives(work: &Work) -> Result<()> {
    let wide: String = (0..10_000).map(|i| format!("| \"{i}\" ")).collect();
    gbnf(&format!("root ::= \"a\" {wide}"), work).map(drop)
}

fn long_prefix(work: &Work) -> Result<()> {
    // Each byte leads to another set, of all counts so far.
    let mut grammar = gbnf("root ::= (\"a\" | \"aa\"){1,1000} \"b\"", work)?;
    grammar.accept_prefix(&[b'a'; 1000], work)
}

fn large_tree(work: &Work) -> Result<()> {
    let tree = TreeBuilder::new();
    let texts: Vec<NodeId> = (0..12_000).map(|i| tree.text(format!("{i}"))).collect();
    let root = tree.alt(&texts);
    Grammar::from_tree(vocabulary(), tree, root, work).map(drop)
}

#[test]
fn every_grammar_ends_soon_after_the_signal() {
    type Make = fn(&Work) -> Result<()>;
    let makes: [(&str, Make); 4] =
        [("rules", many_rules), ("alternatives", many_alternatives), ("a prefix", long_prefix), ("a tree", large_tree)];
    for (name, make) in makes {
        let free = Work::unlimited();
        make(&free).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(free.taken() > 20_000, "{name}: {free:?}");
        for percent in [0, 10, 50, 90] {
            let limit = free.taken() * percent / 100;
            let asked = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&asked);
            let stop = move || (counted.fetch_add(1, Ordering::Relaxed) + 1) * 4096 > limit;
            let work = Work::new(1 << 30, Some(Arc::new(stop)));
            let result = make(&work);
            // A step may be larger than what lies between two questions.
            if asked.load(Ordering::Relaxed) * 4096 > limit {
                assert_eq!(result.map_err(|error| error.code()), Err(Code::Cancelled), "{name}, {percent} %");
            } else {
                assert!(percent > 50, "{name}, {percent} %: {work:?}");
            }
        }
        let little = Work::new(free.taken() / 2, None);
        assert_eq!(make(&little).map_err(|error| error.code()), Err(Code::InvalidRequest), "{name}");
    }
}

/// For each item that may come next, all items were counted again.
#[test]
fn a_required_item_hides_all_that_come_later() {
    let tree = TreeBuilder::new();
    let items: Vec<(NodeId, bool)> = (0..2000).map(|i| (tree.text(format!("{i:04}")), i >= 1000)).collect();
    let separator = tree.text(",");
    let each = Each { items, separator, further: None, least: 0, most: None, any_order: false };
    let root = tree.each(each);
    let mut grammar = Grammar::from_tree(vocabulary(), tree, root, &Work::unlimited()).unwrap();
    for (text, may_come) in
        [("0999", true), ("1000", true), ("1001", false), ("0003,0999,1000,1001", true), ("0003,0002", false)]
    {
        assert_eq!(grammar.allows_text(text.as_bytes()).unwrap(), may_come, "{text}");
    }
}
