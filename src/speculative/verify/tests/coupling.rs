//! `coupled` and `match`: exact because the target chooses for itself, and accepted as often as the formulas say.
//!
//! With independent exponentials E the joint law of the two choices has a closed form. The target takes a and the draft
//! b if for E(a) = s and E(b) = rs with p(b)/p(a) < r < q(b)/q(a) every other E(y) is above s·max(p(y)/p(a),
//! r·q(y)/q(b)). Integrating over s leaves ∫ dr/D(r)² with D(r) = 1 + r + Σy max(p(y)/p(a), r·q(y)/q(b)), which is
//! linear in pieces, and over a linear piece from r to t the integral of 1/D² is (t - r)/(D(r)·D(t)).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Chance, Draw, Next, Row, Tree, coupled, expected, matching};
use super::dice::{Dice, distance, explore, honest};
use super::rules::EXACT;
use super::worlds::{Rng, Side, World};
use crate::llama::{Token, TokenData};

/// P(target takes a, draft takes b), by the closed form.
fn joint(p: &[f64], q: &[f64], a: usize, b: usize) -> f64 {
    if a == b {
        let ratio = |y: usize| f64::max(p[y] / p[a], q[y] / q[a]);
        return if p[a] > 0.0 && q[a] > 0.0 { 1.0 / (0..p.len()).map(ratio).sum::<f64>() } else { 0.0 };
    }
    if p[a] <= 0.0 || q[b] <= 0.0 {
        return 0.0;
    }
    let (low, high) = (p[b] / p[a], q[b] / q[a]);
    if low >= high {
        return 0.0;
    }
    let others = || (0..p.len()).filter(|y| *y != a && *y != b);
    let d = |r: f64| 1.0 + r + others().map(|y| f64::max(p[y] / p[a], r * q[y] / q[b])).sum::<f64>();
    // Where a maximum changes sides.
    let mut bends: Vec<f64> = others().map(|y| p[y] * q[b] / (p[a] * q[y])).filter(|r| *r > low && *r < high).collect();
    bends.extend([low, high]);
    bends.sort_by(f64::total_cmp);
    bends
        .windows(2)
        .map(|piece| {
            if piece[1].is_finite() {
                (piece[1] - piece[0]) / (d(piece[0]) * d(piece[1]))
            } else {
                // D's slope far out: the limit of (t - r)/D(t).
                let slope = 1.0 + others().map(|y| q[y] / q[b]).sum::<f64>();
                1.0 / (slope * d(piece[0]))
            }
        })
        .sum()
}

fn items(weights: &[f32]) -> Vec<TokenData> {
    (0..).zip(weights).map(|(id, p)| TokenData { id, logit: 0.0, p: *p }).collect()
}

fn dense(row: Row<'_>, n: usize) -> Vec<f64> {
    (0..).take(n).map(|token| row.p(token)).collect()
}

fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![2 => Just(0.0_f32), 3 => 0.001_f32..1.0, 1 => 1.0_f32..50.0]
}

