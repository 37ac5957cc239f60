//! Deliberately wrong rules, drafters and random numbers: the exactness tests must fail for each of them.
//!
//! The rules are implemented a second time, over dense rows and without any of the product's code, with an optional
//! defect.

use super::super::{NextToken, RandomSource, RandomUse, SampledDraft, TokenDistribution, Verdict};
use super::enumeration::{EnumeratedRandom, Key, distance, distinct};
use super::rules::EXACT;
use super::steps::*;
use super::toy_models::{OutputDistribution, Side, ToyModels};
use foredraft_base::Token;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Defect {
    None,
    /// p and q are swapped.
    Swapped,
    /// A rejected token is replaced by a draw from p.
    NoResidual,
    /// |p - q| instead of (p - q)+.
    NotClamped,
    /// The weights (p - q)+ are used as probabilities.
    NotNormalized,
    /// `block` stops at the first failure.
    FirstFailure,
    /// `block` omits the factor ci-1.
    NoFactor,
    /// `block` subtracts from p instead of ci·p.
    UnscaledResidual,
    /// `block` uses hi at the end too, as if q were p there.
    NoEnd,
    /// Tree: the q of later children still contains their siblings.
    Replacement,
    /// Tree: the p of later children is still the original.
    SameTarget,
}

fn at(prefix: &[Token], draft: &[Token], n: usize) -> Vec<Token> {
    [prefix, &draft[..n]].concat()
}

/// p/q of a token; 0 where p is.
fn ratio(p: &[f64], q: &[f64], token: Token) -> f64 {
    let x = token as usize;
    if p[x] > 0.0 { p[x] / q[x] } else { 0.0 }
}

fn left(p: &[f64], q: &[f64], defect: Defect) -> (Vec<f64>, f64) {
    let weights: Vec<f64> = p
        .iter()
        .zip(q)
        .map(|(p, q)| match defect {
            Defect::NoResidual => *p,
            Defect::NotClamped => (p - q).abs(),
            _ => (p - q).max(0.0),
        })
        .collect();
    let total = if defect == Defect::NotNormalized { 1.0 } else { weights.iter().sum() };
    (weights, total)
}

/// Draws a token from `weights`; any token if all are 0.
fn next(node: usize, (weights, total): (Vec<f64>, f64), p: &[f64], random: &mut EnumeratedRandom) -> Verdict {
    let any = || p.iter().position(|p| *p > 0.0).map(|token| token as Token);
    let token = choose_dense(random, node, &weights, total).or_else(any);
    Verdict { node, next: token.map(|token| NextToken { token, p: p[token as usize] as f32 }) }
}

/// (p, q) at the n-th node of a chain; `None` after the end of the output.
fn rows(models: &ToyModels, prefix: &[Token], draft: &SampledDraft, n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let here = at(prefix, &draft.tokens(), n);
    if models.is_over(&here) {
        return None;
    }
    let p = models.dense(Side::Target, &here);
    let q: Vec<f64> = draft.drawn(n + 1).map_or(vec![], |(_, q)| (0..=77).map(|token| q.p(token)).collect());
    Some((p, q))
}

pub(super) fn rejection(
    draft: &SampledDraft,
    target: &ToyTarget<'_>,
    random: &mut EnumeratedRandom,
    defect: Defect,
) -> Verdict {
    let gamma = draft.tokens().len();
    for n in 0..gamma {
        let Some((p, q)) = rows(target.models, &target.prefix, draft, n) else {
            return Verdict { node: n, next: None };
        };
        let (above, below) = if defect == Defect::Swapped { (&q, &p) } else { (&p, &q) };
        if !random.is_below(RandomUse::Accept(n + 1), ratio(above, below, draft.tokens()[n])) {
            return next(n, left(above, below, defect), &p, random);
        }
    }
    let Some((p, _)) = rows(target.models, &target.prefix, draft, gamma) else {
        return Verdict { node: gamma, next: None };
    };
    next(gamma, (p.clone(), 1.0), &p, random)
}

