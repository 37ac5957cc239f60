//! A text in the tokens of two vocabularies.

use std::cmp::Ordering;

use super::side::Side;
use foredraft_llama::Token;

/// The treatment of special tokens that the other vocabulary lacks.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Missing {
    /// Their names are used as text.
    Named,
    /// The conversion ends before them.
    Ends,
}

/// Tokens in both vocabularies. Positions are in bytes of the text; a special token counts as one byte, and a space added by a tokenizer as
/// none.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) tokens: Vec<Token>,
    /// The end position of each of `tokens`.
    pub(super) ends: Vec<usize>,
    /// The end position of each source token.
    pub(super) source_ends: Vec<usize>,
    /// The number of `tokens` that represent the text exactly. The vocabulary cannot represent the text after them.
    pub(super) exact: usize,
    /// An incomplete character at the end of the text, which has no token yet.
    pub(super) unfinished: Vec<u8>,
}

impl Pair {
    /// Converts `text`. `begins`: it is at the beginning, or after a special token. `known`: the first bytes of the text, which have tokens
    /// already. Returns nothing if the text does not start with them.
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

    /// The positions where tokens end in both, as the numbers of tokens before them, in order.
    pub(super) fn meetings(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (mut source, mut own) = (0, 0);
        std::iter::from_fn(move || {
            while let (Some(theirs), Some(ours)) = (self.source_ends.get(source), self.ends.get(own)) {
                match theirs.cmp(ours) {
                    Ordering::Less => source += 1,
                    Ordering::Greater => own += 1,
                    Ordering::Equal => {
                        let (end, meeting) = (*theirs, (source + 1, own + 1));
                        // Tokens without text, such as an added space, belong to the next one.
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
    /// The bytes that have been read but not tokenized yet.
    text: Vec<u8>,
    known: &'a [u8],
    /// The start position of `text`.
    base: usize,
    begins: bool,
    /// The text does not start with `known`.
    is_lost: bool,
}

impl Writer<'_> {
    /// Tokenizes the text so far. `last`: without an incomplete character at the end.
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

/// The length of `text` without an incomplete character at its end.
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
