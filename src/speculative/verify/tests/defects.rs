//! The rules once more, over dense rows and without any of the product's code; with one defect if asked for.

use super::super::{Chance, Draw, Next, Proposal, Tree, Verdict};
use super::dice::Dice;
use super::steps::{Walk, choose_dense};
use super::worlds::{Side, World};
use crate::llama::Token;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Defect {
    None,
    /// p and q in each other's place.
    Swapped,
    /// A refused token is replaced by a draw from p.
    NoResidual,
    /// |p - q| instead of (p - q)+.
    NotClamped,
    /// The weights (p - q)+ taken as probabilities.
    NotNormalised,
    /// `block` stops at the first failure.
    FirstFailure,
    /// `block` forgets ci-1.
    NoFactor,
    /// `block` subtracts from p instead of ci·p.
    UnscaledResidual,
    /// `block` takes hi at the end too, as if q there were p.
    NoEnd,
    /// Tree: the q of later children still has their siblings.
    Replacement,
    /// Tree: the p of later children is still the first.
    SameTarget,
}

fn at(text: &[Token], draft: &[Token], n: usize) -> Vec<Token> {
    [text, &draft[..n]].concat()
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
    let total = if defect == Defect::NotNormalised { 1.0 } else { weights.iter().sum() };
    (weights, total)
}

/// A token drawn from `weights`, whatever they are; any token when there are none.
fn next(node: usize, (weights, total): (Vec<f64>, f64), p: &[f64], dice: &mut Dice) -> Verdict {
    let any = || p.iter().position(|p| *p > 0.0).map(|token| token as Token);
    let token = choose_dense(dice, node, &weights, total).or_else(any);
    Verdict { node, next: token.map(|token| Next { token, p: p[token as usize] as f32 }) }
}

/// (p, q) of the n-th row of a chain; none behind the end of the text.
fn rows(world: &World, text: &[Token], draft: &Proposal, n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let here = at(text, draft.tokens(), n);
    if world.is_over(&here) {
        return None;
    }
    let p = world.dense(Side::Target, &here);
    let q: Vec<f64> = draft.get(n).map_or(vec![], |drawn| (0..=77).map(|token| drawn.q().p(token)).collect());
    Some((p, q))
}

pub(super) fn rejection(draft: &Proposal, target: &Walk<'_>, dice: &mut Dice, defect: Defect) -> Verdict {
    let gamma = draft.tokens().len();
    for n in 0..gamma {
        let Some((p, q)) = rows(target.world, &target.text, draft, n) else {
            return Verdict { node: n, next: None };
        };
        let (above, below) = if defect == Defect::Swapped { (&q, &p) } else { (&p, &q) };
        if !dice.is_below(Draw::Accept(n + 1), ratio(above, below, draft.tokens()[n])) {
            return next(n, left(above, below, defect), &p, dice);
        }
    }
    let Some((p, _)) = rows(target.world, &target.text, draft, gamma) else {
        return Verdict { node: gamma, next: None };
    };
    next(gamma, (p.clone(), 1.0), &p, dice)
}

pub(super) fn block(draft: &Proposal, target: &Walk<'_>, dice: &mut Dice, defect: Defect) -> Verdict {
    let (mut tau, mut c, mut weights) = (0, 1.0_f64, None);
    let all: Vec<_> = (0..=draft.tokens().len()).map_while(|n| rows(target.world, &target.text, draft, n)).collect();
    let gamma = all.len().min(draft.tokens().len());
    for n in 0..=gamma {
        let Some((target_p, q)) = all.get(n) else {
            if dice.is_below(Draw::Accept(n), c) {
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
        if n == 0 || dice.is_below(Draw::Accept(n), h) {
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
    // Where p = q nothing is left, and a later token stays for certain.
    let rest = if rest.1 == 0.0 { (p.clone(), 1.0) } else { rest };
    next(tau, rest, p, dice)
}

pub(super) fn recursive(draft: &Tree, target: &Walk<'_>, dice: &mut Dice, defect: Defect) -> Verdict {
    let mut node = 0;
    'nodes: loop {
        let here = super::steps::text_at(draft, node, &target.text);
        if target.world.is_over(&here) {
            return Verdict { node, next: None };
        }
        let first = target.world.dense(Side::Target, &here);
        let (mut p, mut q) = (first.clone(), target.world.dense(Side::Draft, &here));
        for (child, token) in draft.children(node) {
            let (above, below) = if defect == Defect::Swapped { (&q, &p) } else { (&p, &q) };
            if dice.is_below(Draw::Accept(child), ratio(above, below, token)) {
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
        return next(node, (p.clone(), p.iter().sum()), &first, dice);
    }
}
