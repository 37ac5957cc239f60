//! Rejection sampling of a chain (arXiv 2302.01318, 2211.17192) and of a tree.
//!
//! A drafted x ~ q is accepted with the probability min(1, p(x)/q(x)). The first rejection ends the step: the next token is
//! drawn from (p - q)+, normalized. P(accept) = Σ min(p, q), the maximum for one token drawn from q. The q of a
//! deterministic token has only that token: it is accepted with p(x), and replaced by a draw from p without x. If all
//! tokens are accepted, one more is drawn from p.
//!
//! Why the output is distributed as p: x results from acceptance with min(p(x), q(x)), and from replacement with
//! Σ (q - p)+ · (p(x) - q(x))+ / Σ (p - q)+ = (p(x) - q(x))+. The sum is p(x). This holds for every prefix, and does not
//! depend on later drafted tokens.
//!
//! A tree is verified by recursive rejection without replacement (SpecInfer, arXiv 2305.09781; without replacement:
//! 2402.14160 and Sequoia, 2402.12374). The children of a node are drawn one after the other from q without the earlier
//! ones: q1 = q, and qk+1 is qk without xk, normalized. They are verified in the same order, starting with p1 = p: xk is
//! accepted with min(1, pk(xk)/qk(xk)); after a rejection pk+1 = (pk - qk)+, normalized. If all are rejected, the next
//! token is drawn from the last p. Each rejection leaves a problem of the same kind, so exactness follows by induction.
//! Drawing with replacement, or verifying in another order, would be wrong.
//!
//! Deterministic children are removed one by one: each is accepted with its p, so a set of them with Σ p(x). `coupled`
//! needs none of this: [`super::accept_matching`] is enough.

use super::distribution::TokenDistribution;
use super::random::{RandomSource, RandomUse};
use super::residual::Residual;
use super::sampled_draft::SampledDraft;
use super::{TargetDistributions, Verdict};

/// Verifies a draft. Reads the distribution at a node only once that node is accepted.
pub fn verify(
    draft: &SampledDraft,
    target: &mut impl TargetDistributions,
    random: &mut impl RandomSource,
    residual: &mut Residual,
) -> Verdict {
    let mut node = 0;
    loop {
        let Some(row) = target.distribution(node) else { return Verdict { node, next: None } };
        match accepted_child(draft, node, row, random, residual) {
            Some(child) => node = child,
            None => return Verdict { node, next: residual.draw(row, node, random) },
        }
    }
}

/// The first accepted child of a node whose target distribution is `row`. If none is accepted, returns `None` and leaves
/// the residual distribution in `residual`.
fn accepted_child(
    draft: &SampledDraft,
    node: usize,
    row: TokenDistribution<'_>,
    random: &mut impl RandomSource,
    residual: &mut Residual,
) -> Option<usize> {
    let mut is_loaded = false;
    for (child, token) in draft.children(node) {
        let q = draft.drawn_from(child)?;
        // Most first children are accepted, so the distribution is copied only after a rejection.
        let p = if is_loaded { residual.weight(token) } else { row.p(token) };
        let drawn_with = q.clone().find(|(id, _)| *id == token).map_or(0.0, |(_, q)| q);
        if p > 0.0 && random.is_below(RandomUse::Accept(child), p / drawn_with) {
            return Some(child);
        }
        if !is_loaded {
            residual.load(row, 1.0);
            is_loaded = true;
        }
        if residual.subtract(q) <= 0.0 {
            return None;
        }
        residual.normalize();
    }
    if !is_loaded {
        residual.load(row, 1.0);
    }
    None
}
