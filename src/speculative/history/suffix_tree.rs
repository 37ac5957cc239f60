//! What follows the ends of a text: a tree of contexts in one flat table.
//!
//! A node is a context, the path to it being its last 1, 2, 3, ... tokens, and it counts the tokens that followed. As
//! in a suffix tree, a context gets a node only where it is told from others: one that occurred once has one node, at
//! the first depth at which it is new, and gets a deeper one when that node is met again. So random text costs one
//! visit a token, text that is repeated for the first time up to one for each of [`LENGTHS`], and memory is bounded by the
//! number of tokens.
//!
//! Why not another structure: a suffix automaton finds the same matches, but counts of occurrences change all along its
//! suffix links, which is not O(1); it takes about 100 bytes a token, and nothing can be forgotten. SuffixDecoding
//! (arXiv 2411.04975) has nodes for all suffixes up to 64 tokens, 64 visits a token. Measured on code, prose, records
//! and edited copies (whole, and in pieces of 300 and 1000 tokens), these four lengths draft as well as seven up to 16: longer
//! matches are their user's to follow, as each node knows where its context was last. Learning of all nodes of a token's
//! contexts instead of the deepest, and candidates of the three longest contexts, drafted worse.
//!
//! Nodes are found by hash in a table with open addressing (as in Arctic's flat maps), 16 bytes each. Hashes of 40 bits
//! are taken for the context: among a million nodes one look-up in 2^18 meets the wrong one, which can cost a draft. They differ
//! from process to process, so that nobody can make a text whose contexts all collide.

use super::ngram_index::{mix, to_index, to_value};
use crate::llama::Token;
use crate::ngram::seed;

/// Lengths of the contexts that have nodes.
pub const LENGTHS: [usize; 4] = [1, 2, 3, 5];
/// No context is longer than this.
pub const MAX_LENGTH: usize = 5;
/// Between texts; no token, and in no context.
pub const BETWEEN: Token = Token::MIN;
/// Contexts get nodes early only while there are fewer nodes than this for each token.
const NODES_PER_TOKEN: usize = 2;
const LEAST: usize = 1 << 8;

/// The tree. It keeps no text, only places in the one that it is always given. Memory: at most 96 bytes a token, mostly
/// less than 48.
#[derive(Debug)]
pub struct ContextTree {
    nodes: Vec<Node>,
    used: usize,
    /// How many of [`LENGTHS`] are used.
    depth: usize,
    /// How deep the last token's context had a node.
    hint: Hint,
}

/// The continuations of a context: the most frequent one, of equals the latest, another one, and how often there was
/// any.
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
    pub best: (u32, u8),
    /// The same of another one, if there is one (its count is 0 if not).
    pub other: (u32, u8),
}

impl Node {
    fn first_saw(&mut self, at: usize) {
        (self.total, self.n_best, self.best) = (1, 1, to_value(at));
    }

    /// Returns whether the token has followed before, as far as it is known.
    fn saw(&mut self, text: &[Token], at: usize) -> bool {
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
            return true;
        } else if self.n_other > 0 && is_at(self.other) {
            self.n_other += 1;
            self.other = to_value(at);
            if self.n_other >= self.n_best {
                std::mem::swap(&mut self.best, &mut self.other);
                std::mem::swap(&mut self.n_best, &mut self.n_other);
            }
            return true;
        } else if self.n_other > 1 {
            // Something frequent is not forgotten for what was seen once.
            self.n_other -= 1;
        } else {
            (self.other, self.n_other) = (to_value(at), 1);
            if self.n_best <= 1 {
                std::mem::swap(&mut self.best, &mut self.other);
            }
        }
        false
    }

    fn tell(&self, length: usize) -> Continuations {
        Continuations { length, total: self.total, best: (self.best, self.n_best), other: (self.other, self.n_other) }
    }
}

