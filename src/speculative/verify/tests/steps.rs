//! A step as the engine makes it: draft, verify, emit.

use super::super::{Chance, Draw, Next, Proposal, Residual, Row, Target, Tree, Verdict, block, rejection, tree};
use super::dice::{Dice, Key, explore, honest};
use super::worlds::{Law, Side, World};
use crate::llama::{Token, TokenData};
use std::collections::BTreeMap;

/// The target behind a text, in place of an engine. It holds rules to the order in which they may ask.
pub(super) struct Walk<'a> {
    pub(super) world: &'a World,
    pub(super) text: Vec<Token>,
    /// Parent and token of a drafted node.
    node: &'a dyn Fn(usize) -> Option<(usize, Token)>,
    row: Vec<TokenData>,
    last: Option<usize>,
    pub(super) rows: usize,
}

impl<'a> Walk<'a> {
    fn new(world: &'a World, text: &[Token], node: &'a dyn Fn(usize) -> Option<(usize, Token)>) -> Self {
        Walk { world, text: text.to_vec(), node, row: Vec::new(), last: None, rows: 0 }
    }
}

impl Target for Walk<'_> {
    fn row(&mut self, node: usize) -> Option<Row<'_>> {
        match self.last {
            None => assert_eq!(node, 0, "the text comes first"),
            Some(last) => {
                let (parent, token) = (self.node)(node).expect("a drafted node");
                assert_eq!(parent, last, "one after the other");
                assert!(Row::new(&self.row).unwrap().p(token) > 0.0, "a sampler can be advanced by it");
                self.text.push(token);
            }
        }
        self.last = Some(node);
        self.rows += 1;
        if self.world.is_over(&self.text) {
            return None;
        }
        self.row = self.world.row(Side::Target, &self.text);
        Row::new(&self.row)
    }
}

