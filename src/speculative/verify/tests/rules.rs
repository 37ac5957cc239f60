//! Every rule leaves the target's law as it is, and accepts what the formulas say.

use proptest::prelude::*;

use super::super::{Proposal, Residual, Row, Target, Tree, Verdict, block, expected, rejection, tree};
use super::dice::{distance, explore, honest};
use super::steps::*;
use super::worlds::{Law, PLAIN, Side, World};
use crate::llama::{Token, TokenData};

/// Rounding; everything else is a defect.
pub(super) const EXACT: f64 = 1e-12;

fn assert_exact(law: &Law, world: &World, len: usize, what: &str) {
    let targets = world.law(&[], len);
    assert!(law.keys().all(|text| targets.contains_key(text)), "{what}: never what the target cannot say");
    let (_, worst) = distance(law, &targets);
    assert!(worst < EXACT, "{what}: off by {worst} in {world:?}");
}

#[test]
fn chains_are_exact_in_any_world() {
    for seed in 0..300 {
        let world = World::any(seed);
        let longest = if world.n_vocab == 4 { 3 } else { 4 };
        for limit in 0..=longest {
            for (name, rule) in [("rejection", REJECTION), ("block", BLOCK)] {
                for (kind, drafter) in [("drawn", DRAWS), ("fixed", FIXES), ("mixed", MIXES)] {
                    let (law, _) = one_step(&world, limit, (drafter, rule), honest);
                    assert_exact(&law, &world, limit + 1, &format!("{name}, {kind}, {limit}, seed {seed}"));
                }
            }
        }
    }
}

#[test]
fn long_drafts_over_four_tokens_are_exact() {
    for rule in [REJECTION, BLOCK] {
        let world = World { target: super::worlds::Chain { penalty: 1.5, ..PLAIN }, ..World::plain(4, 5) };
        let (law, _) = one_step(&world, 4, (DRAWS, rule), honest);
        assert_exact(&law, &world, 5, "four of four");
    }
}

/// Steps follow each other, with lengths that depend on what the last one brought, accepted and merely drafted.
#[test]
fn steps_in_a_row_are_exact() {
    for seed in 0..60 {
        let world = World { n_vocab: 2, ends: false, ..World::any(seed) };
        for (name, rule) in [("rejection", REJECTION), ("block", BLOCK)] {
            let shrinks: Controller = |limit, _, accepted| if accepted == limit { 2 } else { 1 };
            let looks: Controller = |_, draft, _| if draft.last() == Some(&0) { 2 } else { 0 };
            for controller in [shrinks, looks] {
                let law = steps(&world, 4, 2, (DRAWS, rule), controller, honest);
                assert_exact(&law, &world, 4, &format!("{name}, seed {seed}"));
            }
        }
    }
}

#[test]
fn trees_are_exact_in_any_world() {
    for seed in 0..200 {
        let world = World::any(1000 + seed);
        for widths in [&[][..], &[1], &[2], &[3], &[5], &[1, 1], &[2, 1], &[1, 2], &[2, 2]] {
            if world.n_vocab == 4 && widths == [2, 2] && seed % 4 > 0 {
                continue;
            }
            for (kind, drafter) in [("drawn", BRANCHES), ("wild", WILD_BRANCHES), ("fixed", FIXED_BRANCHES)] {
                let (law, _) = tree_step(&world, widths, (drafter, RECURSIVE));
                assert_exact(&law, &world, widths.len() + 1, &format!("{kind} {widths:?}, seed {seed}"));
            }
        }
    }
}

/// Sums `value` over what the draft may draw: the tokens and q's probability of them.
fn over_drafts(world: &World, limit: usize, value: &mut dyn FnMut(&[Token], f64)) {
    fn from(world: &World, text: &mut Vec<Token>, q: f64, limit: usize, value: &mut dyn FnMut(&[Token], f64)) {
        value(text, q);
        if text.len() == limit || world.draft_stops(text) {
            return;
        }
        for (token, next) in (0..).zip(world.dense(Side::Draft, text)).filter(|(_, next)| *next > 0.0) {
            text.push(token);
            from(world, text, q * next, limit, value);
            text.pop();
        }
    }
    from(world, &mut Vec::new(), 1.0, limit, value);
}

