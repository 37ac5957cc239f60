//! `suffix`: what followed the longest matches of the text's end, in the request's own text and in earlier answers.
//!
//! After SuffixDecoding (arXiv 2411.04975): counts of continuations say how likely each is, and the draft goes on while the
//! probability of all of it is at least `min_prob`, up to `factor` times the match's length. As in SAM-Decoding (arXiv
//! 2411.10666) a match that goes on is not searched again: a [`Trace`] follows the copied place token by token. It stays where it is
//! when a single token differs, so that text which is rewritten with other names is followed at once; insertions and deletions
//! are found again by the [`ContextTree`].
//!
//! Each token of a draft is the likeliest of: the most frequent continuations of the three longest contexts in the tree, and the
//! token behind the trace, each in both texts. [`counted`] and [`traced`] say how likely.
//!
//! Answers are learnt when their request has ended, prompts never: what one user sends does not show in the speed of another's
//! answers, except as far as the model repeated it.
//!
//! Memory: 52 bytes for each token of the request, of which the last million are kept; for all earlier answers 14 MiB
//! at most: the last 2^18 tokens, and when these are full the older half is forgotten.

use super::drafter::Draft;
use super::ngram_params::SuffixParams;
use super::suffix_tree::{Continuations, ContextTree, MAX_LENGTH};
use super::text_drafter::{Limits, Rule, TextDrafter};
use super::{Settings, Source};
use crate::llama::Token;

/// The drafter.
pub type Suffix = TextDrafter<Matches>;

/// The rule.
pub struct Matches {
    params: SuffixParams,
    /// The request's text up to `known`.
    tree: ContextTree,
    known: usize,
    own: Trace,
    earlier: Trace,
    /// The end of the text, and the draft behind it.
    window: Vec<Token>,
}

impl Rule for Matches {
    const SOURCE: Source = Source::Suffix;
    type Shared = Answers;

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.suffix;
        Matches {
            params,
            tree: ContextTree::new(params.max_depth),
            known: 0,
            own: Trace::default(),
            earlier: Trace::default(),
            window: Vec::new(),
        }
    }

    fn forget(&mut self) {
        self.tree.clear();
        self.known = 0;
        self.own = Trace::default();
    }

    fn learn(&mut self, answers: &Answers, text: &[Token], _prompt: usize) {
        self.earlier.heed(answers.forgotten);
        for (at, token) in text.iter().enumerate().skip(self.known) {
            self.tree.learn(text, 0, at);
            self.own.follow(text, *token);
            self.earlier.follow(&answers.text, *token);
        }
        self.known = text.len();
    }

    fn draft(&mut self, answers: &Answers, text: &[Token], limits: Limits, draft: &mut Draft) {
        self.window.clear();
        self.window.extend_from_slice(text.get(text.len().saturating_sub(MAX_LENGTH)..).unwrap_or(text));
        self.own.seek(&self.tree, text, text);
        self.earlier.seek(&answers.tree, &answers.text, text);
        let (mut own, mut earlier) = (self.own, self.earlier);
        let longest = own.length.max(earlier.length).max(1);
        let (most, mut path) = (limits.n_max.min(times(longest, self.params.factor)), 1.0);
        while draft.tokens.len() < most {
            let context = self.window.get(draft.tokens.len()..).unwrap_or(&[]);
            let here = own.candidate(&self.tree, text, context);
            let there = earlier.candidate(&answers.tree, &answers.text, context).map(Candidate::of_another_text);
            let Some(chosen) = [here, there].into_iter().flatten().reduce(Candidate::likelier) else { return };
            path *= chosen.confidence;
            if path < self.params.min_prob || chosen.confidence < limits.p_min {
                return;
            }
            draft.extend_from(&[chosen.token], chosen.confidence);
            self.window.push(chosen.token);
            own.continue_with(text, chosen.token, here);
            earlier.continue_with(&answers.text, chosen.token, there);
        }
    }

    fn end(self, answers: &mut Answers, text: &[Token], prompt: usize) {
        answers.add(text.get(prompt..).unwrap_or(&[]));
    }
}

/// `factor` times `length`, rounded up.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn times(length: usize, factor: f32) -> usize {
    // `as` keeps within the bounds, and a factor that is no number gives 0.
    (length as f32 * factor).ceil() as usize
}

/// A token that may follow.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: Token,
    confidence: f32,
    /// Where it is.
    at: usize,
    /// The length of the match before it.
    length: usize,
}

impl Candidate {
    fn likelier(self, other: Candidate) -> Candidate {
        if other.confidence > self.confidence { other } else { self }
    }

    fn of_another_text(self) -> Candidate {
        Candidate { confidence: self.confidence * OTHER_TEXT, ..self }
    }
}

/// Other answers say less about a text than the text itself.
const OTHER_TEXT: f32 = 0.9;
/// Matches are measured up to this length; they grow further token by token.
const MEASURED: usize = 64;
/// From this length on a match is not left for another one.
const LONG: usize = 32;
/// After so many wrong tokens a trace is lost; after so many right ones the wrong ones are forgotten.
const LOST: u32 = 8;
const FOUND: usize = 8;

/// A place in a text that is being copied.
#[derive(Debug, Clone, Copy, Default)]
struct Trace {
    /// The next token.
    at: usize,
    /// How many before it were the same.
    length: usize,
    /// Wrong tokens since it was found.
    misses: u32,
    active: bool,
    /// [`Answers::forgotten`] when it was found.
    forgotten: usize,
}

