//! Which tokens of a vocabulary may come next, by one walk through the tree of their texts.
//!
//! The walk begins with the stacks cut off: most tokens read only the places on top, and what is found for them holds for all sets that have
//! the same places on top. Only where a stack ends, the walk goes on with the whole stacks.

use std::ops::Range;
use std::sync::Arc;

use super::mask::{MaskBits, PartialMask, SharedStep, TokenMask};
use super::sets::REJECTED_SET;
use super::stacks::{BASE, EMPTY};
use super::{Automaton, GrammarState, MAX_CACHED, TooAmbiguous};
use crate::tree::Node;
use foredraft_base::{TextSummary, Token, TokenTree, Vocabulary};

/// The most places of stacks that are looked at to find what they share.
const MAX_STEPS: usize = 1 << 14;

/// The sequences of bytes that are a character beyond ASCII.
const CHARACTERS: [&[(u8, u8)]; 8] = [
    &[(0xC2, 0xDF), (0x80, 0xBF)],
    &[(0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)],
    &[(0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)],
    &[(0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)],
    &[(0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)],
    &[(0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)],
    &[(0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)],
    &[(0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)],
];

impl Automaton {
    /// The tokens that may come next, if that was found out before and is kept.
    pub(in super::super) fn kept_mask(&self, state: GrammarState) -> Option<TokenMask> {
        self.masks.kept(state.set)
    }

    /// The tokens that may come next, of the vocabulary with this tree. `None`: too many sets would have to be kept for it.
    pub(in super::super) fn mask(
        &mut self,
        state: GrammarState,
        vocabulary: &dyn Vocabulary,
        tree: &TokenTree,
    ) -> Result<Option<TokenMask>, TooAmbiguous> {
        // The tokens that a set names are allowed by their ids as well.
        let named = self.sets.facts(state.set).and_then(|facts| facts.named.clone());
        let bits = if named.is_some() && self.follow_token(state, Token::MIN)? != REJECTED_SET {
            let mut bits = MaskBits::new(tree.n_ranks());
            bits.allow(tree.all_texts());
            Some(bits)
        } else {
            self.allowed_texts(state.set, tree)?
        };
        let Some(mut bits) = bits else { return Ok(None) };
        let named = named.iter().flat_map(|named| named.iter()).filter_map(|token| Token::try_from(*token).ok());
        for token in tree.others().iter().copied().chain(named) {
            let next = self.follow_in(state, vocabulary, token)?;
            bits.set(tree.rank(token), !next.is_rejected());
        }
        Ok(Some(self.masks.keep(state.set, bits)))
    }

    /// The tokens whose text may come next. `None`: too many sets would have to be kept.
    fn allowed_texts(&mut self, set: u32, tree: &TokenTree) -> Result<Option<MaskBits>, TooAmbiguous> {
        let base = self.base_of(&self.sets.stacks(set));
        // Without a base nothing is cut off, and nothing is left open.
        let top = if base == EMPTY { set } else { self.moved(set, base, BASE)? };
        let Some(partial) = self.partial_mask(top, tree)? else { return Ok(None) };
        let mut bits = partial.bits.clone();
        let mut whole = (REJECTED_SET, REJECTED_SET);
        for &(at, before) in &partial.open {
            if whole.0 != before {
                whole = (before, self.moved(before, BASE, base)?);
            }
            let Some(node) = tree.node(at as usize) else { continue };
            if !self.walk(tree, at as usize..node.after as usize, whole.1, &mut bits, &mut Vec::new())? {
                return Ok(None);
            }
        }
        Ok(Some(bits))
    }

    /// What all sets allow whose stacks have the places of this set on top. `None`: too many sets would have to be kept.
    fn partial_mask(&mut self, set: u32, tree: &TokenTree) -> Result<Option<Arc<PartialMask>>, TooAmbiguous> {
        if let Some(known) = self.masks.partial(set) {
            return Ok(Some(known));
        }
        let (mut bits, mut open) = (MaskBits::new(tree.n_ranks()), Vec::new());
        let is_found = self.walk(tree, 0..tree.n_nodes(), set, &mut bits, &mut open)?;
        Ok(is_found.then(|| self.masks.keep_partial(set, PartialMask { bits, open })))
    }

    /// Where the stacks of a set are cut off: below all in which they differ, and below what repeats the only place.
    fn base_of(&self, stacks: &[u32]) -> u32 {
        let mut base = self.stacks.shared_base(stacks, MAX_STEPS);
        let is_shallow = stacks.iter().all(|stack| self.stacks.top(*stack).is_none_or(|top| top.below == base));
        let mut repeats = false;
        while let Some(top) = self.stacks.top(base).filter(|_| is_shallow) {
            let is_repeat = matches!(self.tree.node(top.node), Some(Node::Repeat(..)));
            if is_repeat || repeats {
                base = top.below;
            }
            if !is_repeat {
                break;
            }
            repeats = true;
        }
        base
    }

