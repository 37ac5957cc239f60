//! Block verification: accepts or rejects the drafted tokens together (arXiv 2403.10444, ICLR 2025).
//!
//! With X the draft, γ its length, and p(x|i) and q(x|i) the distributions after its first i tokens:
//!
//! ```text
//! c0 = 1        ci = min(1, ci-1 · p(Xi|i-1) / q(Xi|i-1))
//! i < γ:        Zi = Σx (ci·p(x|i) - q(x|i))+        hi = Zi / (Zi + 1 - ci)
//! i = γ:        hγ = cγ
//! ```
//!
//! Each i has its own uniform number ui. τ is the **largest** i with ui < hi, not the one before the first failure. The
//! next token is drawn from p(·|γ) if τ = γ, otherwise from (cτ·p(·|τ) - q(·|τ))+, normalized.
//!
//! Why it is exact: P(τ ≥ i | X1..Xi) = ci. At γ that is hγ. For i < γ, continuing contributes Σx q(x)·ci+1 =
//! Σx min(q, ci·p) = ci - Zi. Of the remaining 1 - ci + Zi, the share hi stops at i: Zi. So the token after i is x with the
//! probability ci·p(x): min(q(x), ci·p(x)) by continuing and (ci·p(x) - q(x))+ by stopping. Hence the first token (c0 = 1)
//! has the probability p(x), the second, given the first, p(x), and so on. γ may depend on the tokens drawn so far,
//! because the induction needs only hγ = cγ. `rejection` is the same with ci = Π min(1, p/q), which is never larger.
//!
//! It accepts more tokens than `rejection` only if a ratio p/q between 0 and 1 is followed by one above 1. So there is no
//! gain for deterministic tokens (no ratio is above 1) or for a target at temperature 0 (each ratio is 0 or at least 1).
//!
//! Later tokens determine whether earlier ones are kept, so the rule reads the distributions of the whole draft. It draws
//! the next token for every candidate τ on the way, so it reads each distribution once.

use super::random::{RandomSource, RandomUse};
use super::residual::Residual;
use super::sampled_draft::SampledDraft;
use super::{TargetDistributions, Verdict};

/// Verifies a chain. Reads distributions as long as the draft can still be accepted: up to a token with p = 0. The draft
/// ends at a node where the target has no distribution.
pub fn verify(
    draft: &SampledDraft,
    target: &mut impl TargetDistributions,
    random: &mut impl RandomSource,
    residual: &mut Residual,
) -> Verdict {
    let mut verdict = Verdict { node: 0, next: None };
    let mut c = 1.0;
    for node in 0.. {
        let drawn = draft.drawn(node + 1);
        if drawn.is_none() && !random.is_below(RandomUse::Accept(node), c) {
            break;
        }
        let Some(row) = target.distribution(node) else {
            if drawn.is_none() || random.is_below(RandomUse::Accept(node), c) {
                verdict = Verdict { node, next: None };
            }
            break;
        };
        let Some((token, q)) = drawn else {
            residual.load(row, 1.0);
            verdict = Verdict { node, next: residual.draw(row, node, random) };
            break;
        };
        let z = c - residual.overlap(row, c, q.iter());
        // Node 0 always qualifies: its h is 1, apart from rounding.
        if node == 0 || (z > 0.0 && random.is_below(RandomUse::Accept(node), z / (z + 1.0 - c))) {
            residual.load(row, c);
            residual.subtract(q.iter());
            verdict = Verdict { node, next: residual.draw(row, node, random) };
        }
        c = (c * row.p(token) / q.p(token)).min(1.0);
        if c.is_nan() || c <= 0.0 {
            break;
        }
    }
    verdict
}
