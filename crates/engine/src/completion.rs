//! The completion of a request: its text, when it ends, and what of it has been sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compare::Compare;
use super::event::{Generated, Stop};
use super::request::RequestOptions;
use super::text::TextStream;
use foredraft_llama::{Token, Vocab};
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::DrafterKind;

/// The generated tokens of a request and their text.
pub(super) struct Completion {
    text: TextStream,
    n_predicted: usize,
    /// Most tokens; `None`: until the model ends the completion.
    n_predict: Option<usize>,
    /// See [`RequestOptions::t_max_predict`].
    t_max_predict: Option<Duration>,
    /// How many tokens' probabilities are reported.
    pub(super) n_probs: usize,
    /// See [`RequestOptions::post_sampling_probs`].
    pub(super) post_sampling_probs: bool,
    /// See [`RequestOptions::special`].
    special: bool,
    /// See [`RequestOptions::preserved_tokens`].
    preserved: Arc<[Token]>,
    pub(super) seed: u32,
    /// The RNG counter of the first generated token.
    pub(super) seed_position: usize,
    pub(super) compare: Option<Compare>,
    unsent: Vec<Generated>,
    clock: CompletionClock,
}

struct CompletionClock {
    start: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Why a completion ends with a token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CompletionEnd {
    pub(super) stop: Stop,
    /// Where the text ends, in bytes, if a stop string ends it.
    pub(super) text_end: Option<usize>,
}

impl From<Stop> for CompletionEnd {
    fn from(stop: Stop) -> CompletionEnd {
        CompletionEnd { stop, text_end: None }
    }
}

impl Completion {
    /// An empty completion. Takes `stop` out of `options`.
    pub(super) fn new(
        options: &mut RequestOptions,
        sampling: &SamplingSettings,
        seed_position: usize,
        compare: Option<Compare>,
    ) -> Completion {
        Completion {
            text: TextStream::new(std::mem::take(&mut options.stop)).cutting_begun_stop(options.cuts_begun_stop),
            n_predicted: 0,
            n_predict: options.n_predict,
            t_max_predict: options.t_max_predict,
            n_probs: sampling.n_probs,
            post_sampling_probs: options.post_sampling_probs,
            special: options.special,
            preserved: Arc::clone(&options.preserved_tokens),
            seed: sampling.seed,
            seed_position,
            compare,
            unsent: Vec::new(),
            clock: CompletionClock { start: Instant::now(), first_token: None, last_token: None },
        }
    }

    /// Tokens generated.
    pub(super) fn n_predicted(&self) -> usize {
        self.n_predicted
    }

    /// Bytes of the text, those after a stop string included.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether tokens are being generated.
    pub(super) fn has_begun(&self) -> bool {
        self.clock.first_token.is_some()
    }

    /// Whether the request wants no tokens.
    pub(super) fn is_empty_by_request(&self) -> bool {
        self.n_predict == Some(0)
    }

    /// The RNG counter of the token number `index` from now on.
    pub(super) fn rng_counter(&self, index: usize) -> usize {
        self.seed_position.saturating_add(self.n_predicted).saturating_add(index)
    }

    /// How many tokens may still be generated; at least one while the request runs.
    pub(super) fn remaining(&self) -> usize {
        self.n_predict.map_or(usize::MAX, |n_predict| n_predict.saturating_sub(self.n_predicted).max(1))
    }

    /// Whether this is the second run of a comparison, about which nothing is reported.
    pub(super) fn is_repeated(&self) -> bool {
        self.compare.as_ref().is_some_and(Compare::is_second)
    }

    /// Whether the completion ends with `token`, after `n_new` tokens with the bytes `added` that are verified and not committed yet.
    /// Adds the token's bytes to `added`. Changes nothing here.
    pub(super) fn end_after(
        &self,
        n_new: usize,
        added: &mut Vec<u8>,
        token: Token,
        vocab: &Vocab,
    ) -> Option<CompletionEnd> {
        if self.compare.as_ref().is_some_and(|compare| compare.ends_with(token)) {
            return Some(Stop::Limit.into());
        }
        let is_preserved = self.preserved.binary_search(&token).is_ok();
        let is_eog = vocab.is_eog(token);
        let piece = vocab.shown(token, self.special || is_preserved);
        if is_eog && !self.special {
            added.extend_from_slice(if is_preserved { piece } else { &[] });
            return Some(Stop::Eos.into());
        }
        let n_checked = added.len();
        added.extend_from_slice(piece);
        if let Some((end, word)) = self.text.stop_in(added, n_checked) {
            return Some(CompletionEnd { stop: Stop::Word(word.to_owned()), text_end: Some(end) });
        }
        if is_eog {
            return Some(Stop::Eos.into());
        }
        // As llama-server: a line is not broken off.
        if self.t_max_predict.is_some_and(|most| self.time_since_first() > most) && piece.contains(&b'\n') {
            return Some(Stop::Limit.into());
        }
        let n_predicted = self.n_predicted + n_new + 1;
        self.n_predict.filter(|n_predict| n_predicted >= *n_predict).map(|_| Stop::Limit.into())
    }

    fn time_since_first(&self) -> Duration {
        self.clock.first_token.map_or(Duration::ZERO, |first| first.elapsed())
    }

    /// Appends verified tokens and the bytes that they add to the text. `logit_gap`: see [`Compare::logit_gap`].
    pub(super) fn append(
        &mut self,
        tokens: &mut Vec<Generated>,
        added: &[u8],
        end: Option<&CompletionEnd>,
        logit_gap: Option<f32>,
    ) {
        if tokens.is_empty() {
            return;
        }
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        self.clock.last_token = Some(now);
        if let Some(compare) = &mut self.compare {
            tokens.iter().for_each(|token| compare.committed(token.token, logit_gap));
        }
        self.n_predicted += tokens.len();
        self.unsent.append(tokens);
        self.text.append(added);
        if let Some(end) = end.and_then(|end| end.text_end) {
            self.text.end_at(end);
        }
    }

    /// Begins with tokens of an earlier run, which add these bytes to the text.
    pub(super) fn resume(&mut self, prefix: &[Token], added: &[u8]) {
        let mut tokens: Vec<Generated> = prefix
            .iter()
            .map(|token| Generated { token: *token, source: DrafterKind::Target, start: 0, probs: None })
            .collect();
        self.append(&mut tokens, added, None, None);
    }

    /// Takes the text that may be sent, with its tokens; `None`: there is none.
    pub(super) fn take(&mut self) -> Option<(String, Vec<Generated>)> {
        let text = self.text.take();
        (!text.is_empty()).then(|| (text, begun_before(self.text.sent(), &mut self.unsent)))
    }

    /// Takes the rest when the completion has ended: text, tokens, and where the text ends, in bytes.
    pub(super) fn take_rest(&mut self) -> (String, Vec<Generated>, usize) {
        (self.text.finish(), std::mem::take(&mut self.unsent), self.text.end())
    }

    /// The time since the request got its slot.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.start.elapsed()
    }

    /// The times from the start to the first token, and from that to the last one.
    pub(super) fn times(&self) -> (Duration, Duration) {
        let first = self.clock.first_token.unwrap_or_else(Instant::now);
        let last = self.clock.last_token.unwrap_or(first);
        (first.saturating_duration_since(self.clock.start), last.saturating_duration_since(first))
    }
}

/// Takes the tokens whose text begins before `end`: later ones may be part of a stop string.
pub(super) fn begun_before(end: usize, tokens: &mut Vec<Generated>) -> Vec<Generated> {
    let n = tokens.partition_point(|token| token.start < end);
    tokens.drain(..n).collect()
}
