//! The recurrent states of a memory that can be rolled back only so far, as llama.cpp keeps them (`llama_memory_recurrent`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::{Rollback, SeqId};

/// Which states each sequence has.
#[derive(Debug, Clone)]
pub(super) struct RecurrentStates {
    /// The most earlier states of a sequence.
    n_earlier: usize,
    /// The number of earlier states that each sequence has now.
    earlier: BTreeMap<SeqId, usize>,
    /// The sequences that were in a physical batch that failed: their states are somewhere in it.
    lost: BTreeSet<SeqId>,
}

impl RecurrentStates {
    /// `None`: a memory without recurrent states.
    pub(super) fn new(rollback: Rollback) -> Option<RecurrentStates> {
        (!rollback.is_unlimited()).then(|| RecurrentStates {
            n_earlier: rollback.max_tokens(),
            earlier: BTreeMap::new(),
            lost: BTreeSet::new(),
        })
    }

    pub(super) fn rollback(&self) -> Rollback {
        match self.n_earlier {
            0 => Rollback::Never,
            n => Rollback::Recent(n),
        }
    }

    /// So many last tokens of a sequence stay in one physical batch. 0: they need not.
    pub(super) fn n_kept_together(&self) -> usize {
        if self.n_earlier > 0 { self.n_earlier + 1 } else { 0 }
    }

    /// Panics if the state of one of these sequences, which have new tokens, is not known.
    pub(super) fn check_known(&self, mut sequences: impl Iterator<Item = SeqId>) {
        let lost = sequences.find(|sequence| self.lost.contains(sequence));
        assert_eq!(lost, None, "a sequence is decoded whose state was lost");
    }

    pub(super) fn is_known(&self, sequence: SeqId) -> bool {
        !self.lost.contains(&sequence)
    }

    /// The states of any sequence can be moved, without its earlier ones.
    pub(super) fn begin_decode(&mut self) {
        self.earlier.clear();
    }

    /// A physical batch has a token of each of these sequences.
    pub(super) fn decoded(&mut self, sequences: impl Iterator<Item = SeqId>) {
        let mut counts = BTreeMap::new();
        sequences.for_each(|sequence| *counts.entry(sequence).or_insert(0) += 1);
        self.earlier
            .extend(counts.into_iter().map(|(sequence, n): (_, usize)| (sequence, (n - 1).min(self.n_earlier))));
    }

    pub(super) fn lose(&mut self, sequence: SeqId) {
        self.lost.insert(sequence);
    }

    /// A range of a sequence of `len` tokens is removed. Panics if there is no state for what is left.
    pub(super) fn remove(&mut self, sequence: SeqId, range: &Range<usize>, len: usize) {
        if range.start == 0 && range.end >= len {
            self.lost.remove(&sequence);
            self.earlier.remove(&sequence);
        } else if range.end >= len && range.start < len {
            let earlier = self.earlier.remove(&sequence).unwrap_or(0);
            let n = len - range.start;
            assert!(n <= earlier, "{n} tokens of sequence {sequence} are removed, with {earlier} earlier states");
            assert!(self.is_known(sequence), "the state of sequence {sequence} was lost");
        }
    }

    /// llama.cpp's `n_keep_tail`: of the sequences `rows`, each with so many tokens left, the first that can give `n` tokens to a physical
    /// batch without dividing their ends. Returns how many they give.
    pub(super) fn keep_ends_together(&self, rows: &mut Vec<SeqId>, left: &[usize], n: usize, n_ubatch: usize) -> usize {
        let together = self.n_kept_together();
        let divides = |left: &usize| *left > n && *left - n < together;
        let n_rows = left.iter().position(divides).unwrap_or(left.len());
        if n_rows > 0 {
            rows.truncate(n_rows);
            return n;
        }
        rows.truncate(1);
        if left[0] <= n_ubatch { left[0] } else { left[0] - together }
    }
}
