//! What is left of the target's distribution when a drafted token was refused.

use super::Next;
use super::chance::{Chance, Draw};
use super::rows::Row;
use crate::llama::Token;

/// Weights of tokens, from which others are subtracted. Memory of the rules; nothing in it outlives a call.
#[derive(Debug, Default)]
pub struct Residual {
    weights: Vec<(Token, f64)>,
    total: f64,
    /// What is being subtracted, by token; all 0 between calls.
    minus: Vec<f64>,
}

impl Residual {
    /// `scale` · p.
    pub(super) fn load(&mut self, row: Row<'_>, scale: f64) {
        self.weights.clear();
        self.weights.extend(row.iter().map(|(token, p)| (token, scale * p)));
        self.total = scale;
    }

    /// Σ min(`scale` · p, q): what they have in common.
    pub(super) fn overlap(&mut self, row: Row<'_>, scale: f64, q: impl Iterator<Item = (Token, f64)> + Clone) -> f64 {
        self.spread(q.clone());
        // Most tokens of a long row have nothing in common with a short one.
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

    /// Writes q where it is found by token.
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

    /// Divides the weights by their sum, which is above 0.
    pub(super) fn normalise(&mut self) {
        self.weights.iter_mut().for_each(|(_, weight)| *weight /= self.total);
        self.total = 1.0;
    }

    /// The weight of `token`.
    pub(super) fn weight(&self, token: Token) -> f64 {
        self.weights.iter().find(|(id, _)| *id == token).map_or(0.0, |(_, weight)| *weight)
    }

    /// A token in proportion to the weights, for `node`; `row` is what was loaded. Where subtracting left nothing,
    /// which only rounding can bring about (a refusal has the probability 0 there), it is drawn from `row`.
    pub(super) fn draw(&mut self, row: Row<'_>, node: usize, chance: &mut impl Chance) -> Option<Next> {
        if self.total <= 0.0 {
            self.load(row, 1.0);
        }
        let weights = self.weights.iter().map(|(_, weight)| *weight);
        let index = chance.choose(Draw::Next(node), weights, self.total)?;
        let (token, _) = *self.weights.get(index)?;
        Some(Next { token, p: row.listed(token) })
    }
}