fn weights(n: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(weight(), n)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Both sides have their own law, and they agree as often as the formula and its bounds say.
    #[test]
    fn both_choose_by_their_own_law(
        (p, q) in (2_usize..=6).prop_flat_map(|n| (weights(n), weights(n))),
    ) {
        let (p_items, q_items) = (items(&p), items(&q));
        let (Some(p_row), Some(q_row)) = (Row::new(&p_items), Row::new(&q_items)) else { return Ok(()) };
        let n = p.len();
        let (p, q) = (dense(p_row, n), dense(q_row, n));
        for token in 0..n {
            let as_target: f64 = (0..n).map(|b| joint(&p, &q, token, b)).sum();
            let as_draft: f64 = (0..n).map(|a| joint(&p, &q, a, token)).sum();
            prop_assert!((as_target - p[token]).abs() < EXACT, "the target takes {} with {}", token, as_target);
            prop_assert!((as_draft - q[token]).abs() < EXACT, "the draft takes {} with {}", token, as_draft);
        }
        let agree: f64 = (0..n).map(|token| joint(&p, &q, token, token)).sum();
        let (coupled, rejection) = (expected::coupled(p_row, q_row), expected::rejection(p_row, q_row));
        prop_assert!((coupled - agree).abs() < EXACT, "{} against {}", coupled, agree);
        let variation: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        prop_assert!((rejection - (1.0 - variation)).abs() < EXACT);
        prop_assert!(coupled >= (1.0 - variation) / (1.0 + variation) - EXACT && coupled <= rejection + EXACT);
        // No draft made without knowing the target's choice, and none of one token, beats its most probable token.
        let best = p.iter().copied().fold(0.0, f64::max);
        prop_assert!(expected::matching(p_row, q_row) <= best + EXACT);
        prop_assert!((expected::coupled(p_row, p_row) - 1.0).abs() < EXACT);
    }

    /// `choose` is the race that the closed form is about.
    #[test]
    fn choosing_is_an_exponential_race(weights in prop::collection::vec(weight(), 2..6), seed: u64) {
        let items = items(&weights);
        let Some(row) = Row::new(&items) else { return Ok(()) };
        let e: Vec<f64> = weights.iter().zip(0..).map(|(_, n)| -(1.0 - Rng(seed ^ (n << 32)).unit()).ln()).collect();
        let chosen = coupled::choose(row, |token| -e[token as usize].ln()).unwrap();
        let time = |token: Token| e[token as usize] / row.p(token);
        for token in (0..).take(weights.len()).filter(|token| row.p(*token) > 0.0) {
            prop_assert!(time(chosen) <= time(token) * (1.0 + 1e-12));
        }
    }
}

/// Draws a pair of choices.
fn choose_pair(world: &World, text: &[Token], draft: &[Token], dice: &mut Dice) -> (Token, Token) {
    let (p, q) = (world.dense(Side::Target, text), world.dense(Side::Draft, draft));
    let mut rest = 1.0;
    let pairs: Vec<_> = (0..p.len()).flat_map(|a| (0..q.len()).map(move |b| (a, b))).collect();
    let mut last = None;
    for (a, b) in pairs {
        let weight = joint(&p, &q, a, b);
        if weight > 0.0 {
            last = Some((a as Token, b as Token));
            if weight >= rest - 1e-14 || dice.happens(weight / rest) {
                break;
            }
            rest -= weight;
        }
    }
    last.unwrap()
}

/// Draws the target's choice; the draft has the most probable token, as `match` drafts.
fn choose_and_guess(world: &World, text: &[Token], draft: &[Token], dice: &mut Dice) -> (Token, Token) {
    let q = world.row(Side::Draft, draft);
    (draw_next(world, text, dice), matching::propose(Row::new(&q).unwrap()))
}

fn draw_next(world: &World, text: &[Token], dice: &mut Dice) -> Token {
    draw_with(Draw::Next(text.len()), world, text, dice)
}

/// The target's choice behind `text`, by that throw of the dice.
fn draw_with(throw: Draw, world: &World, text: &[Token], dice: &mut Dice) -> Token {
    let p = world.dense(Side::Target, text);
    dice.choose(throw, p.into_iter(), 1.0).unwrap() as Token
}

/// How a position's two tokens come about: the target's choice behind `text`, and the draft's behind `draft`.
type Pair = fn(world: &World, text: &[Token], draft: &[Token], dice: &mut Dice) -> (Token, Token);

/// What is emitted of a draft and the target's choices, and how much of it was accepted.
type Check = fn(world: &World, draft: &[Token], choices: &[Token], dice: &mut Dice) -> (Vec<Token>, usize);

/// As the product does.
fn verify(_: &World, draft: &[Token], choices: &[Token], _: &mut Dice) -> (Vec<Token>, usize) {
    let pick = |node: usize| Some(Next { token: choices[node], p: 1.0 });
    let verdict = matching::verify(matching::chain(draft), pick);
    let next = verdict.next.map(|next| next.token);
    (draft[..verdict.node].iter().copied().chain(next).collect(), verdict.node)
}

