//! Every rule preserves the target's output distribution, and accepts as often as the formulas predict.

use proptest::prelude::*;

use super::super::{Residual, SampledDraft, TargetDistributions, TokenDistribution, Verdict, block, rejection};
use super::acceptance;
use super::enumeration::{distance, distinct, enumerate};
use super::steps::*;
use super::toy_models::{OutputDistribution, PLAIN, Side, ToyModels};
use foredraft_base::{Token, TokenData};

/// Tolerance for rounding.
pub(super) const EXACT: f64 = 1e-12;

fn assert_exact(distribution: &OutputDistribution, models: &ToyModels, len: usize, what: &str) {
    let targets = models.distribution(&[], len);
    assert!(
        distribution.keys().all(|prefix| targets.contains_key(prefix)),
        "{what}: only outputs that the target can generate"
    );
    let (_, worst) = distance(distribution, &targets);
    assert!(worst < EXACT, "{what}: off by {worst} in {models:?}");
}

#[test]
fn chains_are_exact_for_random_models() {
    for seed in 0..300 {
        let models = ToyModels::any(seed);
        let longest = if models.n_vocab == 4 { 3 } else { 4 };
        for limit in 0..=longest {
            for (name, rule) in [("rejection", REJECTION), ("block", BLOCK)] {
                for (kind, drafter) in [("drawn", SAMPLED), ("deterministic", DETERMINISTIC), ("mixed", MIXED)] {
                    let (distribution, _) = one_step(&models, limit, (drafter, rule), distinct);
                    assert_exact(&distribution, &models, limit + 1, &format!("{name}, {kind}, {limit}, seed {seed}"));
                }
            }
        }
    }
}

#[test]
fn long_drafts_over_four_tokens_are_exact() {
    for rule in [REJECTION, BLOCK] {
        let models = ToyModels { target: super::toy_models::Chain { penalty: 1.5, ..PLAIN }, ..ToyModels::plain(4, 5) };
        let (distribution, _) = one_step(&models, 4, (SAMPLED, rule), distinct);
        assert_exact(&distribution, &models, 5, "four of four");
    }
}

/// Draft lengths depend on the last step's accepted and drafted tokens.
#[test]
fn consecutive_steps_are_exact() {
    for seed in 0..60 {
        let models = ToyModels { n_vocab: 2, ends: false, ..ToyModels::any(seed) };
        for (name, rule) in [("rejection", REJECTION), ("block", BLOCK)] {
            let shrinks: Controller = |limit, _, accepted| if accepted == limit { 2 } else { 1 };
            let looks: Controller = |_, draft, _| if draft.last() == Some(&0) { 2 } else { 0 };
            for controller in [shrinks, looks] {
                let distribution = steps(&models, 4, 2, (SAMPLED, rule), controller, distinct);
                assert_exact(&distribution, &models, 4, &format!("{name}, seed {seed}"));
            }
        }
    }
}

#[test]
fn trees_are_exact_for_random_models() {
    for seed in 0..200 {
        let models = ToyModels::any(1000 + seed);
        for widths in [&[][..], &[1], &[2], &[3], &[5], &[1, 1], &[2, 1], &[1, 2], &[2, 2]] {
            if models.n_vocab == 4 && widths == [2, 2] && seed % 4 > 0 {
                continue;
            }
            for (kind, drafter) in
                [("drawn", BRANCHES), ("adaptive", ADAPTIVE_BRANCHES), ("deterministic", DETERMINISTIC_BRANCHES)]
            {
                let (distribution, _) = tree_step(&models, widths, (drafter, REJECTION));
                assert_exact(&distribution, &models, widths.len() + 1, &format!("{kind} {widths:?}, seed {seed}"));
            }
        }
    }
}

/// Calls `value` for every draft with its tokens and their probability under q.
fn over_drafts(models: &ToyModels, limit: usize, value: &mut dyn FnMut(&[Token], f64)) {
    fn from(models: &ToyModels, prefix: &mut Vec<Token>, q: f64, limit: usize, value: &mut dyn FnMut(&[Token], f64)) {
        value(prefix, q);
        if prefix.len() == limit || models.draft_stops(prefix) {
            return;
        }
        for (token, next) in (0..).zip(models.dense(Side::Draft, prefix)).filter(|(_, next)| *next > 0.0) {
            prefix.push(token);
            from(models, prefix, q * next, limit, value);
            prefix.pop();
        }
    }
    from(models, &mut Vec::new(), 1.0, limit, value);
}

