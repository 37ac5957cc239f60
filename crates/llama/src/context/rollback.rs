//! How far sequences can be rolled back.
//!
//! A KV cache has a cell for each token, so any token can be removed. A recurrent state represents all tokens before it. Some architectures
//! keep, beside the state after a batch, the states after each of the tokens before its last one (`n_rs_seq`). llama.cpp returns to one of
//! them without checking that the last batch had so many tokens, or that no other batch has overwritten them since; [`RemovableTokens`] does.
//!
//! llama.cpp puts the states of the sequences of a physical batch side by side. So it moves the states of other sequences, but not their
//! earlier states, not even of those that an earlier physical batch of the same decode had (see [`keeps_earlier_states`]).

use crate::{Batch, SeqId};

/// How many tokens can be removed from the end of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollback {
    /// Any number.
    Anywhere,
    /// At most this many, right after the batch that they were in, which had another token of the sequence before them, and once.
    Recent(usize),
    /// None: only the whole sequence can be removed.
    Never,
}

impl Rollback {
    /// For a memory with recurrent states, and this number of earlier states for each sequence.
    pub(super) fn of_states(n_earlier: usize) -> Rollback {
        if n_earlier > 0 { Rollback::Recent(n_earlier) } else { Rollback::Never }
    }

    /// The most tokens that can be removed after a batch in which another token came before them.
    pub fn max_tokens(self) -> usize {
        match self {
            Rollback::Anywhere => usize::MAX,
            Rollback::Recent(n) => n,
            Rollback::Never => 0,
        }
    }

    /// Whether any number of tokens can be removed at any time.
    pub fn is_unlimited(self) -> bool {
        self == Rollback::Anywhere
    }
}

impl Default for Rollback {
    /// As a KV cache.
    fn default() -> Rollback {
        Rollback::Anywhere
    }
}

/// How many tokens can be removed now from the end of each sequence of a memory with recurrent states.
#[derive(Debug)]
pub(crate) struct RemovableTokens {
    rollback: Rollback,
    /// By sequence id. Without [`Rollback::Recent`] it has no meaning.
    removable: Vec<usize>,
    /// The number of tokens of each sequence in the last batch. The next batch uses the memory again.
    n_decoded: Vec<usize>,
}

impl RemovableTokens {
    /// For a memory without tokens.
    pub(crate) fn new(rollback: Rollback, n_sequences: SeqId) -> RemovableTokens {
        let none = vec![0; usize::try_from(n_sequences).unwrap_or(0)];
        RemovableTokens { rollback, removable: none.clone(), n_decoded: none }
    }

    pub(super) fn rollback(&self) -> Rollback {
        self.rollback
    }

    /// Whether the last `n` tokens of `sequence` can be removed.
    pub(super) fn allows(&self, sequence: SeqId, n: usize) -> bool {
        let now = || usize::try_from(sequence).ok().and_then(|sequence| self.removable.get(sequence)).copied();
        match self.rollback {
            Rollback::Anywhere => true,
            Rollback::Recent(_) => n <= now().unwrap_or(0),
            Rollback::Never => n == 0,
        }
    }

    /// Tokens of `sequence` were removed, or its state was replaced.
    pub(super) fn changed(&mut self, sequence: SeqId) {
        if let Some(place) = usize::try_from(sequence).ok().and_then(|sequence| self.removable.get_mut(sequence)) {
            *place = 0;
        }
    }

    /// No sequence can be rolled back any more: a decode begins, which overwrites the earlier states of its sequences and can exchange those of
    /// others.
    pub(super) fn clear(&mut self) {
        self.removable.fill(0);
    }

    /// A batch was decoded, in physical batches of at most `n_ubatch` tokens. The last tokens of each of its sequences were in one of them.
    pub(super) fn decoded(&mut self, batch: &Batch, n_ubatch: usize) {
        let Rollback::Recent(most) = self.rollback else { return };
        self.n_decoded.fill(0);
        for sequence in &batch.sequences {
            if let Some(n) = usize::try_from(*sequence).ok().and_then(|at| self.n_decoded.get_mut(at)) {
                *n += 1;
            }
        }
        let n_tokens = self.n_decoded.iter().copied();
        for (sequence, (removable, n)) in self.removable.iter_mut().zip(n_tokens.clone()).enumerate() {
            // The state before the first token is not kept.
            let kept = if keeps_earlier_states(n_tokens.clone(), sequence, n_ubatch) { n.saturating_sub(1) } else { 0 };
            *removable = kept.min(most);
        }
    }
}

