//! One text in the tokens of two vocabularies.

use std::cmp::Ordering;

use super::side::Side;
use crate::llama::Token;

/// What becomes of special tokens that the other vocabulary lacks.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Missing {
    /// They are read as their names.
    Named,
    /// The text ends before them.
    Ends,
}

/// Tokens in the one vocabulary and in the other. Both are measured in the bytes of their text, where a special token
/// counts as one, and the space that some tokenizers add as none.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) tokens: Vec<Token>,
    /// Where each of `tokens` ends.
    pub(super) ends: Vec<usize>,
    /// Where each token that they come from ends.
    pub(super) source_ends: Vec<usize>,
    /// Of `tokens`, those that are the text for certain: behind them it cannot be written.
    pub(super) exact: usize,
    /// The beginning of a character at the end of the text, which has no token yet.
    pub(super) unfinished: Vec<u8>,
}

impl Pair {
    /// Translates `text`. `begins`: it is the beginning, or behind a special token. `known`: the text's first bytes, which
    /// have their token already; nothing comes of a text that does not begin with them.
    pub(super) fn new(from: &Side, to: &Side, text: &[Token], begins: bool, missing: Missing, known: &[u8]) -> Pair {
        let mut writer = Writer { to, pair: Pair::default(), text: Vec::new(), known, base: 0, begins, is_lost: false };
        let mut strips_space = begins && from.adds_space;
        for token in text {
            match from.special.get(token) {
                Some(None) if missing == Missing::Ends => break,
                Some(Some(other)) => {
                    writer.write(false);
                    writer.special(*other);
                    strips_space = from.adds_space;
                }
                _ => {
                    let piece = from.vocab().piece(*token);
                    let stripped = piece.strip_prefix(b" ").filter(|_| strips_space);
                    strips_space &= piece.is_empty();
                    writer.text.extend_from_slice(stripped.unwrap_or(piece));
                    writer.pair.source_ends.push(writer.base + writer.text.len());
                }
            }
        }
        writer.write(true);
        writer.pair
    }

    /// Where both have a token's end: how many tokens of each are before it, in order.
    pub(super) fn meetings(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (mut source, mut own) = (0, 0);
        std::iter::from_fn(move || {
            while let (Some(theirs), Some(ours)) = (self.source_ends.get(source), self.ends.get(own)) {
                match theirs.cmp(ours) {
                    Ordering::Less => source += 1,
                    Ordering::Greater => own += 1,
                    Ordering::Equal => {
                        let (end, meeting) = (*theirs, (source + 1, own + 1));
                        // Those that are no text, as an added space, belong to what is behind them.
                        source += self.source_ends.iter().skip(source).take_while(|other| **other == end).count();
                        own += self.ends.iter().skip(own).take_while(|other| **other == end).count();
                        return Some(meeting);
                    }
                }
            }
            None
        })
    }
}

struct Writer<'a> {
    to: &'a Side,
    pair: Pair,
    /// What was read and not written yet.
    text: Vec<u8>,
    known: &'a [u8],
    /// Where `text` begins.
    base: usize,
    begins: bool,
    /// The text does not begin as it must.
    is_lost: bool,
}

impl Writer<'_> {
    /// Writes the text so far. `last`: without the beginning of a character that may be completed.
    fn write(&mut self, last: bool) {
        let end = if last { whole_characters(&self.text) } else { self.text.len() };
        self.pair.unfinished = self.text.split_off(end);
        let known = std::mem::take(&mut self.known);
        let Some(text) = self.text.strip_prefix(known).filter(|_| !self.is_lost) else {
            self.is_lost = true;
            return;
        };
        if !text.is_empty() {
            let adds_space = self.begins && known.is_empty() && self.to.adds_space;
            let space: &[u8] = if adds_space { b" " } else { b"" };
            let (tokens, exact) = self.to.encode(&[space, text].concat());
            if self.pair.exact == self.pair.tokens.len() {
                self.pair.exact += exact;
            }
            let base = self.base + known.len();
            let mut written = 0_usize;
            for (index, token) in tokens.iter().enumerate() {
                written += self.to.vocab().piece(*token).len();
                let end = if index < exact { written.saturating_sub(space.len()) } else { text.len() };
                self.pair.ends.push(base + end);
            }
            self.pair.tokens.extend(tokens);
            self.begins = false;
        }
        self.base += self.text.len();
        self.text.clear();
    }

    fn special(&mut self, token: Token) {
        if self.is_lost {
            return;
        }
        if self.pair.exact == self.pair.tokens.len() {
            self.pair.exact += 1;
        }
        self.base += 1;
        self.pair.tokens.push(token);
        self.pair.ends.push(self.base);
        self.pair.source_ends.push(self.base);
        self.begins = true;
    }
}

/// The length of `text` without the beginning of a character that its last bytes are.
fn whole_characters(text: &[u8]) -> usize {
    let from = text.len().saturating_sub(3);
    let tail = text.get(from..).unwrap_or(&[]);
    let lead = tail.iter().rposition(|byte| *byte >= 0xC0);
    let is_unfinished = |lead: &usize| {
        let character = tail.get(*lead..).unwrap_or(&[]);
        matches!(std::str::from_utf8(character), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
    };
    lead.filter(is_unfinished).map_or(text.len(), |lead| from + lead)
}
