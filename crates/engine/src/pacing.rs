//! Batches that fit the frame budget of the host. When they are decoded is `llama::pacing`'s part.

use foredraft_llama::{Context, FrameBudget};
use foredraft_speculation::Costs;

/// Where one token takes longer than the budget, a batch may take so many times as long: pauses are in proportion, so that smaller
/// batches would leave the host no more time and the engine fewer tokens.
const TOKENS_AT_LEAST: f64 = 2.0;
/// Batches have at most so many tokens.
const MOST: usize = 512;

/// Most tokens of a batch, of a prompt's piece or of a token with its draft: as many as the frame budget leaves time for by the costs
/// measured so far. No limit without a frame budget.
///
/// Pieces have no more tokens than leave the logits as they are, so that a completion does not depend on the costs.
pub(super) fn most_tokens(context: &Context, costs: &Costs) -> usize {
    match context.frame_budget() {
        Some(FrameBudget { busy, .. }) => {
            fitting(|n| costs.v_at_most(n), costs.of(busy)).min(context.max_invariant_tokens()).min(context.n_ubatch())
        }
        None => usize::MAX,
    }
}

/// The largest batch that costs no more than `budget`, where one token costs 1.
fn fitting(cost: impl Fn(usize) -> f64, budget: f64) -> usize {
    let budget = budget.max(TOKENS_AT_LEAST);
    (1..=MOST).rev().find(|n| cost(*n) <= budget).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_the_largest_that_fits_the_budget() {
        // Cheaper by the token up to 8, and 16 tokens cost less than 12.
        let cost = |n: usize| match n {
            0..=8 => 0.8 + 0.2 * n as f64,
            9..=15 => 4.0,
            _ => 3.0 + 0.25 * (n - 16) as f64,
        };
        for (budget, tokens) in [(2.1, 6), (2.5, 8), (2.9, 8), (3.0, 16), (5.1, 24), (1e9, MOST)] {
            assert_eq!(fitting(cost, budget), tokens, "{budget}");
        }
        assert_eq!(fitting(cost, 0.5), 6, "one token takes longer than the budget");
    }
}
