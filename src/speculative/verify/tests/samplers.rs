//! The same with the product's own samplers in the middle: penalties and mirostat that change along the draft, grammars
//! with a state, different truncation on both sides. Steps are made as an engine makes them, so this is also how to.

use super::super::{Chance, Proposal, Residual, Row, StepChance, Target, block, rejection};
use super::dice::{Dice, distance, explore, honest};
use super::rules::EXACT;
use super::worlds::{Law, Rng};
use crate::error::{Error, Result};
use crate::llama::{Token, TokenData};
use crate::sampling::reference::{plain, sampler};
use crate::sampling::{Constraint, MirostatVersion, Sampler, SamplingSettings};

/// After an odd number of tokens, one token is forbidden: that which was last.
#[derive(Debug, Clone, Default)]
struct NoTwins(Vec<Token>);

impl NoTwins {
    fn forbidden(&self) -> Option<Token> {
        self.0.last().copied().filter(|_| self.0.len() % 2 == 1)
    }
}

impl Constraint for NoTwins {
    fn allows(&mut self, token: Token) -> Result<bool> {
        Ok(self.forbidden() != Some(token))
    }

    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        let forbidden = self.forbidden();
        candidates.iter_mut().filter(|item| Some(item.id) == forbidden).for_each(|item| item.logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        if self.forbidden() == Some(token) {
            return Err(Error::invalid("grammar: a twin"));
        }
        self.0.push(token);
        Ok(())
    }
}

/// Two models and what samples from them.
#[derive(Debug)]
struct Pair {
    seed: u64,
    n_vocab: usize,
    target: SamplingSettings,
    draft: SamplingSettings,
    guided: bool,
}

/// What lives as long as a text.
struct Text {
    tokens: Vec<Token>,
    own: Sampler<NoTwins>,
    /// Follows `own`, and runs ahead of it.
    ahead: Sampler<NoTwins>,
    draft: Sampler<NoTwins>,
}

impl Pair {
    fn logits(&self, model: u64, text: &[Token]) -> Vec<f32> {
        let spread = if model == 1 { 1.5 } else { 0.0 };
        let start = |purpose: u64| Rng(self.seed ^ purpose << 40);
        let at = |purpose| text.iter().fold(start(purpose), |mut rng, token| Rng(rng.bits() ^ (*token as u64 + 1)));
        let (mut own, mut other) = (at(0), at(1));
        (0..self.n_vocab).map(|_| (3.0 * own.unit() + spread * (other.unit() - 0.5)) as f32).collect()
    }

    fn begin(&self) -> Text {
        let of = |settings| sampler(settings, self.n_vocab, self.guided.then(NoTwins::default));
        let own = of(&self.target);
        Text { tokens: Vec::new(), ahead: own.for_draft(false), own, draft: of(&self.draft) }
    }

    /// What the target alone writes.
    fn law(&self, len: usize) -> Law {
        let mut law = Law::new();
        let mut open = vec![(self.begin(), 1.0)];
        while let Some((mut text, weight)) = open.pop() {
            if text.tokens.len() == len {
                *law.entry(text.tokens).or_insert(0.0) += weight;
                continue;
            }
            let mut logits = self.logits(0, &text.tokens);
            let items =
                text.own.constrained_distribution(&mut logits, &text.tokens, text.tokens.len()).unwrap().to_vec();
            for (token, p) in Row::new(&items).unwrap().iter() {
                let mut next = self.begin();
                for token in text.tokens.iter().chain([&token]) {
                    // As a plain request: a row, and the sampler learns from it.
                    let mut logits = self.logits(0, &next.tokens);
                    next.own.constrained_distribution(&mut logits, &next.tokens, next.tokens.len()).unwrap();
                    next.own.accept(*token).unwrap();
                    next.tokens.push(*token);
                }
                open.push((next, weight * p));
            }
        }
        law
    }

    /// Drafts up to `limit` tokens and emits what is verified.
    fn step(&self, text: &mut Text, limit: usize, is_block: bool, chance: &mut impl Chance) {
        let mut draft = Proposal::default();
        draft.begin(limit);
        let mut history = text.tokens.clone();
        let mut drafting = text.draft.for_draft(false);
        while draft.has_room() {
            let mut logits = self.logits(1, &history);
            let q = drafting.constrained_distribution(&mut logits, &history, history.len()).unwrap();
            let token = draft.draw(Row::new(q).unwrap(), chance).unwrap();
            drafting.accept(token).unwrap();
            history.push(token);
        }
        text.ahead.sync_from(&text.own);
        let mut target = Ahead {
            pair: self,
            sampler: &mut text.ahead,
            history: text.tokens.clone(),
            draft: draft.tokens(),
            listed: Vec::new(),
        };
        let mut residual = Residual::default();
        let verdict = if is_block {
            block::verify(&draft, &mut target, chance, &mut residual)
        } else {
            rejection::verify(&draft, &mut target, chance, &mut residual)
        };
        let listed = target.listed;
        let next = verdict.next.unwrap();
        let accepted = draft.tokens().iter().copied().zip(listed).take(verdict.node);
        for (token, p) in accepted.chain([(next.token, next.p)]) {
            text.own.accept_with(token, p).unwrap();
            text.draft.accept(token).unwrap();
            text.tokens.push(token);
        }
    }
}

