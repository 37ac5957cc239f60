//! The tokens of a vocabulary as a tree of their bytes, so that what they begin with is looked at once.

use std::ops::Range;

use crate::token::Token;

/// A node with fewer tokens has no summary of their texts.
const LEAST_SUMMARIZED: usize = 16;
/// A deeper node has none, so that a tree of long tokens is not read again for each of their bytes.
const DEEPEST_SUMMARIZED: u16 = 32;

/// The tokens of a vocabulary by their texts, depth first in an array.
///
/// A token is named by its rank: its place in the order of the texts. The tokens of a node and of all nodes below it are a range of ranks.
#[derive(Debug)]
pub struct TokenTree {
    /// Each node is followed by the nodes below it. The last one is no node, but has the number of tokens as its first rank.
    nodes: Vec<TokenNode>,
    /// The ranks of the nodes' tokens come before those of the others.
    n_texts: usize,
    /// The rank of each token.
    ranks: Vec<u32>,
    others: Vec<Token>,
    /// The number of characters of each rank that has a text.
    n_chars: Vec<u16>,
    summaries: Vec<TextSummary>,
}

/// A node: the text of its path from the root, which is no node itself.
#[derive(Debug, Clone, Copy)]
pub struct TokenNode {
    /// The index of the next node that is not below this one.
    pub after: u32,
    /// The rank of the first token of this node, or of those below it.
    pub first: u32,
    summary: u32,
    /// The length of the text, at least 1.
    pub depth: u16,
    /// The last byte of the text.
    pub byte: u8,
}

/// The text that the tokens of a node and of those below it add to the text of the node above it: characters of UTF-8, of which the last may be
/// incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSummary {
    /// A bit for each ASCII character among them.
    pub ascii: u128,
    /// Whether there are others.
    pub has_others: bool,
    /// The most characters of a token.
    pub n_chars: u16,
    /// The number of characters of the node above.
    pub n_before: u16,
}

