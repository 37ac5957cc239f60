//! Beam search: a request with `n_beams` extends its most probable completions in parallel.
//!
//! The beams are sequences of one context of their own, made when it is first needed, whose KV cache they share: a beam
//! that splits costs no memory for the common prefix. One request at a time; each step is one decode
//! of a token of each beam, between the steps of the slots.

mod search;

use std::sync::Arc;
use std::time::Instant;

use self::search::{Beam, BeamCandidate, Search};
use super::completion::begun_before;
use super::event::{Event, Generated, Outcome, PromptStats, Stop, Timings, Update};
use super::media::{media_of, next_medium, positions};
use super::report::StepReport;
use super::request::Submission;
use super::request_handle::CompletionSink;
use super::text::TextStream;
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::{
    Batch, Context, ContextParams, DecodeError, EncodedMedia, Interrupt, Model, SeqId, ThreadPool, Token,
};
use foredraft_sampling as sampling;
use foredraft_speculation::DrafterKind;

/// Most beams of a request.
pub const MAX_BEAMS: usize = 64;

/// The context of beam searches, and the search that runs on it.
pub(super) struct Beams {
    model: Arc<Model>,
    params: ContextParams,
    threads: Arc<ThreadPool>,
    interrupt: Arc<Interrupt>,
    context: Option<Context>,
    batch: Batch,
    task: Option<BeamTask>,
}

/// A completion so far.
#[derive(Clone)]
struct BeamText {
    tokens: Vec<Generated>,
    text: TextStream,
    sequence: SeqId,
    /// Why it ends.
    stop: Option<Stop>,
}

struct BeamTask {
    sink: CompletionSink,
    prompt: Vec<Token>,
    media: Arc<[Arc<EncodedMedia>]>,
    /// The position of each token of the prompt, and of the first one after it.
    positions: Vec<usize>,
    stats: PromptStats,
    /// Prompt tokens in the cache.
    n_decoded: usize,
    search: Search<BeamText>,
    biases: Vec<(Token, f32)>,
    n_probs: usize,
    n_predict: usize,
    /// See [`RequestOptions::special`](super::request::RequestOptions::special).
    special: bool,
    deadline: Option<Instant>,
    /// Tokens that all beams have in common, and those of them that were not sent yet.
    sent: usize,
    unsent: Vec<Generated>,
    /// The text that was sent, or will be.
    answer: TextStream,
    start: Instant,
    first_token: Option<Instant>,
}

impl Beams {
    pub(super) fn new(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Beams {
        // In a small cache for sliding windows no cell is used again that several beams share.
        let params = ContextParams { kv_unified: true, swa_full: true, ..params.clone() };
        let (model, threads, interrupt) = (Arc::clone(model), Arc::clone(threads), Arc::clone(interrupt));
        Beams { model, params, threads, interrupt, context: None, batch: Batch::new(), task: None }
    }

    /// Whether a search runs.
    pub(super) fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// When the search has to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.task.as_ref()?.deadline
    }

    /// Begins a search; `prompt` is the part of the request's that fits.
    pub(super) fn begin(&mut self, submission: Submission, prompt: Vec<Token>, stats: PromptStats) -> Result<()> {
        let Submission { request, sink, deadline, .. } = submission;
        let width = u32::try_from(request.options.n_beams).unwrap_or(u32::MAX);
        if width > 1 && !self.model.decodes_sequences_together() {
            return Err(Error::invalid(
                "n_beams: llama.cpp cannot decode several sequences together with this architecture",
            ));
        }
        if self.context.is_none() || self.params.n_seq_max < width {
            self.context = None; // its memory first
            let params = ContextParams { n_seq_max: width, embeddings: false, ..self.params.clone() };
            self.context = Some(Context::new(&self.model, &params, &self.threads, &self.interrupt)?);
            self.params = params;
        }
        if let Some(context) = &mut self.context {
            context.set_adapters(&request.lora);
        }
        let answer = TextStream::new(request.options.stop).cutting_begun_stop(request.options.cuts_begun_stop);
        let first = BeamText { tokens: Vec::new(), text: answer.clone(), sequence: 0, stop: None };
        self.task = Some(BeamTask {
            sink,
            positions: positions(&request.media, &prompt),
            media: request.media,
            prompt,
            stats,
            n_decoded: 0,
            search: Search::new(request.options.n_beams, first),
            biases: request.sampling.logit_bias,
            n_probs: request.sampling.n_probs,
            n_predict: request.options.n_predict.unwrap_or(usize::MAX),
            special: request.options.special,
            deadline,
            sent: 0,
            unsent: Vec::new(),
            answer,
            start: Instant::now(),
            first_token: None,
        });
        Ok(())
    }

