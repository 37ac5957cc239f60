//! A drafted chain of tokens together with the distributions that they were drawn from.

use super::chance::{Chance, Draw};
use super::rows::{Row, Rows};
use crate::llama::Token;

/// A drafted continuation for the rules that compare p with q. Those are exact only if each token x was drawn from
/// exactly the q that is kept with it, and if whether to draw did not depend on what came of it. So this type draws
/// itself:
/// - A token and its q come in together, in [`Proposal::draw`]; there is no way to put in the argmax with a q.
/// - Tokens found without chance (n-grams, a draft at temperature 0, an argmax) come in by [`Proposal::fix`] with the q
///   that they have: certainty.
/// - How long the draft may be is said before the first draw. It may end earlier by not drawing on, which may depend on
///   all drawn so far and on the next row ([`Row::best`]), but **nothing drawn can be taken out again**. To drop the
///   end because its q is low, or because a rule like "at least so many or none" says so, makes the text wrong (by a
///   total variation of .24 in the tests). A draft may be dropped whole, or cut at a length ([`Proposal::cap`]), only for
///   a reason that has nothing to do with it: a cancel, a full cache, a batch without room.
/// - The same for choosing between drafts of several sources: those from `fix` may be compared as one likes; one that
///   was drawn may be preferred or not before it is drawn.
#[derive(Debug, Default)]
pub struct Proposal {
    limit: usize,
    tokens: Vec<Token>,
    rows: Rows,
}

/// A drafted token and the distribution that it was drawn from. Only a [`Proposal`] makes one.
#[derive(Debug, Clone, Copy)]
pub struct DrawnToken<'a> {
    token: Token,
    q: Row<'a>,
}

impl<'a> DrawnToken<'a> {
    /// For a row of `rows` that `token` was drawn from.
    fn new(token: Token, q: Row<'a>) -> Self {
        DrawnToken { token, q }
    }

    /// The token.
    pub fn token(self) -> Token {
        self.token
    }

    /// The distribution.
    pub fn q(self) -> Row<'a> {
        self.q
    }
}

impl Proposal {
    /// Empties it for a step that drafts at most `limit` tokens. Keeps the memory.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.tokens.clear();
        self.rows.clear();
    }

    /// Whether it may grow.
    pub fn has_room(&self) -> bool {
        self.tokens.len() < self.limit
    }

    /// Draws the next token from `q` and keeps both. `None` when the limit is reached.
    pub fn draw(&mut self, q: Row<'_>, chance: &mut impl Chance) -> Option<Token> {
        if !self.has_room() {
            return None;
        }
        let draw = Draw::Draft(self.tokens.len() + 1);
        let index = chance.choose(draw, q.iter().map(|(_, p)| p), 1.0)?;
        let (token, _) = q.iter().nth(index)?;
        self.rows.push(q);
        self.tokens.push(token);
        Some(token)
    }

    /// Appends a token that was found without chance. False when the limit is reached.
    pub fn push_deterministic(&mut self, token: Token) -> bool {
        let room = self.has_room();
        if room {
            self.rows.push_certain(token);
            self.tokens.push(token);
        }
        room
    }

    /// Takes it as if its limit had been `limit`. Only for a limit that does not depend on what was drawn: how much room
    /// a batch has.
    pub fn cap(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.tokens.truncate(limit);
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The drafted token behind the first `n`.
    pub fn get(&self, n: usize) -> Option<DrawnToken<'_>> {
        Some(DrawnToken::new(*self.tokens.get(n)?, self.rows.get(n)?))
    }
}

#[cfg(test)]
impl Proposal {
    /// What the type forbids, for the tests that show why: a token that was not drawn from `q`.
    pub(super) fn forge(&mut self, token: Token, q: Row<'_>) {
        self.rows.push(q);
        self.tokens.push(token);
    }

    /// As above: takes out what was drawn behind the first `n`.
    pub(super) fn drop_drawn(&mut self, n: usize) {
        self.tokens.truncate(n);
    }
}
