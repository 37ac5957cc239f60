//! Beam search over any model: which completions are extended. Pure: the model's rows come as lists of candidates.

use std::cmp::Ordering;

use foredraft_llama::Token;

/// A completion that is being extended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beam<T> {
    /// The sum of its tokens' log-probabilities.
    pub logprob: f64,
    /// The caller's data.
    pub text: T,
}

/// A token that may follow a beam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BeamCandidate {
    /// Index of the beam.
    pub beam: usize,
    /// The token.
    pub token: Token,
    /// Its log-probability.
    pub logprob: f64,
}

/// The `width` most probable completions so far, and the best one that has ended.
///
/// The answer is the completion with the highest log-probability, which never rises as a completion grows. So the search is over when
/// the best one that has ended is at least as probable as all that have not. With `width` as large as the number of
/// completions, nothing is cut off and the answer is the most probable completion of all.
#[derive(Debug)]
pub(super) struct Search<T> {
    width: usize,
    /// Most probable first.
    pub live: Vec<Beam<T>>,
    /// The best completion that has ended.
    pub best: Option<Beam<T>>,
}

impl<T: Clone> Search<T> {
    /// A search that begins with one completion; `width` is at least 1.
    pub fn new(width: usize, text: T) -> Search<T> {
        Search { width, live: vec![Beam { logprob: 0.0, text }], best: None }
    }

    /// The width of the search.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Extends the best candidates. For each beam they must hold its `width` most probable tokens that do not end
    /// it, and all that do and may matter. `extend` adds a token to a completion and returns whether that ends it.
    ///
    /// Returns, for each beam, the index of the one that it continues.
    pub fn advance(
        &mut self,
        candidates: &mut [BeamCandidate],
        mut extend: impl FnMut(&T, &BeamCandidate) -> (T, bool),
    ) -> Vec<usize> {
        let of = |candidate: &BeamCandidate, live: &[Beam<T>]| {
            live.get(candidate.beam).map_or(f64::NEG_INFINITY, |beam| beam.logprob) + candidate.logprob
        };
        // Sorts equals by the better beam, then by the lower token: always the same.
        candidates.sort_by(|a, b| {
            let order = of(b, &self.live).total_cmp(&of(a, &self.live));
            order.then(a.beam.cmp(&b.beam)).then(a.token.cmp(&b.token))
        });
        let (mut live, mut parents) = (Vec::with_capacity(self.width), Vec::with_capacity(self.width));
        for candidate in candidates.iter() {
            let logprob = of(candidate, &self.live);
            if live.len() == self.width || logprob == f64::NEG_INFINITY || self.is_beaten(logprob) {
                break;
            }
            let Some(parent) = self.live.get(candidate.beam) else { continue };
            let (text, ended) = extend(&parent.text, candidate);
            let beam = Beam { logprob, text };
            if ended {
                self.best = Some(beam); // nothing better has ended, see above
            } else {
                live.push(beam);
                parents.push(candidate.beam);
            }
        }
        self.live = live;
        parents
    }

    /// Whether a completion of this log-probability cannot become the answer.
    fn is_beaten(&self, logprob: f64) -> bool {
        self.best.as_ref().is_some_and(|best| best.logprob >= logprob)
    }

    /// Whether the answer is known: no beam can become better.
    pub fn is_over(&self) -> bool {
        self.live.is_empty()
    }

    /// The most probable completion, ended or not.
    pub fn answer(&self) -> Option<&Beam<T>> {
        let better = |a: &&Beam<T>, b: &&Beam<T>| a.logprob.partial_cmp(&b.logprob).unwrap_or(Ordering::Equal);
        self.live.first().into_iter().chain(&self.best).max_by(better)
    }

    /// All completions that may become the answer.
    pub fn texts(&self) -> impl Iterator<Item = &T> {
        self.live.iter().chain(&self.best).map(|beam| &beam.text)
    }
}

#[cfg(test)]
mod tests;