impl TokenTree {
    /// The tree of tokens `with_text`, beside `others`. A token whose text is too long is added to the others.
    pub fn new<'a>(with_text: Vec<Token>, mut others: Vec<Token>, text: impl Fn(Token) -> &'a [u8]) -> TokenTree {
        let all = with_text.into_iter().map(|token| (text(token), token));
        let (mut sorted, too_long): (Vec<_>, Vec<_>) = all.partition(|(text, _)| text.len() < usize::from(u16::MAX));
        others.extend(too_long.iter().map(|(_, token)| token));
        sorted.sort_unstable();
        let mut ranks = Vec::new();
        for (rank, token) in (0..).zip(sorted.iter().map(|(_, token)| token).chain(&others)) {
            let token = usize::try_from(*token).unwrap_or(0);
            ranks.resize(ranks.len().max(token + 1), u32::MAX);
            ranks.get_mut(token).into_iter().for_each(|known| *known = rank);
        }
        let n_chars = sorted.iter().map(|(text, _)| n_chars(text)).collect();
        let mut tree =
            TokenTree { nodes: Vec::new(), n_texts: sorted.len(), ranks, others, n_chars, summaries: Vec::new() };
        // The nodes of the last text.
        let mut path: Vec<usize> = Vec::new();
        let mut last: &[u8] = &[];
        for (rank, (text, _)) in (0..).zip(&sorted) {
            let common = text.iter().zip(last).take_while(|(a, b)| a == b).count();
            tree.close(path.drain(common..));
            for (depth, &byte) in (1..).zip(*text).skip(common) {
                path.push(tree.nodes.len());
                tree.nodes.push(TokenNode { after: 0, first: rank, summary: u32::MAX, depth, byte });
            }
            last = text;
        }
        tree.close(path.drain(..));
        let first = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        tree.nodes.push(TokenNode { after: u32::MAX, first, summary: u32::MAX, depth: 0, byte: 0 });
        tree.summarize(&sorted);
        tree
    }

    /// No more nodes come below these.
    fn close(&mut self, path: impl Iterator<Item = usize>) {
        let after = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        for node in path {
            self.nodes.get_mut(node).into_iter().for_each(|node| node.after = after);
        }
    }

    fn summarize<'a>(&mut self, sorted: &[(&'a [u8], Token)]) {
        for at in 0..self.nodes.len() {
            let Some(node) = self.nodes.get(at).copied() else { continue };
            let tokens = self.first(at)..self.first(node.after as usize);
            if !(1..=DEEPEST_SUMMARIZED).contains(&node.depth) || tokens.len() < LEAST_SUMMARIZED {
                continue;
            }
            let texts = sorted.get(tokens).unwrap_or(&[]);
            let split = |text: &'a [u8]| text.split_at_checked(usize::from(node.depth) - 1).unwrap_or((text, &[]));
            let before = texts.first().map_or(0, |(text, _)| n_chars(split(text).0));
            let summary = TextSummary::of(before, texts.iter().map(|(text, _)| split(text).1));
            if let (Some(summary), Some(node)) = (summary, self.nodes.get_mut(at)) {
                node.summary = u32::try_from(self.summaries.len()).unwrap_or(u32::MAX);
                self.summaries.push(summary);
            }
        }
    }

    fn first(&self, node: usize) -> usize {
        self.nodes.get(node).map_or(self.n_texts, |node| node.first as usize)
    }

    /// The node at this index.
    #[inline]
    pub fn node(&self, at: usize) -> Option<TokenNode> {
        self.nodes.get(at).filter(|node| node.depth > 0).copied()
    }

    /// The number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len().saturating_sub(1)
    }

    /// The ranks of the tokens whose text is that of the node at this index.
    #[inline]
    pub fn own(&self, at: usize) -> Range<usize> {
        self.first(at)..self.first(at + 1)
    }

    /// The same with the tokens below it.
    pub fn all(&self, at: usize) -> Range<usize> {
        self.first(at)..self.first(self.nodes.get(at).map_or(at, |node| node.after as usize))
    }

    /// The numbers of characters of these ranks, whose tokens have texts.
    pub fn n_chars(&self, ranks: Range<usize>) -> &[u16] {
        self.n_chars.get(ranks).unwrap_or(&[])
    }

    /// The ranks of all tokens of nodes.
    pub fn all_texts(&self) -> Range<usize> {
        0..self.n_texts
    }

    /// The number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.n_texts + self.others.len()
    }

    /// The rank of a token; not one of [`TokenTree::n_ranks`] if it has none, because it can never match.
    #[inline]
    pub fn rank(&self, token: Token) -> usize {
        usize::try_from(token).ok().and_then(|token| self.ranks.get(token)).map_or(usize::MAX, |rank| *rank as usize)
    }

    /// The text that the tokens of a node and of those below it add to the text of the node above it. `None`: they are few or long, or some of it is not
    /// UTF-8.
    #[inline]
    pub fn summary(&self, node: TokenNode) -> Option<TextSummary> {
        self.summaries.get(node.summary as usize).copied()
    }

    /// The tokens that may match without their text, or are too long for the tree.
    pub fn others(&self) -> &[Token] {
        &self.others
    }
}

/// The number of characters in a text of UTF-8 that may end inside of one.
fn n_chars(text: &[u8]) -> u16 {
    let begins = text.iter().filter(|byte| !(0x80..0xC0).contains(*byte)).count();
    u16::try_from(begins).unwrap_or(u16::MAX)
}

impl TextSummary {
    fn of<'a>(n_before: u16, mut texts: impl Iterator<Item = &'a [u8]>) -> Option<TextSummary> {
        texts.try_fold(TextSummary { ascii: 0, has_others: false, n_chars: 0, n_before }, |summary, text| {
            let is_cut = |error: &std::str::Utf8Error| error.error_len().is_none();
            if !std::str::from_utf8(text).err().as_ref().is_none_or(is_cut) {
                return None;
            }
            Some(TextSummary {
                ascii: text.iter().filter(|byte| byte.is_ascii()).fold(summary.ascii, |ascii, byte| ascii | 1 << byte),
                has_others: summary.has_others || !text.is_ascii(),
                n_chars: summary.n_chars.max(n_chars(text)),
                ..summary
            })
        })
    }
}

#[cfg(test)]
mod tests;
