//! A request in a slot: its tokens, its text, its statistics.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use super::compare::Compare;
use super::event::{
    Event, Generated, Outcome, Progress, PromptStats, Restored, SpeculationStats, Stop, Timings, Update,
};
use super::request::Options;
use super::request_handle::TextSink;
use super::text::TextStream;
use crate::llama::{Token, Vocab};
use crate::sampling::{self, Sampler, TokenProbs};
use crate::speculative::verify::Residual;
use crate::speculative::{Adaptive, DraftOutcome, DrafterKind, Settings};

/// A request that ends within a character may go on for so many tokens to complete it.
const MAX_EXTRA: usize = 3;
/// Of what shifts drop, so many tokens are kept for those who learn from texts; when there are more, the older half goes.
const MAX_DROPPED: usize = 1 << 20;

/// What a slot works on.
pub(super) struct Task {
    pub(super) sink: TextSink,
    /// The whole context: prompt and generated tokens. Those beyond the slot's cache are to be evaluated.
    pub(super) tokens: Vec<Token>,
    pub(super) sampler: Sampler,
    /// How many tokens' probabilities are reported.
    pub(super) n_probs: usize,
    /// The request's options, except for `stop`, which `text` has.
    pub(super) options: Options,
    /// Tokens that a context shift keeps.
    pub(super) n_keep: usize,
    pub(super) deadline: Option<Instant>,
    pub(super) speculation: Option<Speculation>,
    pub(super) text: TextStream,
    pub(super) prompt: PromptStats,
    pub(super) n_predicted: usize,
    pub(super) seed: u32,
    /// The position in the noise of the first generated token.
    pub(super) seed_position: usize,
    pub(super) session_load: Option<Restored>,
    pub(super) compare: Option<Compare>,
    pub(super) truncated: bool,
    /// Waits for room in the KV cache: its own part was given to older requests.
    pub(super) paused: bool,
    /// Where in `tokens` the generated ones begin, as far as they are still in the context.
    output: usize,
    dropped: Dropped,
    unsent: Vec<Generated>,
    clock: Clock,
}

/// What shifts dropped of a task's tokens.
#[derive(Default)]
struct Dropped {
    /// In its order; of very much only the end.
    tokens: Vec<Token>,
    /// How much in all.
    n: usize,
    /// Where in the task's tokens it was.
    at: usize,
}

/// What speculation needs of a request.
pub(super) struct Speculation {
    /// Whether the request asked for it. Else there is nothing but guesses (see [`Drafters::guess`]), and nobody is told.
    ///
    /// [`Drafters::guess`]: crate::speculative::Drafters::guess
    pub(super) asked: bool,
    pub(super) settings: Settings,
    pub(super) stats: SpeculationStats,
    /// What a rule that compares probabilities works with.
    pub(super) scratch: Option<StochasticScratch>,
}

/// See [`Speculation::scratch`].
pub(super) struct StochasticScratch {
    /// The request's sampler, as it would be behind drafted tokens.
    pub(super) ahead: Sampler,
    pub(super) residual: Residual,
    /// What each drafted token's row gave it in the last step.
    pub(super) listed: Vec<f32>,
}

/// Takes the tokens whose text begins before `end`: those behind may be of a stop string.
pub(super) fn begun_before(end: usize, tokens: &mut Vec<Generated>) -> Vec<Generated> {
    let n = tokens.partition_point(|token| token.start < end);
    tokens.drain(..n).collect()
}