/// The expected number of accepted tokens of `rejection` and `block` from their definitions: a sum over prefixes of
/// Π min(p, q), and of q·c.
fn accepted_by_formula(world: &World, limit: usize) -> (f64, f64) {
    let (mut rejection, mut block) = (0.0, 0.0);
    over_drafts(world, limit, &mut |text, q| {
        let (mut both, mut c) = (1.0, 1.0_f64);
        for end in 0..text.len() {
            // The text is over: the target has no row there.
            let p = if world.is_over(&text[..end]) { 0.0 } else { p_of(world, text, end, Side::Target) };
            let q = p_of(world, text, end, Side::Draft);
            both *= p.min(q);
            c = (c * p / q).min(1.0);
        }
        if !text.is_empty() {
            rejection += both;
            block += q * c;
        }
    });
    (rejection, block)
}

fn p_of(world: &World, text: &[Token], end: usize, side: Side) -> f64 {
    world.dense(side, &text[..end])[text[end] as usize]
}

#[test]
fn acceptance_is_what_the_formulas_say_and_block_accepts_more() {
    let mut gains = Vec::new();
    for seed in 0..200 {
        let world = World::any(seed);
        for limit in 1..=3 {
            let (by_rejection, by_block) = accepted_by_formula(&world, limit);
            let (_, rejection) = one_step(&world, limit, (DRAWS, REJECTION), honest);
            let (_, block) = one_step(&world, limit, (DRAWS, BLOCK), honest);
            assert!((rejection - by_rejection).abs() < EXACT, "{rejection} {by_rejection} {world:?}");
            assert!((block - by_block).abs() < EXACT, "{block} {by_block} {world:?}");
            assert!(block > rejection - EXACT, "{block} < {rejection} in {world:?}");
            gains.push(block - rejection);
            if limit == 1 {
                assert!((block - rejection).abs() < EXACT, "one token alone is no block");
            }
            if world.target.temperature == 0.0 {
                assert!((block - rejection).abs() < EXACT, "no gain for a target at temperature 0");
            }
            let fixed = [REJECTION, BLOCK].map(|rule| one_step(&world, limit, (FIXES, rule), honest).1);
            assert!((fixed[0] - fixed[1]).abs() < EXACT, "no gain for tokens found without chance");
        }
    }
    let gaining = gains.iter().filter(|gain| **gain > 1e-3).count();
    assert!(gaining > 30, "a block accepts more in only {gaining} of {} cases", gains.len());
}

/// The example of the paper's introduction: p = (1/3, 2/3), q = (2/3, 1/3), two tokens. 10/9 accepted token by token,
/// 11/9 as a block.
#[test]
fn the_papers_example() {
    let check =
        |name: &str, verify: &dyn Fn(&Proposal, &mut Constant, &mut super::dice::Dice) -> Verdict, expected: f64| {
            let q = row(&[2.0, 1.0]);
            let accepted: f64 = explore(honest, |dice| {
                let mut draft = Proposal::default();
                draft.begin(2);
                while draft.draw(Row::new(&q).unwrap(), dice).is_some() {}
                verify(&draft, &mut Constant(row(&[1.0, 2.0])), dice).node
            })
            .iter()
            .map(|(node, weight)| *node as f64 * weight)
            .sum();
            assert!((accepted - expected).abs() < EXACT, "{name}: {accepted}");
        };
    let residual = Residual::default;
    check("rejection", &|draft, target, dice| rejection::verify(draft, target, dice, &mut residual()), 10.0 / 9.0);
    check("block", &|draft, target, dice| block::verify(draft, target, dice, &mut residual()), 11.0 / 9.0);
}

/// The same row everywhere.
pub(super) struct Constant(pub(super) Vec<TokenData>);