    /// Runs one decode. Appends what is new of the request to `report`.
    pub(super) fn step(&mut self, report: &mut StepReport) {
        if let Some(stop) = self.advance(report) {
            self.end(stop, report);
        }
    }

    /// Ends the search if it was cancelled, or if its time has passed.
    pub(super) fn end_cancelled(&mut self, report: &mut StepReport) {
        if let Some(stop) = self.task.as_ref().and_then(BeamTask::is_over) {
            self.end(stop, report);
        }
    }

    /// Runs one decode, and appends an update to `report`. Returns why the request ends, if it does.
    fn advance(&mut self, report: &mut StepReport) -> Option<Stop> {
        let task = self.task.as_ref()?;
        if let Some(stop) = task.is_over() {
            return Some(stop);
        }
        if task.n_predict == 0 {
            return Some(Stop::Limit);
        }
        let result = self.decode();
        let (task, context) = (self.task.as_mut()?, self.context.as_mut()?);
        match result {
            Ok(()) => {}
            Err(DecodeError::Aborted) => return None, // the next step finds out why
            Err(DecodeError::Full) => return Some(Stop::Limit),
            Err(DecodeError::Failed(error)) => return Some(Stop::Error(error)),
        }
        if task.n_decoded < task.prompt.len() {
            return None;
        }
        if task.first_token.is_none() {
            task.first_token = Some(Instant::now());
            report.first_token(&task.sink);
        }
        let first_row = self.batch.len().saturating_sub(task.search.live.len());
        if let Err(error) = task.advance(context, first_row) {
            return Some(Stop::Error(error));
        }
        if task.search.is_over() {
            let stop = task.search.answer().and_then(|beam| beam.text.stop.clone());
            return Some(stop.unwrap_or(Stop::Limit));
        }
        if let Some(update) = task.take_update(context) {
            report.update(&task.sink, Event::Update(update));
        }
        None
    }

    /// Decodes a piece of the prompt, or the last token of each beam.
    fn decode(&mut self) -> std::result::Result<(), DecodeError> {
        let (Some(task), Some(context)) = (&mut self.task, &mut self.context) else { return Ok(()) };
        self.batch.clear();
        let n_prompt = task.prompt.len();
        let in_prompt = task.n_decoded < n_prompt;
        let after_prompt = task.positions.last().copied().unwrap_or(n_prompt);
        if in_prompt {
            task.push_prompt(context.n_ubatch().min(context.n_batch()), &mut self.batch);
        } else {
            for Beam { text, .. } in &task.search.live {
                let Some(last) = text.tokens.last() else { continue };
                self.batch.push(last.token, after_prompt + text.tokens.len() - 1, text.sequence, true);
            }
        }
        // An interrupted decode would lose a memory that cannot be rolled back.
        let result = match context.rollback().is_unlimited() {
            true => context.decode(&self.batch),
            false => context.decode_whole(&self.batch),
        };
        match (&result, in_prompt) {
            (Ok(()), true) => task.n_decoded += self.batch.len(),
            (Ok(()), false) => {}
            (Err(_), true) => {
                // Rows that share a position are removed together.
                let at = task.positions.get(task.n_decoded).copied().unwrap_or(0);
                task.n_decoded = task.positions.partition_point(|position| *position < at);
                context.truncate(0, at);
            }
            (Err(_), false) => {
                for Beam { text, .. } in &task.search.live {
                    context.truncate(text.sequence, after_prompt + text.tokens.len() - 1);
                }
            }
        }
        result
    }

