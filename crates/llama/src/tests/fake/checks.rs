//! Checks for batches that llama.cpp would refuse, or decode with logits that depend on the batch.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, FakeBackend};
use crate::SeqId;

impl FakeBackend {
    /// Panics on batches that llama.cpp refuses: tokens that do not follow the contents of their sequences, and sequences that
    /// diverge and share tokens again.
    pub(super) fn check_order(&self, new: &[Cell]) {
        let (mut next, mut sets) = (BTreeMap::new(), BTreeMap::new());
        for cell in new {
            for sequence in cell.all() {
                let next = next.entry(sequence).or_insert_with(|| self.len(sequence));
                assert_eq!(cell.position, *next, "a token of sequence {sequence} does not follow those before it");
                *next += 1;
                let set = sets.entry(sequence).or_insert(u64::MAX);
                *set &= cell.sequences;
                assert!(*set != 0, "sequence {sequence} shares tokens with changing sequences");
            }
        }
    }

    /// Panics if a token is alone in a physical batch, or in its buffer's part of one.
    pub(super) fn check_single_tokens(&self, new: &[Cell], parts: &[Vec<usize>]) {
        for part in parts {
            let mut of_buffer = BTreeMap::new();
            for index in part {
                *of_buffer.entry(if self.unified { 0 } else { new[*index].first() }).or_insert(0) += 1;
            }
            assert!(of_buffer.values().all(|n| *n > 1), "a token is decoded alone: {of_buffer:?}");
        }
    }

    /// Panics if many tokens of a sequence are split over physical batches differently than if they were alone in the batch.
    pub(super) fn check_batch_split(&self, new: &[Cell], parts: &[Vec<usize>]) {
        let sequences: BTreeSet<SeqId> = new.iter().map(Cell::first).filter(|_| !self.unified).collect();
        for sequence in sequences {
            let count = |part: &Vec<usize>| part.iter().filter(|index| new[**index].first() == sequence).count();
            let counts: Vec<usize> = parts.iter().map(count).filter(|count| *count > 0).collect();
            let n: usize = counts.iter().sum();
            let alone: Vec<Cell> = new.iter().filter(|cell| cell.first() == sequence).cloned().collect();
            let alone: Vec<usize> = self.split(&alone).iter().map(Vec::len).collect();
            // One of the tokens may be padding, hence 2.
            assert!(
                n < self.max_invariant_tokens.saturating_add(2) || alone == counts,
                "{n} tokens of sequence {sequence} are split: {counts:?}"
            );
        }
    }
}
