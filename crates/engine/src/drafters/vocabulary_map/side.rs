//! One vocabulary, for conversion.

use std::collections::HashMap;
use std::sync::Arc;

use foredraft_llama::{Model, Token, Vocab, VocabKind};

/// A prefix that keeps SentencePiece from adding a space to a text. It is a byte that merges with nothing.
const LEAD: &[u8] = b"\x01";

/// Whether texts can be converted from and to this vocabulary: its tokens must represent the text byte by byte.
pub(in crate::drafters) fn can_convert(vocab: &Vocab) -> bool {
    matches!(vocab.kind(), VocabKind::Spm | VocabKind::Bpe | VocabKind::Other)
}

/// One of the two vocabularies.
#[derive(Debug)]
pub(super) struct Side {
    model: Arc<Model>,
    /// Whether tokenizing adds a space at the beginning and after special tokens.
    pub(super) adds_space: bool,
    /// The tokens for bytes that do not start a character, by the byte's number above 0x7F.
    bytes: Vec<Option<Token>>,
    /// Control and end-of-generation tokens, with their counterparts in the other vocabulary.
    pub(super) special: HashMap<Token, Option<Token>>,
}

impl Side {
    pub(super) fn new(model: &Arc<Model>, other: &Vocab) -> Side {
        let vocab = model.vocab();
        let probe = vocab.tokenize(b"a", false, false).unwrap_or_default();
        let adds_space = probe.first().is_some_and(|token| vocab.piece(*token).starts_with(b" "));
        let mut bytes = vec![None; 128];
        for token in tokens(vocab) {
            if let [byte @ 0x80..=0xFF] = vocab.piece(token)
                && let Some(place) = bytes.get_mut(usize::from(byte - 0x80))
            {
                *place = Some(token);
            }
        }
        let names: HashMap<&[u8], Token> =
            tokens(other).filter(|token| is_special(other, *token)).map(|token| (other.piece(token), token)).collect();
        let roles = [(vocab.eos(), other.eos()), (vocab.eot(), other.eot()), (vocab.bos(), other.bos())];
        let special = tokens(vocab).filter(|token| is_special(vocab, *token)).map(|token| {
            let namesake = names.get(vocab.piece(token)).copied();
            let role = || roles.iter().find(|(own, _)| *own == Some(token)).and_then(|(_, other)| *other);
            (token, namesake.or_else(role))
        });
        Side { special: special.collect(), model: Arc::clone(model), adds_space, bytes }
    }

    pub(super) fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// Tokenizes `text`, which starts where a token ends. Also returns the number of tokens that represent it exactly: all, unless this
    /// vocabulary cannot represent it.
    pub(super) fn encode(&self, text: &[u8]) -> (Vec<Token>, usize) {
        // The rest of a character that started in the previous token.
        let inside = text.iter().take_while(|byte| matches!(byte, 0x80..=0xBF)).count();
        let (rest, whole) = text.split_at_checked(inside).unwrap_or((&[], text));
        let byte = |byte: &u8| self.bytes.get(usize::from(byte.wrapping_sub(0x80))).copied().flatten();
        let mut encoded: Vec<Token> = rest.iter().filter_map(byte).collect();
        let tokenize = |text: &[u8]| self.vocab().tokenize(text, false, false).unwrap_or_default();
        // Some tokenizers do not accept invalid UTF-8.
        let whole = String::from_utf8_lossy(whole);
        if !whole.is_empty() {
            encoded.extend(if self.adds_space {
                self.without_space(tokenize, &whole)
            } else {
                tokenize(whole.as_bytes())
            });
        }
        let mut left = text;
        let exact = encoded.iter().take_while(|token| {
            let after = left.strip_prefix(self.vocab().piece(**token));
            left = after.unwrap_or(left);
            after.is_some()
        });
        let exact = exact.count();
        (encoded, exact)
    }

    /// `tokenize` for a text that gets a space before it: tokenizes it with a prefix, and removes that again.
    fn without_space(&self, tokenize: impl Fn(&[u8]) -> Vec<Token>, text: &str) -> Vec<Token> {
        let led = tokenize(&[LEAD, text.as_bytes()].concat());
        let mut before = 0;
        let cut = led.iter().position(|token| {
            let is_text = before > LEAD.len();
            before += self.vocab().piece(*token).len();
            is_text
        });
        let lead = led.get(..cut.unwrap_or(led.len())).unwrap_or(&[]);
        let lead: usize = lead.iter().map(|token| self.vocab().piece(*token).len()).sum();
        match cut.and_then(|cut| led.get(cut..)) {
            Some(tokens) if lead == LEAD.len() + 1 => tokens.to_vec(),
            _ => tokenize(text.as_bytes()),
        }
    }
}

pub(super) fn tokens(vocab: &Vocab) -> impl Iterator<Item = Token> {
    (0..).zip(0..vocab.n_tokens()).map(|(token, _): (Token, usize)| token)
}

/// Whether a token has a meaning beyond its text, so that it must not be made from such a text.
pub(super) fn is_special(vocab: &Vocab, token: Token) -> bool {
    !vocab.piece(token).is_empty() && (vocab.text(token).is_empty() || vocab.is_eog(token))
}
