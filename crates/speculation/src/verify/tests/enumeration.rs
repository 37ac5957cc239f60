//! Enumerates all outcomes of an experiment's random numbers.

use std::collections::BTreeMap;

use super::super::{RandomSource, RandomUse};
use super::toy_models::OutputDistribution;

/// Identifies a random number: the index of the step's first token, and the use.
pub(super) type Key = (usize, RandomUse);

/// A random source that follows one path of comparison results at a time. It knows the interval in which each number
/// lies. A comparison that splits the interval has two results, each with a weight proportional to its part. So
/// repeated comparisons of one number, or several uses of it, also get exact weights.
pub(super) struct EnumeratedRandom {
    /// The results to return; further comparisons return true.
    path: Vec<bool>,
    given: usize,
    intervals: BTreeMap<Key, (f64, f64)>,
    weight: f64,
    start: usize,
    /// Maps a key to the number that serves it: the identity, except in tests of reused numbers.
    alias: fn(Key) -> Key,
}

impl EnumeratedRandom {
    /// Begins a step after `start` generated tokens.
    pub(super) fn begin(&mut self, start: usize) {
        self.start = start;
    }

    /// An event of the given probability, independent of the rules.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.branch(probability)
    }

    fn branch(&mut self, probability: f64) -> bool {
        if self.given == self.path.len() {
            self.path.push(true);
        }
        let answer = self.path[self.given];
        self.given += 1;
        self.weight *= if answer { probability } else { 1.0 - probability };
        answer
    }
}

impl RandomSource for EnumeratedRandom {
    fn is_below(&mut self, draw: RandomUse, bound: f64) -> bool {
        assert!(!bound.is_nan());
        let key = (self.alias)((self.start, draw));
        let (low, high) = self.intervals.get(&key).copied().unwrap_or((0.0, 1.0));
        let part = (bound - low) / (high - low);
        // Treats a bound that differs from 1 only by rounding as 1.
        if part >= 1.0 - 1e-14 || part <= 0.0 {
            return part > 0.0;
        }
        let answer = self.branch(part);
        self.intervals.insert(key, if answer { (low, bound) } else { (bound, high) });
        answer
    }
}

/// The probability of each result of `experiment`.
pub(super) fn enumerate<T: Ord>(
    alias: fn(Key) -> Key,
    mut experiment: impl FnMut(&mut EnumeratedRandom) -> T,
) -> BTreeMap<T, f64> {
    let mut results = BTreeMap::new();
    let mut path = Vec::new();
    loop {
        let mut random = EnumeratedRandom { path, given: 0, intervals: BTreeMap::new(), weight: 1.0, start: 0, alias };
        let result = experiment(&mut random);
        *results.entry(result).or_insert(0.0) += random.weight;
        path = random.path;
        while path.pop_if(|answer| !*answer).is_some() {}
        match path.last_mut() {
            Some(answer) => *answer = false,
            None => return results,
        }
    }
}

/// No two keys share a number.
pub(super) fn distinct(key: Key) -> Key {
    key
}

/// Σ |a - b| / 2 and the largest |a - b|.
pub(super) fn distance(a: &OutputDistribution, b: &OutputDistribution) -> (f64, f64) {
    let texts: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let of = |distribution: &OutputDistribution, text| distribution.get(text).copied().unwrap_or(0.0);
    texts
        .into_iter()
        .map(|text| (of(a, text) - of(b, text)).abs())
        .fold((0.0, 0.0), |(sum, max), difference| (sum + difference / 2.0, f64::max(max, difference)))
}

#[test]
fn comparisons_split_the_known_interval() {
    let third = |random: &mut EnumeratedRandom| {
        let first = random.is_below(RandomUse::Next(0), 0.5);
        (first, random.is_below(RandomUse::Next(0), 0.75), random.is_below(RandomUse::Next(1), 0.75))
    };
    let results = enumerate(distinct, third);
    let expected = [
        ((true, true, true), 0.375),
        ((true, true, false), 0.125),
        ((false, true, true), 0.1875),
        ((false, true, false), 0.0625),
        ((false, false, true), 0.1875),
        ((false, false, false), 0.0625),
    ];
    assert_eq!(results, BTreeMap::from(expected));
    let chosen =
        enumerate(distinct, |random| random.sample_index(RandomUse::Next(0), [1.0, 0.0, 2.0, 1.0].into_iter(), 4.0));
    assert_eq!(chosen, BTreeMap::from([(Some(0), 0.25), (Some(2), 0.5), (Some(3), 0.25)]));
}