impl ContextTree {
    /// An empty tree of contexts of up to `max_length` tokens.
    pub fn new(max_length: usize) -> ContextTree {
        let depth = LENGTHS.iter().filter(|length| **length <= max_length.max(1)).count();
        ContextTree { nodes: Vec::new(), used: 0, depth, hint: Hint::default() }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.nodes, self.used, self.hint) = (Vec::new(), 0, Hint::default());
    }

    /// `text[at]` follows what is before it. Places are to be told in order, without gaps but for [`BETWEEN`].
    ///
    /// The deepest node that there is learns of it and gets a deeper one, and those above it as far as nobody below knew the
    /// token (PPM's update exclusion): what they count is what they will be asked for, and repeated text is learnt by one node.
    pub fn learn(&mut self, text: &[Token], at: usize) {
        let mut contexts = Contexts::of(text.get(..at).unwrap_or(&[]));
        let (deepest, _) = self.deepest(&mut contexts, self.hint);
        self.hint = Hint(deepest);
        let mut before: Option<(usize, Contexts<'_>)> = None;
        let mut known = false;
        for level in deepest..self.depth {
            let Some(node) = self.node_for(&mut contexts, level) else { break };
            if node.total == 0 {
                node.first_saw(at);
                self.used += 1;
                break;
            }
            let only = (node.total == 1).then_some(to_index(node.best));
            known |= node.saw(text, at);
            let Some(only) = only.filter(|_| self.used < NODES_PER_TOKEN * at) else { continue };
            // Mostly the same place on all levels.
            if before.as_ref().is_none_or(|(place, _)| *place != only) {
                before = Some((only, Contexts::of(text.get(..only).unwrap_or(&[]))));
            }
            let Some((_, contexts)) = &mut before else { continue };
            // It gets a node of its own one level deeper than its last.
            if let Some(node) = self.node_for(contexts, level + 1).filter(|node| node.total == 0) {
                node.first_saw(only);
                self.used += 1;
            }
        }
        for level in (0..deepest).rev() {
            if known {
                break;
            }
            // All of them are there, but where two contexts have the same hash.
            let node = self.node_for(&mut contexts, level).filter(|node| node.total > 0);
            known = node.is_some_and(|node| node.saw(text, at));
        }
    }

    /// The node of the context of this level, or the free one where it belongs.
    fn node_for(&mut self, contexts: &mut Contexts<'_>, level: usize) -> Option<&mut Node> {
        if level >= self.depth {
            return None;
        }
        if self.used * 3 >= self.nodes.len() * 2 {
            self.grow();
        }
        let (hash, more_hash) = contexts.hash(level)?;
        let node = find(&self.nodes, hash, more_hash).and_then(|index| self.nodes.get_mut(index))?;
        (node.hash, node.more_hash) = (hash, more_hash);
        Some(node)
    }

    /// What followed the longest context at the end of `text` that has a node. `hint` is where the search begins; it becomes
    /// where it ended, which is near where that for the next token will end.
    pub fn look_up(&self, text: &[Token], hint: &mut Hint) -> Option<Continuations> {
        let (level, node) = self.deepest(&mut Contexts::of(text), *hint);
        *hint = Hint(level);
        Some(node?.tell(*LENGTHS.get(level)?))
    }

    /// The deepest level with a node, and that node; level 0 when there is none.
    fn deepest(&self, contexts: &mut Contexts<'_>, hint: Hint) -> (usize, Option<&Node>) {
        let mut level = hint.0.min(self.depth.saturating_sub(1));
        let mut deepest = self.node(contexts, level);
        while deepest.is_none() && level > 0 {
            level -= 1;
            deepest = self.node(contexts, level);
        }
        if deepest.is_some() && level >= hint.0 {
            while let Some(node) = self.node(contexts, level + 1) {
                (deepest, level) = (Some(node), level + 1);
            }
        }
        (level, deepest)
    }

    /// The node of the context of this level, if there is one.
    fn node(&self, contexts: &mut Contexts<'_>, level: usize) -> Option<&Node> {
        if level >= self.depth {
            return None;
        }
        let (hash, more_hash) = contexts.hash(level)?;
        self.nodes.get(find(&self.nodes, hash, more_hash)?).filter(|node| node.total > 0)
    }

    fn grow(&mut self) {
        let size = (self.nodes.len() * 2).max(LEAST);
        let old = std::mem::replace(&mut self.nodes, vec![Node::default(); size]);
        for node in old.into_iter().filter(|node| node.total > 0) {
            // Nodes differ, so that only free places are found.
            if let Some(free) = find(&self.nodes, node.hash, node.more_hash).and_then(|index| self.nodes.get_mut(index))
            {
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

/// Where the search for the longest context begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hint(usize);

/// The hashes of the contexts at the end of a text.
struct Contexts<'a> {
    backwards: std::iter::Rev<std::slice::Iter<'a, Token>>,
    /// Those of [`LENGTHS`] that are known, and how many they are.
    hashes: [u64; LENGTHS.len()],
    known: usize,
    length: usize,
    hash: u64,
}

impl Contexts<'_> {
    fn of(text: &[Token]) -> Contexts<'_> {
        Contexts { backwards: text.iter().rev(), hashes: [0; LENGTHS.len()], known: 0, length: 0, hash: seed() }
    }

    /// The hash of the context of this level, if the text is long enough for it.
    fn hash(&mut self, level: usize) -> Option<(u32, u8)> {
        while self.known <= level {
            while self.length < *LENGTHS.get(self.known)? {
                let token = *self.backwards.next()?;
                if token == BETWEEN {
                    self.backwards = [].iter().rev();
                    return None;
                }
                let mixed = self.hash ^ u64::from(token.cast_unsigned()).wrapping_add(1);
                self.hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
                self.length += 1;
            }
            *self.hashes.get_mut(self.known)? = self.hash;
            self.known += 1;
        }
        let hash = *self.hashes.get(level)?;
        let [more, ..] = hash.wrapping_mul(0xff51_afd7_ed55_8ccd).to_be_bytes();
        Some((mix(hash), more))
    }
}

#[cfg(test)]
#[path = "suffix_tree_tests.rs"]
mod tests;
