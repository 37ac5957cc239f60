//! The strings across which DRY sees no repetition, as tokens.

use super::outside::Words;
use crate::error::Result;
use crate::llama::Token;

/// Longer breakers are cut, as in llama.cpp.
const MAX_BYTES: usize = 40;
/// Longer tails are cut, as in llama.cpp; it keeps the search for breakers linear.
const MAX_TAIL: usize = 20;

/// Every way in which a breaker can begin in a token, as llama.cpp finds them: a token that contains the breaker
/// ends the search by itself; one that ends with a beginning of the breaker must be followed by the tail, the
/// tokens of the rest of the breaker.
#[derive(Debug, Clone, Default)]
pub(super) struct Breakers {
    /// Head and tail, sorted by head.
    sequences: Vec<(Token, Vec<Token>)>,
    /// For each token whether it is a head, to ask cheaply.
    is_head: Vec<bool>,
}

impl Breakers {
    /// Looks through all pieces of the vocabulary for `strings`; empty ones are passed over.
    pub(super) fn find(strings: &[String], words: &impl Words) -> Result<Self> {
        let mut sequences = Vec::new();
        for text in strings.iter().map(|text| text.as_bytes()) {
            let text = text.get(..MAX_BYTES).unwrap_or(text);
            let Some(&first) = text.first() else { continue };
            // The tail after n bytes of the breaker, tokenized when it is first needed.
            let mut tails: Vec<Option<Vec<Token>>> = vec![None; text.len()];
            for (id, word) in (0..words.n_tokens()).map(|index| (index as Token, words.piece(index as Token))) {
                if word.windows(text.len()).any(|part| part == text) {
                    sequences.push((id, Vec::new()));
                    continue;
                }
                let starts = word.iter().enumerate().filter(|(_, byte)| **byte == first);
                for end in starts.filter_map(|(at, _)| word.get(at..)).filter(|end| text.starts_with(end)) {
                    let Some(slot) = tails.get_mut(end.len()) else { continue };
                    let tail = match slot {
                        Some(tail) => tail,
                        None => {
                            let mut tail = words.tokenize(text.get(end.len()..).unwrap_or(&[]))?;
                            tail.truncate(MAX_TAIL);
                            slot.insert(tail)
                        }
                    };
                    sequences.push((id, tail.clone()));
                }
            }
        }
        Ok(Self::from_sequences(sequences, words.n_tokens()))
    }

    /// From (head, tail) pairs in any order.
    pub(super) fn from_sequences(mut sequences: Vec<(Token, Vec<Token>)>, n_vocab: usize) -> Self {
        sequences.sort();
        sequences.dedup();
        let mut is_head = vec![false; n_vocab];
        for (head, _) in &sequences {
            if let Some(flag) = usize::try_from(*head).ok().and_then(|index| is_head.get_mut(index)) {
                *flag = true;
            }
        }
        Breakers { sequences, is_head }
    }

    /// The tails that may follow `head`; none when it begins no breaker.
    fn tails(&self, head: Token) -> impl Iterator<Item = &[Token]> {
        let is_head = usize::try_from(head).ok().and_then(|index| self.is_head.get(index)).copied().unwrap_or(false);
        let start = if is_head { self.sequences.partition_point(|(other, _)| *other < head) } else { usize::MAX };
        let from_here = self.sequences.get(start..).unwrap_or(&[]);
        from_here.iter().take_while(move |(other, _)| *other == head).map(|(_, tail)| tail.as_slice())
    }

    /// Whether `token` contains a whole breaker.
    pub(super) fn contains_one(&self, token: Token) -> bool {
        self.tails(token).any(<[Token]>::is_empty)
    }

    /// How many tokens follow the last breaker in `window`; `None` when there is no breaker in it. Of several tails
    /// that follow the same head the longest counts.
    pub(super) fn distance(&self, window: &[Token]) -> Option<usize> {
        window.iter().enumerate().rev().find_map(|(at, head)| {
            let following = window.get(at + 1..).unwrap_or(&[]);
            let tails = self.tails(*head).filter(|tail| following.starts_with(tail));
            tails.map(<[Token]>::len).max().map(|longest| following.len() - longest)
        })
    }
}

#[cfg(test)]
#[path = "breakers_tests.rs"]
mod tests;
