//! A reference implementation of the chain for tests: straight from llama.cpp's definitions, in `f64`, slow, and
//! independent of the code under test. Also the fakes and generators that tests share.

use crate::interfaces::Constraint;
use crate::{MirostatVersion, SamplingSettings, Stage};
use foredraft_base::error::{Error, Result};
use foredraft_base::{Token, TokenData};

/// A random number generator for test data (xorshift64*), unrelated to the one under test.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in 0..n.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Uniform between 0 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Logits like a model's: most from a normal distribution, a few tokens well above it.
    pub(crate) fn logits(&mut self, n: usize) -> Vec<f32> {
        let likely = 1 + self.below(8);
        let mut logits: Vec<f32> = (0..n).map(|_| (2.0 * self.normal()) as f32).collect();
        for _ in 0..likely {
            let index = self.below(n);
            logits[index] += (4.0 + 6.0 * self.unit()) as f32;
        }
        logits
    }
}

/// A grammar that always allows the same list of tokens. Counts the candidates it filters and records accepted tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowList {
    pub(crate) tokens: Vec<Token>,
    pub(crate) filtered: usize,
    pub(crate) accepted: Vec<Token>,
}

impl AllowList {
    pub(crate) fn new(tokens: impl IntoIterator<Item = Token>) -> Self {
        AllowList { tokens: tokens.into_iter().collect(), ..AllowList::default() }
    }
}

impl Constraint for AllowList {
    fn allows(&mut self, token: Token) -> Result<bool> {
        Ok(self.tokens.contains(&token))
    }

    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        self.filtered += candidates.len();
        for candidate in candidates.iter_mut().filter(|candidate| !self.tokens.contains(&candidate.id)) {
            candidate.logit = f32::NEG_INFINITY;
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        if !self.tokens.contains(&token) {
            return Err(Error::invalid("grammar: does not allow it"));
        }
        self.accepted.push(token);
        Ok(())
    }
}

/// Pearson's statistic of `counts` against `probabilities`, and a bound that it exceeds about once in a million seeds: the
/// normal approximation of chi-square at five standard deviations. Cells with an expected count below 5 are merged.
pub(crate) fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    assert_eq!(counts.len(), probabilities.len());
    let total = counts.iter().sum::<u64>() as f64;
    let (mut cells, mut rest) = (Vec::new(), (0.0, 0.0));
    for (count, p) in counts.iter().zip(probabilities) {
        if p * total < 5.0 {
            rest = (rest.0 + *count as f64, rest.1 + p * total);
        } else {
            cells.push((*count as f64, p * total));
        }
    }
    if rest.1 >= 5.0 {
        cells.push(rest);
    } else {
        assert!(rest.0 <= rest.1 + 5.0 * rest.1.sqrt() + 5.0, "{} where {} were expected", rest.0, rest.1);
    }
    let statistic = cells.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    let freedom = (cells.len().max(2) - 1) as f64;
    (statistic, freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0)
}

/// The candidates as llama.cpp lists them: token and logit, including logits of -inf.
type ReferenceList = Vec<(Token, f64)>;

fn sort(list: &mut ReferenceList) {
    list.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
}

