//! The expected acceptance of one drafted token by each rule, from the two distributions.
//!
//! For a chain these are the probabilities of accepting each token given that the earlier ones were accepted. For `block`,
//! P(at least i accepted) is instead the mean of ci over all drafts (see `block`).

use super::super::TokenDistribution;
use foredraft_base::Token;

/// `rejection`, and `block` for a single token: Σ min(p, q) = 1 - TV(p, q). No rule accepts more of a token drawn from q
/// without knowing the target's sample.
pub(super) fn rejection(p: TokenDistribution<'_>, q: TokenDistribution<'_>) -> f64 {
    pairs(p, q).iter().map(|(p, q)| p.min(*q)).sum()
}

/// `match`: the probability of the draft's most probable token.
pub(super) fn matching(p: TokenDistribution<'_>, q: TokenDistribution<'_>) -> f64 {
    p.p(propose(q))
}

/// `coupled`: Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)).
pub(super) fn coupled(p: TokenDistribution<'_>, q: TokenDistribution<'_>) -> f64 {
    let mut pairs = pairs(p, q);
    // The maximum is p(y)/p(x) where p(y)/q(y) is at least p(x)/q(x), so two running sums in that order are enough.
    pairs.retain(|(p, q)| p + q > 0.0);
    pairs.sort_by(|(p1, q1), (p2, q2)| (p2 / q2).total_cmp(&(p1 / q1)));
    let (mut p_before, mut q_behind) = (0.0, 1.0);
    let mut sum = 0.0;
    for (p, q) in pairs {
        p_before += p;
        q_behind -= q;
        if p > 0.0 && q > 0.0 {
            sum += 1.0 / (p_before / p + q_behind.max(0.0) / q);
        }
    }
    sum
}

/// (p, q) of every token in either distribution.
fn pairs(p: TokenDistribution<'_>, q: TokenDistribution<'_>) -> Vec<(f64, f64)> {
    let mut tokens: Vec<_> = p.iter().map(|(token, p)| (token, p, 0.0)).collect();
    tokens.extend(q.iter().map(|(token, q)| (token, 0.0, q)));
    tokens.sort_by_key(|(token, ..)| *token);
    let same = tokens.chunk_by(|a, b| a.0 == b.0);
    same.map(|parts| parts.iter().fold((0.0, 0.0), |sum, (_, p, q)| (sum.0 + p, sum.1 + q))).collect()
}

/// The draft of `match`: the most probable token, the lowest id among equals.
pub(super) fn propose(q: TokenDistribution<'_>) -> Token {
    q.best().0
}
