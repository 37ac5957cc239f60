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
use crate::tree::{MachineStep, Node};
use foredraft_base::{TextSummary, Token, TokenTree, Vocabulary};

/// So many characters are looked ahead to find the places that are read again and again.
const N_AHEAD: usize = 2;
/// The most stacks of a set that are looked at one by one.
const MAX_ALONE: usize = 256;
/// The most stacks that read a text and are looked at one by one.
const MAX_TEXTS_ALONE: usize = 8;
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
        let mut bits = MaskBits::new(tree.n_ranks());
        let stacks = self.sets.stacks(set);
        // A stack allows the same tokens alone, unless others can end it.
        if self.tree.decides() || stacks.len() > MAX_ALONE {
            return Ok(self.add_allowed(set, tree, &mut bits)?.then_some(bits));
        }
        // Many texts, such as the names of properties, are one small tree.
        let is_text = |stack: &u32| {
            let top = self.stacks.top(*stack);
            top.is_some_and(|top| matches!(self.tree.node(top.node), Some(Node::Text(_))))
        };
        let (mut texts, mut others): (Vec<u32>, Vec<u32>) = stacks.iter().partition(|stack| is_text(stack));
        if texts.len() <= MAX_TEXTS_ALONE {
            others.append(&mut texts);
        } else {
            let texts = self.set_id(texts);
            if !self.walk(tree, 0..tree.n_nodes(), texts, &mut bits, &mut Vec::new())? {
                return Ok(None);
            }
        }
        for stack in others {
            let alone = self.set_id(vec![stack]);
            if !self.add_allowed(alone, tree, &mut bits)? {
                return Ok(None);
            }
        }
        Ok(Some(bits))
    }

    /// Allows the tokens whose text may come next. Returns false if too many sets would have to be kept.
    fn add_allowed(&mut self, set: u32, tree: &TokenTree, bits: &mut MaskBits) -> Result<bool, TooAmbiguous> {
        let base = self.base_of(set)?;
        // Without a base nothing is cut off, and nothing is left open.
        let top = if base == EMPTY { set } else { self.moved(set, base, BASE)? };
        let Some(partial) = self.partial_mask(top, tree)? else { return Ok(false) };
        bits.add(&partial);
        let mut whole = (REJECTED_SET, REJECTED_SET);
        for &(at, before) in &partial.open {
            if whole.0 != before {
                whole = (before, self.moved(before, BASE, base)?);
            }
            let Some(node) = tree.node(at as usize) else { continue };
            if !self.walk(tree, at as usize..node.after as usize, whole.1, bits, &mut Vec::new())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The tokens that all sets allow whose stacks have the places of this set on top. `None`: too many sets would have to be kept.
    fn partial_mask(&mut self, set: u32, tree: &TokenTree) -> Result<Option<Arc<PartialMask>>, TooAmbiguous> {
        if let Some(known) = self.masks.partial(set) {
            return Ok(Some(known));
        }
        let (mut bits, mut open) = (MaskBits::new(tree.n_ranks()), Vec::new());
        let is_found = self.walk(tree, 0..tree.n_nodes(), set, &mut bits, &mut open)?;
        Ok(is_found.then(|| self.masks.keep_partial(set, PartialMask::new(bits, open))))
    }

    /// Where the stacks of a set are cut off: below all in which they differ, and below what the most common characters read.
    fn base_of(&mut self, set: u32) -> Result<u32, TooAmbiguous> {
        let mut stacks = self.sets.stacks(set).to_vec();
        if let [only] = *stacks
            && let Some(top) = self.stacks.top(only)
            && let Some(Node::Text(_)) = self.tree.node(top.node)
        {
            return Ok(top.below);
        }
        let mut next = set;
        for _ in 0..N_AHEAD {
            let ascii =
                self.sets.facts(next).and_then(|facts| facts.columns.ascii().max_by_key(|ascii| ascii.count_ones()));
            next = self.next_set(next, u8::try_from(ascii.unwrap_or(1).trailing_zeros()).unwrap_or(0))?;
            stacks.extend(self.sets.stacks(next).iter());
        }
        Ok(self.stacks.shared_base(&stacks, MAX_STEPS))
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
            if let Some(summary) = tree.summary(node)
                && let Some(n_chars) = self.n_allowed(set, summary)?
            {
                if n_chars >= summary.n_chars {
                    bits.allow(tree.all(at));
                } else {
                    let most = summary.n_before.saturating_add(n_chars);
                    bits.allow_short(tree.all(at), tree.n_chars(tree.all(at)), most);
                }
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

    /// The most of these characters that may follow, whichever they are, at most as many as the summary has. `None`: that depends on them.
    fn n_allowed(&mut self, set: u32, summary: TextSummary) -> Result<Option<u16>, TooAmbiguous> {
        let (mut n, mut at) = (0, set);
        while n < summary.n_chars {
            let step = self.shared_step(at)?;
            if step.next == REJECTED_SET || summary.ascii & !step.ascii != 0 || summary.has_others && !step.has_others {
                return Ok((n > 0 && self.refuses(at, summary)?).then_some(n));
            }
            if step.next == at {
                return Ok(Some(summary.n_chars));
            }
            (n, at) = (n + 1, step.next);
        }
        Ok(Some(n))
    }

    /// Whether none of these characters may follow, as behind the last one of a text with a limit.
    fn refuses(&mut self, set: u32, summary: TextSummary) -> Result<bool, TooAmbiguous> {
        let ascii: Vec<u128> = self.sets.facts(set).into_iter().flat_map(|facts| facts.columns.ascii()).collect();
        let firsts = ascii.into_iter().filter(|chars| chars & summary.ascii != 0);
        let firsts = firsts.filter_map(|chars| u8::try_from(chars.trailing_zeros()).ok());
        for byte in firsts.chain((0xC2..=0xF4).filter(|_| summary.has_others)) {
            if self.next_set(set, byte)? != REJECTED_SET {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The set to which all characters beyond ASCII lead from a set, or else most others. None if that is [`REJECTED_SET`].
    fn shared_step(&mut self, set: u32) -> Result<SharedStep, TooAmbiguous> {
        if let Some(known) = self.masks.shared_step(set) {
            return Ok(known);
        }
        let ascii: Vec<u128> = self.sets.facts(set).into_iter().flat_map(|facts| facts.columns.ascii()).collect();
        let mut steps: Vec<(u32, u128)> = Vec::new();
        // The set after characters beyond ASCII, if that is known: it is the one after an ASCII character that the same stacks read.
        let mut by_others = None;
        let readers = self.readers_of_others(set);
        for chars in ascii {
            let byte = u8::try_from(chars.trailing_zeros()).unwrap_or(0);
            let next = self.next_set(set, byte)?;
            if readers.as_ref().is_some_and(|readers| self.is_read_by(set, byte, readers)) {
                by_others = Some(next);
            }
            match steps.iter_mut().find(|(known, _)| *known == next) {
                Some((_, all)) => *all |= chars,
                None if next != REJECTED_SET && !self.sets.is_open(next) => steps.push((next, chars)),
                None => {}
            }
        }
        let none = readers.is_some_and(|readers| !readers.contains(&true));
        if by_others.is_none() && !none {
            by_others = self.after_others(set)?;
        }
        by_others = by_others.filter(|next| *next != REJECTED_SET && !self.sets.is_open(*next));
        let best = steps.into_iter().max_by_key(|(next, ascii)| (by_others == Some(*next), ascii.count_ones()));
        let (next, ascii) = best.unwrap_or((by_others.unwrap_or(REJECTED_SET), 0));
        let step = SharedStep { next, ascii, has_others: by_others == Some(next) };
        self.masks.set_shared_step(set, step);
        Ok(step)
    }

    /// Which stacks of a set all characters beyond ASCII end the top of; the others read none. `None`: there are other stacks.
    fn readers_of_others(&self, set: u32) -> Option<Vec<bool>> {
        let reads = |stack: &u32| match self.stacks.top(*stack).map(|top| (self.tree.node(top.node), top.at)) {
            Some((Some(Node::Machine(machine)), at)) => machine.takes_others(at),
            Some((Some(Node::Text(text)), at)) => text.get(at as usize).filter(|byte| byte.is_ascii()).map(|_| false),
            _ => Some(false),
        };
        self.sets.stacks(set).iter().map(reads).collect()
    }

    /// Whether a byte ends the tops of these stacks of a set, and no others read it.
    fn is_read_by(&self, set: u32, byte: u8, readers: &[bool]) -> bool {
        self.sets.stacks(set).iter().zip(readers).all(|(stack, reads)| {
            match self.stacks.top(*stack).map(|top| (self.tree.node(top.node), top.at)) {
                Some((Some(Node::Machine(machine)), at)) => match machine.step(at, byte) {
                    MachineStep::Done => *reads,
                    MachineStep::Dead => !reads,
                    MachineStep::State(_) => false,
                },
                Some((Some(Node::Text(text)), at)) => text.get(at as usize) != Some(&byte),
                _ => true,
            }
        })
    }

    /// The set to which all characters beyond ASCII lead from a set; `None`: they lead to several.
    fn after_others(&mut self, set: u32) -> Result<Option<u32>, TooAmbiguous> {
        let mut next = None;
        for bytes in CHARACTERS {
            if !self.all_lead_to(set, bytes, &mut next)? {
                return Ok(None);
            }
        }
        Ok(next)
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
