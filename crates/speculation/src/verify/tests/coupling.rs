//! `coupled` and `match`: exact because the target samples every token, and accepted as often as the formulas predict.
//!
//! With independent exponentials E the joint distribution of both samples has a closed form. The target takes a and the
//! draft b if for E(a) = s and E(b) = rs with p(b)/p(a) < r < q(b)/q(a) every other E(y) is above s·max(p(y)/p(a),
//! r·q(y)/q(b)). Integrating over s leaves ∫ dr/D(r)² with D(r) = 1 + r + Σy max(p(y)/p(a), r·q(y)/q(b)), which is
//! piecewise linear. Over a linear piece from r to t the integral of 1/D² is (t - r)/(D(r)·D(t)).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{RandomSource, RandomUse, SampledDraft, TokenDistribution, accept_matching};
use super::acceptance::{self, propose};
use super::enumeration::{EnumeratedRandom, distance, distinct, enumerate};
use super::rules::EXACT;
use super::toy_models::{Rng, Side, ToyModels};
use foredraft_base::{Token, TokenData};

/// The argmax of ln p + G, the lowest token among equals. Target and draft use the noise of the same position.
pub(super) fn choose_coupled(row: TokenDistribution<'_>, gumbel: impl Fn(Token) -> f64) -> Option<Token> {
    let mut best: Option<(f64, Token)> = None;
    for (token, p) in row.iter().filter(|(_, p)| *p > 0.0) {
        let score = p.ln() + gumbel(token);
        if best.is_none_or(|(top, winner)| score > top || (score == top && token < winner)) {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}

/// Verifies a draft with [`accept_matching`]. `child(node, token)` is the drafted node of `token` after `node`, and `sample(node)` the
/// target's token after `node`. Returns the last accepted node and the target's own token after it.
fn accept(child: impl Fn(usize, Token) -> Option<usize>, mut sample: impl FnMut(usize) -> Token) -> (usize, Token) {
    let mut last = None;
    accept_matching(|node| {
        let token = sample(node);
        last = Some((node, token));
        child(node, token)
    });
    last.unwrap()
}

/// The `child` argument of [`accept`] for a chain.
fn chain(tokens: &[Token]) -> impl Fn(usize, Token) -> Option<usize> {
    move |node, token| (tokens.get(node) == Some(&token)).then_some(node + 1)
}

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
    // The points where a maximum switches between its arguments.
    let mut bends: Vec<f64> = others().map(|y| p[y] * q[b] / (p[a] * q[y])).filter(|r| *r > low && *r < high).collect();
    bends.extend([low, high]);
    bends.sort_by(f64::total_cmp);
    bends
        .windows(2)
        .map(|piece| {
            if piece[1].is_finite() {
                (piece[1] - piece[0]) / (d(piece[0]) * d(piece[1]))
            } else {
                // The slope of D for large r: the limit of (t - r)/D(t).
                let slope = 1.0 + others().map(|y| q[y] / q[b]).sum::<f64>();
                1.0 / (slope * d(piece[0]))
            }
        })
        .sum()
}

fn items(weights: &[f32]) -> Vec<TokenData> {
    (0..).zip(weights).map(|(id, p)| TokenData { id, logit: 0.0, p: *p }).collect()
}

fn dense(row: TokenDistribution<'_>, n: usize) -> Vec<f64> {
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

    /// Each side samples its own distribution, and they agree as often as the formula and its bounds predict.
    #[test]
    fn coupled_sides_sample_their_own_distributions(
        (p, q) in (2_usize..=6).prop_flat_map(|n| (weights(n), weights(n))),
    ) {
        let (p_items, q_items) = (items(&p), items(&q));
        let (Some(p_row), Some(q_row)) = (TokenDistribution::new(&p_items), TokenDistribution::new(&q_items)) else { return Ok(()) };
        let n = p.len();
        let (p, q) = (dense(p_row, n), dense(q_row, n));
        for token in 0..n {
            let as_target: f64 = (0..n).map(|b| joint(&p, &q, token, b)).sum();
            let as_draft: f64 = (0..n).map(|a| joint(&p, &q, a, token)).sum();
            prop_assert!((as_target - p[token]).abs() < EXACT, "the target takes {} with {}", token, as_target);
            prop_assert!((as_draft - q[token]).abs() < EXACT, "the draft takes {} with {}", token, as_draft);
        }
        let agree: f64 = (0..n).map(|token| joint(&p, &q, token, token)).sum();
        let (coupled, rejection) = (acceptance::coupled(p_row, q_row), acceptance::rejection(p_row, q_row));
        prop_assert!((coupled - agree).abs() < EXACT, "{} against {}", coupled, agree);
        let variation: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        prop_assert!((rejection - (1.0 - variation)).abs() < EXACT);
        prop_assert!(coupled >= (1.0 - variation) / (1.0 + variation) - EXACT && coupled <= rejection + EXACT);
        // A one-token draft without knowledge of the target's sample is accepted at most with p of p's argmax.
        let best = p.iter().copied().fold(0.0, f64::max);
        prop_assert!(acceptance::matching(p_row, q_row) <= best + EXACT);
        prop_assert!((acceptance::coupled(p_row, p_row) - 1.0).abs() < EXACT);
    }

    /// `choose_coupled` is the exponential race of the closed form.
    #[test]
    fn coupled_choice_is_an_exponential_race(weights in prop::collection::vec(weight(), 2..6), seed: u64) {
        let items = items(&weights);
        let Some(row) = TokenDistribution::new(&items) else { return Ok(()) };
        let e: Vec<f64> = weights.iter().zip(0..).map(|(_, n)| -(1.0 - Rng(seed ^ (n << 32)).unit()).ln()).collect();
        let chosen = choose_coupled(row, |token| -e[token as usize].ln()).unwrap();
        let time = |token: Token| e[token as usize] / row.p(token);
        for token in (0..).take(weights.len()).filter(|token| row.p(*token) > 0.0) {
            prop_assert!(time(chosen) <= time(token) * (1.0 + 1e-12));
        }
    }
}

/// Samples both sides of a coupled pair.
fn choose_pair(models: &ToyModels, prefix: &[Token], draft: &[Token], random: &mut EnumeratedRandom) -> (Token, Token) {
    let (p, q) = (models.dense(Side::Target, prefix), models.dense(Side::Draft, draft));
    let mut rest = 1.0;
    let pairs: Vec<_> = (0..p.len()).flat_map(|a| (0..q.len()).map(move |b| (a, b))).collect();
    let mut last = None;
    for (a, b) in pairs {
        let weight = joint(&p, &q, a, b);
        if weight > 0.0 {
            last = Some((a as Token, b as Token));
            if weight >= rest - 1e-14 || random.happens(weight / rest) {
                break;
            }
            rest -= weight;
        }
    }
    last.unwrap()
}

/// Samples the target; the draft takes its most probable token, as `match` does.
fn sample_and_propose(
    models: &ToyModels,
    prefix: &[Token],
    draft: &[Token],
    random: &mut EnumeratedRandom,
) -> (Token, Token) {
    let q = models.row(Side::Draft, draft);
    (draw_next(models, prefix, random), propose(TokenDistribution::new(&q).unwrap()))
}

fn draw_next(models: &ToyModels, prefix: &[Token], random: &mut EnumeratedRandom) -> Token {
    draw_with(RandomUse::Next(prefix.len()), models, prefix, random)
}

/// The target's token after `prefix`, sampled with the random number for `number`.
fn draw_with(number: RandomUse, models: &ToyModels, prefix: &[Token], random: &mut EnumeratedRandom) -> Token {
    let p = models.dense(Side::Target, prefix);
    random.sample_index(number, p.into_iter(), 1.0).unwrap() as Token
}

/// Samples the two tokens of a position: the target's after `prefix`, the draft's after `draft`.
type Pair = fn(models: &ToyModels, prefix: &[Token], draft: &[Token], random: &mut EnumeratedRandom) -> (Token, Token);

/// Compares a draft with the target's tokens. Returns the committed tokens and the number of accepted ones.
type Check =
    fn(models: &ToyModels, draft: &[Token], choices: &[Token], random: &mut EnumeratedRandom) -> (Vec<Token>, usize);

/// Verifies as the product does.
fn verify(_: &ToyModels, draft: &[Token], choices: &[Token], _: &mut EnumeratedRandom) -> (Vec<Token>, usize) {
    let (n, next) = accept(chain(draft), |node| choices[node]);
    (draft[..n].iter().copied().chain([next]).collect(), n)
}

/// The output distribution of a step and the mean number of accepted tokens. Samples at different positions are
/// independent.
fn step(models: &ToyModels, limit: usize, pair: Pair, check: Check) -> (super::toy_models::OutputDistribution, f64) {
    let outcomes = enumerate(distinct, |random| {
        // While they agree, both have the same prefix.
        let (mut draft, mut choices) = (Vec::new(), Vec::new());
        while draft.len() < limit && draft == choices {
            let (a, b) = pair(models, &choices, &draft, random);
            choices.push(a);
            draft.push(b);
        }
        if draft == choices {
            choices.push(draw_next(models, &choices, random));
        }
        check(models, &draft, &choices, random)
    });
    let (mut distribution, mut accepted) = (super::toy_models::OutputDistribution::new(), 0.0);
    for ((prefix, n), weight) in outcomes {
        *distribution.entry(prefix).or_insert(0.0) += weight;
        accepted += n as f64 * weight;
    }
    (models.continue_with_target(distribution, limit + 1), accepted)
}

#[test]
fn coupled_steps_are_exact_and_match_the_acceptance_formula() {
    for seed in 0..150 {
        let models = ToyModels { ends: false, careless: false, stops: false, ..ToyModels::any(seed) };
        let limit = if models.n_vocab == 2 { 3 } else { 2 };
        let (distribution, accepted) = step(&models, limit, choose_pair, verify);
        assert!(distance(&distribution, &models.distribution(&[], limit + 1)).1 < EXACT, "{models:?}");
        assert!((accepted - by_formula(&models, &mut Vec::new(), 1.0, limit)).abs() < EXACT, "{models:?}");
        let (_, rejection) =
            super::steps::one_step(&models, limit, (super::steps::SAMPLED, super::steps::REJECTION), distinct);
        assert!(accepted < rejection + EXACT, "no coupling accepts more than rejection: {accepted} in {models:?}");
    }
}

#[test]
fn matching_steps_are_exact() {
    for seed in 0..150 {
        let models = ToyModels { ends: false, careless: false, stops: false, ..ToyModels::any(seed) };
        let limit = if models.n_vocab == 2 { 3 } else { 2 };
        let (distribution, _) = step(&models, limit, sample_and_propose, verify);
        assert!(distance(&distribution, &models.distribution(&[], limit + 1)).1 < EXACT, "{models:?}");
    }
}

/// Σ over prefixes of Π 1/Σ max(p/p, q/q).
fn by_formula(models: &ToyModels, prefix: &mut Vec<Token>, weight: f64, limit: usize) -> f64 {
    if prefix.len() == limit {
        return 0.0;
    }
    let (p, q) = (models.dense(Side::Target, prefix), models.dense(Side::Draft, prefix));
    let mut sum = 0.0;
    for token in 0..p.len() {
        let both = weight * joint(&p, &q, token, token);
        if both > 0.0 {
            prefix.push(token as Token);
            sum += both + by_formula(models, prefix, both, limit);
            prefix.pop();
        }
    }
    sum
}

/// With hashed noise, the output is the same for any draft, chain or tree.
#[test]
fn drafts_do_not_change_the_output() {
    let gumbel = |seed: u64, position: usize, token: Token| {
        let bits = Rng(seed).bits() ^ ((position as u64) << 32) ^ token as u64;
        -(-(1.0 - Rng(bits).unit()).ln()).ln()
    };
    for seed in 0..300 {
        let models = ToyModels { ends: false, ..ToyModels::any(seed) };
        let choose = |side, prefix: &[Token]| {
            let items = models.row(side, prefix);
            choose_coupled(TokenDistribution::new(&items).unwrap(), |token| gumbel(seed, prefix.len(), token)).unwrap()
        };
        let mut plain = Vec::new();
        while plain.len() < 12 {
            plain.push(choose(Side::Target, &plain));
        }
        let mut prefix: Vec<Token> = Vec::new();
        let mut rng = Rng(seed);
        while prefix.len() < 12 {
            let (mut draft, limit) = (prefix.clone(), rng.below(5));
            while draft.len() < prefix.len() + limit {
                draft.push(if rng.below(3) == 0 { rng.below(3) as Token } else { choose(Side::Draft, &draft) });
            }
            let drafted = &draft[prefix.len()..];
            let mut tree = SampledDraft::default();
            tree.begin(20);
            let mut node = 0;
            for token in drafted {
                tree.push_deterministic(node, 70);
                assert!(tree.push_deterministic(node, *token));
                node = tree.len();
            }
            let sampled = |behind: &[Token]| choose(Side::Target, &[&prefix, behind].concat());
            let (n, next) = accept(chain(drafted), |node| sampled(&drafted[..node]));
            let of_tree = accept(
                |node, token| tree.child(node, token),
                |node| sampled(&super::steps::tokens_at(&tree, node, &[])),
            );
            assert_eq!(of_tree, (2 * n, next));
            prefix.extend_from_slice(&drafted[..n]);
            prefix.push(next);
        }
        assert_eq!(prefix[..12], plain[..], "{models:?}");
    }
}

#[test]
fn match_accepts_with_p_of_the_drafts_argmax() {
    for seed in 0..100 {
        let models = ToyModels { ends: false, careless: false, ..ToyModels::any(seed) };
        let (p, q) = (models.row(Side::Target, &[]), models.row(Side::Draft, &[]));
        let (p, q) = (TokenDistribution::new(&p).unwrap(), TokenDistribution::new(&q).unwrap());
        let outcomes: BTreeMap<bool, f64> = enumerate(distinct, |random| {
            let index = random.sample_index(RandomUse::Next(0), p.iter().map(|(_, p)| p), 1.0);
            let token = p.iter().nth(index.unwrap()).unwrap().0;
            let draft = [propose(q)];
            let sampled = [token, 0];
            accept(chain(&draft), |node| sampled[node]).0 == 1
        });
        let accepted = outcomes.get(&true).copied().unwrap_or(0.0);
        assert!((accepted - acceptance::matching(p, q)).abs() < EXACT, "{models:?}");
    }
}

/// Defects that accept correctly but choose a wrong next token: after a disagreement the target samples again, takes the
/// draft's token if it is probable enough, always takes the draft's token, or takes the token of the previous position.
#[test]
fn defective_matching_is_detected() {
    fn redraws(
        models: &ToyModels,
        draft: &[Token],
        choices: &[Token],
        random: &mut EnumeratedRandom,
    ) -> (Vec<Token>, usize) {
        let (mut prefix, n) = verify(models, draft, choices, random);
        if n < draft.len() {
            prefix[n] = draw_with(RandomUse::Next(9), models, &draft[..n], random);
        }
        (prefix, n)
    }
    fn trusts(
        models: &ToyModels,
        draft: &[Token],
        choices: &[Token],
        random: &mut EnumeratedRandom,
    ) -> (Vec<Token>, usize) {
        let (mut prefix, n) = verify(models, draft, choices, random);
        if draft.get(n).is_some_and(|token| models.dense(Side::Target, &draft[..n])[*token as usize] >= 0.3) {
            prefix[n] = draft[n];
        }
        (prefix, n)
    }
    fn believes(
        models: &ToyModels,
        draft: &[Token],
        choices: &[Token],
        random: &mut EnumeratedRandom,
    ) -> (Vec<Token>, usize) {
        let (mut prefix, n) = verify(models, draft, choices, random);
        draft.get(n).into_iter().for_each(|token| prefix[n] = *token);
        (prefix, n)
    }
    fn lags(
        models: &ToyModels,
        draft: &[Token],
        choices: &[Token],
        random: &mut EnumeratedRandom,
    ) -> (Vec<Token>, usize) {
        let (mut prefix, n) = verify(models, draft, choices, random);
        prefix[n] = choices[n.saturating_sub(1)];
        (prefix, n)
    }
    for (pair, of) in [(choose_pair as Pair, "coupled"), (sample_and_propose, "match")] {
        for (defect, name) in
            [(redraws as Check, "redraws"), (trusts, "trusts"), (believes, "believes"), (lags, "lags")]
        {
            let off = |seed: u64| {
                let models = ToyModels::plain(3, seed);
                distance(&step(&models, 2, pair, defect).0, &models.distribution(&[], 3)).1
            };
            let most = (0..40).map(off).fold(0.0, f64::max);
            assert!(most > 0.01, "{of} {name}: {most}");
        }
    }
}
