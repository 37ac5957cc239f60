//! The residual of the target's distribution after a rejection.

use super::NextToken;
use super::distribution::TokenDistribution;
use super::random::{RandomSource, RandomUse};
use foredraft_base::Token;

/// Token weights from which distributions are subtracted. A scratch buffer of the rules; a call leaves no state behind.
#[derive(Debug, Default)]
pub struct Residual {
    weights: Vec<(Token, f64)>,
    total: f64,
    /// The weights to subtract, by token; all 0 between calls.
    minus: Vec<f64>,
}

impl Residual {
    /// Sets the weights to `scale` · p.
    pub(super) fn load(&mut self, row: TokenDistribution<'_>, scale: f64) {
        self.weights.clear();
        self.weights.extend(row.iter().map(|(token, p)| (token, scale * p)));
        self.total = scale;
    }

    /// The overlap Σ min(`scale` · p, q).
    pub(super) fn overlap(
        &mut self,
        row: TokenDistribution<'_>,
        scale: f64,
        q: impl Iterator<Item = (Token, f64)> + Clone,
    ) -> f64 {
        self.spread(q.clone());
        // Most tokens of a long distribution do not occur in a short one.
        let mut common = 0.0;
        for (token, p) in row.iter() {
            let minus = self.minus(token);
            if minus > 0.0 {
                common += minus.min(scale * p);
            }
        }
        self.clear(q);
        common
    }

    /// Replaces the weights w by (w - q)+ and returns their sum.
    pub(super) fn subtract(&mut self, q: impl Iterator<Item = (Token, f64)> + Clone) -> f64 {
        self.spread(q.clone());
        let mut weights = std::mem::take(&mut self.weights);
        self.total = 0.0;
        for (token, weight) in &mut weights {
            *weight = (*weight - self.minus(*token)).max(0.0);
            self.total += *weight;
        }
        self.weights = weights;
        self.clear(q);
        self.total
    }

    fn minus(&self, token: Token) -> f64 {
        usize::try_from(token).ok().and_then(|index| self.minus.get(index)).copied().unwrap_or(0.0)
    }

    /// Writes q into the table by token.
    fn spread(&mut self, q: impl Iterator<Item = (Token, f64)>) {
        for (token, q) in q {
            let Ok(index) = usize::try_from(token) else { continue };
            if index >= self.minus.len() {
                self.minus.resize(index + 1, 0.0);
            }
            if let Some(minus) = self.minus.get_mut(index) {
                *minus = q;
            }
        }
    }

    fn clear(&mut self, q: impl Iterator<Item = (Token, f64)>) {
        self.spread(q.map(|(token, _)| (token, 0.0)));
    }

    /// Divides the weights by their sum, which must be above 0.
    pub(super) fn normalize(&mut self) {
        self.weights.iter_mut().for_each(|(_, weight)| *weight /= self.total);
        self.total = 1.0;
    }

    /// The weight of `token`.
    pub(super) fn weight(&self, token: Token) -> f64 {
        self.weights.iter().find(|(id, _)| *id == token).map_or(0.0, |(_, weight)| *weight)
    }

    /// Draws a token in proportion to the weights, for the place after `node`. `row` is the distribution that was loaded.
    /// If all weights are 0, which only rounding can cause (a rejection has the probability 0 then), draws from `row`.
    pub(super) fn draw(
        &mut self,
        row: TokenDistribution<'_>,
        node: usize,
        random: &mut impl RandomSource,
    ) -> Option<NextToken> {
        if self.total <= 0.0 {
            self.load(row, 1.0);
        }
        let weights = self.weights.iter().map(|(_, weight)| *weight);
        let index = random.sample_index(RandomUse::Next(node), weights, self.total)?;
        let (token, _) = *self.weights.get(index)?;
        Some(NextToken { token, p: row.listed_weight(token) })
    }
}