impl Trace {
    /// Loses the trace if places have changed since it was found.
    fn heed(&mut self, forgotten: usize) {
        if self.forgotten != forgotten {
            *self = Trace { forgotten, ..Trace::default() };
        }
    }

    /// `token` is next.
    fn follow(&mut self, text: &[Token], token: Token) {
        if !self.active {
            return;
        }
        if text.get(self.at) == Some(&token) {
            self.length += 1;
            if self.length >= FOUND {
                self.misses = 0;
            }
        } else {
            self.length = 0;
            self.misses += 1;
            self.active = self.misses < LOST;
        }
        self.at += 1;
    }

    /// Changes to the longest match that `tree` knows of the end of `text`, if this one is neither long nor longer.
    fn seek(&mut self, tree: &ContextTree, source: &[Token], text: &[Token]) {
        if self.active && self.length >= LONG {
            return;
        }
        let Some(found) = tree.look_up(text).next() else { return };
        for (at, count) in [found.best, found.other] {
            let length = common_end(source.get(..at).unwrap_or(&[]), text);
            if count > 0 && length > self.length {
                *self = Trace { at, length, misses: 0, active: true, forgotten: self.forgotten };
            }
        }
    }

    /// The likeliest token behind `context`.
    fn candidate(&self, tree: &ContextTree, source: &[Token], context: &[Token]) -> Option<Candidate> {
        let mut best: Option<Candidate> = None;
        let mut consider = |at: usize, length: usize, confidence: f32| {
            let token = source.get(at).copied().filter(|token| *token != BETWEEN);
            let candidate = token.map(|token| Candidate { token, confidence, at, length });
            best = best.into_iter().chain(candidate).reduce(Candidate::likelier);
        };
        let mut deepest = None;
        for context in tree.look_up(context) {
            deepest.get_or_insert(context);
            consider(context.best.0, context.length, counted(&context));
        }
        if self.active {
            let says = |count: (usize, u8)| count.1 > 0 && source.get(count.0) == source.get(self.at);
            let agreeing = match deepest {
                Some(context) if says(context.best) => context.best.1,
                Some(context) if says(context.other) => context.other.1,
                _ => 0,
            };
            consider(self.at, self.length, traced(self, deepest.map_or(0, |context| context.total), agreeing));
        }
        best
    }

    /// `token` was drafted; `candidate` was this text's.
    fn continue_with(&mut self, source: &[Token], token: Token, candidate: Option<Candidate>) {
        let right = self.active && source.get(self.at) == Some(&token);
        match candidate {
            Some(candidate) if !right && candidate.token == token => {
                let (at, length) = (candidate.at + 1, candidate.length + 1);
                *self = Trace { at, length, misses: 0, active: true, forgotten: self.forgotten };
            }
            _ => self.follow(source, token),
        }
    }
}

/// How likely the most frequent continuation of a context is: its share, as if the context had been seen a little more often
/// with other ones; the more, the shorter it is.
fn counted(context: &Continuations) -> f32 {
    let length = f32::from(u16::try_from(context.length).unwrap_or(u16::MAX));
    f32::from(context.best.1) / (f32::from(context.total) + 0.1 + 2.0 / length)
}

/// How likely the token behind a trace is: the longer the match and the fewer tokens were wrong lately, the likelier. If the longest context of
/// the tree was seen more often than once, `agreeing` times of `total` with this token, then this counts as well, and the
/// trace as much more as it is longer than the tree is deep.
fn traced(trace: &Trace, total: u8, agreeing: u8) -> f32 {
    let length = f32::from(u16::try_from(trace.length).unwrap_or(u16::MAX));
    let misses = f32::from(u8::try_from(trace.misses).unwrap_or(u8::MAX));
    let alone = (length + 0.5) / (length + 2.0 + misses);
    if total <= 1 {
        return alone;
    }
    let weight = (length / 32.0).clamp(0.5, 4.0);
    (f32::from(agreeing) + weight * alone) / (f32::from(total) + weight)
}

/// How many tokens are the same at the end of both, at most [`MEASURED`].
fn common_end(a: &[Token], b: &[Token]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(MEASURED).take_while(|(a, b)| a == b).count()
}

/// Between two answers; no token.
const BETWEEN: Token = Token::MIN;
/// Tokens of earlier answers that are remembered at most.
pub(super) const MAX_ANSWERS: usize = 1 << 18;

/// The answers of earlier requests, of all slots.
pub struct Answers {
    text: Vec<Token>,
    tree: ContextTree,
    /// How often the older half was forgotten: places from before are void.
    forgotten: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Answers { text: Vec::new(), tree: ContextTree::new(MAX_LENGTH), forgotten: 0 }
    }
}

impl Answers {
    /// How many tokens are remembered.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn add(&mut self, answer: &[Token]) {
        let answer = answer.get(answer.len().saturating_sub(MAX_ANSWERS / 2)..).unwrap_or(answer);
        if answer.is_empty() {
            return;
        }
        let mut from = self.text.len();
        self.text.extend_from_slice(answer);
        self.text.push(BETWEEN);
        if self.text.len() > MAX_ANSWERS {
            self.text.drain(..self.text.len() - MAX_ANSWERS / 2);
            self.tree.clear();
            self.forgotten += 1;
            from = 0;
        }
        let mut begin = from;
        for at in from..self.text.len() {
            if self.text.get(at) == Some(&BETWEEN) {
                begin = at + 1;
            } else {
                self.tree.learn(&self.text, begin, at);
            }
        }
    }
}

#[cfg(test)]
#[path = "suffix_tests.rs"]
mod tests;