    /// The set of the same stacks on another base.
    fn moved(&mut self, set: u32, from: u32, to: u32) -> Result<u32, TooAmbiguous> {
        let mut moved = Vec::new();
        for stack in self.sets.stacks(set).iter() {
            let places = self.stacks.places(*stack, from);
            self.spend(places.len())?;
            moved.push(self.stacks.push_all(&self.tree, places, to));
        }
        Ok(self.set_id(moved))
    }

    /// Allows the tokens of these nodes whose text may come next, where `set` is the one after the text above the first node. Adds the nodes
    /// at which a stack that was cut off ends to `open`, with the set before. Returns false if too many sets would have to be kept.
    fn walk(
        &mut self,
        tree: &TokenTree,
        nodes: Range<usize>,
        set: u32,
        bits: &mut MaskBits,
        open: &mut Vec<(u32, u32)>,
    ) -> Result<bool, TooAmbiguous> {
        // The sets after the bytes of the node's path.
        let (mut path, mut at) = (vec![set], nodes.start);
        let depth = tree.node(at).map_or(0, |node| node.depth);
        while let Some(node) = tree.node(at).filter(|_| at < nodes.end) {
            path.truncate(usize::from(node.depth - depth) + 1);
            let set = path.last().copied().unwrap_or(REJECTED_SET);
            if tree.summary(node).map_or(Ok(false), |summary| self.allows_all(set, summary))? {
                bits.allow(tree.all(at));
                at = node.after as usize;
                continue;
            }
            let next = match self.sets.next(set, node.byte) {
                Some(known) => known,
                None if self.size() > 2 * MAX_CACHED => return Ok(false),
                None => self.follow_byte(set, node.byte, false)?.0,
            };
            if next == REJECTED_SET {
                at = node.after as usize;
            } else if self.sets.is_open(next) {
                open.push((u32::try_from(at).unwrap_or(u32::MAX), set));
                at = node.after as usize;
            } else {
                bits.allow(tree.own(at));
                path.push(next);
                at += 1;
            }
        }
        Ok(true)
    }

    /// Whether all texts of these characters may follow, because each of them leads to the same set.
    fn allows_all(&mut self, set: u32, summary: TextSummary) -> Result<bool, TooAmbiguous> {
        let mut at = set;
        for _ in 0..summary.n_chars {
            let SharedStep { next, ascii, has_others } = self.shared_step(at)?;
            if next == REJECTED_SET || summary.ascii & !ascii != 0 || summary.has_others && !has_others {
                return Ok(false);
            }
            if next == at {
                break;
            }
            at = next;
        }
        Ok(true)
    }

    /// The set to which all characters beyond ASCII lead from a set, or else most others. None if that is [`REJECTED_SET`].
    fn shared_step(&mut self, set: u32) -> Result<SharedStep, TooAmbiguous> {
        if let Some(known) = self.masks.shared_steps.get(&set) {
            return Ok(*known);
        }
        let mut by_others = None;
        let mut has_others = true;
        for bytes in CHARACTERS {
            has_others = has_others && self.all_lead_to(set, bytes, &mut by_others)?;
        }
        let ascii: Vec<u128> = self.sets.columns_of(set).into_iter().flat_map(|columns| columns.ascii()).collect();
        let mut steps: Vec<(u32, u128)> = Vec::new();
        for chars in ascii {
            let next = self.next_set(set, u8::try_from(chars.trailing_zeros()).unwrap_or(0))?;
            match steps.iter_mut().find(|(known, _)| *known == next) {
                Some((_, all)) => *all |= chars,
                None if next != REJECTED_SET && !self.sets.is_open(next) => steps.push((next, chars)),
                None => {}
            }
        }
        let by_others = by_others.filter(|_| has_others);
        let best = steps.into_iter().max_by_key(|(next, ascii)| (by_others == Some(*next), ascii.count_ones()));
        let (next, ascii) = best.unwrap_or((by_others.unwrap_or(REJECTED_SET), 0));
        let step = SharedStep { next, ascii, has_others: by_others == Some(next) };
        self.masks.shared_steps.insert(set, step);
        Ok(step)
    }

    /// Whether all sequences of bytes, each from its range, lead from `set` to `goal`, which the first one sets.
    fn all_lead_to(&mut self, set: u32, bytes: &[(u8, u8)], goal: &mut Option<u32>) -> Result<bool, TooAmbiguous> {
        if set == REJECTED_SET || self.sets.is_open(set) {
            return Ok(false);
        }
        let Some(((first, last), rest)) = bytes.split_first() else { return Ok(*goal.get_or_insert(set) == set) };
        let mut after = Vec::new();
        let mut column = None;
        for byte in *first..=*last {
            if column.replace(self.sets.column(set, byte)) == Some(self.sets.column(set, byte)) {
                continue;
            }
            let next = self.next_set(set, byte)?;
            if !after.contains(&next) {
                after.push(next);
            }
        }
        for next in after {
            if !self.all_lead_to(next, rest, goal)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
