//! What follows the ends of a text: a tree of contexts in one flat table.
//!
//! A node is a context, its last 1, 2, 3, ... tokens being the path from the root, and counts the tokens that followed it. A token
//! costs one visit of each node that its context has, and grows the tree by at most one: a deeper context gets its node only once
//! the context one step shorter has occurred before. So random text costs one visit a token and repetitive text a few, and
//! memory is bounded by the number of tokens. A suffix automaton finds the same longest matches, but counts of occurrences cannot be
//! kept in it in O(1) (they change all along the suffix links), it takes about 100 bytes a token, and nothing can be forgotten.
//! SuffixDecoding (arXiv 2411.04975) has all suffixes up to 64 tokens in its tree, 64 visits a token. Matches that are longer
//! than the tree is deep are its user's: each node knows where in the text its context was last.
//!
//! Nodes are found by hash in a table with open addressing (as in Arctic's flat maps), 16 bytes each. Hashes of 40 bits are taken
//! for the context: two of a million nodes are mistaken for each other once in 2^18 look-ups, which can cost a draft.

use super::ngram_index::{mix, to_index, to_value};
use crate::llama::Token;

/// Lengths of the contexts that have nodes.
pub const LENGTHS: [usize; 13] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32];
/// No context is longer than this.
pub const MAX_LENGTH: usize = 32;
/// How many nodes a look-up tells of: those of the longest contexts.
const TOLD: usize = 3;
const LEAST: usize = 1 << 8;

/// The tree. It keeps no text, only places in the one that it is always given. Memory: at most 48 bytes a token.
#[derive(Debug)]
pub struct ContextTree {
    nodes: Vec<Node>,
    used: usize,
    /// How many of [`LENGTHS`] are used.
    depth: usize,
}

/// The continuations of a context: the most frequent one, of equals the latest, another one, and how often there was any.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    hash: u32,
    more_hash: u8,
    /// 0: there is no node here.
    total: u8,
    n_best: u8,
    n_other: u8,
    /// Where the continuations were last.
    best: u32,
    other: u32,
}

/// What is known about a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Continuations {
    /// Its length in tokens.
    pub length: usize,
    /// How often it was seen, fading from 255 on.
    pub total: u8,
    /// The last place of the most frequent token behind it, and how often that was there.
    pub best: (usize, u8),
    /// The same of another one, if there is one (its count is 0 if not).
    pub other: (usize, u8),
}

impl Node {
    fn saw(&mut self, text: &[Token], at: usize) {
        if self.total == u8::MAX {
            self.total /= 2;
            self.n_best /= 2;
            self.n_other /= 2;
        }
        self.total += 1;
        let token = text.get(at);
        let is_at = |place: u32| text.get(to_index(place)) == token;
        if is_at(self.best) {
            self.n_best += 1;
            self.best = to_value(at);
        } else if self.n_other > 0 && is_at(self.other) {
            self.n_other += 1;
            self.other = to_value(at);
            if self.n_other >= self.n_best {
                std::mem::swap(&mut self.best, &mut self.other);
                std::mem::swap(&mut self.n_best, &mut self.n_other);
            }
        } else if self.n_other > 1 {
            // Something frequent is not forgotten for what was seen once.
            self.n_other -= 1;
        } else {
            (self.other, self.n_other) = (to_value(at), 1);
            if self.n_best <= 1 {
                std::mem::swap(&mut self.best, &mut self.other);
            }
        }
    }

    fn tell(&self, length: usize) -> Continuations {
        Continuations {
            length,
            total: self.total,
            best: (to_index(self.best), self.n_best),
            other: (to_index(self.other), self.n_other),
        }
    }
}

impl ContextTree {
    /// An empty tree of contexts of up to `max_length` tokens.
    pub fn new(max_length: usize) -> ContextTree {
        let depth = LENGTHS.iter().filter(|length| **length <= max_length.max(1)).count();
        ContextTree { nodes: Vec::new(), used: 0, depth }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.nodes, self.used) = (Vec::new(), 0);
    }

    /// `text[at]` follows `text[from..at]`, whatever is before `from`.
    pub fn learn(&mut self, text: &[Token], from: usize, at: usize) {
        if self.used * 3 >= self.nodes.len() * 2 {
            self.grow();
        }
        let mut contexts = Contexts::of(text.get(from..at).unwrap_or(&[]));
        for length in LENGTHS.iter().take(self.depth) {
            let Some((hash, more_hash)) = contexts.hash(*length) else { return };
            let Some(node) = find(&self.nodes, hash, more_hash).and_then(|index| self.nodes.get_mut(index)) else {
                return;
            };
            if node.total == 0 {
                *node = Node { hash, more_hash, total: 1, n_best: 1, best: to_value(at), n_other: 0, other: 0 };
                self.used += 1;
                return;
            }
            node.saw(text, at);
        }
    }

    /// What followed the longest contexts at the end of `text` that have nodes, the longest first.
    pub fn look_up(&self, text: &[Token]) -> impl Iterator<Item = Continuations> + use<> {
        let mut told = [Continuations::default(); TOLD];
        let mut contexts = Contexts::of(text);
        for length in LENGTHS.iter().take(self.depth) {
            let Some((hash, more_hash)) = contexts.hash(*length) else { break };
            let Some(node) = find(&self.nodes, hash, more_hash).and_then(|index| self.nodes.get(index)) else { break };
            if node.total == 0 {
                break;
            }
            told.rotate_right(1);
            if let Some(first) = told.first_mut() {
                *first = node.tell(*length);
            }
        }
        told.into_iter().take_while(|node| node.length > 0)
    }

    fn grow(&mut self) {
        let size = (self.nodes.len() * 2).max(LEAST);
        let old = std::mem::replace(&mut self.nodes, vec![Node::default(); size]);
        for node in old.into_iter().filter(|node| node.total > 0) {
            // Nodes differ, so that only free places are found.
            if let Some(free) = find(&self.nodes, node.hash, node.more_hash).and_then(|index| self.nodes.get_mut(index)) {
                *free = node;
            }
        }
    }
}

/// Where the node with these hashes is, or belongs.
fn find(nodes: &[Node], hash: u32, more_hash: u8) -> Option<usize> {
    let mask = nodes.len().checked_sub(1)?;
    let mut index = to_index(hash) & mask;
    loop {
        let node = nodes.get(index)?;
        if node.total == 0 || (node.hash == hash && node.more_hash == more_hash) {
            return Some(index);
        }
        index = (index + 1) & mask;
    }
}

/// The hashes of longer and longer contexts.
struct Contexts<'a> {
    backwards: std::iter::Rev<std::slice::Iter<'a, Token>>,
    length: usize,
    hash: u64,
}

impl Contexts<'_> {
    fn of(text: &[Token]) -> Contexts<'_> {
        Contexts { backwards: text.iter().rev(), length: 0, hash: 0 }
    }

    /// The hash of the last `length` tokens, if there are so many. Lengths must grow from call to call.
    fn hash(&mut self, length: usize) -> Option<(u32, u8)> {
        while self.length < length {
            let token = self.backwards.next()?;
            let mixed = self.hash ^ u64::from(token.cast_unsigned()).wrapping_add(1);
            self.hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
            self.length += 1;
        }
        let [more, ..] = self.hash.wrapping_mul(0xff51_afd7_ed55_8ccd).to_be_bytes();
        Some((mix(self.hash), more))
    }
}

#[cfg(test)]
#[path = "suffix_tree_tests.rs"]
mod tests;
