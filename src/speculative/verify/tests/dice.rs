//! Chance with all its outcomes.

use std::collections::BTreeMap;

use super::super::{Chance, Draw};
use super::worlds::Law;

/// A number is known by the step's beginning and its draw.
pub(super) type Key = (usize, Draw);

/// Answers questions about uniform numbers one way at a time. What is known of a number is the interval it lies in; a
/// question that splits the interval has two answers, each with a weight in proportion to its part. So asking about one
/// number twice, or using it for two things, is weighed exactly as well.
pub(super) struct Dice {
    /// The answers to give; further questions are answered with yes.
    script: Vec<bool>,
    given: usize,
    known: BTreeMap<Key, (f64, f64)>,
    weight: f64,
    start: usize,
    /// Which number serves a key: itself, except in tests of what must not be.
    alias: fn(Key) -> Key,
}

impl Dice {
    /// A step begins behind `start` generated tokens.
    pub(super) fn begin(&mut self, start: usize) {
        self.start = start;
    }

    /// An event of the given probability that has nothing to do with the rules.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.branch(probability)
    }

    fn branch(&mut self, probability: f64) -> bool {
        if self.given == self.script.len() {
            self.script.push(true);
        }
        let answer = self.script[self.given];
        self.given += 1;
        self.weight *= if answer { probability } else { 1.0 - probability };
        answer
    }
}

impl Chance for Dice {
    fn is_below(&mut self, draw: Draw, bound: f64) -> bool {
        assert!(!bound.is_nan());
        let key = (self.alias)((self.start, draw));
        let (low, high) = self.known.get(&key).copied().unwrap_or((0.0, 1.0));
        let part = (bound - low) / (high - low);
        // Sums of probabilities that are 1 but for rounding are 1.
        if part >= 1.0 - 1e-14 || part <= 0.0 {
            return part > 0.0;
        }
        let answer = self.branch(part);
        self.known.insert(key, if answer { (low, bound) } else { (bound, high) });
        answer
    }
}

/// The probability of each result of `experiment`.
pub(super) fn explore<T: Ord>(alias: fn(Key) -> Key, mut experiment: impl FnMut(&mut Dice) -> T) -> BTreeMap<T, f64> {
    let mut results = BTreeMap::new();
    let mut script = Vec::new();
    loop {
        let mut dice = Dice { script, given: 0, known: BTreeMap::new(), weight: 1.0, start: 0, alias };
        let result = experiment(&mut dice);
        *results.entry(result).or_insert(0.0) += dice.weight;
        script = dice.script;
        while script.pop_if(|answer| !*answer).is_some() {}
        match script.last_mut() {
            Some(answer) => *answer = false,
            None => return results,
        }
    }
}

/// Every number is its own.
pub(super) fn honest(key: Key) -> Key {
    key
}

/// Σ |a - b| / 2 and the largest |a - b|.
pub(super) fn distance(a: &Law, b: &Law) -> (f64, f64) {
    let texts: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let of = |law: &Law, text| law.get(text).copied().unwrap_or(0.0);
    texts
        .into_iter()
        .map(|text| (of(a, text) - of(b, text)).abs())
        .fold((0.0, 0.0), |(sum, max), difference| (sum + difference / 2.0, f64::max(max, difference)))
}

#[test]
fn questions_split_what_is_known() {
    let third = |dice: &mut Dice| {
        let first = dice.is_below(Draw::Next(0), 0.5);
        (first, dice.is_below(Draw::Next(0), 0.75), dice.is_below(Draw::Next(1), 0.75))
    };
    let results = explore(honest, third);
    let expected = [
        ((true, true, true), 0.375),
        ((true, true, false), 0.125),
        ((false, true, true), 0.1875),
        ((false, true, false), 0.0625),
        ((false, false, true), 0.1875),
        ((false, false, false), 0.0625),
    ];
    assert_eq!(results, BTreeMap::from(expected));
    let chosen = explore(honest, |dice| dice.choose(Draw::Next(0), [1.0, 0.0, 2.0, 1.0].into_iter(), 4.0));
    assert_eq!(chosen, BTreeMap::from([(Some(0), 0.25), (Some(2), 0.5), (Some(3), 0.25)]));
}
