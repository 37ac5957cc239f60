//! The rules with the product's samplers: penalties and mirostat that change along the draft, grammars with a state,
//! different truncation on both sides. The steps show how an engine uses the rules.

use super::super::{
    RandomSource, Residual, SampledDraft, StepRandom, TargetDistributions, TokenDistribution, block, rejection,
};
use super::enumeration::{EnumeratedRandom, distance, distinct, enumerate};
use super::rules::EXACT;
use super::toy_models::{OutputDistribution, Rng};
use crate::tests::fakes::{plain, sampler};
use foredraft_base::error::{Error, Result};
use foredraft_base::{Token, TokenData};
use foredraft_sampling::{Constraint, MirostatVersion, Sampler, SamplingSettings};

/// A grammar that forbids repeating the last token after an odd number of tokens.
#[derive(Debug, Clone, Default)]
struct NoRepeat(Vec<Token>);

impl NoRepeat {
    fn forbidden(&self) -> Option<Token> {
        self.0.last().copied().filter(|_| self.0.len() % 2 == 1)
    }
}

impl Constraint for NoRepeat {
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
            return Err(Error::invalid("grammar: a repeated token"));
        }
        self.0.push(token);
        Ok(())
    }
}

/// A target and a draft model with their sampling settings.
#[derive(Debug)]
struct ModelPair {
    seed: u64,
    n_vocab: usize,
    target: SamplingSettings,
    draft: SamplingSettings,
    guided: bool,
}

/// The samplers of one completion.
struct Completion {
    tokens: Vec<Token>,
    own: Sampler<NoRepeat>,
    /// Looks ahead of `own` during verification.
    ahead: Sampler<NoRepeat>,
    draft: Sampler<NoRepeat>,
}

impl ModelPair {
    fn logits(&self, model: u64, completion: &[Token]) -> Vec<f32> {
        let spread = if model == 1 { 1.5 } else { 0.0 };
        let start = |purpose: u64| Rng(self.seed ^ purpose << 40);
        let at =
            |purpose| completion.iter().fold(start(purpose), |mut rng, token| Rng(rng.bits() ^ (*token as u64 + 1)));
        let (mut own, mut other) = (at(0), at(1));
        (0..self.n_vocab).map(|_| (3.0 * own.unit() + spread * (other.unit() - 0.5)) as f32).collect()
    }

    fn begin(&self) -> Completion {
        let of = |settings| sampler(settings, self.n_vocab, self.guided.then(NoRepeat::default));
        let own = of(&self.target);
        Completion { tokens: Vec::new(), ahead: own.for_draft(false), own, draft: of(&self.draft) }
    }

    /// The target's output distribution.
    fn distribution(&self, len: usize) -> OutputDistribution {
        let mut distribution = OutputDistribution::new();
        let mut open = vec![(self.begin(), 1.0)];
        while let Some((mut completion, weight)) = open.pop() {
            if completion.tokens.len() == len {
                *distribution.entry(completion.tokens).or_insert(0.0) += weight;
                continue;
            }
            let mut logits = self.logits(0, &completion.tokens);
            let items = completion
                .own
                .constrained_distribution(&mut logits, &completion.tokens, completion.tokens.len())
                .unwrap()
                .to_vec();
            for (token, p) in TokenDistribution::new(&items).unwrap().iter() {
                let mut next = self.begin();
                for token in completion.tokens.iter().chain([&token]) {
                    // As without speculation: one distribution per token, then `accept`.
                    let mut logits = self.logits(0, &next.tokens);
                    next.own.constrained_distribution(&mut logits, &next.tokens, next.tokens.len()).unwrap();
                    next.own.accept(*token).unwrap();
                    next.tokens.push(*token);
                }
                open.push((next, weight * p));
            }
        }
        distribution
    }

    /// Drafts up to `limit` tokens, verifies them and commits the result.
    fn step(&self, completion: &mut Completion, limit: usize, is_block: bool, random: &mut impl RandomSource) {
        let mut draft = SampledDraft::default();
        draft.begin(limit);
        let mut history = completion.tokens.clone();
        let mut drafting = completion.draft.for_draft(false);
        while draft.has_space() {
            let mut logits = self.logits(1, &history);
            let q = drafting.constrained_distribution(&mut logits, &history, history.len()).unwrap();
            let token = draft.draw_next(TokenDistribution::new(q).unwrap(), random).unwrap();
            drafting.accept(token).unwrap();
            history.push(token);
        }
        let drafted = draft.tokens();
        completion.ahead.sync_from(&completion.own);
        let mut target = Lookahead {
            pair: self,
            sampler: &mut completion.ahead,
            history: completion.tokens.clone(),
            draft: &drafted,
            listed: Vec::new(),
        };
        let mut residual = Residual::default();
        let verdict = if is_block {
            block::verify(&draft, &mut target, random, &mut residual)
        } else {
            rejection::verify(&draft, &mut target, random, &mut residual)
        };
        let listed = target.listed;
        let next = verdict.next.unwrap();
        let accepted = drafted.iter().copied().zip(listed).take(verdict.node);
        for (token, p) in accepted.chain([(next.token, next.p)]) {
            completion.own.accept_with(token, p).unwrap();
            completion.draft.accept(token).unwrap();
            completion.tokens.push(token);
        }
    }
}

