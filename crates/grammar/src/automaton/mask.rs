//! The tokens that may come next as bits, and those of sets that were seen before.

use std::sync::Arc;

use foldhash::HashMap;
use foredraft_base::Token;

/// The memory of masks that are kept, in bytes.
const MAX_KEPT: usize = 8 << 20;

/// A bit for each token of a vocabulary.
#[derive(Debug, Clone)]
pub(in super::super) struct TokenMask(Arc<[u64]>);

impl TokenMask {
    /// Whether it has this token.
    pub(in super::super) fn has(&self, token: Token) -> bool {
        let word = usize::try_from(token).ok().and_then(|token| self.0.get(token / 64));
        word.is_some_and(|word| word >> (token & 63) & 1 == 1)
    }
}

/// A mask that is being made.
pub(super) struct MaskBits(Vec<u64>);

impl MaskBits {
    /// A mask without tokens, of a vocabulary with so many.
    pub(super) fn new(n_tokens: usize) -> MaskBits {
        MaskBits(vec![0; n_tokens.div_ceil(64)])
    }

    pub(super) fn set(&mut self, token: Token, is_allowed: bool) {
        let word = usize::try_from(token).ok().and_then(|token| self.0.get_mut(token / 64));
        word.into_iter().for_each(|word| *word = *word & !(1 << (token & 63)) | u64::from(is_allowed) << (token & 63));
    }

    pub(super) fn allow(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|token| self.set(*token, true));
    }
}

/// The masks of sets, and what walks found out about sets.
#[derive(Debug, Default)]
pub(super) struct Masks {
    kept: HashMap<u32, TokenMask>,
    /// The set that each character beyond ASCII leads to from a set; `None`: they lead to several.
    pub(super) by_characters: HashMap<u32, Option<u32>>,
}

impl Masks {
    /// The mask of a set, if it is kept.
    pub(super) fn kept(&self, set: u32) -> Option<TokenMask> {
        self.kept.get(&set).cloned()
    }

    /// Keeps the mask of a set, and drops all others where there are too many.
    pub(super) fn keep(&mut self, set: u32, bits: MaskBits) -> TokenMask {
        let mask = TokenMask(bits.0.into());
        if (self.kept.len() + 1) * mask.0.len() * 8 > MAX_KEPT {
            self.kept.clear();
        }
        self.kept.insert(set, mask.clone());
        mask
    }
}
