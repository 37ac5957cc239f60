//! One text in two vocabularies: the tokens of the one become tokens of the other, and where both meet is remembered.
//!
//! Everything goes through bytes: two tokenizers agree on nothing else. A text is translated from a place where a token
//! ends in both vocabularies, never from its beginning: merges (BPE, SentencePiece) and best paths (unigram) on the two
//! sides of such a place do not depend on each other, so the tokens behind it are those of the text alone. What may still
//! change when more text comes is the end, and that is what [`Translation::follow`] translates again.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::llama::{Model, Token, Vocab, VocabKind};
use crate::session::common_prefix;

/// Tokens at the end of a text whose translation may still change.
const UNSETTLED: usize = 4;
/// What is put before a text to keep SentencePiece from adding a space to it; a byte that merges with nothing.
const LEAD: &[u8] = b"\x01";

/// Whether texts can be translated from and into such a vocabulary: its pieces must be the text, byte for byte.
pub(super) fn translates(vocab: &Vocab) -> bool {
    matches!(vocab.kind(), VocabKind::Spm | VocabKind::Bpe | VocabKind::Other)
}

/// One of the two vocabularies.
#[derive(Debug)]
struct Side {
    model: Arc<Model>,
    /// Whether tokenizing adds a space at the beginning and behind special tokens.
    adds_space: bool,
    /// The tokens for bytes that begin no character, by the byte's number above 0x7F.
    bytes: Vec<Option<Token>>,
    /// Control tokens and those that end a generation: what they are in the other vocabulary, if it has them.
    special: HashMap<Token, Option<Token>>,
}

