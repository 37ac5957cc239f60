//! A place in a text that is being copied, and what may follow there.

use super::ngram_index::to_index;
use super::suffix_confidence::{Bins, Copied, Kind, Origin};
use super::suffix_tree::{BETWEEN, ContextTree, Continuations, Hint};
use crate::llama::Token;

/// A text and the tree of its contexts.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// Which of the two.
    pub origin: Origin,
    /// Its tokens.
    pub tokens: &'a [Token],
    /// What follows where.
    pub tree: &'a ContextTree,
}

/// A token that may follow.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The token.
    pub token: Token,
    /// That it does follow, 0..=1.
    pub confidence: f32,
    /// What that rests on.
    pub kind: Kind,
    /// Where it is.
    pub at: usize,
    /// The length of the match before it.
    pub length: usize,
}

impl Candidate {
    /// The likelier one; of equals this.
    pub fn likelier(self, other: Candidate) -> Candidate {
        if other.confidence > self.confidence { other } else { self }
    }
}

/// Matches are measured up to this length; they grow further token by token.
const MEASURED: usize = 64;
/// From this length on a match is not left for another one.
const LONG: usize = 32;
/// After so many wrong tokens a trace is lost; after so many right ones the wrong ones are forgotten.
const LOST: u32 = 8;
const FOUND: usize = 8;

/// The place. When a single token differs it goes on behind it, so that text which is rewritten with other names is
/// followed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trace {
    /// The next token.
    at: usize,
    /// How many before it were the same.
    length: usize,
    /// What is left of the length of matches before wrong tokens: half of it after each.
    before: usize,
    /// Wrong tokens since it was found.
    misses: u32,
    active: bool,
    hint: Hint,
}

impl Trace {
    /// The length of the match; that before a wrong token counts half.
    pub fn length(&self) -> usize {
        self.length + self.before
    }

    /// `token` is next.
    pub fn follow(&mut self, text: &[Token], token: Token) {
        if !self.active {
            return;
        }
        if text.get(self.at) == Some(&token) {
            self.length += 1;
            if self.length >= FOUND {
                self.misses = 0;
            }
        } else {
            (self.before, self.length) = ((self.before + self.length) / 2, 0);
            self.misses += 1;
            self.active = self.misses < LOST;
        }
        self.at += 1;
    }

    /// What the tree knows of the end of `text`.
    pub fn look_up(&mut self, source: Text<'_>, text: &[Token]) -> Option<Continuations> {
        source.tree.look_up(text, &mut self.hint)
    }

    /// Changes to the longest match of the end of `text` among those `found`, if this one is neither long nor longer.
    pub fn seek(&mut self, source: Text<'_>, text: &[Token], found: Option<&Continuations>) {
        let Some(found) = found.filter(|_| !self.active || self.length < LONG) else { return };
        for (at, count) in [found.best, found.other] {
            let at = to_index(at);
            let length = if count > 0 { common_end(source.tokens.get(..at).unwrap_or(&[]), text) } else { 0 };
            if length > self.length {
                *self = Trace { at, length, before: 0, misses: 0, active: true, ..*self };
            }
        }
    }

    /// The likelier token of that at this place and that behind the context `found`. `note` is told of both.
    pub fn candidate(
        &self,
        source: Text<'_>,
        found: Option<&Continuations>,
        bins: &Bins,
        mut note: impl FnMut(&Candidate),
    ) -> Option<Candidate> {
        let mut likeliest: Option<Candidate> = None;
        let mut consider = |at: usize, length: usize, (kind, confidence): (Kind, f32)| {
            let Some(token) = source.tokens.get(at).copied().filter(|token| *token != BETWEEN) else { return };
            let candidate = Candidate { token, confidence, kind, at, length };
            note(&candidate);
            likeliest = Some(likeliest.map_or(candidate, |likeliest| likeliest.likelier(candidate)));
        };
        if self.active {
            let copied = self.compare(source.tokens, found);
            consider(self.at, self.length, bins.copied(source.origin, &copied));
        }
        if let Some(context) = found {
            consider(to_index(context.best.0), context.length, bins.context(source.origin, context));
        }
        likeliest
    }

    fn compare(&self, text: &[Token], found: Option<&Continuations>) -> Copied {
        let says = |place: (u32, u8)| place.1 > 0 && text.get(to_index(place.0)) == text.get(self.at);
        let agreeing = match found {
            Some(context) if says(context.best) => context.best.1,
            Some(context) if says(context.other) => context.other.1,
            _ => 0,
        };
        let total = found.map_or(0, |context| context.total);
        Copied { length: self.length, before: self.before, misses: self.misses, total, agreeing }
    }

    /// `token` was drafted; `candidate` was this text's.
    pub fn continue_with(&mut self, text: &[Token], token: Token, candidate: Option<Candidate>) {
        let right = self.active && text.get(self.at) == Some(&token);
        match candidate {
            Some(candidate) if !right && candidate.token == token => {
                let (at, length) = (candidate.at + 1, candidate.length + 1);
                *self = Trace { at, length, before: 0, misses: 0, active: true, ..*self };
            }
            _ => self.follow(text, token),
        }
    }
}

/// How many tokens are the same at the end of both, at most [`MEASURED`].
fn common_end(a: &[Token], b: &[Token]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(MEASURED).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "suffix_trace_tests.rs"]
mod tests;
