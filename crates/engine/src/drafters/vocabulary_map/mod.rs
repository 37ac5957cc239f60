//! Converts a text between two vocabularies, and remembers the positions where tokens end in both.
//!
//! Tokens are converted through their bytes, because this is all that two tokenizers have in common. A conversion starts at a position
//! where tokens end in both vocabularies, not at the beginning of the text: merges (BPE, SentencePiece) and best paths (unigram) on both
//! sides of such a position are independent, so the tokens after it are the same as for the whole text. Only the end can change when the
//! text grows, and [`VocabularyMap::follow`] converts the end again.

mod pair;
mod side;

use std::collections::HashSet;
use std::sync::Arc;

use self::pair::{Missing, Pair};
pub(super) use self::side::can_convert;
use self::side::{Side, is_special, tokens};
use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::{Model, Token};

/// The number of tokens at the end of a text whose conversion can still change.
const MAY_CHANGE: usize = 4;

/// The vocabularies of target and draft.
#[derive(Debug)]
pub struct Dictionary {
    target: Side,
    draft: Side,
    /// The target's tokens that are not in the draft's vocabulary, sorted by their text.
    only_targets: Vec<Token>,
}

impl Dictionary {
    /// Reads both vocabularies.
    pub fn new(target: &Arc<Model>, draft: &Arc<Model>) -> Dictionary {
        let vocab = target.vocab();
        let theirs: HashSet<&[u8]> = tokens(draft.vocab()).map(|token| draft.vocab().piece(token)).collect();
        let is_own = |token: &Token| !is_special(vocab, *token) && !theirs.contains(vocab.piece(*token));
        let mut only_targets: Vec<Token> = tokens(vocab).filter(is_own).collect();
        only_targets.sort_by_key(|token| vocab.piece(*token));
        Dictionary { target: Side::new(target, draft.vocab()), draft: Side::new(draft, vocab), only_targets }
    }

    /// Converts the draft model's tokens after a text to the target's tokens. The confidence of each is the product of those of the draft's
    /// tokens that it overlaps.
    ///
    /// A token at the end can be the beginning of a token that only the target has. It becomes that token about half of the time, so its
    /// confidence is halved.
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
                // A space that only this vocabulary adds belongs to the token after it.
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

    /// Whether a token that only the target has starts with `text` and is longer.
    fn is_beginning(&self, text: &[u8]) -> bool {
        let piece = |token: &Token| self.target.vocab().piece(*token);
        let next = self.only_targets.partition_point(|token| piece(token) <= text);
        self.only_targets.get(next).is_some_and(|token| piece(token).starts_with(text))
    }
}

/// The maximum length of such tokens.
const MAX_SPELLED: usize = 64;

/// A growing text of the target, and its conversion to the draft's tokens.
#[derive(Debug)]
pub struct VocabularyMap {
    source: Vec<Token>,
    tokens: Vec<Token>,
    /// The positions where a token ends in both, as numbers of tokens before them. The first one is the beginning, after the draft's BOS.
    meetings: Vec<(usize, usize)>,
    /// An incomplete character at the end, which is not in the draft's tokens yet.
    unfinished: Vec<u8>,
    /// Whether the next token comes after a special token.
    begins: bool,
    /// The numbers of tokens converted so far, for their ratio.
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

    /// Changes to the text of the target's tokens `text`. Takes time proportional to the new part.
    pub fn follow(&mut self, dictionary: &Dictionary, text: &[Token]) {
        let known = common_prefix(&self.source, text);
        if known == text.len() && known == self.source.len() {
            return;
        }
        let unchanged = known.saturating_sub(MAY_CHANGE);
        let meetings = self.meetings.partition_point(|(source, _)| *source <= unchanged);
        self.meetings.truncate(meetings.max(1));
        let (mut from, own) = self.meetings.last().copied().unwrap_or((0, 0));
        self.tokens.truncate(own);
        self.source.truncate(from);
        self.source.extend_from_slice(text.get(from..).unwrap_or(&[]));
        let Dictionary { target, draft, .. } = dictionary;
        let special = |token: &Token| matches!(target.special.get(token), Some(Some(_)));
        // The draft's BOS rule applies to the draft's tokens.
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

    /// The approximate number of draft tokens for `n` of the target's: at least one, at most four times as many.
    pub fn about(&self, n: usize) -> usize {
        let (source, tokens) = self.counts;
        (n * tokens).div_ceil(source.max(1)).clamp(1, 4 * n.max(1))
    }

    /// Removes the target's tokens `keep..keep + dropped`. Returns the draft's removed tokens in the same form: those between the nearest
    /// positions where tokens end in both. A few tokens more or less do not matter for drafts.
    pub fn shift(&mut self, keep: usize, dropped: usize) -> (usize, usize) {
        let first = self.meetings.partition_point(|(source, _)| *source <= keep).saturating_sub(1);
        let last = self.meetings.partition_point(|(source, _)| *source < keep + dropped);
        let gone = self.remove(first, last);
        let end = self.source.len().min(keep + dropped);
        self.source.drain(keep.min(end)..end);
        self.meetings.iter_mut().skip(first + 1).for_each(|(source, _)| *source = source.saturating_sub(dropped));
        // Treats the last token as new, so that missing tokens before it are converted again.
        self.source.pop();
        gone
    }

    /// Removes the beginning of the text so that at most `most` tokens are left, for a draft model with a short context. Returns the
    /// removed ones, as [`VocabularyMap::shift`].
    pub fn shorten(&mut self, most: usize) -> (usize, usize) {
        let (_, begin) = self.meetings.first().copied().unwrap_or((0, 0));
        let from = (self.tokens.len() + begin).saturating_sub(most);
        let last = self.meetings.partition_point(|(_, tokens)| *tokens < from);
        self.remove(0, last)
    }

    /// Removes the tokens between two of the positions. The later tokens stay.
    fn remove(&mut self, first: usize, last: usize) -> (usize, usize) {
        let (_, keep) = self.meetings.get(first).copied().unwrap_or((0, 0));
        let end = self.meetings.get(last).map_or(self.tokens.len(), |(_, tokens)| *tokens).max(keep);
        self.tokens.drain(keep..end);
        if last >= self.meetings.len() {
            // Without a position, the tokens after it are unknown.
            self.source.truncate(self.meetings.get(first).map_or(0, |(source, _)| *source));
        }
        self.meetings.drain((first + 1).min(last)..last);
        self.meetings.iter_mut().skip(first + 1).for_each(|(_, tokens)| *tokens -= end - keep);
        (keep, end - keep)
    }
}