impl Side {
    fn new(model: &Arc<Model>, other: &Vocab) -> Side {
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

    fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// The tokens of `text`, which begins where a token ends, and how many of them are exactly that text: all, unless this
    /// vocabulary cannot write it.
    fn encode(&self, text: &[u8]) -> (Vec<Token>, usize) {
        // The rest of a character that began in the token before.
        let inside = text.iter().take_while(|byte| matches!(byte, 0x80..=0xBF)).count();
        let (rest, whole) = text.split_at_checked(inside).unwrap_or((&[], text));
        let byte = |byte: &u8| self.bytes.get(usize::from(byte.wrapping_sub(0x80))).copied().flatten();
        let mut encoded: Vec<Token> = rest.iter().filter_map(byte).collect();
        let tokenize = |text: &[u8]| self.vocab().tokenize(text, false, false).unwrap_or_default();
        // Invalid UTF-8 is not for every tokenizer.
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

    /// `tokenize` of a text that gets a space before it: behind something that it is cut off from again.
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

fn tokens(vocab: &Vocab) -> impl Iterator<Item = Token> {
    (0..).zip(0..vocab.n_tokens()).map(|(token, _): (Token, usize)| token)
}

/// Whether it is more than its name, and must not be made of text that happens to be that.
fn is_special(vocab: &Vocab, token: Token) -> bool {
    !vocab.piece(token).is_empty() && (vocab.text(token).is_empty() || vocab.is_eog(token))
}

/// What becomes of special tokens that the other vocabulary lacks.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    /// They are read as their names.
    Named,
    /// The text ends before them.
    Ends,
}

/// Tokens in the one vocabulary and in the other. Both are measured in the bytes of their text, where a special token
/// counts as one, and the space that some tokenizers add as none.
#[derive(Debug, Default)]
struct Pair {
    tokens: Vec<Token>,
    /// Where each of `tokens` ends.
    ends: Vec<usize>,
    /// Where each token that they come from ends.
    source_ends: Vec<usize>,
    /// Of `tokens`, those that are the text for certain: behind them it cannot be written.
    exact: usize,
    /// The beginning of a character at the end of the text, which has no token yet.
    unfinished: Vec<u8>,
}

impl Pair {
    /// Translates `text`. `begins`: it is the beginning, or behind a special token. `known`: the text's first bytes, which
    /// have their token already; nothing comes of a text that does not begin with them.
    fn new(from: &Side, to: &Side, text: &[Token], begins: bool, missing: Missing, known: &[u8]) -> Pair {
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
    fn meetings(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
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
            let space: &[u8] = if self.begins && self.to.adds_space { b" " } else { b"" };
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

/// The vocabularies of target and draft.
#[derive(Debug)]
pub struct Dictionary {
    target: Side,
    draft: Side,
    /// The target's tokens that are no token of the draft's, in the order of their pieces.
    only_targets: Vec<Token>,
}

impl Dictionary {
    /// Looks through both vocabularies, once.
    pub fn new(target: &Arc<Model>, draft: &Arc<Model>) -> Dictionary {
        let vocab = target.vocab();
        let theirs: HashSet<&[u8]> = tokens(draft.vocab()).map(|token| draft.vocab().piece(token)).collect();
        let is_own = |token: &Token| !is_special(vocab, *token) && !theirs.contains(vocab.piece(*token));
        let mut only_targets: Vec<Token> = tokens(vocab).filter(is_own).collect();
        only_targets.sort_by_key(|token| vocab.piece(*token));
        Dictionary { target: Side::new(target, draft.vocab()), draft: Side::new(draft, vocab), only_targets }
    }

    /// Translates what the draft model says after a text back: the target's tokens, with their confidence, the product of
    /// that of the draft's tokens that have a part in them.
    ///
    /// A token at the end that could be the beginning of one that the draft model has to spell is as likely as not to
    /// become that one: half the confidence.
    pub fn to_target(&self, after: &Translation, said: &[Token], confidence: &[f32]) -> (Vec<Token>, Vec<f32>) {
        let pair = Pair::new(&self.draft, &self.target, said, after.begins, Missing::Ends, &after.unfinished);
        let mut tokens = pair.tokens;
        tokens.truncate(pair.exact);
        let mut confidences = Vec::with_capacity(tokens.len());
        let mut start = after.unfinished.len();
        for end in pair.ends.iter().take(tokens.len()) {
            let mut before = 0;
            let parts = pair.source_ends.iter().zip(confidence).filter(|(source_end, _)| {
                let from = std::mem::replace(&mut before, **source_end);
                // A space alone that only this vocabulary puts there counts as what it is put before.
                from < (*end).max(start + 1) && **source_end > start
            });
            confidences.push(parts.map(|(_, confidence)| confidence).product());
            start = *end;
        }
        let vocab = self.target.vocab();
        let mut tail: Vec<u8> = Vec::new();
        for (token, confidence) in tokens.iter().zip(&mut confidences).rev() {
            if self.target.special.contains_key(token) || tail.len() > MAX_SPELLED {
                break;
            }
            tail = [vocab.piece(*token), &tail].concat();
            if self.is_beginning(&tail) {
                *confidence *= 0.5;
            }
        }
        (tokens, confidences)
    }

    /// Whether a token that only the target has begins with `text` and goes on.
    fn is_beginning(&self, text: &[u8]) -> bool {
        let piece = |token: &Token| self.target.vocab().piece(*token);
        let next = self.only_targets.partition_point(|token| piece(token) <= text);
        self.only_targets.get(next).is_some_and(|token| piece(token).starts_with(text))
    }
}

/// Tokens that are longer are not looked for.
const MAX_SPELLED: usize = 64;

/// A growing text of the target, and the same in the draft's tokens.
#[derive(Debug)]
pub struct Translation {
    source: Vec<Token>,
    tokens: Vec<Token>,
    /// Where a token ends in both: how many there are before it. The first one is the beginning, behind the draft's BOS.
    meetings: Vec<(usize, usize)>,
    /// The beginning of a character at the end, which the draft's tokens lack.
    unfinished: Vec<u8>,
    /// Whether what comes next is behind a special token.
    begins: bool,
    /// Tokens translated so far, and what became of them.
    counts: (usize, usize),
}

impl Translation {
    /// The empty text.
    pub fn new(dictionary: &Dictionary) -> Translation {
        let vocab = dictionary.draft.vocab();
        let tokens: Vec<Token> = vocab.bos().filter(|_| vocab.adds_bos()).into_iter().collect();
        let meetings = vec![(0, tokens.len())];
        Translation { source: Vec::new(), meetings, tokens, unfinished: Vec::new(), begins: true, counts: (0, 0) }
    }

    /// The text in the draft's tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Becomes the text of the target's tokens `text`. Takes time in proportion to what of it is new.
    pub fn follow(&mut self, dictionary: &Dictionary, text: &[Token]) {
        let known = common_prefix(&self.source, text);
        if known == text.len() && known == self.source.len() {
            return;
        }
        let settled = known.saturating_sub(UNSETTLED);
        let meetings = self.meetings.partition_point(|(source, _)| *source <= settled);
        self.meetings.truncate(meetings.max(1));
        let (mut from, own) = self.meetings.last().copied().unwrap_or((0, 0));
        self.tokens.truncate(own);
        self.source.truncate(from);
        self.source.extend_from_slice(text.get(from..).unwrap_or(&[]));
        let Dictionary { target, draft, .. } = dictionary;
        let special = |token: &Token| matches!(target.special.get(token), Some(Some(_)));
        // The draft's text begins as the draft's do.
        let has_bos = text.first().is_some_and(|first| target.vocab().bos() == Some(*first));
        if from == 0 && has_bos {
            from = 1;
            self.meetings.push((from, own));
        }
        let last = from.checked_sub(1).and_then(|last| text.get(last));
        let begins = from == usize::from(has_bos) || last.is_some_and(special);
        let rest = text.get(from..).unwrap_or(&[]);
        let pair = Pair::new(target, draft, rest, begins, Missing::Named, &[]);
        self.counts = (self.counts.0 + rest.len(), self.counts.1 + pair.tokens.len());
        self.meetings.extend(pair.meetings().map(|(source, tokens)| (from + source, own + tokens)));
        self.begins = rest.last().map_or(begins, special);
        self.tokens.extend(pair.tokens);
        self.unfinished = pair.unfinished;
    }

    /// About how many of the draft's tokens `n` of the target's are; at least one, at most four times as many.
    pub fn about(&self, n: usize) -> usize {
        let (source, tokens) = self.counts;
        (n * tokens).div_ceil(source.max(1)).clamp(1, 4 * n.max(1))
    }

    /// The target's tokens `keep..keep + dropped` are gone. Returns which of the draft's go with them, in the same form: those
    /// between the nearest places where both have a token's end. A few tokens more or less do not matter to a draft.
    pub fn shift(&mut self, keep: usize, dropped: usize) -> (usize, usize) {
        let first = self.meetings.partition_point(|(source, _)| *source <= keep).saturating_sub(1);
        let last = self.meetings.partition_point(|(source, _)| *source < keep + dropped);
        let gone = self.remove(first, last);
        let end = self.source.len().min(keep + dropped);
        self.source.drain(keep.min(end)..end);
        self.meetings.iter_mut().skip(first + 1).for_each(|(source, _)| *source = source.saturating_sub(dropped));
        // As if the last token were new: should tokens be lacking just before it, they are translated again.
        self.source.pop();
        gone
    }

    /// Forgets so much of the text's beginning that at most `most` tokens are left, for a draft model with a short context.
    /// Returns which are gone, as [`Translation::shift`].
    pub fn shorten(&mut self, most: usize) -> (usize, usize) {
        let (_, begin) = self.meetings.first().copied().unwrap_or((0, 0));
        let from = (self.tokens.len() + begin).saturating_sub(most);
        let last = self.meetings.partition_point(|(_, tokens)| *tokens < from);
        self.remove(0, last)
    }

    /// Removes the tokens between two of the meetings; those behind are the same text still.
    fn remove(&mut self, first: usize, last: usize) -> (usize, usize) {
        let (_, keep) = self.meetings.get(first).copied().unwrap_or((0, 0));
        let end = self.meetings.get(last).map_or(self.tokens.len(), |(_, tokens)| *tokens).max(keep);
        self.tokens.drain(keep..end);
        if last >= self.meetings.len() {
            // What is behind has no place to be known by.
            self.source.truncate(self.meetings.get(first).map_or(0, |(source, _)| *source));
        }
        self.meetings.drain((first + 1).min(last)..last);
        self.meetings.iter_mut().skip(first + 1).for_each(|(_, tokens)| *tokens -= end - keep);
        (keep, end - keep)
    }
}