pub(super) fn block(
    draft: &SampledDraft,
    target: &ToyTarget<'_>,
    random: &mut EnumeratedRandom,
    defect: Defect,
) -> Verdict {
    let (mut tau, mut c, mut weights) = (0, 1.0_f64, None);
    let all: Vec<_> = (0..=draft.tokens().len()).map_while(|n| rows(target.models, &target.prefix, draft, n)).collect();
    let gamma = all.len().min(draft.tokens().len());
    for n in 0..=gamma {
        let Some((target_p, q)) = all.get(n) else {
            if random.is_below(RandomUse::Accept(n), c) {
                return Verdict { node: n, next: None };
            }
            break;
        };
        let (p, q) = if defect == Defect::Swapped && n < gamma { (q, target_p) } else { (target_p, q) };
        let scaled: Vec<f64> = p.iter().map(|p| if defect == Defect::UnscaledResidual { *p } else { c * p }).collect();
        let (rest, h) = if n < gamma {
            let z: f64 = scaled.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).sum();
            (
                left(if defect == Defect::NoResidual { p } else { &scaled }, q, defect),
                if z > 0.0 { z / (z + 1.0 - c) } else { 0.0 },
            )
        } else {
            ((p.clone(), 1.0), if defect == Defect::NoEnd { 1.0 } else { c })
        };
        if n == 0 || random.is_below(RandomUse::Accept(n), h) {
            (tau, weights) = (n, Some((rest, target_p)));
        } else if defect == Defect::FirstFailure {
            break;
        }
        if n < gamma {
            let before = if defect == Defect::NoFactor { 1.0 } else { c };
            c = (before * ratio(p, q, draft.tokens()[n])).min(1.0);
        }
    }
    let (rest, p) = weights.unwrap();
    // Where p = q the residual is 0, and a later token is always accepted.
    let rest = if rest.1 == 0.0 { (p.clone(), 1.0) } else { rest };
    next(tau, rest, p, random)
}

pub(super) fn recursive(
    draft: &SampledDraft,
    target: &ToyTarget<'_>,
    random: &mut EnumeratedRandom,
    defect: Defect,
) -> Verdict {
    let mut node = 0;
    'nodes: loop {
        let here = super::steps::tokens_at(draft, node, &target.prefix);
        if target.models.is_over(&here) {
            return Verdict { node, next: None };
        }
        let first = target.models.dense(Side::Target, &here);
        let (mut p, mut q) = (first.clone(), target.models.dense(Side::Draft, &here));
        for (child, token) in draft.children(node) {
            let (above, below) = if defect == Defect::Swapped { (&q, &p) } else { (&p, &q) };
            if random.is_below(RandomUse::Accept(child), ratio(above, below, token)) {
                node = child;
                continue 'nodes;
            }
            if defect != Defect::SameTarget {
                let (weights, total) = left(above, below, defect);
                if weights.iter().sum::<f64>() <= 0.0 {
                    break;
                }
                p = weights.iter().map(|weight| weight / total).collect();
            }
            if defect != Defect::Replacement {
                q[token as usize] = 0.0;
                let total: f64 = q.iter().sum();
                q.iter_mut().for_each(|q| *q /= total);
            }
        }
        return next(node, (p.clone(), p.iter().sum()), &first, random);
    }
}

/// Tables and sampler chains.
fn all_models() -> impl Iterator<Item = ToyModels> {
    (0..12).map(|seed| ToyModels::plain(2 + seed as usize % 2, seed)).chain((0..40).map(ToyModels::any))
}

/// The largest total variation from the target's distribution over all models.
fn worst(len: usize, distribution: impl Fn(&ToyModels) -> OutputDistribution) -> f64 {
    worst_of(all_models(), len, distribution)
}

fn worst_of(
    all_models: impl Iterator<Item = ToyModels>,
    len: usize,
    distribution: impl Fn(&ToyModels) -> OutputDistribution,
) -> f64 {
    all_models.map(|models| distance(&distribution(&models), &models.distribution(&[], len)).0).fold(0.0, f64::max)
}

fn assert_wrong(what: &str, by: f64, margin: f64) {
    assert!(margin > 1e-3 && by > margin, "{what}: the worst error is only {by}");
}

fn faulty_chain(
    rule: fn(
        &super::super::SampledDraft,
        &ToyTarget<'_>,
        &mut super::enumeration::EnumeratedRandom,
        Defect,
    ) -> super::super::Verdict,
    defect: Defect,
    drafter: Drafter,
) -> f64 {
    worst(3, |models| {
        one_step(models, 2, (drafter, &|draft, target, random, _| rule(draft, target, random, defect)), distinct).0
    })
}

