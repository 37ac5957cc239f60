//! A naive implementation with maps, for the tests to compare with.

use std::collections::BTreeMap;

use crate::{Cache, LONGEST, Sizes};

/// Counts without a limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Naive(pub BTreeMap<Vec<i32>, BTreeMap<i32, u64>>);

impl Naive {
    /// A direct translation of `common_ngram_cache_update`.
    pub fn update(&mut self, history: &[i32], appended: usize, min: usize, max: usize) {
        for size in min..=max {
            let start = (history.len() as i64 - appended as i64).max(size as i64) as usize;
            for i in start..history.len() {
                let part = self.0.entry(history[i - size..i].to_vec()).or_default();
                *part.entry(history[i]).or_default() += 1;
            }
        }
    }

    pub fn merge(&mut self, other: &Naive) {
        for (ngram, part) in &other.0 {
            for (token, count) in part {
                *self.0.entry(ngram.clone()).or_default().entry(*token).or_default() += count;
            }
        }
    }

    /// The bytes of the file, by the format's definition.
    pub fn bytes(&self) -> Vec<u8> {
        let mut numbers = Vec::new();
        for (ngram, part) in &self.0 {
            numbers.extend((0..LONGEST).map(|i| ngram.get(i).copied().unwrap_or(-1)));
            numbers.push(part.len() as i32);
            part.iter().for_each(|(token, count)| numbers.extend([*token, i32::try_from(*count).unwrap()]));
        }
        numbers.into_iter().flat_map(i32::to_le_bytes).collect()
    }

    /// Asserts that a cache has exactly these counts.
    pub fn check(&self, cache: &Cache) {
        assert_eq!(cache.len(), self.0.len());
        for (ngram, counts) in &self.0 {
            let part = cache.get(ngram).unwrap_or_else(|| panic!("{ngram:?} is missing"));
            let pairs: Vec<(i32, u64)> = part.by_id().map(|pair| (pair.token, u64::from(pair.count))).collect();
            assert_eq!(pairs, counts.iter().map(|(token, count)| (*token, *count)).collect::<Vec<_>>(), "{ngram:?}");
            let best = counts.iter().rev().max_by_key(|(_, count)| **count).map(|(token, _)| *token);
            assert_eq!(Some(part.best.token), best, "{ngram:?}: {counts:?}");
            assert_eq!(u64::from(part.total), counts.values().sum::<u64>(), "{ngram:?}");
            counts.iter().for_each(|(token, count)| assert_eq!(u64::from(part.count(*token)), *count));
            assert_eq!(part.count(i32::MAX), 0);
        }
    }
}

/// A direct translation of `common_ngram_cache_draft`, with the lowest token winning among equal scores.
pub fn draft(history: &[i32], n: usize, sizes: (usize, usize), levels: [&Naive; 3]) -> Vec<i32> {
    let [context, dynamic, static_cache] = levels;
    let mut text = history.to_vec();
    while text.len() - history.len() < n && history.len() >= 2 {
        let none = BTreeMap::new();
        let weights = static_cache.0.get(&text[text.len() - 2..]).unwrap_or(&none);
        let from = |cache: &Naive, seen: [u64; 4], percent: [u64; 4]| {
            (0..=sizes.1 - sizes.0).rev().find_map(|i| {
                let size = sizes.0 + i;
                let part = cache.0.get(text.get(text.len().checked_sub(size)?..)?)?;
                choose(part, weights, seen[i], percent[i])
            })
        };
        let next = from(context, [2, 2, 1, 1], [66, 50, 50, 50])
            .or_else(|| from(dynamic, [4, 3, 2, 2], [75, 66, 66, 66]))
            .or_else(|| choose(weights, &none, 2, 50));
        let Some(next) = next else { break };
        text.push(next);
    }
    text.split_off(history.len())
}

fn choose(part: &BTreeMap<i32, u64>, weights: &BTreeMap<i32, u64>, seen: u64, percent: u64) -> Option<i32> {
    let mut best = (None, 0, 0);
    for (token, count) in part {
        let score = count * weights.get(token).map_or(1, |weight| 100 * weight);
        if score > best.2 {
            best = (Some(*token), *count, score);
        }
    }
    let sum: u64 = part.values().sum();
    best.0.filter(|_| sum >= seen && 100 * best.1 >= percent * sum)
}

/// A cache updated with pieces of `text`, and the naive counts of the whole.
pub fn cache_and_naive(text: &[i32], pieces: &[usize], sizes: (usize, usize)) -> (Cache, Naive) {
    let (mut cache, mut naive) = (Cache::new(), Naive::default());
    let mut end = 0;
    for piece in pieces.iter().copied().chain([text.len()]) {
        let new = piece.min(text.len() - end);
        end += new;
        cache.update(&text[..end], new, Sizes::new(sizes.0, sizes.1).unwrap());
        naive.update(&text[..end], new, sizes.0, sizes.1);
    }
    (cache, naive)
}