fn softmax(list: &ReferenceList) -> Vec<f64> {
    let max = list.iter().map(|item| item.1).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = list.iter().map(|item| if item.1 == max { 1.0 } else { (item.1 - max).exp() }).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

/// DRY by definition: for each token, the longest suffix of the window that it followed earlier. `breaker`: whether a
/// token is a sequence breaker by itself.
fn dry(settings: &SamplingSettings, list: &mut ReferenceList, history: &[Token], breaker: &dyn Fn(Token) -> bool) {
    let dry = &settings.dry;
    if dry.multiplier == 0.0 || dry.base < 1.0 || dry.penalty_last_n == 0 {
        return;
    }
    let last_n = usize::try_from(dry.penalty_last_n).unwrap_or(usize::MAX).min(history.len());
    let window = &history[history.len() - last_n..];
    if window.len() as i64 <= i64::from(dry.allowed_length) {
        return;
    }
    let limit = window.iter().rev().position(|token| breaker(*token)).unwrap_or(window.len());
    if (limit as i64) < i64::from(dry.allowed_length) {
        return;
    }
    for (token, logit) in list.iter_mut().filter(|item| !breaker(item.0)) {
        let places = (0..window.len()).filter(|at| window[*at] == *token && *at > 0);
        let longest = places
            .map(|at| (0..at).take_while(|n| window[at - 1 - n] == window[window.len() - 1 - n]).count().min(limit));
        if let Some(longest) = longest.max().filter(|longest| *longest as i64 >= i64::from(dry.allowed_length)) {
            let mut exponent = (longest as i64 - i64::from(dry.allowed_length)) as f64;
            if dry.base > 1.000_001 {
                exponent = exponent.min((88.722_839_f64 / f64::from(dry.base).ln()).floor());
            }
            *logit -= f64::from(dry.multiplier) * f64::from(dry.base).powf(exponent);
        }
    }
}

fn penalties(settings: &SamplingSettings, list: &mut ReferenceList, history: &[Token], newline: Option<Token>) {
    let last_n = usize::try_from(settings.repeat_last_n).unwrap_or(usize::MAX).min(history.len());
    let window = &history[history.len() - last_n..];
    for (token, logit) in list {
        let count = window.iter().filter(|other| **other == *token).count();
        if count == 0 || (!settings.penalize_nl && Some(*token) == newline) {
            continue;
        }
        let repeat = f64::from(settings.repeat_penalty);
        *logit = if *logit <= 0.0 { *logit * repeat } else { *logit / repeat };
        *logit -= count as f64 * f64::from(settings.frequency_penalty) + f64::from(settings.presence_penalty);
    }
}

fn temperature(list: &mut ReferenceList, temperature: f64) {
    if temperature > 0.0 {
        list.iter_mut().for_each(|item| item.1 /= temperature);
        return;
    }
    let best = list.iter().copied().reduce(|a, b| if b.1 > a.1 || (b.1 == a.1 && b.0 < a.0) { b } else { a });
    for item in list.iter_mut().filter(|item| Some(item.0) != best.map(|best| best.0)) {
        item.1 = f64::NEG_INFINITY;
    }
}

/// Applies one stage. `xtc`: whether XTC applies at this position.
fn stage(
    stage: Stage,
    settings: &SamplingSettings,
    list: &mut ReferenceList,
    history: &[Token],
    newline: Option<Token>,
    xtc: bool,
) {
    let min_keep = settings.min_keep;
    match stage {
        Stage::Penalties => penalties(settings, list, history, newline),
        Stage::Dry => dry(settings, list, history, &|token| Some(token) == newline),
        Stage::TopNSigma if settings.top_n_sigma > 0.0 && list.len() > 1 => {
            let alive: Vec<f64> = list.iter().map(|item| item.1).filter(|logit| *logit > f64::NEG_INFINITY).collect();
            let mean = alive.iter().sum::<f64>() / alive.len() as f64;
            let std = (alive.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / alive.len() as f64).sqrt();
            let max = alive.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for item in list.iter_mut().filter(|item| item.1 < max - f64::from(settings.top_n_sigma) * std) {
                item.1 = f64::NEG_INFINITY;
            }
        }
        Stage::TopK if settings.top_k > 0 => {
            sort(list);
            list.truncate(settings.top_k as usize);
        }
        Stage::TfsZ if settings.tfs_z < 1.0 && list.len() > 2 => {
            sort(list);
            let p = softmax(list);
            let first: Vec<f64> = p.windows(2).map(|p| p[0] - p[1]).collect();
            let mut second: Vec<f64> = first.windows(2).map(|d| (d[0] - d[1]).abs()).collect();
            let (sum, n) = (second.iter().sum::<f64>(), second.len());
            second.iter_mut().for_each(|d| *d = if sum > 1e-6 { *d / sum } else { 1.0 / n as f64 });
            let mut sum = 0.0;
            for (i, d) in second.iter().enumerate() {
                sum += d;
                if sum > f64::from(settings.tfs_z) && i >= min_keep {
                    list.truncate(i.max(1));
                    break;
                }
            }
        }
        Stage::TypicalP if settings.typical_p < 1.0 => {
            sort(list);
            let p = softmax(list);
            let entropy = entropy(&p);
            let mut order: Vec<usize> = (0..list.len()).collect();
            let distance = |i: &usize| (-p[*i].ln() - entropy).abs();
            order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
            let mut sum = 0.0;
            let keep = order.iter().enumerate().find_map(|(n, i)| {
                sum += p[*i];
                (sum > f64::from(settings.typical_p) && (min_keep == 0 || n >= min_keep - 1)).then_some(n + 1)
            });
            *list = order.iter().take(keep.unwrap_or(order.len())).map(|i| list[*i]).collect();
        }
        Stage::TopP if settings.top_p < 1.0 => {
            sort(list);
            let p = softmax(list);
            let mut sum = 0.0;
            for (i, p) in p.iter().enumerate() {
                sum += p;
                if sum >= f64::from(settings.top_p) && i + 1 >= min_keep {
                    list.truncate(i + 1);
                    break;
                }
            }
        }
        Stage::MinP if settings.min_p > 0.0 => {
            sort(list);
            let least = list[0].1 + f64::from(settings.min_p).ln();
            let keep = (1..list.len()).find(|i| list[*i].1 < least && *i >= min_keep);
            list.truncate(keep.unwrap_or(list.len()));
        }
        Stage::Xtc if settings.xtc_probability > 0.0 && settings.xtc_threshold <= 0.5 && list.len() > 1 && xtc => {
            sort(list);
            let top = softmax(list).iter().take_while(|p| **p >= f64::from(settings.xtc_threshold)).count();
            if top >= 2 && list.len() - (top - 1) >= min_keep {
                list.drain(..top - 1);
            }
        }
        Stage::Temperature => {
            let (base, range) = (f64::from(settings.temperature), f64::from(settings.dynatemp_range));
            if range <= 0.0 {
                temperature(list, base);
            } else if list.len() > 1 {
                let greatest = (list.len() as f64).ln();
                let share = (entropy(&softmax(list)) / greatest).powf(f64::from(settings.dynatemp_exponent));
                let low = (base - range).max(0.0);
                temperature(list, low + (base + range - low) * share);
            }
        }
        _ => {}
    }
}

/// The distribution over a whole [`FakeVocabulary::new`] that the settings give for `logits`, restricted to tokens for
/// which `allowed` is true. `mu` is mirostat's state.
pub(crate) fn distribution(
    settings: &SamplingSettings,
    logits: &[f32],
    history: &[Token],
    xtc: bool,
    mu: f64,
    allowed: &dyn Fn(Token) -> bool,
) -> Vec<f64> {
    let newline = Some(0);
    let clean = |logit: f32| if logit.is_nan() { f64::NEG_INFINITY } else { f64::from(logit) };
    let mut list: ReferenceList = logits.iter().zip(0..).map(|(logit, token)| (token, clean(*logit))).collect();
    for item in list.iter_mut().filter(|item| !allowed(item.0)) {
        item.1 = f64::NEG_INFINITY;
    }
    for (token, bias) in &settings.logit_bias {
        list[*token as usize].1 += f64::from(*bias);
    }
    let penalty = |stage: &Stage| matches!(stage, Stage::Penalties | Stage::Dry);
    let special = settings.temperature <= 0.0 || settings.mirostat != MirostatVersion::Off;
    for next in settings.stages.iter().filter(|stage| !special || penalty(stage)) {
        stage(*next, settings, &mut list, history, newline, xtc);
    }
    if special {
        temperature(&mut list, f64::from(settings.temperature));
    }
    if settings.temperature > 0.0 && settings.mirostat != MirostatVersion::Off {
        mirostat(settings, &mut list, mu, logits.len());
    }
    let mut result = vec![0.0; logits.len()];
    for (item, p) in list.iter().zip(softmax(&list)) {
        result[item.0 as usize] = p;
    }
    result
}

fn mirostat(settings: &SamplingSettings, list: &mut ReferenceList, mu: f64, n_vocab: usize) {
    sort(list);
    list.retain(|item| item.1 > f64::NEG_INFINITY);
    let p = softmax(list);
    if settings.mirostat == MirostatVersion::V2 {
        let keep = p.iter().take_while(|p| -p.log2() <= mu).count();
        list.truncate(keep.max(1));
        return;
    }
    let (mut products, mut squares) = (0.0, 0.0);
    for i in 0..(list.len() - 1).min(99) {
        let t = ((i + 2) as f64 / (i + 1) as f64).ln();
        products += t * (p[i] / p[i + 1]).ln();
        squares += t * t;
    }
    let s = products / squares;
    let e = s - 1.0;
    let k = ((e * mu.exp2()) / (1.0 - (n_vocab as f64).powf(-e))).powf(1.0 / s);
    list.truncate((k as usize).max(1));
}
