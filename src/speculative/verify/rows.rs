//! Probability distributions over tokens: one that is borrowed, and a store for those of a draft.

use crate::llama::{Token, TokenData};

/// A distribution over tokens: a list of those that have a probability, in any order, each at most once. What
/// `Sampler::row` returns is one, and so is any list with weights instead of probabilities: they are divided
/// by their sum, in `f64`, so that everybody who looks at a row sees the same numbers.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    items: &'a [TokenData],
    /// What makes a probability of a weight.
    scale: f64,
}

/// NaN and what is negative count as 0.
fn weight(item: &TokenData) -> f64 {
    f64::from(item.p.max(0.0))
}

impl<'a> Row<'a> {
    /// The distribution with the weights `p` of `items`; their logits are not looked at. `None` when their sum is 0 or
    /// not finite.
    pub fn new(items: &'a [TokenData]) -> Option<Row<'a>> {
        // Several sums side by side: one alone would wait for each addition.
        let mut sums = [0.0; 8];
        for chunk in items.chunks(8) {
            sums.iter_mut().zip(chunk).for_each(|(sum, item)| *sum += weight(item));
        }
        let total: f64 = sums.iter().sum();
        (total > 0.0 && total.is_finite()).then_some(Row { items, scale: 1.0 / total })
    }

    /// The probability of `token`. Looks through the list, unless that is a whole vocabulary in its order.
    pub fn p(&self, token: Token) -> f64 {
        self.find(token).map_or(0.0, |item| weight(item) * self.scale)
    }

    fn find(&self, token: Token) -> Option<&TokenData> {
        let there = usize::try_from(token).ok().and_then(|index| self.items.get(index));
        there.filter(|item| item.id == token).or_else(|| self.items.iter().find(|item| item.id == token))
    }

    /// The weight of `token` as it was listed: what a sampler that learns from probabilities would have seen.
    pub fn listed(&self, token: Token) -> f32 {
        self.find(token).map_or(0.0, |item| item.p)
    }

    /// Every token listed, with its probability.
    pub fn iter(self) -> impl Iterator<Item = (Token, f64)> + Clone + use<'a> {
        self.items.iter().map(move |item| (item.id, weight(item) * self.scale))
    }

    /// The most probable token, the lowest of equals, with its probability. It is known before a token is drawn, so a
    /// draft may be ended by it.
    pub fn best(self) -> (Token, f64) {
        let better = |best: (Token, f64), item: (Token, f64)| {
            if item.1 > best.1 || (item.1 == best.1 && item.0 < best.0) { item } else { best }
        };
        self.iter().fold((Token::MAX, -1.0), better)
    }
}

/// Rows one behind the other, in memory that is kept.
#[derive(Debug, Default)]
pub(super) struct Rows {
    items: Vec<TokenData>,
    /// Where each row ends in `items`, and its scale.
    ends: Vec<(usize, f64)>,
}

impl Rows {
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.ends.clear();
    }

    /// Keeps a copy; returns its number, counted from 0.
    pub(super) fn push(&mut self, row: Row<'_>) -> usize {
        self.items.extend_from_slice(row.items);
        self.ends.push((self.items.len(), row.scale));
        self.ends.len() - 1
    }

    /// Keeps the distribution that has only `token`.
    pub(super) fn push_certain(&mut self, token: Token) -> usize {
        self.push(Row { items: &[TokenData { id: token, logit: 0.0, p: 1.0 }], scale: 1.0 })
    }

    pub(super) fn get(&self, number: usize) -> Option<Row<'_>> {
        let (end, scale) = *self.ends.get(number)?;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |(end, _)| *end);
        self.items.get(start..end).map(|items| Row { items, scale })
    }
}
