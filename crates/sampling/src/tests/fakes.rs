//! A vocabulary without a model, for tests.

use crate::SamplingSettings;
use foredraft_base::error::Result;
use foredraft_base::{Token, Vocabulary};

/// A vocabulary with the given pieces. Tokenizes byte by byte, and skips bytes without a one-byte piece.
#[derive(Debug)]
pub(crate) struct FakeVocabulary(pub(crate) Vec<Vec<u8>>);

impl FakeVocabulary {
    /// `n` tokens with different pieces, none of which contains a default sequence breaker, except that token 0 is the
    /// newline.
    pub(crate) fn new(n: usize) -> Self {
        FakeVocabulary((0..n).map(|i| if i == 0 { b"\n".to_vec() } else { format!("<{i}>").into_bytes() }).collect())
    }
}

impl Vocabulary for FakeVocabulary {
    fn n_tokens(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        &self.0[token as usize]
    }

    fn newline(&self) -> Option<Token> {
        self.0.iter().position(|piece| piece == b"\n").map(|index| index as Token)
    }

    fn is_eog(&self, _: Token) -> bool {
        false
    }

    fn tokenize(&self, text: &[u8], _: bool) -> Result<Vec<Token>> {
        let token = |byte: &u8| self.0.iter().position(|piece| piece == &[*byte]).map(|index| index as Token);
        Ok(text.iter().filter_map(token).collect())
    }
}

/// All stages off: the distribution is the softmax of the logits.
pub(crate) fn plain() -> SamplingSettings {
    SamplingSettings { temperature: 1.0, top_k: 0, top_p: 1.0, repeat_penalty: 1.0, ..SamplingSettings::default() }
}