/// The expected number of accepted tokens of `rejection` and `block` from their definitions: a sum over prefixes of
/// Π min(p, q), and of q·c.
fn accepted_by_formula(models: &ToyModels, limit: usize) -> (f64, f64) {
    let (mut rejection, mut block) = (0.0, 0.0);
    over_drafts(models, limit, &mut |prefix, q| {
        let (mut both, mut c) = (1.0, 1.0_f64);
        for end in 0..prefix.len() {
            // The output has ended: the target has no distribution there.
            let p = if models.is_over(&prefix[..end]) { 0.0 } else { p_of(models, prefix, end, Side::Target) };
            let q = p_of(models, prefix, end, Side::Draft);
            both *= p.min(q);
            c = (c * p / q).min(1.0);
        }
        if !prefix.is_empty() {
            rejection += both;
            block += q * c;
        }
    });
    (rejection, block)
}

fn p_of(models: &ToyModels, prefix: &[Token], end: usize, side: Side) -> f64 {
    models.dense(side, &prefix[..end])[prefix[end] as usize]
}

#[test]
fn acceptance_matches_the_formulas_and_block_accepts_more() {
    let mut gains = Vec::new();
    for seed in 0..200 {
        let models = ToyModels::any(seed);
        for limit in 1..=3 {
            let (by_rejection, by_block) = accepted_by_formula(&models, limit);
            let (_, rejection) = one_step(&models, limit, (SAMPLED, REJECTION), distinct);
            let (_, block) = one_step(&models, limit, (SAMPLED, BLOCK), distinct);
            assert!((rejection - by_rejection).abs() < EXACT, "{rejection} {by_rejection} {models:?}");
            assert!((block - by_block).abs() < EXACT, "{block} {by_block} {models:?}");
            assert!(block > rejection - EXACT, "{block} < {rejection} in {models:?}");
            gains.push(block - rejection);
            if limit == 1 {
                assert!((block - rejection).abs() < EXACT, "no gain for a single token");
            }
            if models.target.temperature == 0.0 {
                assert!((block - rejection).abs() < EXACT, "no gain for a target at temperature 0");
            }
            let fixed = [REJECTION, BLOCK].map(|rule| one_step(&models, limit, (DETERMINISTIC, rule), distinct).1);
            assert!((fixed[0] - fixed[1]).abs() < EXACT, "no gain for tokens found without random");
        }
    }
    let gaining = gains.iter().filter(|gain| **gain > 1e-3).count();
    assert!(gaining > 30, "a block accepts more in only {gaining} of {} cases", gains.len());
}

/// The example of the paper's introduction: p = (1/3, 2/3), q = (2/3, 1/3), two tokens. Rejection accepts 10/9 tokens,
/// block verification 11/9.
#[test]
fn block_matches_the_papers_example() {
    let check =
        |name: &str,
         verify: &dyn Fn(&SampledDraft, &mut Constant, &mut super::enumeration::EnumeratedRandom) -> Verdict,
         expected: f64| {
            let q = row(&[2.0, 1.0]);
            let accepted: f64 = enumerate(distinct, |random| {
                let mut draft = SampledDraft::default();
                draft.begin(2);
                while draft.draw_next(TokenDistribution::new(&q).unwrap(), random).is_some() {}
                verify(&draft, &mut Constant(row(&[1.0, 2.0])), random).node
            })
            .iter()
            .map(|(node, weight)| *node as f64 * weight)
            .sum();
            assert!((accepted - expected).abs() < EXACT, "{name}: {accepted}");
        };
    let residual = Residual::default;
    check("rejection", &|draft, target, random| rejection::verify(draft, target, random, &mut residual()), 10.0 / 9.0);
    check("block", &|draft, target, random| block::verify(draft, target, random, &mut residual()), 11.0 / 9.0);
}

