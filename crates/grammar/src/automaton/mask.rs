//! The tokens that may come next as bits, and those of sets that were seen before.

use std::ops::Range;
use std::sync::Arc;

use foldhash::HashMap;

/// The memory of masks that are kept, in bytes.
const MAX_KEPT: usize = 4 << 20;
/// The memory of partial masks, in bytes. All masks of an object's states need the same few of them.
const MAX_PARTIAL: usize = 8 << 20;

/// A bit for each token that may come next, by its rank in the tree of the vocabulary.
#[derive(Debug, Clone)]
pub(in super::super) struct TokenMask(Arc<[u64]>);

impl TokenMask {
    /// Whether it has the token of this rank.
    #[inline]
    pub(in super::super) fn has(&self, rank: usize) -> bool {
        self.0.get(rank / 64).is_some_and(|word| word >> (rank & 63) & 1 == 1)
    }
}

/// A mask that is being made.
#[derive(Debug)]
pub(super) struct MaskBits(Vec<u64>);

impl MaskBits {
    /// A mask without tokens, of so many ranks.
    pub(super) fn new(n_ranks: usize) -> MaskBits {
        MaskBits(vec![0; n_ranks.div_ceil(64)])
    }

    pub(super) fn set(&mut self, rank: usize, is_allowed: bool) {
        let bit = u64::from(is_allowed) << (rank & 63);
        self.0.get_mut(rank / 64).into_iter().for_each(|word| *word = *word & !(1 << (rank & 63)) | bit);
    }

    /// Allows what a partial mask allows.
    pub(super) fn add(&mut self, partial: &PartialMask) {
        for (index, bits) in &partial.words {
            self.0.get_mut(*index as usize).into_iter().for_each(|word| *word |= bits);
        }
    }

    /// Allows those of the ranks whose length is at most `most`.
    pub(super) fn allow_short(&mut self, ranks: Range<usize>, lengths: &[u16], most: u16) {
        let (mut at, mut rest) = (ranks.start, lengths);
        while let Some((lengths, more)) =
            rest.split_at_checked((64 - at % 64).min(rest.len())).filter(|_| !rest.is_empty())
        {
            let bits = lengths.iter().rev().fold(0, |bits: u64, length| bits << 1 | u64::from(*length <= most));
            self.0.get_mut(at / 64).into_iter().for_each(|word| *word |= bits << (at % 64));
            (at, rest) = (at + lengths.len(), more);
        }
    }

    pub(super) fn allow(&mut self, ranks: Range<usize>) {
        let (mut at, end) = (ranks.start, ranks.end);
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let bits = (u64::MAX >> (64 - n)) << (at % 64);
            self.0.get_mut(at / 64).into_iter().for_each(|word| *word |= bits);
            at += n;
        }
    }
}

/// The known part of the tokens after a set whose stacks were cut off.
#[derive(Debug)]
pub(super) struct PartialMask {
    /// The tokens that may follow whatever is below: the words of bits that are not 0, by their places.
    words: Vec<(u32, u64)>,
    /// The nodes of the vocabulary's tree at which a stack ends, with the sets before: what is below decides.
    pub(super) open: Vec<(u32, u32)>,
}

impl PartialMask {
    pub(super) fn new(bits: MaskBits, open: Vec<(u32, u32)>) -> PartialMask {
        PartialMask { words: (0..).zip(bits.0).filter(|(_, word)| *word != 0).collect(), open }
    }
}

/// The set to which these characters lead from a set, each of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedStep {
    pub(super) next: u32,
    /// A bit for each ASCII character.
    pub(super) ascii: u128,
    /// All characters beyond ASCII.
    pub(super) has_others: bool,
}

/// The masks of sets, and what walks found out about sets.
#[derive(Debug, Default)]
pub(super) struct Masks {
    kept: HashMap<u32, TokenMask>,
    kept_bytes: usize,
    partial: HashMap<u32, Arc<PartialMask>>,
    partial_bytes: usize,
    /// By set, as far as they are known.
    shared_steps: Vec<Option<SharedStep>>,
}

impl Masks {
    /// The mask of a set, if it is kept.
    pub(super) fn kept(&self, set: u32) -> Option<TokenMask> {
        self.kept.get(&set).cloned()
    }

    /// The mask of a set of stacks that were cut off, if it is kept.
    pub(super) fn partial(&self, set: u32) -> Option<Arc<PartialMask>> {
        self.partial.get(&set).cloned()
    }

    pub(super) fn keep(&mut self, set: u32, bits: MaskBits) -> TokenMask {
        make_room(&mut self.kept, &mut self.kept_bytes, bits.0.len() * 8, MAX_KEPT);
        let mask = TokenMask(bits.0.into());
        self.kept.insert(set, mask.clone());
        mask
    }

    pub(super) fn keep_partial(&mut self, set: u32, mask: PartialMask) -> Arc<PartialMask> {
        let n_bytes = mask.words.len() * 16 + mask.open.len() * 8;
        make_room(&mut self.partial, &mut self.partial_bytes, n_bytes, MAX_PARTIAL);
        let mask = Arc::new(mask);
        self.partial.insert(set, Arc::clone(&mask));
        mask
    }

    #[inline]
    pub(super) fn shared_step(&self, set: u32) -> Option<SharedStep> {
        self.shared_steps.get(set as usize).copied().flatten()
    }

    pub(super) fn set_shared_step(&mut self, set: u32, step: SharedStep) {
        let n = self.shared_steps.len().max(set as usize + 1);
        self.shared_steps.resize(n, None);
        self.shared_steps.get_mut(set as usize).into_iter().for_each(|known| *known = Some(step));
    }

    /// The size in entries of about 16 bytes, without the masks.
    pub(super) fn size(&self) -> usize {
        3 * self.shared_steps.len()
    }
}

/// Drops all masks where there are too many.
fn make_room<T>(masks: &mut HashMap<u32, T>, size: &mut usize, n_bytes: usize, most: usize) {
    if *size + n_bytes > most {
        masks.clear();
        *size = 0;
    }
    *size += n_bytes;
}
