//! A context tree in one flat table: counts which tokens followed each context.
//!
//! A node is a context of 1, 2, 3 or 5 tokens with counts of the tokens that followed. As in a suffix tree, a context gets a
//! node only where it is distinct: a context that occurred once has one node, at the first depth at which it is new, and
//! gets a deeper one when that node is reached again. So random tokens cost one visit each, a first repetition up to one for
//! each of [`LENGTHS`], and memory is bounded by the number of tokens.
//!
//! Rejected alternatives: a suffix automaton finds the same matches, but occurrence counts change along all its suffix
//! links, which is not O(1); it takes about 100 bytes per token and cannot forget. SuffixDecoding (arXiv 2411.04975) has
//! nodes for all suffixes up to 64 tokens: 64 visits per token. Measured on code, prose, records and edited copies (whole,
//! and in pieces of 300 and 1000 tokens), these four lengths draft as well as seven lengths up to 16; the caller follows
//! longer matches itself from the positions in the nodes. Updating all nodes of a token's contexts instead of the deepest,
//! and candidates from the three longest contexts, drafted worse.
//!
//! Nodes are found by hash in a table with open addressing (as in Arctic's flat maps), 16 bytes each. A 40-bit hash stands
//! for the context: among a million nodes one lookup in 2^18 finds a wrong node, which can cost a draft. The hash differs
//! per process, so no input can be built to make all contexts collide.

use foredraft_base::Token;
use foredraft_ngram::seed;

/// The lengths of contexts that have nodes.
pub const LENGTHS: [usize; 4] = [1, 2, 3, 5];
/// The longest context.
pub const MAX_LENGTH: usize = 5;
/// Separates sequences; not a token, and part of no context.
pub const SEPARATOR: Token = Token::MIN;
/// Deeper nodes are added early only while there are fewer nodes per token than this.
const NODES_PER_TOKEN: usize = 2;
const MIN_SIZE: usize = 1 << 8;

/// The context tree. Stores no tokens, only positions in the sequence that every call passes. Memory: at most 96 bytes per
/// token, typically less than 48.
#[derive(Debug)]
pub struct ContextTree {
    nodes: Vec<ContextNode>,
    used: usize,
    /// The number of [`LENGTHS`] in use.
    depth: usize,
    /// The depth of the last token's deepest node.
    hint: Hint,
}

/// The continuations of a context: the most frequent one (the latest among equals), one other, and the total count.
#[derive(Debug, Clone, Copy, Default)]
struct ContextNode {
    hash: u32,
    more_hash: u8,
    /// 0 marks a free entry.
    total: u8,
    n_best: u8,
    n_other: u8,
    /// The latest positions of the continuations.
    best: u32,
    other: u32,
}

/// The counts of a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Continuations {
    /// Length of the context in tokens.
    pub length: usize,
    /// Number of occurrences; halved at 255.
    pub total: u8,
    /// Latest position and count of the most frequent continuation.
    pub best: (u32, u8),
    /// Latest position and count of one other continuation; the count is 0 if there is none.
    pub other: (u32, u8),
}

impl ContextNode {
    fn start_with(&mut self, at: usize) {
        (self.total, self.n_best, self.best) = (1, 1, to_value(at));
    }

    /// Counts `text[at]`. Returns whether it was one of the two counted continuations.
    fn count(&mut self, text: &[Token], at: usize) -> bool {
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
            // A frequent continuation is not replaced by one that occurred once.
            self.n_other -= 1;
        } else {
            (self.other, self.n_other) = (to_value(at), 1);
            if self.n_best <= 1 {
                std::mem::swap(&mut self.best, &mut self.other);
            }
        }
        false
    }

    fn continuations(&self, length: usize) -> Continuations {
        Continuations { length, total: self.total, best: (self.best, self.n_best), other: (self.other, self.n_other) }
    }
}

impl ContextTree {
    /// An empty tree of contexts of up to `max_length` tokens.
    pub fn new(max_length: usize) -> ContextTree {
        let depth = LENGTHS.iter().filter(|length| **length <= max_length.max(1)).count();
        ContextTree { nodes: Vec::new(), used: 0, depth, hint: Hint::default() }
    }

    /// Removes all nodes.
    pub fn clear(&mut self) {
        (self.nodes, self.used, self.hint) = (Vec::new(), 0, Hint::default());
    }

