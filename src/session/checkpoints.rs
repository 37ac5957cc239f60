//! Places that a memory can be brought back to which cannot be cut back.

/// Most of them in a sequence.
const MOST: usize = 8;
/// Most bytes of them in a sequence, but for the last one.
const MOST_BYTES: usize = 512 << 20;

/// Copies of what later tokens overwrite, each with the number of tokens that it is behind; in that order.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    list: Vec<(usize, Vec<u8>)>,
}

impl Checkpoints {
    /// Adds the copy made behind `len` tokens, which are more than those of all others. Where there are too many, the one
    /// goes whose neighbours are closest.
    pub fn add(&mut self, len: usize, state: Vec<u8>) {
        self.list.push((len, state));
        while self.list.len() > 1 && (self.list.len() > MOST || self.bytes() > MOST_BYTES) {
            let starts = std::iter::once(0).chain(self.list.iter().map(|(len, _)| *len));
            let gaps = starts.zip(self.list.iter().skip(1)).map(|(before, (after, _))| after - before);
            let closest = gaps.enumerate().min_by_key(|(_, gap)| *gap).map_or(0, |(index, _)| index);
            self.list.remove(closest);
        }
    }

    /// The last one.
    pub fn last(&self) -> Option<(usize, &[u8])> {
        self.list.last().map(|(len, state)| (*len, state.as_slice()))
    }

    /// Drops those behind more than `len` tokens.
    pub fn keep(&mut self, len: usize) {
        self.list.retain(|(at, _)| *at <= len && *at > 0);
    }

    fn bytes(&self) -> usize {
        self.list.iter().map(|(_, state)| state.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(checkpoints: &Checkpoints) -> Vec<usize> {
        checkpoints.list.iter().map(|(len, _)| *len).collect()
    }

    #[test]
    fn of_too_many_the_last_and_the_widest_spread_stay() {
        let mut checkpoints = Checkpoints::default();
        for len in 1..=100 {
            checkpoints.add(len * 10, Vec::new());
            let places = places(&checkpoints);
            assert!(places.len() <= MOST && places.last() == Some(&(len * 10)), "{places:?}");
        }
        let places = places(&checkpoints);
        assert_eq!(places.len(), MOST);
        let gaps: Vec<usize> = std::iter::once(&0).chain(&places).zip(&places).map(|(a, b)| b - a).collect();
        assert!(gaps.iter().all(|gap| *gap <= 500), "{gaps:?}");
    }

    #[test]
    fn a_cut_drops_those_behind_it() {
        let mut checkpoints = Checkpoints::default();
        for len in [5, 10, 20] {
            checkpoints.add(len, vec![1]);
        }
        checkpoints.keep(19);
        assert_eq!(checkpoints.last().map(|(len, _)| len), Some(10));
        checkpoints.keep(10);
        assert_eq!(places(&checkpoints), [5, 10]);
        checkpoints.keep(0);
        assert_eq!(checkpoints.last(), None);
    }
}