/// A target with the same distribution everywhere.
pub(super) struct Constant(pub(super) Vec<TokenData>);

impl TargetDistributions for Constant {
    fn distribution(&mut self, _: usize) -> Option<TokenDistribution<'_>> {
        TokenDistribution::new(&self.0)
    }
}

pub(super) fn row(weights: &[f32]) -> Vec<TokenData> {
    (0..).zip(weights).map(|(id, p)| TokenData { id, logit: 0.0, p: *p }).collect()
}

/// One child accepts Σ min(p, q). Each further child accepts more, and all tokens of q together accept all of p if p has
/// no other tokens.
#[test]
fn more_children_accept_more() {
    for seed in 0..200 {
        let models = ToyModels { ends: false, careless: false, stops: false, ..ToyModels::any(seed) };
        let (p, q) = (models.row(Side::Target, &[]), models.row(Side::Draft, &[]));
        let (p, q) = (TokenDistribution::new(&p).unwrap(), TokenDistribution::new(&q).unwrap());
        let mut before = 0.0;
        for width in 1..=q.iter().count() {
            let (_, accepted) = tree_step(&models, &[width], (BRANCHES, REJECTION));
            assert!(accepted > before - EXACT, "{width}: {accepted} < {before} in {models:?}");
            if width == 1 {
                assert!((accepted - acceptance::rejection(p, q)).abs() < EXACT);
            }
            let (_, fixed) = tree_step(&models, &[width], (DETERMINISTIC_BRANCHES, REJECTION));
            let mut best: Vec<(Token, f64)> = q.iter().collect();
            best.sort_by(|a, b| b.1.total_cmp(&a.1));
            let reach: f64 = best.iter().take(width).map(|(token, _)| p.p(*token)).sum();
            assert!((fixed - reach).abs() < EXACT, "a set found without random is accepted with its p");
            before = accepted;
        }
        let covered: f64 = q.iter().map(|(token, _)| p.p(token)).sum();
        assert!(before < covered + EXACT);
    }
}

#[test]
fn tree_with_one_branch_equals_a_chain() {
    for seed in 0..100 {
        let models = ToyModels::any(seed);
        let chain = one_step(&models, 2, (SAMPLED, REJECTION), distinct);
        let tree = tree_step(&models, &[1, 1], (BRANCHES, REJECTION));
        assert!(distance(&chain.0, &tree.0).1 < EXACT && (chain.1 - tree.1).abs() < EXACT, "{models:?}");
    }
}

/// Rules read no distribution after a rejection or, in `block`, after a token with p = 0.
#[test]
fn distributions_are_read_lazily() {
    struct Counting(Vec<Vec<TokenData>>, usize);
    impl TargetDistributions for Counting {
        fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>> {
            assert_eq!(node, self.1);
            self.1 += 1;
            TokenDistribution::new(self.0.get(node)?)
        }
    }
    let mut draft = SampledDraft::default();
    draft.begin(4);
    for token in [0, 0, 1, 0] {
        draft.push_next(token);
    }
    let rows = || Counting(vec![row(&[1.0, 0.0]); 5], 0);
    let asked = enumerate(distinct, |random| {
        let (mut one, mut other) = (rows(), rows());
        rejection::verify(&draft, &mut one, random, &mut Residual::default());
        let verdict = block::verify(&draft, &mut other, random, &mut Residual::default());
        (one.1, other.1, verdict.node, verdict.next.map(|next| next.token))
    });
    assert_eq!(asked.into_keys().collect::<Vec<_>>(), [(3, 3, 2, Some(0))]);
}

