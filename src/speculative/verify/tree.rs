//! Several continuations at once: a tree of drafted tokens, and recursive rejection without replacement (SpecInfer,
//! arXiv 2305.09781; without replacement: 2402.14160 and Sequoia, 2402.12374).
//!
//! The children of a node are drawn one after the other from q, each time without those drawn before: q1 = q, qk+1 = qk
//! without xk, divided by what is left. They are verified in the same order, starting with p1 = p: xk is accepted with
//! min(1, pk(xk)/qk(xk)); if it is refused, pk+1 = (pk - qk)+ divided by its sum. When all are refused, the next token
//! is drawn from what is left of p. Each refusal leaves a problem of the same kind, so it is exact by induction, as
//! `rejection` is. Drawing with replacement but verifying in this way is wrong, and so is another order.
//!
//! Children found without chance are taken out one by one: each is accepted with its p, so a set of them with Σ p(x).
//! With `coupled` nothing of this is needed: [`super::matching::verify`] with [`Tree::child`].

use super::chance::{Chance, Draw};
use super::rejection;
use super::residual::Residual;
use super::rows::{Row, Rows};
use super::{Target, Verdict};
use crate::llama::Token;

/// A tree of drafted tokens. Node 0 is the text; the others have a token each and are numbered as they are drawn. What
/// holds for a [`super::Proposal`] holds for it: nothing drawn can be taken out, and what decides whether a node gets
/// children, and how many, must have been known before they are drawn.
#[derive(Debug, Default)]
pub struct Tree {
    limit: usize,
    /// Nodes 1, 2, ...
    nodes: Vec<Node>,
    rows: Rows,
}

#[derive(Debug)]
struct Node {
    token: Token,
    parent: usize,
    /// The row that it was drawn from, its earlier siblings left out.
    row: usize,
}

impl Tree {
    /// Empties it for a step that drafts at most `limit` tokens. Keeps the memory.
    pub fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.nodes.clear();
        self.rows.clear();
    }

    /// As [`super::Proposal::cap`].
    pub fn cap(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.nodes.truncate(limit);
    }

    /// How many tokens were drafted: the nodes are 0..=`len`.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Draws up to `n` different children for a node that has none, `q` being the draft's distribution behind it.
    /// Returns how many: fewer when the limit is reached or `q` has no more tokens.
    pub fn draw(&mut self, parent: usize, q: Row<'_>, n: usize, chance: &mut impl Chance) -> usize {
        if parent > self.nodes.len() || self.children(parent).next().is_some() {
            return 0;
        }
        let row = self.rows.push(q);
        for drawn in 0..n.min(self.limit.saturating_sub(self.nodes.len())) {
            let left = |token| !self.children(parent).any(|(_, sibling)| sibling == token);
            let weights = q.iter().map(|(token, q)| if left(token) { q } else { 0.0 });
            let draw = Draw::Draft(self.nodes.len() + 1);
            let index = chance.choose(draw, weights.clone(), weights.sum());
            let Some((token, _)) = index.and_then(|index| q.iter().nth(index)) else { return drawn };
            self.nodes.push(Node { token, parent, row });
        }
        n.min(self.children(parent).count())
    }

    /// Appends a child that was found without chance to a node that has no children that were drawn, nor this one.
    /// False when that cannot be, or the limit is reached.
    pub fn push_deterministic(&mut self, parent: usize, token: Token) -> bool {
        let fits = self.nodes.len() < self.limit
            && parent <= self.nodes.len()
            && self.children(parent).all(|(sibling, id)| id != token && self.is_fixed(sibling));
        if fits {
            let row = self.rows.push_certain(token);
            self.nodes.push(Node { token, parent, row });
        }
        fits
    }

    fn is_fixed(&self, node: usize) -> bool {
        self.node(node).and_then(|node| self.rows.get(node.row)).is_some_and(|row| row.iter().count() == 1)
    }

    fn node(&self, node: usize) -> Option<&Node> {
        self.nodes.get(node.checked_sub(1)?)
    }

    /// The token of a node; `None` for the text and what is not there.
    pub fn token(&self, node: usize) -> Option<Token> {
        self.node(node).map(|node| node.token)
    }

    /// The node before; `None` for the text and what is not there.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.node(node).map(|node| node.parent)
    }

    /// The children of a node with their tokens, in the order drawn.
    pub fn children(&self, parent: usize) -> impl Iterator<Item = (usize, Token)> + Clone + '_ {
        (1..).zip(&self.nodes).filter(move |(_, node)| node.parent == parent).map(|(number, node)| (number, node.token))
    }

    /// The child of `parent` that is `token`.
    pub fn child(&self, parent: usize, token: Token) -> Option<usize> {
        self.children(parent).find(|(_, id)| *id == token).map(|(number, _)| number)
    }

    /// The distribution that a node was drawn from: its row without the siblings before it.
    fn drawn_from(&self, number: usize) -> impl Iterator<Item = (Token, f64)> + Clone + '_ {
        let node = self.node(number);
        let parent = node.map_or(0, |node| node.parent);
        let row = node.and_then(|node| self.rows.get(node.row));
        let is_left = move |token: Token| {
            !self.children(parent).take_while(|(sibling, _)| *sibling < number).any(|(_, sibling)| sibling == token)
        };
        let left = move || row.into_iter().flat_map(Row::iter).filter(move |(token, _)| is_left(*token));
        let total: f64 = left().map(|(_, q)| q).sum();
        left().map(move |(token, q)| (token, q / total))
    }
}

/// Verifies a tree by recursive rejection. The row of a node is asked for when that node is accepted.
pub fn verify(draft: &Tree, target: &mut impl Target, chance: &mut impl Chance, residual: &mut Residual) -> Verdict {
    let children = |node| draft.children(node).map(|(child, token)| (child, token, draft.drawn_from(child)));
    rejection::walk(children, target, chance, residual)
}
