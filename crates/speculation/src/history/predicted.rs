//! A predicted output, and where its n-grams are.

use std::cmp::Ordering;

use foredraft_base::Token;

/// The longest n-gram that is indexed.
pub const MAX_PREDICTED_N: usize = 3;

/// A predicted output with the positions of its n-grams.
#[derive(Debug, PartialEq)]
pub struct Predicted {
    pub(super) text: Vec<Token>,
    /// The positions of the 1-, 2- and 3-grams, sorted by the n-gram, then by position.
    positions: [Vec<u32>; MAX_PREDICTED_N],
}

impl From<Vec<Token>> for Predicted {
    fn from(text: Vec<Token>) -> Predicted {
        let positions = [1, 2, 3].map(|n| {
            let mut sorted: Vec<u32> = (0_u32..).zip(text.windows(n)).map(|(at, _)| at).collect();
            sorted.sort_unstable_by_key(|at| (ngram_at(&text, *at, n), *at));
            sorted
        });
        Predicted { text, positions }
    }
}

impl Predicted {
    /// The first position of `ngram`, 1 to [`MAX_PREDICTED_N`] tokens, from `from` on, at most `near` tokens ahead. If `near` is unlimited
    /// and there is none, the last position before `from`.
    pub(super) fn nearest(&self, ngram: &[Token], from: usize, near: usize) -> Option<usize> {
        let sorted = self.positions.get(ngram.len().checked_sub(1)?)?;
        let order = |at: &u32| ngram_at(&self.text, *at, ngram.len()).cmp(ngram).then(index(*at).cmp(&from));
        let middle = sorted.partition_point(|at| order(at) == Ordering::Less);
        let position = |place: Option<usize>| {
            let at = *sorted.get(place?)?;
            (ngram_at(&self.text, at, ngram.len()) == ngram).then_some(index(at))
        };
        let ahead = position(Some(middle)).filter(|position| position - from <= near);
        ahead.or_else(|| position(middle.checked_sub(1)).filter(|_| near == usize::MAX))
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn ngram_at(text: &[Token], at: u32, n: usize) -> &[Token] {
    text.get(index(at)..).and_then(|rest| rest.get(..n)).unwrap_or(&[])
}