/// The weights are normalized for any length and order of the list.
#[test]
fn weights_are_normalized_to_probabilities() {
    for n in 1..40 {
        let weights: Vec<f32> = (0..n).map(|token| ((token * 7) % 11 + 1) as f32).collect();
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut items = row(&weights);
        for turn in 0..n {
            items.rotate_left(1);
            let row = TokenDistribution::new(&items).unwrap();
            for (token, weight) in (0..).zip(&weights) {
                assert!((row.p(token) - f64::from(*weight) / total).abs() < 1e-15, "{token} of {n}, turned by {turn}");
                assert_eq!(row.listed_weight(token), *weight);
            }
            assert_eq!((row.p(n as Token), row.listed_weight(-1)), (0.0, 0.0));
            assert!(row.iter().all(|(token, p)| p == row.p(token)));
            let likely = weights.iter().copied().fold(0.0, f32::max);
            let first = weights.iter().position(|weight| *weight == likely).unwrap() as Token;
            assert_eq!(row.best(), (first, row.p(first)));
        }
    }
}

/// More tokens than the limit, a second set of children, a duplicate child, children of a missing node.
#[test]
fn proposals_reject_misuse() {
    let q = row(&[1.0, 1.0, 0.0]);
    let q = TokenDistribution::new(&q).unwrap();
    enumerate(distinct, |random| {
        let mut draft = SampledDraft::default();
        assert_eq!(draft.draw_next(q, random), None);
        draft.begin(1);
        assert!(draft.push_next(5) && !draft.push_next(6) && draft.draw_next(q, random).is_none());
        let (token, q5) = draft.drawn(1).unwrap();
        assert_eq!((draft.tokens(), token, q5.p(5)), (vec![5], 5, 1.0));
        let mut tree = SampledDraft::default();
        tree.begin(4);
        assert_eq!(tree.draw(0, q, 3, random).count(), 2, "q has only two tokens");
        assert!([0, 9].iter().all(|parent| tree.draw(*parent, q, 1, random).next().is_none()));
        assert!(!tree.push_deterministic(0, 7), "node 0 has drawn children");
        assert!(
            tree.push_deterministic(1, 7)
                && !tree.push_deterministic(1, 7)
                && tree.push_deterministic(1, 8)
                && !tree.push_deterministic(2, 7)
        );
        assert_eq!((tree.child(1, 8), tree.parent(4), tree.token(4)), (Some(4), Some(1), Some(8)));
        tree.begin(0);
        assert!(tree.is_empty() && tree.draw(0, q, 1, random).next().is_none());
    });
    for none in [&[][..], &[0.0, 0.0], &[f32::NAN], &[-1.0], &[f32::INFINITY, 1.0]] {
        assert!(TokenDistribution::new(&row(none)).is_none(), "{none:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Distributions with any weights, tiny to large, not normalized.
    #[test]
    fn rules_are_exact_for_random_distributions(
        p in prop::collection::vec(weight(), 3),
        q in prop::collection::vec(weight(), 3),
        width in 1_usize..4,
    ) {
        let (p, q) = (row(&p), row(&q));
        let (Some(p_row), Some(q_row)) = (TokenDistribution::new(&p), TokenDistribution::new(&q)) else { return Ok(()) };
        for rule in 0..3 {
            let distribution = enumerate(distinct, |random| {
                let (mut chain, mut branches) = (SampledDraft::default(), SampledDraft::default());
                let mut target = Constant(p.clone());
                let mut residual = Residual::default();
                chain.begin(2);
                branches.begin(9);
                let (verdict, first) = if rule == 2 {
                    branches.draw(0, q_row, width, random).for_each(drop);
                    let verdict = rejection::verify(&branches, &mut target, random, &mut residual);
                    (verdict, branches.token(verdict.node))
                } else {
                    while chain.draw_next(q_row, random).is_some() {}
                    let verify = [rejection::verify, block::verify][rule];
                    let verdict = verify(&chain, &mut target, random, &mut residual);
                    (verdict, chain.tokens().get(..verdict.node).and_then(|tokens| tokens.first().copied()))
                };
                let next = verdict.next.unwrap();
                assert_eq!(next.p, p_row.listed_weight(next.token));
                first.unwrap_or(next.token)
            });
            for (token, p) in p_row.iter() {
                let found = distribution.get(&token).copied().unwrap_or(0.0);
                prop_assert!((found - p).abs() < EXACT, "rule {}: token {} has {}, not {}", rule, token, found, p);
            }
        }
    }
}

fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0_f32), Just(1.0), 1e-9_f32..1e-6, 0.01_f32..1.0, 1.0_f32..50.0]
}