impl Target for Constant {
    fn row(&mut self, _: usize) -> Option<Row<'_>> {
        Row::new(&self.0)
    }
}

pub(super) fn row(weights: &[f32]) -> Vec<TokenData> {
    (0..).zip(weights).map(|(id, p)| TokenData { id, logit: 0.0, p: *p }).collect()
}

/// One token: Σ min(p, q). Each further child accepts more, and all tokens of q together accept everything that p has
/// there if p has nothing elsewhere.
#[test]
fn more_children_accept_more() {
    for seed in 0..200 {
        let world = World { ends: false, careless: false, stops: false, ..World::any(seed) };
        let (p, q) = (world.row(Side::Target, &[]), world.row(Side::Draft, &[]));
        let (p, q) = (Row::new(&p).unwrap(), Row::new(&q).unwrap());
        let mut before = 0.0;
        for width in 1..=q.iter().count() {
            let (_, accepted) = tree_step(&world, &[width], (BRANCHES, RECURSIVE));
            assert!(accepted > before - EXACT, "{width}: {accepted} < {before} in {world:?}");
            if width == 1 {
                assert!((accepted - expected::rejection(p, q)).abs() < EXACT);
            }
            let (_, fixed) = tree_step(&world, &[width], (FIXED_BRANCHES, RECURSIVE));
            let mut best: Vec<(Token, f64)> = q.iter().collect();
            best.sort_by(|a, b| b.1.total_cmp(&a.1));
            let reach: f64 = best.iter().take(width).map(|(token, _)| p.p(*token)).sum();
            assert!((fixed - reach).abs() < EXACT, "a set found without chance is accepted with its p");
            before = accepted;
        }
        let covered: f64 = q.iter().map(|(token, _)| p.p(token)).sum();
        assert!(before < covered + EXACT);
    }
}

#[test]
fn a_tree_of_one_branch_is_a_chain() {
    for seed in 0..100 {
        let world = World::any(seed);
        let chain = one_step(&world, 2, (DRAWS, REJECTION), honest);
        let tree = tree_step(&world, &[1, 1], (BRANCHES, RECURSIVE));
        assert!(distance(&chain.0, &tree.0).1 < EXACT && (chain.1 - tree.1).abs() < EXACT, "{world:?}");
    }
}

/// Rows are asked for no further than needed: not behind a refusal, nor, in a block, behind a token with p = 0.
#[test]
fn rows_are_asked_for_lazily() {
    struct Counting(Vec<Vec<TokenData>>, usize);
    impl Target for Counting {
        fn row(&mut self, node: usize) -> Option<Row<'_>> {
            assert_eq!(node, self.1);
            self.1 += 1;
            Row::new(self.0.get(node)?)
        }
    }
    let mut draft = Proposal::default();
    draft.begin(4);
    for token in [0, 0, 1, 0] {
        draft.push_deterministic(token);
    }
    let rows = || Counting(vec![row(&[1.0, 0.0]); 5], 0);
    let asked = explore(honest, |dice| {
        let (mut one, mut other) = (rows(), rows());
        rejection::verify(&draft, &mut one, dice, &mut Residual::default());
        let verdict = block::verify(&draft, &mut other, dice, &mut Residual::default());
        (one.1, other.1, verdict.node, verdict.next.map(|next| next.token))
    });
    assert_eq!(asked.into_keys().collect::<Vec<_>>(), [(3, 3, 2, Some(0))]);
}

/// Of any length and in any order, and twice the weights are the same row.
#[test]
fn rows_are_distributions() {
    for n in 1..40 {
        let weights: Vec<f32> = (0..n).map(|token| ((token * 7) % 11 + 1) as f32).collect();
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut items = row(&weights);
        for turn in 0..n {
            items.rotate_left(1);
            let row = Row::new(&items).unwrap();
            for (token, weight) in (0..).zip(&weights) {
                assert!((row.p(token) - f64::from(*weight) / total).abs() < 1e-15, "{token} of {n}, turned by {turn}");
                assert_eq!(row.listed(token), *weight);
            }
            assert_eq!((row.p(n as Token), row.listed(-1)), (0.0, 0.0));
            assert!(row.iter().all(|(token, p)| p == row.p(token)));
            let likely = weights.iter().copied().fold(0.0, f32::max);
            let first = weights.iter().position(|weight| *weight == likely).unwrap() as Token;
            assert_eq!(row.best(), (first, row.p(first)));
        }
    }
}