struct Clock {
    start: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Task {
    /// A task that nothing was generated for yet; `tokens` are what is evaluated of the prompt.
    pub(super) fn new(
        sink: TextSink,
        mut options: Options,
        tokens: Vec<Token>,
        prompt: PromptStats,
        sampler: Sampler,
        settings: &sampling::SamplingSettings,
    ) -> Task {
        Task {
            sink,
            text: TextStream::new(std::mem::take(&mut options.stop)),
            n_keep: prompt.n_prompt,
            options,
            output: tokens.len(),
            tokens,
            truncated: prompt.truncated,
            prompt,
            sampler,
            n_probs: settings.n_probs,
            seed: settings.seed,
            seed_position: 0,
            deadline: None,
            speculation: None,
            n_predicted: 0,
            session_load: None,
            compare: None,
            paused: false,
            dropped: Dropped::default(),
            unsent: Vec::new(),
            clock: Clock { start: Instant::now(), first_token: None, last_token: None },
        }
    }

    /// Whether the prompt is evaluated and tokens are being generated.
    pub(super) fn is_generating(&self) -> bool {
        self.clock.first_token.is_some()
    }

    /// The position in the noise of the next token.
    pub(super) fn position(&self) -> usize {
        self.seed_position.saturating_add(self.n_predicted)
    }

    /// How many tokens may still be generated; at least one while the request runs.
    pub(super) fn remaining(&self) -> usize {
        self.options.n_predict.map_or(usize::MAX, |n_predict| n_predict.saturating_sub(self.n_predicted).max(1))
    }

    /// Takes a generated token into context and text. Returns why the request ends with it, if it does.
    pub(super) fn generated(
        &mut self,
        token: Token,
        source: DrafterKind,
        probs: Option<TokenProbs>,
        vocab: &Vocab,
    ) -> Option<Stop> {
        let now = Instant::now();
        if self.clock.first_token.is_none() {
            self.sink.set_generating();
        }
        let elapsed = now.duration_since(*self.clock.first_token.get_or_insert(now));
        self.clock.last_token = Some(now);
        self.tokens.push(token);
        self.n_predicted += 1;
        self.unsent.push(Generated { token, source, start: self.text.len(), probs });
        if self.compare.as_mut().is_some_and(|compare| compare.generated(token)) {
            return Some(Stop::Limit);
        }
        if vocab.is_eog(token) {
            return Some(Stop::Eos);
        }
        let piece = vocab.text(token);
        if let Some(word) = self.text.push(piece) {
            return Some(Stop::Word(word.to_owned()));
        }
        // As llama-server: a line is not broken off.
        if self.options.t_max_predict.is_some_and(|most| elapsed > most) && piece.contains(&b'\n') {
            return Some(Stop::Limit);
        }
        let n_predict = self.options.n_predict.filter(|n_predict| self.n_predicted >= *n_predict)?;
        let unfinished = self.text.is_inside_character() && self.n_predicted < n_predict + MAX_EXTRA;
        (!unfinished).then_some(Stop::Limit)
    }

    /// Whether this is the second run of a comparison, which nobody is told of.
    pub(super) fn is_repeated(&self) -> bool {
        self.compare.as_ref().is_some_and(Compare::is_second)
    }

    /// The generated tokens that are still in the context.
    pub(super) fn output(&self) -> &[Token] {
        self.tokens.get(self.output..).unwrap_or(&[])
    }

    /// The text without what shifts made of it (of very long ones the end), and how many tokens of it were generated.
    pub(super) fn whole_text(&self) -> (Cow<'_, [Token]>, usize) {
        if self.dropped.tokens.is_empty() {
            return (Cow::Borrowed(&self.tokens), self.output().len());
        }
        let (kept, rest) = self.tokens.split_at(self.dropped.at.min(self.tokens.len()));
        let kept = if self.dropped.n > self.dropped.tokens.len() { &[] } else { kept };
        let text = [kept, &self.dropped.tokens, rest].concat();
        let generated = self.n_predicted.min(text.len());
        (Cow::Owned(text), generated)
    }

    /// The context has shifted: these positions of it are gone. They always begin at the same one.
    pub(super) fn shift(&mut self, gone: Range<usize>) {
        let before_output = gone.start.min(self.output)..gone.end.min(self.output);
        self.output -= before_output.len();
        self.dropped.at = gone.start;
        self.dropped.n += gone.len();
        self.dropped.tokens.extend(self.tokens.drain(gone));
        if self.dropped.tokens.len() > MAX_DROPPED {
            self.dropped.tokens.drain(..MAX_DROPPED / 2);
        }
        self.truncated = true;
    }

    /// Reports that `processed` tokens of the prompt are in the cache.
    pub(super) fn report_progress(&self, processed: usize) {
        self.sink.report(Event::Progress(Progress {
            total: self.prompt.n_prompt,
            cached: self.prompt.n_cached,
            processed,
            time: self.clock.start.elapsed(),
        }));
    }

    /// Sends the text that may be shown.
    pub(super) fn send(&mut self) -> bool {
        if self.is_repeated() {
            return false;
        }
        let text = self.text.take();
        if text.is_empty() {
            return false;
        }
        let tokens = begun_before(self.text.sent(), &mut self.unsent);
        self.sink.report(Event::Update(Update { text, tokens, timings: self.timings() }));
        true
    }

    /// The end of the request, to be told to its sink.
    pub(super) fn finish(
        mut self,
        stop: Stop,
        slot: usize,
        n_cached: usize,
        truncated: bool,
        draft_length: Option<usize>,
    ) -> (TextSink, Outcome) {
        let timings = self.timings();
        let asked = self.speculation.take().filter(|speculation| speculation.asked).map(Speculation::ended);
        let n_max_final = draft_length.unwrap_or(0);
        let outcome = Outcome {
            stop,
            text: self.text.finish(),
            text_end: self.text.end(),
            tokens: std::mem::take(&mut self.unsent),
            slot: Some(slot),
            prompt: self.prompt,
            n_predicted: self.n_predicted,
            n_cached,
            truncated: self.truncated || truncated,
            timings,
            speculation: asked.map(|speculation| SpeculationStats { n_max_final, ..speculation.stats }),
            seed_position: self.seed_position,
            session_load: self.session_load,
            session_save: None,
        };
        (self.sink, outcome)
    }

    fn timings(&self) -> Timings {
        let clock = &self.clock;
        let first = clock.first_token.unwrap_or_else(Instant::now);
        let last = clock.last_token.unwrap_or(first);
        Timings {
            prompt_n: self.prompt.n_prompt - self.prompt.n_cached.min(self.prompt.n_prompt),
            prompt: first.saturating_duration_since(clock.start),
            predicted_n: self.n_predicted,
            predicted: last.saturating_duration_since(first),
            cache_n: self.prompt.n_cached,
            draft: self
                .speculation
                .as_ref()
                .filter(|speculation| speculation.asked)
                .map(|speculation| (speculation.stats.n_drafted, speculation.stats.n_accepted)),
        }
    }
}

impl Speculation {
    pub(super) fn new(settings: Settings, asked: bool, sampler: &Sampler) -> Speculation {
        let scratch = settings.verify.draws().then(|| StochasticScratch {
            ahead: sampler.for_draft(false),
            residual: Residual::default(),
            listed: Vec::new(),
        });
        Speculation { asked, stats: SpeculationStats::default(), settings, scratch }
    }

    /// The request has ended: where nothing was drafted because it would not have paid, that is said.
    fn ended(mut self) -> Speculation {
        // Nothing is drafted in the first step, which is the prompt's, nor in the last one, whose token ends the text.
        let weighed = self.settings.adaptive == Adaptive::Auto && self.stats.n_steps > 2;
        if weighed && self.stats.n_drafted == 0 && self.stats.disabled.is_none() {
            self.stats.disabled = Some("it did not pay: no draft was found that promised to save time".to_owned());
        }
        self
    }

    /// A draft was checked.
    pub(super) fn checked(&mut self, DraftOutcome { source, drafted, depth, accepted }: DraftOutcome) {
        let stats = &mut self.stats;
        stats.n_drafted += drafted;
        stats.n_accepted += accepted;
        if stats.accepted_per_position.len() < depth {
            stats.accepted_per_position.resize(depth, 0);
        }
        for count in stats.accepted_per_position.iter_mut().take(accepted) {
            *count += 1;
        }
        let (all, right) = stats.by_source.entry(source).or_default();
        *all += drafted;
        *right += accepted;
    }
}
