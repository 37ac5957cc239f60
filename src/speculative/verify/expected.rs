//! How often a rule accepts one drafted token, from the two distributions: what a measured acceptance is held against.
//!
//! For a chain these are the probabilities of each token after those before it were accepted, except with `block`:
//! there P(at least i accepted) is the mean of ci over all drafts (see [`super::block`]).

use super::rows::Row;

/// `rejection`, and `block` for a single token: Σ min(p, q) = 1 - TV(p, q). No rule has more for a token drawn from q
/// without knowing the target's choice.
pub fn rejection(p: Row<'_>, q: Row<'_>) -> f64 {
    pairs(p, q).iter().map(|(p, q)| p.min(*q)).sum()
}

/// `match`: the probability of the draft's most probable token.
pub fn matching(p: Row<'_>, q: Row<'_>) -> f64 {
    p.p(super::matching::propose(q))
}

/// `coupled`: Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)).
pub fn coupled(p: Row<'_>, q: Row<'_>) -> f64 {
    let mut pairs = pairs(p, q);
    // The maximum is p(y)/p(x) where p(y)/q(y) is at least p(x)/q(x), so two running sums in that order give them all.
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

/// (p, q) of every token in either.
fn pairs(p: Row<'_>, q: Row<'_>) -> Vec<(f64, f64)> {
    let mut tokens: Vec<_> = p.iter().map(|(token, p)| (token, p, 0.0)).collect();
    tokens.extend(q.iter().map(|(token, q)| (token, 0.0, q)));
    tokens.sort_by_key(|(token, ..)| *token);
    let same = tokens.chunk_by(|a, b| a.0 == b.0);
    same.map(|parts| parts.iter().fold((0.0, 0.0), |sum, (_, p, q)| (sum.0 + p, sum.1 + q))).collect()
}