/// The target for one step: a sampler that may run ahead of what is accepted.
struct Ahead<'a> {
    pair: &'a Pair,
    sampler: &'a mut Sampler<NoTwins>,
    history: Vec<Token>,
    draft: &'a [Token],
    /// The probability of each drafted token as listed, as far as rows were asked for.
    listed: Vec<f32>,
}

impl Target for Ahead<'_> {
    fn row(&mut self, node: usize) -> Option<Row<'_>> {
        if let Some(token) = node.checked_sub(1).map(|before| self.draft[before]) {
            self.sampler.accept(token).expect("a token with a probability is allowed");
            self.history.push(token);
        }
        let mut logits = self.pair.logits(0, &self.history);
        let row =
            Row::new(self.sampler.constrained_distribution(&mut logits, &self.history, self.history.len()).ok()?)?;
        self.listed.extend(self.draft.get(node).map(|token| row.listed(*token)));
        Some(row)
    }
}

fn pairs() -> Vec<Pair> {
    let cut = SamplingSettings { top_k: 2, temperature: 0.8, ..plain() };
    let nucleus = SamplingSettings { top_p: 0.8, temperature: 1.4, ..plain() };
    let penalised = SamplingSettings { presence_penalty: 0.7, frequency_penalty: 0.5, repeat_last_n: 8, ..plain() };
    let steered = |version| SamplingSettings { mirostat: version, mirostat_tau: 1.0, mirostat_eta: 0.6, ..plain() };
    let excluding = SamplingSettings { xtc_probability: 0.5, xtc_threshold: 0.2, ..plain() };
    let settings = [
        (plain(), plain()),
        (cut.clone(), nucleus.clone()),
        (nucleus.clone(), cut.clone()),
        (penalised.clone(), penalised.clone()),
        (SamplingSettings { top_k: 2, ..penalised.clone() }, plain()),
        (SamplingSettings { min_p: 0.3, ..penalised }, SamplingSettings { temperature: 0.0, ..plain() }),
        (SamplingSettings { temperature: 0.0, ..plain() }, nucleus.clone()),
        (steered(MirostatVersion::V1), plain()),
        (steered(MirostatVersion::V2), nucleus),
        (excluding.clone(), excluding),
        (SamplingSettings { typical_p: 0.6, ..cut }, SamplingSettings { tfs_z: 0.8, ..plain() }),
    ];
    let both = settings.into_iter().flat_map(|settings| [(settings.clone(), false), (settings, true)]);
    both.zip(0..)
        .map(|(((target, draft), guided), seed)| Pair { seed, n_vocab: 2 + seed as usize % 2, target, draft, guided })
        .collect()
}

#[test]
fn steps_through_samplers_are_exact() {
    for pair in pairs() {
        let expected = pair.law(3);
        assert!((expected.values().sum::<f64>() - 1.0).abs() < EXACT);
        for is_block in [false, true] {
            let law = explore(honest, |dice: &mut Dice| {
                let (mut text, mut limit) = (pair.begin(), 2);
                while text.tokens.len() < 3 {
                    dice.begin(text.tokens.len());
                    pair.step(&mut text, limit, is_block, dice);
                    limit = 1;
                }
                text.tokens.truncate(3);
                text.tokens
            });
            let (_, worst) = distance(&law, &expected);
            assert!(worst < EXACT, "off by {worst}, block: {is_block}, {pair:?}");
        }
    }
}

/// With the product's numbers a text is the same each time, and depends on the seed.
#[test]
fn a_seed_gives_one_text() {
    let pair = Pair { seed: 3, n_vocab: 12, target: plain(), draft: plain(), guided: true };
    for is_block in [false, true] {
        let text = |seed| {
            let mut text = pair.begin();
            while text.tokens.len() < 40 {
                let start = text.tokens.len();
                pair.step(&mut text, 3, is_block, &mut StepChance::new(seed, start));
            }
            text.tokens
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
