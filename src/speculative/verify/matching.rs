//! `match` and `coupled`: the target samples every token, and drafted tokens are accepted while they are equal to it.
//!
//! The output does not depend on the draft, so any drafter, tree or stopping rule preserves it exactly. A token x is
//! accepted with the probability that the target samples x: p(x) if the drafter does not know the target's noise.
//! - `match` drafts the most probable token of q, the best choice without knowing the noise.
//! - `coupled` (Gumbel coupling, arXiv 2408.07978): target and draft sample with the same noise. Each takes the argmax of
//!   ln prob(x) + G(x). With E = exp(-G), which is exponential of rate 1, that is the smallest E(x)/prob(x): a race in
//!   which x has the rate prob(x), so x wins with the probability prob(x). Both sample x if
//!   E(y) > E(x) · max(p(y)/p(x), q(y)/q(x)) for all other y, hence
//!   P(match) = Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)) ≥ (1 - TV)/(1 + TV). Many drafts may use the noise of a position.
//!
//! The engine samples with [`crate::sampling::Sampler::sample`].

use super::verdict::{NextToken, Verdict};
use crate::llama::Token;

/// Follows the target's tokens as long as they were drafted.
///
/// `sample(node)` samples the target's token after `node`. It is called in order and only for accepted nodes; `None` means
/// that no token follows. `child(node, token)` is the drafted node of `token` after `node`: in a chain the next node, in a
/// tree one of several.
pub fn verify(
    child: impl Fn(usize, Token) -> Option<usize>,
    mut sample: impl FnMut(usize) -> Option<NextToken>,
) -> Verdict {
    let mut node = 0;
    loop {
        let Some(next) = sample(node) else { return Verdict { node, next: None } };
        match child(node, next.token) {
            Some(child) => node = child,
            None => return Verdict { node, next: Some(next) },
        }
    }
}