/// A whole step: what it emits, with probabilities, and how much of a draft it accepts on average. What is chosen at different positions
/// is independent.
fn step(world: &World, limit: usize, pair: Pair, check: Check) -> (super::worlds::Law, f64) {
    let outcomes = explore(honest, |dice| {
        // While they agree, both are behind the same text.
        let (mut draft, mut choices) = (Vec::new(), Vec::new());
        while draft.len() < limit && draft == choices {
            let (a, b) = pair(world, &choices, &draft, dice);
            choices.push(a);
            draft.push(b);
        }
        if draft == choices {
            choices.push(draw_next(world, &choices, dice));
        }
        check(world, &draft, &choices, dice)
    });
    let (mut law, mut accepted) = (super::worlds::Law::new(), 0.0);
    for ((text, n), weight) in outcomes {
        *law.entry(text).or_insert(0.0) += weight;
        accepted += n as f64 * weight;
    }
    (world.go_on(law, limit + 1), accepted)
}

#[test]
fn coupled_steps_are_exact_and_accepted_by_the_formula() {
    for seed in 0..150 {
        let world = World { ends: false, careless: false, stops: false, ..World::any(seed) };
        let limit = if world.n_vocab == 2 { 3 } else { 2 };
        let (law, accepted) = step(&world, limit, choose_pair, verify);
        assert!(distance(&law, &world.law(&[], limit + 1)).1 < EXACT, "{world:?}");
        assert!((accepted - by_formula(&world, &mut Vec::new(), 1.0, limit)).abs() < EXACT, "{world:?}");
        let (_, rejection) =
            super::steps::one_step(&world, limit, (super::steps::DRAWS, super::steps::REJECTION), honest);
        assert!(accepted < rejection + EXACT, "no coupling accepts more than rejection: {accepted} in {world:?}");
    }
}

#[test]
fn matching_steps_are_exact() {
    for seed in 0..150 {
        let world = World { ends: false, careless: false, stops: false, ..World::any(seed) };
        let limit = if world.n_vocab == 2 { 3 } else { 2 };
        let (law, _) = step(&world, limit, choose_and_guess, verify);
        assert!(distance(&law, &world.law(&[], limit + 1)).1 < EXACT, "{world:?}");
    }
}

/// Σ over prefixes of Π 1/Σ max(p/p, q/q).
fn by_formula(world: &World, text: &mut Vec<Token>, weight: f64, limit: usize) -> f64 {
    if text.len() == limit {
        return 0.0;
    }
    let (p, q) = (world.dense(Side::Target, text), world.dense(Side::Draft, text));
    let mut sum = 0.0;
    for token in 0..p.len() {
        let both = weight * joint(&p, &q, token, token);
        if both > 0.0 {
            text.push(token as Token);
            sum += both + by_formula(world, text, both, limit);
            text.pop();
        }
    }
    sum
}

/// Through the hash: whatever is drafted, as a chain or a tree, the text is the same, and each token is one that its
/// drafts can have.
#[test]
fn drafts_do_not_change_the_text() {
    let gumbel = |seed: u64, position: usize, token: Token| {
        let bits = Rng(seed).bits() ^ ((position as u64) << 32) ^ token as u64;
        -(-(1.0 - Rng(bits).unit()).ln()).ln()
    };
    for seed in 0..300 {
        let world = World { ends: false, ..World::any(seed) };
        let choose = |side, text: &[Token]| {
            let items = world.row(side, text);
            coupled::choose(Row::new(&items).unwrap(), |token| gumbel(seed, text.len(), token)).unwrap()
        };
        let mut plain = Vec::new();
        while plain.len() < 12 {
            plain.push(choose(Side::Target, &plain));
        }
        let mut text: Vec<Token> = Vec::new();
        let mut rng = Rng(seed);
        while text.len() < 12 {
            let (mut draft, limit) = (text.clone(), rng.below(5));
            while draft.len() < text.len() + limit {
                draft.push(if rng.below(3) == 0 { rng.below(3) as Token } else { choose(Side::Draft, &draft) });
            }
            let drafted = &draft[text.len()..];
            let mut tree = Tree::default();
            tree.begin(20);
            let mut node = 0;
            for token in drafted {
                tree.push_deterministic(node, 70);
                assert!(tree.push_deterministic(node, *token));
                node = tree.len();
            }
            let pick = |behind: &[Token]| Some(Next { token: choose(Side::Target, &[&text, behind].concat()), p: 1.0 });
            let chain = matching::verify(matching::chain(drafted), |node| pick(&drafted[..node]));
            let branches = matching::verify(
                |node, token| tree.child(node, token),
                |node| pick(&super::steps::text_at(&tree, node, &[])),
            );
            assert_eq!((chain.next, 2 * chain.node), (branches.next, branches.node));
            text.extend_from_slice(&drafted[..chain.node]);
            text.push(chain.next.unwrap().token);
        }
        assert_eq!(text[..12], plain[..], "{world:?}");
    }
}

