//! Rejection sampling, token by token (arXiv 2302.01318, 2211.17192).
//!
//! A drafted x ~ q is accepted with the probability min(1, p(x)/q(x)). The first one refused ends it: the next token is
//! drawn from (p - q)+ divided by its sum. P(accept) = Σ min(p, q), the most that any rule reaches for one token that
//! was drawn from q. For a token found without chance q is certainty: it is accepted with p(x), and replaced by a draw
//! from p without x. If all are accepted, one more token is drawn from p.
//!
//! Why the token is distributed as p: x comes out by acceptance with min(p(x), q(x)), by replacement with
//! Σ (q - p)+ · (p(x) - q(x))+ / Σ (p - q)+ = (p(x) - q(x))+, and the two make p(x). That holds for each prefix, and
//! neither depends on what was drafted behind.

use super::chance::{Chance, Draw};
use super::proposal::Proposal;
use super::residual::Residual;
use super::rows::Row;
use super::{Target, Verdict};
use crate::llama::Token;

/// Verifies a chain. Row n is asked for when n drafted tokens are accepted, and no row behind the first refusal.
pub fn verify(
    draft: &Proposal,
    target: &mut impl Target,
    chance: &mut impl Chance,
    residual: &mut Residual,
) -> Verdict {
    let child = |node| draft.get(node).map(|drawn| (node + 1, drawn.token(), drawn.q().iter())).into_iter();
    walk(child, target, chance, residual)
}

/// Goes from node to node as long as a child is accepted. `children` of a node: number, token and the q that it was
/// drawn from after those before it were drawn and taken out.
pub(super) fn walk<I, Q>(
    children: impl Fn(usize) -> I,
    target: &mut impl Target,
    chance: &mut impl Chance,
    residual: &mut Residual,
) -> Verdict
where
    I: Iterator<Item = (usize, Token, Q)>,
    Q: Iterator<Item = (Token, f64)> + Clone,
{
    let mut node = 0;
    loop {
        let Some(row) = target.row(node) else { return Verdict { node, next: None } };
        match accepted_of(row, children(node), chance, residual) {
            Some(child) => node = child,
            None => return Verdict { node, next: residual.draw(row, node, chance) },
        }
    }
}

/// The first of the children of a node that is accepted, the target's distribution there being `row`. `None`:
/// `residual` has what is left of it.
fn accepted_of<I, Q>(row: Row<'_>, children: I, chance: &mut impl Chance, residual: &mut Residual) -> Option<usize>
where
    I: Iterator<Item = (usize, Token, Q)>,
    Q: Iterator<Item = (Token, f64)> + Clone,
{
    let mut is_loaded = false;
    for (child, token, q) in children {
        // Most first children are accepted: the row is not copied before one is refused.
        let p = if is_loaded { residual.weight(token) } else { row.p(token) };
        let drawn_with = q.clone().find(|(id, _)| *id == token).map_or(0.0, |(_, q)| q);
        if p > 0.0 && chance.is_below(Draw::Accept(child), p / drawn_with) {
            return Some(child);
        }
        if !is_loaded {
            residual.load(row, 1.0);
            is_loaded = true;
        }
        if residual.subtract(q) <= 0.0 {
            return None;
        }
        residual.normalise();
    }
    if !is_loaded {
        residual.load(row, 1.0);
    }
    None
}
