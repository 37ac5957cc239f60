//! Probability distributions over tokens: a borrowed one, and a store for those of a draft.

use foredraft_base::{Token, TokenData};

/// A distribution over tokens: a list of tokens with weights, in any order, each token at most once. The probabilities are
/// the weights divided by their sum in `f64`, so every reader computes the same numbers. The list may come from
/// `Sampler::constrained_distribution`.
#[derive(Debug, Clone, Copy)]
pub struct TokenDistribution<'a> {
    items: &'a [TokenData],
    /// 1 / the sum of the weights.
    scale: f64,
}

/// The weight of an item; NaN and negative weights count as 0.
fn weight(item: &TokenData) -> f64 {
    f64::from(item.p.max(0.0))
}

impl<'a> TokenDistribution<'a> {
    /// The distribution with the weights `p` of `items`; ignores their logits. `None` if the sum of the weights is 0 or not
    /// finite.
    pub fn new(items: &'a [TokenData]) -> Option<TokenDistribution<'a>> {
        // Eight independent sums, so that additions do not wait for each other.
        let mut sums = [0.0; 8];
        for chunk in items.chunks(8) {
            sums.iter_mut().zip(chunk).for_each(|(sum, item)| *sum += weight(item));
        }
        let total: f64 = sums.iter().sum();
        (total > 0.0 && total.is_finite()).then_some(TokenDistribution { items, scale: 1.0 / total })
    }

    /// The probability of `token`. A linear search, unless the list is a whole vocabulary in order.
    pub fn p(&self, token: Token) -> f64 {
        self.find(token).map_or(0.0, |item| weight(item) * self.scale)
    }

    fn find(&self, token: Token) -> Option<&TokenData> {
        let there = usize::try_from(token).ok().and_then(|index| self.items.get(index));
        there.filter(|item| item.id == token).or_else(|| self.items.iter().find(|item| item.id == token))
    }

    /// The weight of `token` as listed, before the division: the probability that the sampler reported.
    pub fn listed_weight(&self, token: Token) -> f32 {
        self.find(token).map_or(0.0, |item| item.p)
    }

    /// Every listed token with its probability.
    pub fn iter(self) -> impl Iterator<Item = (Token, f64)> + Clone + use<'a> {
        self.items.iter().map(move |item| (item.id, weight(item) * self.scale))
    }

    /// The most probable token (the lowest id among equals) with its probability. It is known before a token is drawn, so
    /// a drafter may decide to stop by it.
    pub fn best(self) -> (Token, f64) {
        let better = |best: (Token, f64), item: (Token, f64)| {
            if item.1 > best.1 || (item.1 == best.1 && item.0 < best.0) { item } else { best }
        };
        self.iter().fold((Token::MAX, -1.0), better)
    }
}

/// A list of distributions in one buffer that keeps its allocation.
#[derive(Debug, Default)]
pub(super) struct DistributionStore {
    items: Vec<TokenData>,
    /// The end of each distribution in `items`, and its scale.
    ends: Vec<(usize, f64)>,
}

impl DistributionStore {
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.ends.clear();
    }

    /// Stores a copy and returns its index.
    pub(super) fn push(&mut self, row: TokenDistribution<'_>) -> usize {
        self.items.extend_from_slice(row.items);
        self.ends.push((self.items.len(), row.scale));
        self.ends.len() - 1
    }

    /// Stores the distribution that has only `token`.
    pub(super) fn push_deterministic(&mut self, token: Token) -> usize {
        self.push(TokenDistribution { items: &[TokenData { id: token, logit: 0.0, p: 1.0 }], scale: 1.0 })
    }

    pub(super) fn get(&self, number: usize) -> Option<TokenDistribution<'_>> {
        let (end, scale) = *self.ends.get(number)?;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |(end, _)| *end);
        self.items.get(start..end).map(|items| TokenDistribution { items, scale })
    }
}
