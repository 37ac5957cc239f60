//! `match` and every other rule by which the target chooses for itself: what was drafted is compared with its choice.
//!
//! Exact for any drafter whatever, because the text does not depend on it. A token x is accepted with P(the target's
//! choice is x): p(x) if it was found without knowing the target's noise. `match` proposes the most probable token of
//! q, the best that can be done then; `coupled` (see [`super::coupled`]) proposes what the shared noise makes of q.

use super::rows::Row;
use super::{Next, Verdict};
use crate::llama::Token;

/// Walks along the target's choices as long as they were drafted. `pick(node)` is the target's choice behind `node`,
/// asked for in order and only for nodes reached; `None`: nothing follows there. `child(node, token)` is the node of
/// `token` behind `node`: in a chain the next one, in a tree one of several.
pub fn verify(child: impl Fn(usize, Token) -> Option<usize>, mut pick: impl FnMut(usize) -> Option<Next>) -> Verdict {
    let mut node = 0;
    loop {
        let Some(next) = pick(node) else { return Verdict { node, next: None } };
        match child(node, next.token) {
            Some(child) => node = child,
            None => return Verdict { node, next: Some(next) },
        }
    }
}

/// [`verify`]'s `child` for a chain.
pub fn chain(tokens: &[Token]) -> impl Fn(usize, Token) -> Option<usize> {
    move |node, token| (tokens.get(node) == Some(&token)).then_some(node + 1)
}

/// What `match` drafts: the most probable token, the lowest of equals.
pub fn propose(q: Row<'_>) -> Token {
    q.best().0
}
