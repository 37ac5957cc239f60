//! A step as in the engine: draft, verify, commit.

use super::super::{
    NextToken, RandomSource, RandomUse, Residual, SampledDraft, TargetDistributions, TokenDistribution, Verdict, block,
    rejection,
};
use super::enumeration::{EnumeratedRandom, Key, distinct, enumerate};
use super::toy_models::{OutputDistribution, Side, ToyModels};
use foredraft_base::{Token, TokenData};
use std::collections::BTreeMap;

/// The target of a step, in place of the engine. Asserts that rules read distributions in the allowed order.
pub(super) struct ToyTarget<'a> {
    pub(super) models: &'a ToyModels,
    pub(super) prefix: Vec<Token>,
    /// Parent and token of a drafted node.
    node: &'a dyn Fn(usize) -> Option<(usize, Token)>,
    row: Vec<TokenData>,
    last: Option<usize>,
    pub(super) rows: usize,
}

impl<'a> ToyTarget<'a> {
    fn new(models: &'a ToyModels, prefix: &[Token], node: &'a dyn Fn(usize) -> Option<(usize, Token)>) -> Self {
        ToyTarget { models, prefix: prefix.to_vec(), node, row: Vec::new(), last: None, rows: 0 }
    }
}

impl TargetDistributions for ToyTarget<'_> {
    fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>> {
        match self.last {
            None => assert_eq!(node, 0, "node 0 comes first"),
            Some(last) => {
                let (parent, token) = (self.node)(node).expect("a drafted node");
                assert_eq!(parent, last, "each node is a child of the previous one");
                assert!(
                    TokenDistribution::new(&self.row).unwrap().p(token) > 0.0,
                    "the token has a probability above 0"
                );
                self.prefix.push(token);
            }
        }
        self.last = Some(node);
        self.rows += 1;
        if self.models.is_over(&self.prefix) {
            return None;
        }
        self.row = self.models.row(Side::Target, &self.prefix);
        TokenDistribution::new(&self.row)
    }
}

/// A rule.
pub(super) type Rule<'r> =
    &'r dyn Fn(&SampledDraft, &mut ToyTarget<'_>, &mut EnumeratedRandom, &mut Residual) -> Verdict;

pub(super) const REJECTION: Rule<'static> =
    &|draft, target, random, residual| rejection::verify(draft, target, random, residual);
pub(super) const BLOCK: Rule<'static> =
    &|draft, target, random, residual| block::verify(draft, target, random, residual);

/// A drafter of chains.
pub(super) type Drafter = fn(&ToyModels, &[Token], &mut SampledDraft, &mut EnumeratedRandom);

/// Draws from q up to the limit or until the drafter stops, as in the product.
pub(super) const SAMPLED: Drafter = |models, prefix, draft, random| {
    let mut prefix = prefix.to_vec();
    while draft.has_space() && !models.draft_stops(&prefix) {
        let q = models.row(Side::Draft, &prefix);
        prefix.push(draft.draw_next(TokenDistribution::new(&q).unwrap(), random).unwrap());
    }
};

/// The most probable tokens, as deterministic tokens.
pub(super) const DETERMINISTIC: Drafter = |models, prefix, draft, _| {
    let mut prefix = prefix.to_vec();
    while draft.has_space() && !models.draft_stops(&prefix) {
        prefix.push(TokenDistribution::new(&models.row(Side::Draft, &prefix)).unwrap().best().0);
        assert!(draft.push_next(prefix[prefix.len() - 1]));
    }
};

/// Some tokens are drawn, some are deterministic.
pub(super) const MIXED: Drafter = |models, prefix, draft, random| {
    let mut prefix = prefix.to_vec();
    while draft.has_space() && !models.draft_stops(&prefix) {
        let q = models.row(Side::Draft, &prefix);
        let q = TokenDistribution::new(&q).unwrap();
        if (prefix.len() + models.seed as usize).is_multiple_of(2) {
            prefix.push(draft.draw_next(q, random).unwrap());
        } else {
            prefix.push(q.best().0);
            draft.push_next(q.best().0);
        }
    }
};

