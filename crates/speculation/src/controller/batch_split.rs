//! The division of a batch into physical batches by llama.cpp, for predicting a step's cost.
//!
//! With one KV buffer for all sequences (or one slot), a batch is divided into pieces of `n_ubatch` tokens (`split_simple`). With a buffer
//! for each sequence, it is divided into rectangles (`split_equal`): consecutive sequence ids with the same number of tokens each. So 4
//! slots with 4, 4, 3 and 4 tokens take three forward passes: 4 x 3, then 2 x 1, then 1 x 1. With recurrent states there are always rectangles,
//! and the last tokens of a sequence stay in one of them (`n_keep_tail`), so the same slots take a pass each.

/// The division of batches in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSplit {
    /// Pieces of `n_ubatch` tokens of any sequence.
    Whole {
        /// The maximum number of tokens of a physical batch.
        n_ubatch: usize,
    },
    /// The batch is divided into rectangles.
    Rectangles {
        /// The maximum number of tokens of a physical batch.
        n_ubatch: usize,
        /// Each sequence gets an even number of tokens by padding.
        padding: SequencePadding,
    },
    /// The batch is divided into rectangles that do not divide the ends of sequences.
    Ends {
        /// The maximum number of tokens of a physical batch.
        n_ubatch: usize,
        /// The number of last tokens of a sequence that stay together. 0: none need to.
        n_together: usize,
        /// Is true if a rectangle has only consecutive sequence ids.
        is_consecutive: bool,
    },
}

/// The sequences with an odd number of tokens that get a padding token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequencePadding {
    /// None.
    Never,
    /// All.
    Always,
    /// All, unless the batch has one token of each of several sequences.
    UnlessOneEach,
}

impl Default for BatchSplit {
    fn default() -> Self {
        BatchSplit::Whole { n_ubatch: usize::MAX }
    }
}

impl BatchSplit {
    /// Whether sequences are decoded in rectangles.
    pub fn is_rectangular(self) -> bool {
        matches!(self, BatchSplit::Rectangles { .. } | BatchSplit::Ends { .. })
    }

    /// The sizes of the physical batches, in order, for these numbers of tokens of each sequence id (0: none).
    pub fn for_each(self, n_tokens: impl Fn(usize) -> usize, n_sequences: usize, mut physical: impl FnMut(usize)) {
        match self {
            BatchSplit::Whole { n_ubatch } => {
                let mut left: usize = (0..n_sequences).map(n_tokens).sum();
                while left > 0 {
                    let n = left.min(n_ubatch.max(1));
                    physical(n);
                    left -= n;
                }
            }
            BatchSplit::Rectangles { n_ubatch, padding } => {
                let all = (0..n_sequences)
                    .map(&n_tokens)
                    .fold((0, 0), |(n, most), tokens| (n + usize::from(tokens > 0), most.max(tokens)));
                let pads = match padding {
                    SequencePadding::Never => false,
                    SequencePadding::Always => true,
                    SequencePadding::UnlessOneEach => all.0 < 2 || all.1 > 1,
                };
                let padded = |at: usize| {
                    let n = n_tokens(at);
                    if pads { n.next_multiple_of(2) } else { n }
                };
                rectangles(&padded, 0..n_sequences, 0, n_ubatch.max(1), &mut physical);
            }
            BatchSplit::Ends { n_ubatch, n_together, is_consecutive } => {
                let mut left: Vec<usize> = (0..n_sequences).map(n_tokens).collect();
                while let Some((rows, columns)) = next_rectangle(&left, n_ubatch, n_together, is_consecutive) {
                    physical(rows.len() * columns);
                    for row in rows {
                        if let Some(left) = left.get_mut(row) {
                            *left -= columns;
                        }
                    }
                }
            }
        }
    }
}

/// The sequences of the next rectangle, of which so many tokens are left each, and how many tokens of each it has.
fn next_rectangle(
    left: &[usize],
    n_ubatch: usize,
    n_together: usize,
    is_consecutive: bool,
) -> Option<(Vec<usize>, usize)> {
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for (row, n) in left.iter().copied().enumerate().filter(|(_, n)| *n > 0) {
        if rows.last().is_none_or(|(last, _)| !is_consecutive || row == last + 1) {
            rows.push((row, n));
        }
    }
    let (first, all) = *rows.first()?;
    let shortest = rows.iter().map(|(_, n)| *n).min()?;
    let columns = shortest.min(n_ubatch / rows.len()).max(1);
    let is_divided = |n: usize| n > columns && n - columns < n_together;
    let whole: Vec<usize> = rows.iter().take_while(|(_, n)| !is_divided(*n)).map(|(row, _)| *row).collect();
    if whole.is_empty() {
        let columns = if all <= n_ubatch.max(n_together) { all } else { all - n_together };
        return Some((vec![first], columns));
    }
    Some((whole, columns))
}