/// The target of one step: a sampler that looks ahead of the committed tokens.
struct Lookahead<'a> {
    pair: &'a ModelPair,
    sampler: &'a mut Sampler<NoRepeat>,
    history: Vec<Token>,
    draft: &'a [Token],
    /// The listed weight of each drafted token, as far as distributions were read.
    listed: Vec<f32>,
}

impl TargetDistributions for Lookahead<'_> {
    fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>> {
        if let Some(token) = node.checked_sub(1).map(|before| self.draft[before]) {
            self.sampler.accept(token).expect("a token with a probability above 0 is allowed");
            self.history.push(token);
        }
        let mut logits = self.pair.logits(0, &self.history);
        let row = TokenDistribution::new(
            self.sampler.constrained_distribution(&mut logits, &self.history, self.history.len()).ok()?,
        )?;
        self.listed.extend(self.draft.get(node).map(|token| row.listed_weight(*token)));
        Some(row)
    }
}

fn pairs() -> Vec<ModelPair> {
    let cut = SamplingSettings { top_k: 2, temperature: 0.8, ..plain() };
    let nucleus = SamplingSettings { top_p: 0.8, temperature: 1.4, ..plain() };
    let penalized = SamplingSettings { presence_penalty: 0.7, frequency_penalty: 0.5, repeat_last_n: 8, ..plain() };
    let steered = |version| SamplingSettings { mirostat: version, mirostat_tau: 1.0, mirostat_eta: 0.6, ..plain() };
    let excluding = SamplingSettings { xtc_probability: 0.5, xtc_threshold: 0.2, ..plain() };
    let settings = [
        (plain(), plain()),
        (cut.clone(), nucleus.clone()),
        (nucleus.clone(), cut.clone()),
        (penalized.clone(), penalized.clone()),
        (SamplingSettings { top_k: 2, ..penalized.clone() }, plain()),
        (SamplingSettings { min_p: 0.3, ..penalized }, SamplingSettings { temperature: 0.0, ..plain() }),
        (SamplingSettings { temperature: 0.0, ..plain() }, nucleus.clone()),
        (steered(MirostatVersion::V1), plain()),
        (steered(MirostatVersion::V2), nucleus),
        (excluding.clone(), excluding),
        (SamplingSettings { typical_p: 0.6, ..cut }, SamplingSettings { tfs_z: 0.8, ..plain() }),
    ];
    let both = settings.into_iter().flat_map(|settings| [(settings.clone(), false), (settings, true)]);
    both.zip(0..)
        .map(|(((target, draft), guided), seed)| ModelPair {
            seed,
            n_vocab: 2 + seed as usize % 2,
            target,
            draft,
            guided,
        })
        .collect()
}

#[test]
fn steps_with_real_samplers_are_exact() {
    for pair in pairs() {
        let expected = pair.distribution(3);
        assert!((expected.values().sum::<f64>() - 1.0).abs() < EXACT);
        for is_block in [false, true] {
            let distribution = enumerate(distinct, |random: &mut EnumeratedRandom| {
                let (mut completion, mut limit) = (pair.begin(), 2);
                while completion.tokens.len() < 3 {
                    random.begin(completion.tokens.len());
                    pair.step(&mut completion, limit, is_block, random);
                    limit = 1;
                }
                completion.tokens.truncate(3);
                completion.tokens
            });
            let (_, worst) = distance(&distribution, &expected);
            assert!(worst < EXACT, "off by {worst}, block: {is_block}, {pair:?}");
        }
    }
}

/// With the product's random numbers, the output depends only on the seed.
#[test]
fn output_depends_only_on_the_seed() {
    let pair = ModelPair { seed: 3, n_vocab: 12, target: plain(), draft: plain(), guided: true };
    for is_block in [false, true] {
        let completion = |seed| {
            let mut completion = pair.begin();
            while completion.tokens.len() < 40 {
                let start = completion.tokens.len();
                pair.step(&mut completion, 3, is_block, &mut StepRandom::new(seed, start));
            }
            completion.tokens
        };
        assert_eq!(completion(1), completion(1));
        assert_ne!(completion(1), completion(2));
    }
}
