//! The answers that preparations have begun, until the next request of the same conversation or slot comes. Plain data.

use std::collections::VecDeque;
use std::sync::Arc;

use super::request::PreparedPlace;
use foredraft_llama::Token;

/// The tokens of a begun answer.
pub(super) struct BegunAnswer {
    pub(super) place: PreparedPlace,
    /// See [`Request::identity`](super::Request::identity).
    pub(super) identity: u64,
    pub(super) tokens: Vec<Token>,
}

/// Begun answers, one of each place. Together they have at most `limit` tokens.
pub(super) struct BegunAnswers {
    limit: usize,
    /// The oldest first.
    answers: VecDeque<BegunAnswer>,
}

impl BegunAnswers {
    pub(super) fn new(limit: usize) -> BegunAnswers {
        BegunAnswers { limit, answers: VecDeque::new() }
    }

    /// Keeps an answer in place of the earlier one, and drops the oldest ones beyond the limit.
    pub(super) fn keep(&mut self, answer: BegunAnswer) {
        self.answers.retain(|other| other.place != answer.place);
        if !answer.tokens.is_empty() {
            self.answers.push_back(answer);
        }
        while self.answers.iter().map(|answer| answer.tokens.len()).sum::<usize>() > self.limit {
            self.answers.pop_front();
        }
    }

    /// Takes the answer of a place out. Returns its tokens if they are those of a request of this identity, else none.
    pub(super) fn take(&mut self, place: &PreparedPlace, identity: u64) -> Arc<[Token]> {
        let at = self.answers.iter().position(|answer| answer.place == *place);
        let answer = at.and_then(|at| self.answers.remove(at)).filter(|answer| answer.identity == identity);
        answer.map_or_else(Arc::default, |answer| answer.tokens.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(slot: usize, identity: u64, n_tokens: usize) -> BegunAnswer {
        BegunAnswer { place: PreparedPlace::Slot(slot), identity, tokens: vec![identity as Token; n_tokens] }
    }

    #[test]
    fn an_answer_is_taken_once_and_only_by_the_same_request() {
        let mut answers = BegunAnswers::new(100);
        answers.keep(answer(0, 7, 3));
        answers.keep(answer(1, 8, 3));
        assert!(answers.take(&PreparedPlace::Slot(0), 8).is_empty(), "another request");
        assert!(answers.take(&PreparedPlace::Slot(0), 7).is_empty(), "which has dropped it");
        assert_eq!(*answers.take(&PreparedPlace::Slot(1), 8), [8; 3]);
        assert!(answers.take(&PreparedPlace::Slot(1), 8).is_empty());
    }

    #[test]
    fn the_newest_answers_stay_within_the_limit() {
        let mut answers = BegunAnswers::new(10);
        (0..4).for_each(|slot| answers.keep(answer(slot, slot as u64, 4)));
        answers.keep(answer(3, 9, 5));
        answers.keep(answer(2, 0, 0));
        let left: Vec<usize> = (0..4).map(|slot| answers.take(&PreparedPlace::Slot(slot), 9).len()).collect();
        assert_eq!(left, [0, 0, 0, 5]);
        answers.keep(answer(0, 1, 11));
        assert!(answers.take(&PreparedPlace::Slot(0), 1).is_empty(), "longer than all may be");
    }
}
