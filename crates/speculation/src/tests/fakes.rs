//! Samplers without a model, and slots in a vector, for tests.

use crate::{DraftingSlot, DraftingSlots};
use foredraft_base::error::Result;
use foredraft_base::{Token, Vocabulary};
use foredraft_sampling::{Constraint, Sampler, SamplingSettings};

/// A vocabulary of that many tokens without text.
#[derive(Debug)]
struct TokensWithoutText(usize);

impl Vocabulary for TokensWithoutText {
    fn n_tokens(&self) -> usize {
        self.0
    }

    fn has_text(&self) -> bool {
        false
    }

    fn piece(&self, _: Token) -> &[u8] {
        &[]
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

/// A sampler for `n_vocab` tokens.
pub(crate) fn sampler<G: Constraint>(settings: &SamplingSettings, n_vocab: usize, grammar: Option<G>) -> Sampler<G> {
    Sampler::build(settings, &TokensWithoutText(n_vocab), grammar).unwrap()
}

/// All stages off: the distribution is the softmax of the logits.
pub(crate) fn plain() -> SamplingSettings {
    SamplingSettings { temperature: 1.0, top_k: 0, top_p: 1.0, repeat_penalty: 1.0, ..SamplingSettings::default() }
}

impl DraftingSlots for Vec<DraftingSlot<'_>> {
    fn all(&mut self) -> impl Iterator<Item = DraftingSlot<'_>> {
        self.iter_mut().map(|slot| DraftingSlot { state: slot.state, drafts: slot.drafts, ..*slot })
    }
}