/// Runs one step. Appends the committed tokens; returns the draft and the number of accepted tokens.
pub(super) fn step(
    models: &ToyModels,
    prefix: &mut Vec<Token>,
    limit: usize,
    (drafter, rule): (Drafter, Rule<'_>),
    random: &mut EnumeratedRandom,
) -> (Vec<Token>, usize) {
    random.begin(prefix.len());
    let mut draft = SampledDraft::default();
    draft.begin(limit);
    drafter(models, prefix, &mut draft, random);
    let node = |node| Some((draft.parent(node)?, draft.token(node)?));
    let mut target = ToyTarget::new(models, prefix, &node);
    let verdict = rule(&draft, &mut target, random, &mut Residual::default());
    prefix.extend_from_slice(&draft.tokens()[..verdict.node]);
    commit(models, prefix, verdict.next);
    (draft.tokens(), verdict.node)
}

fn commit(models: &ToyModels, prefix: &mut Vec<Token>, next: Option<NextToken>) {
    match next {
        Some(next) => prefix.push(next.token),
        None => assert!(models.is_over(prefix)),
    }
}

/// The output distribution when one step drafts up to `limit` tokens and the target alone continues, and the expected
/// number of accepted tokens.
pub(super) fn one_step(
    models: &ToyModels,
    limit: usize,
    how: (Drafter, Rule<'_>),
    alias: fn(Key) -> Key,
) -> (OutputDistribution, f64) {
    let outcomes = enumerate(alias, |random| {
        let mut prefix = Vec::new();
        let (_, accepted) = step(models, &mut prefix, limit, how, random);
        (prefix, accepted)
    });
    finish(models, outcomes, limit + 1)
}

/// A drafter of trees.
pub(super) type TreeDrafter = fn(&ToyModels, &[Token], &[usize], &mut SampledDraft, &mut EnumeratedRandom);

/// The tokens from `prefix` up to a node.
pub(super) fn tokens_at(tree: &SampledDraft, mut node: usize, prefix: &[Token]) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let (Some(token), Some(parent)) = (tree.token(node), tree.parent(node)) {
        tokens.insert(0, token);
        node = parent;
    }
    [prefix, &tokens].concat()
}

fn grow(
    models: &ToyModels,
    prefix: &[Token],
    widths: &[usize],
    tree: &mut SampledDraft,
    mut children: impl FnMut(&mut SampledDraft, usize, TokenDistribution<'_>, usize),
) {
    let mut node = 0;
    while node <= tree.len() {
        let here = tokens_at(tree, node, prefix);
        let width = widths.get(here.len() - prefix.len()).copied().unwrap_or(0);
        if width > 0 && !models.draft_stops(&here) {
            children(tree, node, TokenDistribution::new(&models.row(Side::Draft, &here)).unwrap(), width);
        }
        node += 1;
    }
}

/// `widths[depth]` children for every node of a level, drawn without replacement.
pub(super) const BRANCHES: TreeDrafter = |models, prefix, widths, tree, random| {
    grow(models, prefix, widths, tree, |tree, node, q, width| {
        tree.draw(node, q, width, random).for_each(drop);
    });
};

/// The number of children of a node depends on all tokens drawn before, also elsewhere in the tree.
pub(super) const ADAPTIVE_BRANCHES: TreeDrafter = |models, prefix, widths, tree, random| {
    grow(models, prefix, widths, tree, |tree, node, q, width| {
        let mut wild = 0;
        while let Some(drawn) = tree.token(wild + 1) {
            wild += 1 + usize::from(drawn == 1);
        }
        tree.draw(node, q, (width + wild) % (width + 1), random).for_each(drop);
    });
};

/// The most probable children, as deterministic tokens.
pub(super) const DETERMINISTIC_BRANCHES: TreeDrafter = |models, prefix, widths, tree, _| {
    grow(models, prefix, widths, tree, |tree, node, q, width| {
        let mut best: Vec<(Token, f64)> = q.iter().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        best.iter().take(width).for_each(|(token, _)| assert!(tree.push_deterministic(node, *token)));
    });
};

pub(super) fn tree_step(
    models: &ToyModels,
    widths: &[usize],
    how: (TreeDrafter, Rule<'_>),
) -> (OutputDistribution, f64) {
    let outcomes = enumerate(distinct, |random| {
        let mut draft = SampledDraft::default();
        draft.begin(usize::MAX);
        how.0(models, &[], widths, &mut draft, random);
        let node = |node| Some((draft.parent(node)?, draft.token(node)?));
        let mut target = ToyTarget::new(models, &[], &node);
        let verdict = how.1(&draft, &mut target, random, &mut Residual::default());
        let mut prefix = tokens_at(&draft, verdict.node, &[]);
        let accepted = prefix.len();
        commit(models, &mut prefix, verdict.next);
        (prefix, accepted)
    });
    finish(models, outcomes, widths.len() + 1)
}

/// Chooses the next step's limit from the last limit, its draft, and the number of accepted tokens.
pub(super) type Controller = fn(usize, &[Token], usize) -> usize;

/// The distribution of the first `len` tokens of several steps, the first with a draft of up to `limit` tokens.
pub(super) fn steps(
    models: &ToyModels,
    len: usize,
    limit: usize,
    how: (Drafter, Rule<'_>),
    controller: Controller,
    alias: fn(Key) -> Key,
) -> OutputDistribution {
    let distribution = enumerate(alias, |random| {
        let (mut prefix, mut limit) = (Vec::new(), limit);
        while prefix.len() < len {
            let (draft, accepted) = step(models, &mut prefix, limit, how, random);
            limit = controller(limit, &draft, accepted);
        }
        prefix
    });
    models.continue_with_target(distribution, len)
}

fn finish(models: &ToyModels, outcomes: BTreeMap<(Vec<Token>, usize), f64>, len: usize) -> (OutputDistribution, f64) {
    let (mut distribution, mut expected) = (OutputDistribution::new(), 0.0);
    for ((prefix, accepted), weight) in outcomes {
        expected += accepted as f64 * weight;
        *distribution.entry(prefix).or_insert(0.0) += weight;
    }
    (models.continue_with_target(distribution, len), expected)
}

/// Samples a token from dense weights.
pub(super) fn choose_dense(random: &mut EnumeratedRandom, node: usize, weights: &[f64], total: f64) -> Option<Token> {
    random.sample_index(RandomUse::Next(node), weights.iter().copied(), total).map(|token| token as Token)
}