/// What cannot be: more than the limit, children twice, the same child twice, children of nobody.
#[test]
fn drafts_refuse_misuse() {
    let q = row(&[1.0, 1.0, 0.0]);
    let q = Row::new(&q).unwrap();
    explore(honest, |dice| {
        let mut draft = Proposal::default();
        assert_eq!(draft.draw(q, dice), None);
        draft.begin(1);
        assert!(draft.push_deterministic(5) && !draft.push_deterministic(6) && draft.draw(q, dice).is_none());
        assert_eq!((draft.tokens(), draft.get(0).unwrap().token()), (&[5][..], 5));
        assert_eq!(draft.get(0).unwrap().q().p(5), 1.0);
        let mut tree = Tree::default();
        tree.begin(4);
        assert_eq!(tree.draw(0, q, 3, dice), 2, "q has no third");
        assert_eq!((tree.draw(0, q, 1, dice), tree.draw(9, q, 1, dice)), (0, 0));
        assert!(!tree.push_deterministic(0, 7), "the children of the text were drawn");
        assert!(
            tree.push_deterministic(1, 7)
                && !tree.push_deterministic(1, 7)
                && tree.push_deterministic(1, 8)
                && !tree.push_deterministic(2, 7)
        );
        assert_eq!((tree.child(1, 8), tree.parent(4), tree.token(4)), (Some(4), Some(1), Some(8)));
        tree.begin(0);
        assert!(tree.is_empty() && tree.draw(0, q, 1, dice) == 0);
    });
    for none in [&[][..], &[0.0, 0.0], &[f32::NAN], &[-1.0], &[f32::INFINITY, 1.0]] {
        assert!(Row::new(&row(none)).is_none(), "{none:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows of any weights, from minute to large, not normalised.
    #[test]
    fn any_tables_are_exact(
        p in prop::collection::vec(weight(), 3),
        q in prop::collection::vec(weight(), 3),
        width in 1_usize..4,
    ) {
        let (p, q) = (row(&p), row(&q));
        let (Some(p_row), Some(q_row)) = (Row::new(&p), Row::new(&q)) else { return Ok(()) };
        for rule in 0..3 {
            let law = explore(honest, |dice| {
                let (mut chain, mut branches) = (Proposal::default(), Tree::default());
                let mut target = Constant(p.clone());
                let mut residual = Residual::default();
                chain.begin(2);
                branches.begin(9);
                let (verdict, first) = if rule == 2 {
                    branches.draw(0, q_row, width, dice);
                    let verdict = tree::verify(&branches, &mut target, dice, &mut residual);
                    (verdict, branches.token(verdict.node))
                } else {
                    while chain.draw(q_row, dice).is_some() {}
                    let verify = [rejection::verify, block::verify][rule];
                    let verdict = verify(&chain, &mut target, dice, &mut residual);
                    (verdict, chain.tokens().get(..verdict.node).and_then(|tokens| tokens.first().copied()))
                };
                let next = verdict.next.unwrap();
                assert_eq!(next.p, p_row.listed(next.token));
                first.unwrap_or(next.token)
            });
            for (token, p) in p_row.iter() {
                let found = law.get(&token).copied().unwrap_or(0.0);
                prop_assert!((found - p).abs() < EXACT, "rule {}: token {} has {}, not {}", rule, token, found, p);
            }
        }
    }
}

fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0_f32), Just(1.0), 1e-9_f32..1e-6, 0.01_f32..1.0, 1.0_f32..50.0]
}