    /// Counts `text[at]` as a continuation of the tokens before it. Call it for every position in order, except those of
    /// [`SEPARATOR`].
    ///
    /// Updates the deepest existing node and adds a deeper one. Updates shallower nodes only as long as no deeper node had
    /// the token as a continuation (PPM's update exclusion).
    pub fn learn(&mut self, text: &[Token], at: usize) {
        let mut contexts = Contexts::of(text.get(..at).unwrap_or(&[]));
        let (deepest, _) = self.deepest(&mut contexts, self.hint);
        self.hint = Hint(deepest);
        let mut before: Option<(usize, Contexts<'_>)> = None;
        let mut known = false;
        for level in deepest..self.depth {
            let Some(node) = self.node_for(&mut contexts, level) else { break };
            if node.total == 0 {
                node.start_with(at);
                self.used += 1;
                break;
            }
            let only = (node.total == 1).then_some(to_index(node.best));
            known |= node.count(text, at);
            let Some(only) = only.filter(|_| self.used < NODES_PER_TOKEN * at) else { continue };
            // Usually the same position on all levels.
            if before.as_ref().is_none_or(|(place, _)| *place != only) {
                before = Some((only, Contexts::of(text.get(..only).unwrap_or(&[]))));
            }
            let Some((_, contexts)) = &mut before else { continue };
            // The earlier occurrence gets a node one level deeper.
            if let Some(node) = self.node_for(contexts, level + 1).filter(|node| node.total == 0) {
                node.start_with(only);
                self.used += 1;
            }
        }
        for level in (0..deepest).rev() {
            if known {
                break;
            }
            // The node exists unless two contexts have the same hash.
            let node = self.node_for(&mut contexts, level).filter(|node| node.total > 0);
            known = node.is_some_and(|node| node.count(text, at));
        }
    }

    /// The node of the context of this level, or the free entry where it belongs.
    fn node_for(&mut self, contexts: &mut Contexts<'_>, level: usize) -> Option<&mut ContextNode> {
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

    /// The continuations of the longest context at the end of `text` that has a node. The search begins at the depth `hint`
    /// and stores its result there, because the next token's depth is usually close.
    pub fn look_up(&self, text: &[Token], hint: &mut Hint) -> Option<Continuations> {
        let (level, node) = self.deepest(&mut Contexts::of(text), *hint);
        *hint = Hint(level);
        Some(node?.continuations(*LENGTHS.get(level)?))
    }

    /// The deepest level with a node, and that node; level 0 and `None` if there is none.
    fn deepest(&self, contexts: &mut Contexts<'_>, hint: Hint) -> (usize, Option<&ContextNode>) {
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
    fn node(&self, contexts: &mut Contexts<'_>, level: usize) -> Option<&ContextNode> {
        if level >= self.depth {
            return None;
        }
        let (hash, more_hash) = contexts.hash(level)?;
        self.nodes.get(find(&self.nodes, hash, more_hash)?).filter(|node| node.total > 0)
    }

    fn grow(&mut self) {
        let size = (self.nodes.len() * 2).max(MIN_SIZE);
        let old = std::mem::replace(&mut self.nodes, vec![ContextNode::default(); size]);
        for node in old.into_iter().filter(|node| node.total > 0) {
            // No two nodes are equal, so this finds only free entries.
            if let Some(free) = find(&self.nodes, node.hash, node.more_hash).and_then(|index| self.nodes.get_mut(index))
            {
                *free = node;
            }
        }
    }
}

/// The index of the node with these hashes, or of the free entry where it belongs.
fn find(nodes: &[ContextNode], hash: u32, more_hash: u8) -> Option<usize> {
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

/// The level where the search for the longest context begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hint(usize);

/// The hashes of the contexts at the end of a sequence, computed on demand.
struct Contexts<'a> {
    backwards: std::iter::Rev<std::slice::Iter<'a, Token>>,
    /// The hashes for the first `known` of [`LENGTHS`].
    hashes: [u64; LENGTHS.len()],
    known: usize,
    length: usize,
    hash: u64,
}

impl Contexts<'_> {
    fn of(text: &[Token]) -> Contexts<'_> {
        Contexts { backwards: text.iter().rev(), hashes: [0; LENGTHS.len()], known: 0, length: 0, hash: seed() }
    }

    /// The hash of the context of this level; `None` if the sequence is too short.
    fn hash(&mut self, level: usize) -> Option<(u32, u8)> {
        while self.known <= level {
            while self.length < *LENGTHS.get(self.known)? {
                let token = *self.backwards.next()?;
                if token == SEPARATOR {
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

/// Mixes the high bits of a product into the low ones, which do not depend on them.
fn mix(hash: u64) -> u32 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}

/// Converts an index to a table value. Histories are short enough (`history_drafter::MAX_HISTORY`).
fn to_value(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX - 1)
}

/// Converts a table value to an index.
pub fn to_index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