/// Without a defect, the second implementation has the same output distribution and acceptance as the product.
#[test]
fn second_implementation_agrees_with_the_product() {
    for models in all_models().chain((100..160).map(ToyModels::any)) {
        for limit in 0..=3 {
            for drafter in [SAMPLED, DETERMINISTIC, MIXED] {
                let sound: [(Rule<'_>, Rule<'_>); 2] = [
                    (REJECTION, &|draft, target, random, _| rejection(draft, target, random, Defect::None)),
                    (BLOCK, &|draft, target, random, _| block(draft, target, random, Defect::None)),
                ];
                for (product, second) in sound {
                    let (distribution, accepted) = one_step(&models, limit, (drafter, product), distinct);
                    let (other, others) = one_step(&models, limit, (drafter, second), distinct);
                    assert!(
                        distance(&distribution, &other).1 < EXACT && (accepted - others).abs() < EXACT,
                        "{models:?}"
                    );
                }
            }
        }
        let second: Rule<'_> = &|draft, target, random, _| recursive(draft, target, random, Defect::None);
        let (distribution, accepted) = tree_step(&models, &[2, 2], (BRANCHES, REJECTION));
        let (other, others) = tree_step(&models, &[2, 2], (BRANCHES, second));
        assert!(distance(&distribution, &other).1 < EXACT && (accepted - others).abs() < EXACT, "{models:?}");
    }
}

#[test]
fn defective_rejection_is_detected() {
    let found = |defect| faulty_chain(rejection, defect, SAMPLED);
    assert!(found(Defect::None) < EXACT);
    for (defect, margin) in
        [(Defect::Swapped, 0.3), (Defect::NoResidual, 0.1), (Defect::NotClamped, 0.1), (Defect::NotNormalized, 0.1)]
    {
        assert_wrong(&format!("{defect:?}"), found(defect), margin);
    }
}

#[test]
fn defective_block_verification_is_detected() {
    let found = |defect| faulty_chain(block, defect, SAMPLED);
    assert!(found(Defect::None) < EXACT);
    for (defect, margin) in [
        (Defect::Swapped, 0.3),
        (Defect::NoResidual, 0.1),
        (Defect::NotClamped, 0.1),
        (Defect::NotNormalized, 0.1),
        (Defect::FirstFailure, 0.05),
        (Defect::NoFactor, 0.05),
        (Defect::UnscaledResidual, 0.05),
        (Defect::NoEnd, 0.1),
    ] {
        assert_wrong(&format!("{defect:?}"), found(defect), margin);
    }
}

#[test]
fn defective_tree_verification_is_detected() {
    let found = |widths: &[usize], defect| {
        worst(widths.len() + 1, |models| {
            tree_step(models, widths, (BRANCHES, &|draft, target, random, _| recursive(draft, target, random, defect)))
                .0
        })
    };
    for widths in [&[2][..], &[2, 1]] {
        assert!(found(widths, Defect::None) < EXACT);
        for (defect, margin) in [
            (Defect::Replacement, 0.05),
            (Defect::SameTarget, 0.05),
            (Defect::Swapped, 0.3),
            (Defect::NoResidual, 0.05),
            (Defect::NotClamped, 0.1),
        ] {
            assert_wrong(&format!("{defect:?} {widths:?}"), found(widths, defect), margin);
        }
    }
}

/// The most probable token, stored with a q that it was not drawn from.
const ARGMAX: Drafter = |models, prefix, draft, _| {
    let mut prefix = prefix.to_vec();
    for _ in 0..2 {
        let q = models.row(Side::Draft, &prefix);
        let q = TokenDistribution::new(&q).unwrap();
        prefix.push(q.best().0);
        draft.forge(q.best().0, q);
    }
};

/// SampledDraft from the two most probable tokens, kept with all of q.
const OTHER_ROW: Drafter = |models, prefix, draft, random| {
    let mut prefix = prefix.to_vec();
    for _ in 0..2 {
        let q = models.row(Side::Draft, &prefix);
        let mut cut = q.clone();
        cut.sort_by(|a, b| b.p.total_cmp(&a.p));
        cut.truncate(1 + q.len() / 2);
        let mut drawn = super::super::SampledDraft::default();
        drawn.begin(usize::MAX);
        draft.tokens().iter().for_each(|token| assert!(drawn.push_next(*token)));
        let token = drawn.draw_next(TokenDistribution::new(&cut).unwrap(), random).unwrap();
        prefix.push(token);
        draft.forge(token, TokenDistribution::new(&q).unwrap());
    }
};

