//! Which tokens of a vocabulary may come next, by one walk through the tree of their texts.

use super::mask::{MaskBits, TokenMask};
use super::sets::REJECTED_SET;
use super::{Automaton, GrammarState, MAX_CACHED, TooAmbiguous};
use foredraft_base::{TextSummary, Token, TokenTree, Vocabulary};

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
        let mut bits = MaskBits::new(vocabulary.n_tokens());
        let others = tree.others().iter().copied();
        match self.sets.facts(state.set).and_then(|facts| facts.named.clone()) {
            // The tokens that a set names are allowed by their ids as well.
            Some(named) => {
                if self.follow_token(state, Token::MIN)? == REJECTED_SET {
                    if !self.walk(state, tree, &mut bits)? {
                        return Ok(None);
                    }
                } else {
                    bits.allow(tree.tokens());
                }
                let named = named.iter().filter_map(|token| Token::try_from(*token).ok());
                self.set_alone(state, vocabulary, others.chain(named), &mut bits)?;
            }
            None if self.walk(state, tree, &mut bits)? => self.set_alone(state, vocabulary, others, &mut bits)?,
            None => return Ok(None),
        }
        Ok(Some(self.masks.keep(state.set, bits)))
    }

    /// Sets the bits of tokens that are looked at one by one.
    fn set_alone(
        &mut self,
        state: GrammarState,
        vocabulary: &dyn Vocabulary,
        tokens: impl Iterator<Item = Token>,
        bits: &mut MaskBits,
    ) -> Result<(), TooAmbiguous> {
        for token in tokens {
            let next = self.follow_in(state, vocabulary, token)?;
            bits.set(token, !next.is_rejected());
        }
        Ok(())
    }

    /// Allows the tokens whose text may come next. Returns false if too many sets would have to be kept.
    fn walk(&mut self, state: GrammarState, tree: &TokenTree, bits: &mut MaskBits) -> Result<bool, TooAmbiguous> {
        // The sets after the bytes of the node's path.
        let (mut path, mut at) = (vec![state.set], 0);
        while let Some(node) = tree.node(at) {
            path.truncate(usize::from(node.depth));
            let set = path.last().copied().unwrap_or(REJECTED_SET);
            if self.size() > 2 * MAX_CACHED {
                return Ok(false);
            }
            if tree.summary(node).map_or(Ok(false), |summary| self.allows_all(set, summary))? {
                bits.allow(tree.all(at));
                at = node.after as usize;
                continue;
            }
            let next = self.next_set(set, node.byte)?;
            if next == REJECTED_SET {
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
            match self.next_by_all(at, summary)? {
                None | Some(REJECTED_SET) => return Ok(false),
                Some(next) if next == at => break,
                Some(next) => at = next,
            }
        }
        Ok(true)
    }

    /// The set that each of these characters leads to; `None`: they lead to several.
    fn next_by_all(&mut self, set: u32, summary: TextSummary) -> Result<Option<u32>, TooAmbiguous> {
        let (mut ascii, mut goal) = (summary.ascii, None);
        while ascii != 0 {
            let next = self.next_set(set, u8::try_from(ascii.trailing_zeros()).unwrap_or(0))?;
            if *goal.get_or_insert(next) != next {
                return Ok(None);
            }
            ascii &= ascii - 1;
        }
        if !summary.has_others {
            return Ok(goal);
        }
        let by_characters = match self.masks.by_characters.get(&set) {
            Some(known) => *known,
            None => {
                let mut goal = None;
                let mut is_one = true;
                for bytes in CHARACTERS {
                    is_one = is_one && self.all_lead_to(set, bytes, &mut goal)?;
                }
                let goal = goal.filter(|_| is_one);
                self.masks.by_characters.insert(set, goal);
                goal
            }
        };
        Ok(by_characters.filter(|next| goal.is_none_or(|goal| goal == *next)))
    }

    /// Whether all sequences of bytes, each from its range, lead from `set` to `goal`, which the first one sets.
    fn all_lead_to(&mut self, set: u32, bytes: &[(u8, u8)], goal: &mut Option<u32>) -> Result<bool, TooAmbiguous> {
        let Some(((first, last), rest)) = bytes.split_first() else { return Ok(*goal.get_or_insert(set) == set) };
        let mut after = Vec::new();
        for byte in *first..=*last {
            let next = self.next_set(set, byte)?;
            if !after.contains(&next) {
                after.push(next);
            }
        }
        for next in after {
            if next == REJECTED_SET || !self.all_lead_to(next, rest, goal)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
