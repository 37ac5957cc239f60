//! One text in two vocabularies: the tokens of the one become tokens of the other, and where both meet is remembered.
//!
//! Everything goes through bytes: two tokenizers agree on nothing else. A text is translated from a place where a token
//! ends in both vocabularies, never from its beginning: merges (BPE, SentencePiece) and best paths (unigram) on the two
//! sides of such a place do not depend on each other, so the tokens behind it are those of the text alone. What may still
//! change when more text comes is the end, and that is what [`VocabularyMap::follow`] translates again.

mod pair;
mod side;

use std::collections::HashSet;
use std::sync::Arc;

use self::pair::{Missing, Pair};
pub(super) use self::side::translates;
use self::side::{Side, is_special, tokens};
use crate::llama::{Model, Token};
use crate::session::common_prefix;

/// Tokens at the end of a text whose translation may still change.
const UNSETTLED: usize = 4;

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
    pub fn to_target(&self, after: &VocabularyMap, said: &[Token], confidence: &[f32]) -> (Vec<Token>, Vec<f32>) {
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
pub struct VocabularyMap {
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

impl VocabularyMap {
    /// The empty text.
    pub fn new(dictionary: &Dictionary) -> VocabularyMap {
        let vocab = dictionary.draft.vocab();
        let tokens: Vec<Token> = vocab.bos().filter(|_| vocab.adds_bos()).into_iter().collect();
        let meetings = vec![(0, tokens.len())];
        VocabularyMap { source: Vec::new(), meetings, tokens, unfinished: Vec::new(), begins: true, counts: (0, 0) }
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
    /// Returns which are gone, as [`VocabularyMap::shift`].
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