    /// Ends the search, if there is one: its answer is the most probable completion so far.
    pub(super) fn end(&mut self, stop: Stop, report: &mut StepReport) {
        let Some(mut task) = self.task.take() else { return };
        let n_ctx = self.context.as_ref().map_or(0, Context::n_ctx);
        if let Some(context) = &mut self.context {
            for sequence in 0..SeqId::try_from(self.params.n_seq_max).unwrap_or(0) {
                context.truncate(sequence, 0);
            }
        }
        let mut tokens = task.search.answer().map(|beam| beam.text.tokens.clone()).unwrap_or_default();
        let n_predicted = tokens.len();
        let truncated =
            task.stats.truncated || (stop == Stop::Limit && n_predicted < task.n_predict && n_predicted > 0);
        let rest = tokens.split_off(task.sent.min(n_predicted));
        for token in &rest {
            task.answer.push(self.model.vocab().shown(token.token, task.special));
        }
        task.unsent.extend(rest);
        let outcome = Outcome {
            text: task.answer.finish(),
            text_end: task.answer.end(),
            tokens: std::mem::take(&mut task.unsent),
            n_predicted,
            n_cached: (task.prompt.len() + n_predicted).min(n_ctx),
            truncated,
            timings: task.timings(n_predicted),
            prompt: task.stats,
            ..task.sink.never_ran(stop)
        };
        report.end(task.sink, outcome);
    }
}

impl BeamTask {
    /// Adds what comes next of the prompt to a batch: at most `most` tokens or rows, or rows that are decoded together.
    fn push_prompt(&self, most: usize, batch: &mut Batch) {
        let rest = self.prompt.get(self.n_decoded..).unwrap_or(&[]);
        let positions = self.positions.iter().skip(self.n_decoded);
        let (rows, until) = next_medium(&self.media, rest);
        let n = rows.filter(|(_, is_whole)| *is_whole).map_or(most.min(until), |(n, _)| n).min(rest.len());
        let next = rest.get(..n).unwrap_or(&[]);
        if let Some(medium) = next.first().and_then(|first| media_of(&self.media, *first)) {
            return medium.push_to(batch, next, positions.copied().next().unwrap_or(0), 0);
        }
        for (index, (token, position)) in next.iter().zip(positions).enumerate() {
            batch.push(*token, *position, 0, index + 1 == rest.len());
        }
    }

    /// Why it must not go on, if it was cancelled or its time has passed.
    fn is_over(&self) -> Option<Stop> {
        let is_late = || self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if self.sink.is_cancelled() { Some(Stop::Cancelled) } else { is_late().then_some(Stop::Timeout) }
    }