/// Whether the earlier states of a sequence are still in their place after a decode of `n_tokens` tokens of each sequence, in physical
/// batches of at most `n_ubatch` tokens. They are if no later physical batch of the decode has two sequences or more.
pub(super) fn keeps_earlier_states(
    n_tokens: impl Iterator<Item = usize> + Clone,
    sequence: usize,
    n_ubatch: usize,
) -> bool {
    let own = n_tokens.clone().nth(sequence).unwrap_or(0);
    if own == 0 {
        return true;
    }
    // All in one physical batch: the same number of tokens of consecutive sequences.
    let n_sequences = n_tokens.clone().skip_while(|n| *n == 0).take_while(|n| *n == own).count();
    if own * n_sequences == n_tokens.clone().sum::<usize>() && own * n_sequences <= n_ubatch {
        return true;
    }
    // Physical batches are filled from the first sequence on, so earlier sequences last longer only if they have more tokens.
    let may_be_later = |(other, n): &(usize, usize)| *n > 0 && (*other > sequence || *other < sequence && *n > own);
    n_tokens.enumerate().filter(may_be_later).count() < 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(n_tokens: &[(SeqId, usize)]) -> Batch {
        let mut batch = Batch::new();
        for (sequence, n) in n_tokens {
            (0..*n).for_each(|position| _ = batch.push(7, position, *sequence, false));
        }
        batch
    }

    #[test]
    fn tokens_of_the_last_batch_can_be_removed_once_except_its_first() {
        let mut removable = RemovableTokens::new(Rollback::Recent(3), 3);
        assert!(removable.allows(0, 0) && !removable.allows(0, 1));
        removable.decoded(&batch(&[(0, 3), (2, 9)]), 16);
        assert!(
            removable.allows(0, 2) && !removable.allows(0, 3),
            "the first token's state replaced the one before it"
        );
        assert!(removable.allows(1, 0) && !removable.allows(1, 1));
        assert!(removable.allows(2, 3) && !removable.allows(2, 4), "no more than there are states");
        removable.changed(2);
        assert!(!removable.allows(2, 1) && removable.allows(0, 2));
        removable.clear();
        assert!(!removable.allows(0, 1), "a decode can move the states of other sequences");
        removable.decoded(&batch(&[(1, 2)]), 16);
        assert!(removable.allows(1, 1) && !removable.allows(0, 1));
        assert!(!removable.allows(-1, 1) && !removable.allows(3, 1), "no such sequence");
    }

    #[test]
    fn later_physical_batches_of_several_sequences_move_earlier_states() {
        for (n_tokens, expected) in [
            (&[3, 7, 7][..], &[false, true, true][..]),
            (&[7, 7, 3], &[false, true, false]),
            (&[4, 4, 4, 4], &[true; 4]),
            (&[5, 5, 5, 5], &[false, false, true, true]),
            (&[4, 0, 4, 4], &[false, true, true, true]),
            (&[0, 9, 3], &[true; 3]),
            (&[30, 30, 3], &[false, true, false]),
            (&[0, 40], &[true; 2]),
            (&[0, 0], &[true; 2]),
        ] {
            let found: Vec<bool> =
                (0..n_tokens.len()).map(|at| keeps_earlier_states(n_tokens.iter().copied(), at, 16)).collect();
            assert_eq!(found, expected, "{n_tokens:?}");
        }
    }

    #[test]
    fn other_memories_allow_all_or_nothing() {
        let decoded = |rollback| {
            let mut removable = RemovableTokens::new(rollback, 1);
            removable.decoded(&batch(&[(0, 5)]), 16);
            removable
        };
        assert!(decoded(Rollback::Anywhere).allows(0, 100));
        assert!(decoded(Rollback::Never).allows(0, 0) && !decoded(Rollback::Never).allows(0, 1));
        assert_eq!(Rollback::of_states(0), Rollback::Never);
    }
}
