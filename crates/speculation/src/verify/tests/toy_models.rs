//! Small toy targets and drafts: every prefix has different distributions.

use std::collections::BTreeMap;

use super::super::TokenDistribution;
use foredraft_base::{Token, TokenData};

/// The probability of each output.
pub(super) type OutputDistribution = BTreeMap<Vec<Token>, f64>;

/// A generator for test data: SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Side {
    Target,
    Draft,
}

/// A small sampler chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// Subtracted from a token's logit for each occurrence in the prefix.
    pub(super) penalty: f64,
    /// Whether the allowed tokens depend on the prefix.
    pub(super) grammar: bool,
    /// 0: greedy.
    pub(super) temperature: f64,
    pub(super) top_k: usize,
    pub(super) top_p: f64,
}

pub(super) const PLAIN: Chain = Chain { penalty: 0.0, grammar: false, temperature: 1.0, top_k: 9, top_p: 1.0 };

#[derive(Debug, Clone, Copy)]
pub(super) struct ToyModels {
    pub(super) n_vocab: usize,
    pub(super) seed: u64,
    pub(super) target: Chain,
    pub(super) draft: Chain,
    /// Distance of the draft's logits from the target's; 0: equal.
    pub(super) spread: f64,
    /// Token 0 ends the output.
    pub(super) ends: bool,
    /// The drafter continues after the end, and drafts tokens that the target's vocabulary lacks.
    pub(super) careless: bool,
    /// Drafts end early at some prefixes.
    pub(super) stops: bool,
}

impl ToyModels {
    /// Small tables that differ for every prefix.
    pub(super) fn plain(n_vocab: usize, seed: u64) -> ToyModels {
        let (target, draft) = (PLAIN, PLAIN);
        ToyModels { n_vocab, seed, target, draft, spread: 1.0, ends: false, careless: false, stops: false }
    }

    /// A random combination.
    pub(super) fn any(seed: u64) -> ToyModels {
        let mut rng = Rng(seed);
        let mut chain = || Chain {
            penalty: [0.0, 0.0, 1.0, 3.0][rng.below(4)] * rng.unit(),
            grammar: rng.below(3) == 0,
            temperature: [0.0, 0.5, 1.0, 1.0, 1.5, 3.0][rng.below(6)],
            top_k: [1, 2, 3, 9, 9, 9][rng.below(6)],
            top_p: [0.3, 0.7, 0.9, 1.0, 1.0][rng.below(5)],
        };
        let (target, draft) = (chain(), chain());
        ToyModels {
            n_vocab: 2 + rng.below(3),
            seed: rng.bits(),
            target,
            draft,
            spread: [0.0, 0.3, 1.0, 1.0, 4.0][rng.below(5)],
            ends: rng.below(4) == 0,
            careless: rng.below(2) == 0,
            stops: rng.below(3) == 0,
        }
    }

    /// A generator for a prefix; each `purpose` has its own.
    fn at(&self, purpose: u64, prefix: &[Token]) -> Rng {
        let start = self.seed.wrapping_add(purpose.wrapping_mul(0x1234_5678_9abc_def1));
        prefix.iter().fold(Rng(start), |mut rng, token| Rng(rng.bits() ^ (*token as u64 + 1)))
    }

    /// The distribution after a prefix, in arbitrary order. May list tokens of probability 0.
    pub(super) fn row(&self, side: Side, prefix: &[Token]) -> Vec<TokenData> {
        let chain = if side == Side::Target { self.target } else { self.draft };
        let (mut own, mut other, mut allowed) = (self.at(1, prefix), self.at(2, prefix), self.at(3, prefix));
        let always = allowed.below(self.n_vocab);
        let mut items: Vec<(Token, f64)> = Vec::new();
        for token in 0..self.n_vocab {
            let spread = if side == Side::Draft { self.spread * 3.0 * (other.unit() - 0.5) } else { 0.0 };
            let used = prefix.iter().filter(|used| **used == token as Token).count();
            let logit = 4.0 * own.unit() + spread - chain.penalty * used as f64;
            let forbidden = chain.grammar && allowed.below(3) == 0 && token != always;
            let foreign = side == Side::Draft && self.careless && token == 1 && other.below(2) == 0;
            let id = if foreign { 77 } else { token as Token };
            items.push((id, if forbidden { f64::NEG_INFINITY } else { logit }));
        }
        items.sort_by(|a, b| b.1.total_cmp(&a.1));
        items.truncate(if chain.temperature == 0.0 { 1 } else { chain.top_k });
        let temperature = if chain.temperature == 0.0 { 1.0 } else { chain.temperature };
        let weights: Vec<f64> = items.iter().map(|(_, logit)| ((logit - items[0].1) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let mut row = Vec::new();
        for ((id, _), weight) in items.iter().zip(weights) {
            row.push(TokenData { id: *id, logit: f32::NAN, p: (weight / total) as f32 });
            sum += weight / total;
            if sum >= chain.top_p {
                break;
            }
        }
        let rotation = own.below(row.len());
        row.rotate_left(rotation);
        row
    }

    /// Probabilities of all tokens.
    pub(super) fn dense(&self, side: Side, prefix: &[Token]) -> Vec<f64> {
        let items = self.row(side, prefix);
        let row = TokenDistribution::new(&items).unwrap();
        (0..=77).map(|token| row.p(token)).collect()
    }

    /// Whether the output ends here.
    pub(super) fn is_over(&self, prefix: &[Token]) -> bool {
        self.ends && prefix.last() == Some(&0)
    }

    /// Whether the drafter stops here.
    pub(super) fn draft_stops(&self, prefix: &[Token]) -> bool {
        (self.is_over(prefix) && !self.careless) || (self.stops && self.at(4, prefix).below(3) == 0)
    }

    /// Extends each output with the target alone, up to `len` tokens in total.
    pub(super) fn continue_with_target(&self, distribution: OutputDistribution, len: usize) -> OutputDistribution {
        let mut done = OutputDistribution::new();
        let mut open: Vec<_> = distribution.into_iter().collect();
        while let Some((mut prefix, weight)) = open.pop() {
            if prefix.len() >= len || self.is_over(&prefix) {
                prefix.truncate(len);
                *done.entry(prefix).or_insert(0.0) += weight;
                continue;
            }
            let p = self.dense(Side::Target, &prefix);
            for (token, p) in (0..).zip(p).filter(|(_, p)| *p > 0.0) {
                open.push(([&prefix[..], &[token]].concat(), weight * p));
            }
        }
        done
    }

    /// The target's output distribution after `prefix`.
    pub(super) fn distribution(&self, prefix: &[Token], len: usize) -> OutputDistribution {
        self.continue_with_target(OutputDistribution::from([(prefix.to_vec(), 1.0)]), len)
    }
}