/// `match` accepts p of the draft's most probable token, whatever the target's choice is made of.
#[test]
fn matching_accepts_p_of_the_most_probable() {
    for seed in 0..100 {
        let world = World { ends: false, careless: false, ..World::any(seed) };
        let (p, q) = (world.row(Side::Target, &[]), world.row(Side::Draft, &[]));
        let (p, q) = (Row::new(&p).unwrap(), Row::new(&q).unwrap());
        let outcomes: BTreeMap<bool, f64> = explore(honest, |dice| {
            let index = dice.choose(Draw::Next(0), p.iter().map(|(_, p)| p), 1.0);
            let token = p.iter().nth(index.unwrap()).unwrap().0;
            let draft = [matching::propose(q)];
            let mut picks = [Next { token, p: 1.0 }, Next { token: 0, p: 1.0 }].into_iter();
            matching::verify(matching::chain(&draft), |_| picks.next()).node == 1
        });
        let accepted = outcomes.get(&true).copied().unwrap_or(0.0);
        assert!((accepted - expected::matching(p, q)).abs() < EXACT, "{world:?}");
    }
}

/// Defects that compare well but choose wrong: after a disagreement the target draws again, or takes the draft's token wherever that
/// is likely enough, or the draft's in any case; or what was accepted is followed by the choice of the position before.
#[test]
fn defects_of_comparing_show() {
    fn redraws(world: &World, draft: &[Token], choices: &[Token], dice: &mut Dice) -> (Vec<Token>, usize) {
        let (mut text, n) = verify(world, draft, choices, dice);
        if n < draft.len() {
            text[n] = draw_with(Draw::Next(9), world, &draft[..n], dice);
        }
        (text, n)
    }
    fn trusts(world: &World, draft: &[Token], choices: &[Token], dice: &mut Dice) -> (Vec<Token>, usize) {
        let (mut text, n) = verify(world, draft, choices, dice);
        if draft.get(n).is_some_and(|token| world.dense(Side::Target, &draft[..n])[*token as usize] >= 0.3) {
            text[n] = draft[n];
        }
        (text, n)
    }
    fn believes(world: &World, draft: &[Token], choices: &[Token], dice: &mut Dice) -> (Vec<Token>, usize) {
        let (mut text, n) = verify(world, draft, choices, dice);
        draft.get(n).into_iter().for_each(|token| text[n] = *token);
        (text, n)
    }
    fn lags(world: &World, draft: &[Token], choices: &[Token], dice: &mut Dice) -> (Vec<Token>, usize) {
        let (mut text, n) = verify(world, draft, choices, dice);
        text[n] = choices[n.saturating_sub(1)];
        (text, n)
    }
    for (pair, of) in [(choose_pair as Pair, "coupled"), (choose_and_guess, "match")] {
        for (defect, name) in
            [(redraws as Check, "redraws"), (trusts, "trusts"), (believes, "believes"), (lags, "lags")]
        {
            let off = |seed: u64| {
                let world = World::plain(3, seed);
                distance(&step(&world, 2, pair, defect).0, &world.law(&[], 3)).1
            };
            let most = (0..40).map(off).fold(0.0, f64::max);
            assert!(most > 0.01, "{of} {name}: {most}");
        }
    }
}