/// A rule for chains.
pub(super) type Rule<'r> = &'r dyn Fn(&Proposal, &mut Walk<'_>, &mut Dice, &mut Residual) -> Verdict;

pub(super) const REJECTION: Rule<'static> =
    &|draft, target, dice, residual| rejection::verify(draft, target, dice, residual);
pub(super) const BLOCK: Rule<'static> = &|draft, target, dice, residual| block::verify(draft, target, dice, residual);

/// How a chain is drafted.
pub(super) type Drafter = fn(&World, &[Token], &mut Proposal, &mut Dice);

/// As the product does: draws from q until the limit or where the draft stops.
pub(super) const DRAWS: Drafter = |world, text, draft, dice| {
    let mut text = text.to_vec();
    while draft.has_room() && !world.draft_stops(&text) {
        let q = world.row(Side::Draft, &text);
        text.push(draft.draw(Row::new(&q).unwrap(), dice).unwrap());
    }
};

/// The most probable tokens, as what they are: found without chance.
pub(super) const FIXES: Drafter = |world, text, draft, _| {
    let mut text = text.to_vec();
    while draft.has_room() && !world.draft_stops(&text) {
        text.push(Row::new(&world.row(Side::Draft, &text)).unwrap().best().0);
        assert!(draft.push_deterministic(text[text.len() - 1]));
    }
};

/// Some tokens are drawn and some are not.
pub(super) const MIXES: Drafter = |world, text, draft, dice| {
    let mut text = text.to_vec();
    while draft.has_room() && !world.draft_stops(&text) {
        let q = world.row(Side::Draft, &text);
        let q = Row::new(&q).unwrap();
        if (text.len() + world.seed as usize).is_multiple_of(2) {
            text.push(draft.draw(q, dice).unwrap());
        } else {
            text.push(q.best().0);
            draft.push_deterministic(q.best().0);
        }
    }
};

/// Appends what one step emits; returns the draft and how many of its tokens were accepted.
pub(super) fn step(
    world: &World,
    text: &mut Vec<Token>,
    limit: usize,
    (drafter, rule): (Drafter, Rule<'_>),
    dice: &mut Dice,
) -> (Vec<Token>, usize) {
    dice.begin(text.len());
    let mut draft = Proposal::default();
    draft.begin(limit);
    drafter(world, text, &mut draft, dice);
    let node = |node: usize| Some((node - 1, *draft.tokens().get(node - 1)?));
    let mut target = Walk::new(world, text, &node);
    let verdict = rule(&draft, &mut target, dice, &mut Residual::default());
    text.extend_from_slice(&draft.tokens()[..verdict.node]);
    emit(world, text, verdict.next);
    (draft.tokens().to_vec(), verdict.node)
}

fn emit(world: &World, text: &mut Vec<Token>, next: Option<Next>) {
    match next {
        Some(next) => text.push(next.token),
        None => assert!(world.is_over(text)),
    }
}

/// The law of the next `len` tokens when one step drafts up to `limit` and the target alone goes on, and the expected
/// number of drafted tokens accepted.
pub(super) fn one_step(world: &World, limit: usize, how: (Drafter, Rule<'_>), alias: fn(Key) -> Key) -> (Law, f64) {
    let outcomes = explore(alias, |dice| {
        let mut text = Vec::new();
        let (_, accepted) = step(world, &mut text, limit, how, dice);
        (text, accepted)
    });
    finish(world, outcomes, limit + 1)
}

/// As [`one_step`], for trees.
pub(super) type TreeRule<'r> = &'r dyn Fn(&Tree, &mut Walk<'_>, &mut Dice, &mut Residual) -> Verdict;
/// How a tree is drafted.
pub(super) type TreeDrafter = fn(&World, &[Token], &[usize], &mut Tree, &mut Dice);

pub(super) const RECURSIVE: TreeRule<'static> =
    &|draft, target, dice, residual| tree::verify(draft, target, dice, residual);

/// The text behind a node.
pub(super) fn text_at(tree: &Tree, mut node: usize, text: &[Token]) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let (Some(token), Some(parent)) = (tree.token(node), tree.parent(node)) {
        tokens.insert(0, token);
        node = parent;
    }
    [text, &tokens].concat()
}

fn grow(
    world: &World,
    text: &[Token],
    widths: &[usize],
    tree: &mut Tree,
    mut children: impl FnMut(&mut Tree, usize, Row<'_>, usize),
) {
    let mut node = 0;
    while node <= tree.len() {
        let here = text_at(tree, node, text);
        let width = widths.get(here.len() - text.len()).copied().unwrap_or(0);
        if width > 0 && !world.draft_stops(&here) {
            children(tree, node, Row::new(&world.row(Side::Draft, &here)).unwrap(), width);
        }
        node += 1;
    }
}

/// So many children of every node of a level, drawn without replacement.
pub(super) const BRANCHES: TreeDrafter = |world, text, widths, tree, dice| {
    grow(world, text, widths, tree, |tree, node, q, width| {
        tree.draw(node, q, width, dice);
    });
};

/// How many children a node gets depends on everything drawn before, also elsewhere in the tree.
pub(super) const WILD_BRANCHES: TreeDrafter = |world, text, widths, tree, dice| {
    grow(world, text, widths, tree, |tree, node, q, width| {
        let mut wild = 0;
        while let Some(drawn) = tree.token(wild + 1) {
            wild += 1 + usize::from(drawn == 1);
        }
        tree.draw(node, q, (width + wild) % (width + 1), dice);
    });
};

/// The most probable children, found without chance.
pub(super) const FIXED_BRANCHES: TreeDrafter = |world, text, widths, tree, _| {
    grow(world, text, widths, tree, |tree, node, q, width| {
        let mut best: Vec<(Token, f64)> = q.iter().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        best.iter().take(width).for_each(|(token, _)| assert!(tree.push_deterministic(node, *token)));
    });
};

pub(super) fn tree_step(world: &World, widths: &[usize], how: (TreeDrafter, TreeRule<'_>)) -> (Law, f64) {
    let outcomes = explore(honest, |dice| {
        let mut draft = Tree::default();
        draft.begin(usize::MAX);
        how.0(world, &[], widths, &mut draft, dice);
        let node = |node| Some((draft.parent(node)?, draft.token(node)?));
        let mut target = Walk::new(world, &[], &node);
        let verdict = how.1(&draft, &mut target, dice, &mut Residual::default());
        let mut text = text_at(&draft, verdict.node, &[]);
        let accepted = text.len();
        emit(world, &mut text, verdict.next);
        (text, accepted)
    });
    finish(world, outcomes, widths.len() + 1)
}

/// Chooses the next step's limit from the last one's, its draft, and how much of that was accepted.
pub(super) type Controller = fn(usize, &[Token], usize) -> usize;

/// The law of the first `len` tokens of steps one after the other, the first with a draft of up to `limit`.
pub(super) fn steps(
    world: &World,
    len: usize,
    limit: usize,
    how: (Drafter, Rule<'_>),
    controller: Controller,
    alias: fn(Key) -> Key,
) -> Law {
    let law = explore(alias, |dice| {
        let (mut text, mut limit) = (Vec::new(), limit);
        while text.len() < len {
            let (draft, accepted) = step(world, &mut text, limit, how, dice);
            limit = controller(limit, &draft, accepted);
        }
        text
    });
    world.go_on(law, len)
}

fn finish(world: &World, outcomes: BTreeMap<(Vec<Token>, usize), f64>, len: usize) -> (Law, f64) {
    let (mut law, mut expected) = (Law::new(), 0.0);
    for ((text, accepted), weight) in outcomes {
        expected += accepted as f64 * weight;
        *law.entry(text).or_insert(0.0) += weight;
    }
    (world.go_on(law, len), expected)
}

/// A token by inverting the cumulative sum of dense weights.
pub(super) fn choose_dense(dice: &mut Dice, node: usize, weights: &[f64], total: f64) -> Option<Token> {
    dice.choose(Draw::Next(node), weights.iter().copied(), total).map(|token| token as Token)
}