/// Removes drawn tokens from the first one with a low q on.
const DROPS_IMPROBABLE: Drafter = |models, prefix, draft, random| {
    SAMPLED(models, prefix, draft, random);
    let low = (0..draft.tokens().len()).find(|n| draft.drawn(n + 1).is_some_and(|(token, q)| q.p(token) < 0.5));
    draft.drop_drawn(low.unwrap_or(usize::MAX));
};

/// Two tokens or none, depending on the first token.
const ALL_OR_NONE: Drafter = |models, prefix, draft, random| {
    SAMPLED(models, prefix, draft, random);
    let first_is_0 = draft.tokens().first() == Some(&0);
    draft.drop_drawn(if first_is_0 { 0 } else { 2 });
};

#[test]
fn defective_drafters_are_detected() {
    for (rule, name) in [(REJECTION, "rejection"), (BLOCK, "block")] {
        for (drafter, what, margin) in [
            (ARGMAX, "an argmax accepted with min(1, p/q)", 0.3),
            (OTHER_ROW, "drawn from another row", 0.2),
            (DROPS_IMPROBABLE, "improbable tokens removed after the draw", 0.1),
            (ALL_OR_NONE, "two tokens or none", 0.1),
        ] {
            let by = worst(3, |models| one_step(models, 2, (drafter, rule), distinct).0);
            assert_wrong(&format!("{name}: {what}"), by, margin);
        }
    }
}

fn accepts_by_the_draw((start, draw): Key) -> Key {
    (start, if let RandomUse::Accept(node) = draw { RandomUse::Draft(node) } else { draw })
}

fn replaces_by_the_rejection((start, draw): Key) -> Key {
    (start, if let RandomUse::Next(node) = draw { RandomUse::Accept(node + 1) } else { draw })
}

fn replaces_by_the_draw((start, draw): Key) -> Key {
    (start, if let RandomUse::Next(node) = draw { RandomUse::Draft(node + 1) } else { draw })
}

fn replaces_by_the_acceptance((start, draw): Key) -> Key {
    (start, if let RandomUse::Next(node) = draw { RandomUse::Accept(node) } else { draw })
}

#[test]
fn reused_random_numbers_are_detected() {
    let wrong = |rule, alias| worst(3, |models| one_step(models, 2, (SAMPLED, rule), alias).0);
    assert_wrong("u of the draw accepts", wrong(REJECTION, accepts_by_the_draw), 0.2);
    assert_wrong("u of the rejection replaces", wrong(REJECTION, replaces_by_the_rejection), 0.1);
    assert_wrong("u of the draw replaces", wrong(REJECTION, replaces_by_the_draw), 0.1);
    assert_wrong("block: u of the draw accepts", wrong(BLOCK, accepts_by_the_draw), 0.1);
    assert_wrong("block: u of the acceptance replaces", wrong(BLOCK, replaces_by_the_acceptance), 0.1);
}

/// Numbers keyed by position and purpose alone, without the step.
fn by_position((start, draw): Key) -> Key {
    let draw = match draw {
        RandomUse::Draft(node) => RandomUse::Draft(start + node),
        RandomUse::Accept(node) => RandomUse::Accept(start + node),
        RandomUse::Next(node) => RandomUse::Next(start + node),
    };
    (0, draw)
}

/// Why the step is part of the key: `block` depends on rejected tokens, and with `rejection` a controller may look at
/// them.
#[test]
fn random_numbers_of_rejected_tokens_must_not_be_reused() {
    let same: Controller = |limit, _, _| limit;
    let looks: Controller = |_, draft, _| if draft.last() == Some(&0) { 2 } else { 0 };
    let endless = || all_models().map(|models| ToyModels { n_vocab: 2, ends: false, ..models });
    let by = |rule, controller, alias| {
        worst_of(endless(), 3, |models| steps(models, 3, 2, (SAMPLED, rule), controller, alias))
    };
    assert!(by(BLOCK, same, distinct) < EXACT && by(REJECTION, looks, distinct) < EXACT);
    assert!(by(REJECTION, same, by_position) < EXACT, "nothing depends on rejected tokens");
    assert_wrong("block", by(BLOCK, same, by_position), 0.01);
    assert_wrong("rejection and a controller", by(REJECTION, looks, by_position), 0.01);
}