/// The rectangles of the sequences in `range`, without the first `done` tokens of each.
fn rectangles(
    n_tokens: &impl Fn(usize) -> usize,
    range: std::ops::Range<usize>,
    done: usize,
    n_ubatch: usize,
    physical: &mut impl FnMut(usize),
) {
    let mut at = range.start;
    while at < range.end {
        let first = n_tokens(at);
        if first <= done {
            at += 1;
            continue;
        }
        let (begin, mut shortest, mut longest) = (at, first, first);
        at += 1;
        while at < range.end {
            let n = n_tokens(at);
            if n <= done {
                break;
            }
            (shortest, longest) = (shortest.min(n), longest.max(n));
            at += 1;
        }
        let rows = at - begin;
        let mut left = shortest - done;
        while left > 0 {
            let columns = left.min(n_ubatch / rows).max(1);
            physical(rows * columns);
            left -= columns;
        }
        if longest > shortest {
            rectangles(n_tokens, begin..at, shortest, n_ubatch, physical);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(split: BatchSplit, n_tokens: &[usize]) -> Vec<usize> {
        let mut sizes = Vec::new();
        split.for_each(|at| n_tokens[at], n_tokens.len(), |size| sizes.push(size));
        sizes
    }

    #[test]
    fn equal_lengths_of_consecutive_sequences_are_one_physical_batch() {
        let split = BatchSplit::Rectangles { n_ubatch: 64, padding: SequencePadding::Never };
        for (n_tokens, expected) in [
            (&[1, 1, 1, 1][..], &[4][..]),
            (&[4, 4, 3, 4], &[12, 2, 1]),
            (&[4, 4, 4, 4], &[16]),
            (&[1, 0, 1, 1], &[1, 2]),
            (&[5, 1, 1, 1], &[4, 4]),
            (&[0, 0], &[]),
            (&[20, 20, 20, 20], &[64, 16]),
        ] {
            assert_eq!(sizes(split, n_tokens), expected, "{n_tokens:?}");
        }
        let whole = BatchSplit::Whole { n_ubatch: 8 };
        assert_eq!(sizes(whole, &[4, 4, 3, 0, 4]), [8, 7]);
    }

    #[test]
    fn ends_of_sequences_with_recurrent_states_are_not_divided() {
        let split = |n_together, is_consecutive| BatchSplit::Ends { n_ubatch: 16, n_together, is_consecutive };
        assert_eq!(sizes(split(5, true), &[4, 4, 3, 4]), [4, 4, 3, 4], "the first ones are longer than the shortest");
        assert_eq!(sizes(split(5, true), &[3, 3, 4, 4]), [6, 8]);
        assert_eq!(sizes(split(5, true), &[1, 0, 1, 1]), [1, 2]);
        assert_eq!(sizes(split(5, false), &[1, 0, 1, 1]), [3]);
        assert_eq!(sizes(split(0, true), &[4, 4, 3, 4]), [12, 2, 1]);
        assert_eq!(sizes(split(5, true), &[19]), [14, 5], "16 tokens would leave 3");
        assert_eq!(sizes(split(5, true), &[40]), [16, 16, 8]);
        assert_eq!(sizes(split(5, true), &[0, 0]), []);
    }

    #[test]
    fn padding_makes_numbers_even() {
        let split = |padding| BatchSplit::Rectangles { n_ubatch: 64, padding };
        assert_eq!(sizes(split(SequencePadding::Always), &[1, 1, 3]), [6, 2]);
        assert_eq!(sizes(split(SequencePadding::Always), &[3, 4]), [8]);
        assert_eq!(sizes(split(SequencePadding::UnlessOneEach), &[1, 1, 1]), [3]);
        assert_eq!(sizes(split(SequencePadding::UnlessOneEach), &[0, 1, 0]), [2]);
        assert_eq!(sizes(split(SequencePadding::UnlessOneEach), &[1, 2, 1]), [6]);
    }
}
