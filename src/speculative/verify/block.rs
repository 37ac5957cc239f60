//! Block verification: the drafted tokens are accepted together (arXiv 2403.10444, ICLR 2025).
//!
//! With X the draft, p(x|i) and q(x|i) the distributions behind its first i tokens, γ its length:
//!
//! ```text
//! c0 = 1        ci = min(1, ci-1 · p(Xi|i-1) / q(Xi|i-1))
//! i < γ:        Zi = Σx (ci·p(x|i) - q(x|i))+        hi = Zi / (Zi + 1 - ci)
//! i = γ:        hγ = cγ
//! ```
//!
//! Each i has a u of its own; τ is the **largest** i with ui < hi, not the one before the first failure. The next token
//! is drawn from p(·|γ) if τ = γ, otherwise from (cτ·p(·|τ) - q(·|τ))+ divided by its sum.
//!
//! Why it is exact: P(τ ≥ i | X1..Xi) = ci. At γ that is hγ. Below, going on brings Σx q(x)·ci+1 = Σx min(q, ci·p) =
//! ci - Zi, and of the rest, 1 - ci + Zi, the part hi stays: Zi. So the token behind i comes out as x with ci·p(x) in
//! all: min(q(x), ci·p(x)) by going on, (ci·p(x) - q(x))+ by staying. The first token (c0 = 1) has therefore p(x), the
//! second, given the first, p(x), and so on. γ may depend on the tokens drawn so far, since hγ = cγ is what the
//! induction needs at any end. `rejection` is the same with ci = Π min(1, p/q), which is never more.
//!
//! It accepts more than `rejection` only where a ratio between 0 and 1 is made good by a later one above 1. So never
//! for tokens found without chance (no ratio is above 1), nor for a target at temperature 0 (each is 0 or at least 1).
//!
//! Later tokens decide whether earlier ones are kept, so the rows behind the whole draft are asked for before it is
//! known how much of it stays. What would draw the next token is drawn on the way, so each row is looked at once.

use super::chance::{Chance, Draw};
use super::proposal::Proposal;
use super::residual::Residual;
use super::{Target, Verdict};

/// Verifies a chain. Rows are asked for as far as the draft can still be accepted: up to a token with p = 0. Where the
/// target has no row, the draft ends.
pub fn verify(
    draft: &Proposal,
    target: &mut impl Target,
    chance: &mut impl Chance,
    residual: &mut Residual,
) -> Verdict {
    let mut verdict = Verdict { node: 0, next: None };
    let mut c = 1.0;
    for node in 0.. {
        let drawn = draft.get(node);
        if drawn.is_none() && !chance.is_below(Draw::Accept(node), c) {
            break;
        }
        let Some(row) = target.row(node) else {
            if drawn.is_none() || chance.is_below(Draw::Accept(node), c) {
                verdict = Verdict { node, next: None };
            }
            break;
        };
        let Some(drawn) = drawn else {
            residual.load(row, 1.0);
            verdict = Verdict { node, next: residual.draw(row, node, chance) };
            break;
        };
        let z = c - residual.overlap(row, c, drawn.q().iter());
        // Node 0 stays unless a later one does, whatever rounding made of its h, which is 1.
        if node == 0 || (z > 0.0 && chance.is_below(Draw::Accept(node), z / (z + 1.0 - c))) {
            residual.load(row, c);
            residual.subtract(drawn.q().iter());
            verdict = Verdict { node, next: residual.draw(row, node, chance) };
        }
        c = (c * row.p(drawn.token()) / drawn.q().p(drawn.token())).min(1.0);
        if c.is_nan() || c <= 0.0 {
            break;
        }
    }
    verdict
}