    /// Extends the most probable completions by the decoded rows, one for each beam from `first_row` on.
    fn advance(&mut self, context: &mut Context, first_row: usize) -> Result<()> {
        let model = Arc::clone(context.model());
        let vocab = model.vocab();
        // Tokens that end a completion take no beam, so as many more may be needed.
        let n = self.search.live.len().max(self.search.width()) + vocab.eog_tokens().count();
        let mut candidates = Vec::new();
        let mut tops = Vec::new();
        for beam in 0..self.search.live.len() {
            let logits = context
                .logits(first_row + beam)
                .ok_or_else(|| Error::new(Code::Internal, "the decode gave no logits"))?;
            for (token, bias) in &self.biases {
                if let Some(logit) = usize::try_from(*token).ok().and_then(|token| logits.get_mut(token)) {
                    *logit += bias;
                }
            }
            let top = sampling::token_probs(logits, 0, n.max(self.n_probs)).top;
            candidates.extend(top.iter().take(n).map(|(token, logprob)| BeamCandidate {
                beam,
                token: *token,
                logprob: f64::from(*logprob),
            }));
            tops.push(top);
        }
        let (n_probs, n_predict, special) = (self.n_probs, self.n_predict, self.special);
        let room = context.n_ctx().saturating_sub(self.prompt.len());
        let parents = self.search.advance(&mut candidates, |text, candidate| {
            let mut text = text.clone();
            let probs = (n_probs > 0).then(|| sampling::TokenProbs {
                token: candidate.token,
                logprob: candidate.logprob as f32,
                top: tops
                    .get(candidate.beam)
                    .map(|top| top.iter().take(n_probs).copied().collect())
                    .unwrap_or_default(),
            });
            let start = text.text.len();
            text.tokens.push(Generated { token: candidate.token, source: DrafterKind::Target, start, probs });
            let is_eog = vocab.is_eog(candidate.token);
            let shown = if is_eog && !special { &[] } else { vocab.shown(candidate.token, special) };
            text.stop = if let Some(word) = text.text.push(shown) {
                Some(Stop::Word(word.to_owned()))
            } else if is_eog {
                Some(Stop::Eos)
            } else {
                (text.tokens.len() >= n_predict || text.tokens.len() >= room).then_some(Stop::Limit)
            };
            let ended = text.stop.is_some();
            (text, ended)
        });
        if self.search.live.is_empty() && self.search.best.is_none() {
            return Err(Error::invalid("logit_bias: every token is banned"));
        }
        self.give_sequences(&parents, context);
        Ok(())
    }

    /// The first beam that continues another keeps its sequence; further ones copy it into one that is free.
    fn give_sequences(&mut self, parents: &[usize], context: &mut Context) {
        let width = SeqId::try_from(self.search.width()).unwrap_or(SeqId::MAX);
        let used: Vec<SeqId> = self.search.live.iter().map(|beam| beam.text.sequence).collect();
        let mut free = (0..width).filter(|sequence| !used.contains(sequence)).collect::<Vec<_>>();
        for sequence in &free {
            context.truncate(*sequence, 0);
        }
        let mut taken = Vec::with_capacity(parents.len());
        for beam in &mut self.search.live {
            let own = beam.text.sequence;
            if taken.contains(&own) {
                let Some(sequence) = free.pop() else { continue };
                context.copy(own, sequence);
                beam.text.sequence = sequence;
            }
            taken.push(beam.text.sequence);
        }
    }

    /// Takes what is new of the common prefix of all completions that may become the answer; `None`: nothing.
    fn take_update(&mut self, context: &Context) -> Option<Update> {
        let mut texts = self.search.texts();
        let first = texts.next()?;
        let common = texts.fold(first.tokens.len(), |common, text| {
            let same = first.tokens.iter().zip(&text.tokens).take_while(|(a, b)| a.token == b.token).count();
            common.min(same)
        });
        let new = first.tokens.get(self.sent..common).unwrap_or(&[]);
        for token in new {
            self.answer.push(context.model().vocab().shown(token.token, self.special));
        }
        self.sent += new.len();
        self.unsent.extend_from_slice(new);
        let text = self.answer.take();
        if text.is_empty() {
            return None;
        }
        let tokens = begun_before(self.answer.sent(), &mut self.unsent);
        Some(Update { text, tokens, timings: self.timings(self.sent) })
    }

    fn timings(&self, n_predicted: usize) -> Timings {
        let first = self.first_token.unwrap_or_else(Instant::now);
        Timings {
            prompt_n: self.prompt.len(),
            prompt: first.saturating_duration_since(self.start),
            predicted_n: n_predicted,
            predicted: first.elapsed(),
            cache_n: 0,
            n_preempted: 0,
            n_begun: 0,
            deadline_missed: self.sink.deadline_missed(),
            draft: None,
        }
    }
}
