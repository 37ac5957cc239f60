//! The requests of the engine: tokens and validated settings without JSON; and the commands for its thread.
//!
//! Rendering and tokenizing a long prompt takes longer than a host's call may. Such a request is queued before its prompt is known: it
//! keeps its place in the queue, for a moment also a slot, and its prompt follows by a [`PreparedSender`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::conversation_actions::ConversationJob;
use super::decision::Questions;
use super::event::{Erased, Restored};
use super::priority::{PREPARATION, Rank};
use super::request_handle::{CompletionSink, RequestHandle};
use crate::session::Session;
use foredraft_base::error::{Code, Error, Result};
use foredraft_grammar::OutputConstraint;
use foredraft_llama::{EncodedMedia, Interrupt, TextPooling, Token};
use foredraft_sampling as sampling;
use foredraft_speculation as speculative;
use foredraft_speculation::Predicted;

/// How long a slot is kept for a completion whose prompt is being prepared.
const PREPARATION_PATIENCE: Duration = Duration::from_millis(100);

/// One completion to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole prompt; the engine shortens it when it does not fit (see [`crate::session`]).
    pub prompt: Arc<[Token]>,
    /// The pictures and sounds whose rows the prompt has.
    pub media: Arc<[Arc<EncodedMedia>]>,
    /// Tokens that the completion begins with: those that an earlier run generated. They are decoded with the prompt, and reported like
    /// generated ones. Where the result would not be the same as that of a run from the start, they are generated again.
    pub prefix: Arc<[Token]>,
    /// The same number for requests with the same completion, as far as the submitter can tell.
    pub identity: u64,
    /// The scale of each LoRA adapter of the model.
    pub lora: Vec<f32>,
    /// How tokens are chosen.
    pub sampling: sampling::SamplingSettings,
    /// Changes the logits of each position before its token is chosen.
    pub logits_editor: Option<LogitsEditor>,
    /// The constraint on the completion, compiled for this request.
    pub constraint: Option<OutputConstraint>,
    /// The questions of a decision, which is made instead of a completion.
    pub questions: Option<Questions>,
    /// How to speculate; `None`: not at all.
    pub speculative: Option<speculative::Settings>,
    /// Whether the draft model answers alone. All other fields then apply to that model.
    pub draft_only: bool,
    /// Whether a completion with speculation is generated once more without it, to compare both.
    pub compare: bool,
    /// Options that need no vocabulary.
    pub options: RequestOptions,
}

impl Request {
    /// Whether its prompt can begin with what a cache has: not if each token of it needs its logits.
    pub(super) fn reuses_cache(&self) -> bool {
        self.options.cache_prompt && self.options.prompt_probs.is_none()
    }
}

/// Changes a row of logits, on the engine's thread. Its arguments: the number of the request, the row, and the tokens before the position.
pub type LogitsCallback = dyn Fn(u64, &mut [f32], &[Token]) -> Result<()> + Send + Sync;

/// The logits callback of a request.
#[derive(Clone)]
pub struct LogitsEditor(Arc<LogitsCallback>);

impl LogitsEditor {
    /// An editor with this callback.
    pub fn new(callback: impl Fn(u64, &mut [f32], &[Token]) -> Result<()> + Send + Sync + 'static) -> LogitsEditor {
        LogitsEditor(Arc::new(callback))
    }

    /// Lets the callback change the row of the token that follows `tokens`, in the request with this number.
    ///
    /// # Errors
    /// The callback fails, panics, or bans every token.
    pub(super) fn edit(&self, id: u64, logits: &mut [f32], tokens: &[Token]) -> Result<()> {
        let panicked = |_| Err(Error::new(Code::Internal, "logits_callback: the callback panicked"));
        catch_unwind(AssertUnwindSafe(|| (self.0)(id, logits, tokens))).unwrap_or_else(panicked)?;
        if sampling::has_candidate(logits) {
            return Ok(());
        }
        Err(Error::invalid("logits_callback: expected a row with a logit above -inf, got none after the callback"))
    }
}

impl fmt::Debug for LogitsEditor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LogitsEditor")
    }
}

/// The parts of a request that are prepared after it was queued.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The prompt of each completion.
    pub prompts: Vec<Arc<[Token]>>,
    /// The pictures and sounds of each prompt.
    pub media: Vec<Arc<[Arc<EncodedMedia>]>>,
    /// The questions of a decision, unless the request has them.
    pub questions: Option<Questions>,
    /// The predicted output, where the request drafts from one.
    pub prediction: Option<Arc<Predicted>>,
}

/// The place of a completion, what it keeps and reuses, when it ends, and what is reported of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOptions {
    /// Most tokens to generate; `None`: until the model ends the completion.
    pub n_predict: Option<usize>,
    /// Whether the completion ends when the context is full, also where contexts shift.
    pub ends_when_full: bool,
    /// Tokens at the start of the prompt that a shortened prompt and a context shift keep; `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// Stop strings, none of which is empty.
    pub stop: Vec<String>,
    /// Whether a stop string that has only begun at the end of the completion is cut off.
    pub cuts_begun_stop: bool,
    /// Whether control tokens have their text in the completion.
    pub special: bool,
    /// A hard limit on the time from submission to the end.
    pub timeout: Option<Duration>,
    /// From -10 to 10: requests of a higher priority get slots and batch space first, and preempt others. Or [`PREPARATION`].
    pub priority: i32,
    /// When the completion should have ended, from submission on. It does not end then.
    pub deadline: Option<Duration>,
    /// The time since the submission, where an earlier process had the request.
    pub elapsed: Duration,
    /// Ends the completion with the first newline that comes later than this after the first token.
    pub t_max_predict: Option<Duration>,
    /// The width of a beam search, up to [`MAX_BEAMS`](super::MAX_BEAMS); 0 and 1: no beam search.
    pub n_beams: usize,
    /// The slot to run in; `None`: the one whose cache fits best.
    pub slot: Option<usize>,
    /// The conversation whose state the request continues and leaves.
    pub conversation: Option<Arc<str>>,
    /// Whether the cached beginning of an earlier request may be reused.
    pub cache_prompt: bool,
    /// Least tokens of a part of the prompt that is moved to its position from a later one in the cache; 0: nothing is moved.
    pub n_cache_reuse: usize,
    /// A session file to put into the slot before the request begins.
    pub session_load: Option<PathBuf>,
    /// Where to save the slot as a session when the request has ended, unless it failed.
    pub session_save: Option<PathBuf>,
    /// The RNG counter of the first generated token; `None`: 0, or that of the loaded session.
    pub seed_position: Option<usize>,
    /// Whether reported probabilities are those after all samplers, instead of the model's own.
    pub post_sampling_probs: bool,
    /// Whether to report how much of the prompt has been decoded.
    pub progress: bool,
    /// Control tokens whose text is part of the completion, sorted.
    pub preserved_tokens: Arc<[Token]>,
    /// With how many alternatives the probability of each token of the prompt is reported; `None`: it is not. The whole prompt is then
    /// decoded again.
    pub prompt_probs: Option<usize>,
}

/// Where a request leaves its state for the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PreparedPlace {
    /// In a conversation.
    Conversation(Arc<str>),
    /// In a slot.
    Slot(usize),
}

impl RequestOptions {
    /// Whether the request only prepares another one: it is decoded while no request is, its answer is not reported, and its cells stay
    /// with its conversation when another request takes its slot.
    pub fn is_preparation(&self) -> bool {
        self.priority == PREPARATION
    }

    /// Where the request leaves its state; `None`: it names no place.
    pub fn place(&self) -> Option<PreparedPlace> {
        let conversation = self.conversation.clone().map(PreparedPlace::Conversation);
        conversation.or(self.slot.map(PreparedPlace::Slot))
    }
}

/// The numbers of an embedding, not normalised, or of those of all tokens, one after the other; or the scores of a text, with
/// [`TextPooling::Rank`].
pub type EmbeddingValues = Vec<f32>;

/// The texts that an engine embeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingLimits {
    /// The maximum number of tokens of a text.
    pub n_tokens: usize,
    /// The pooling of the embeddings of its tokens.
    pub pooling: TextPooling,
}

/// Texts to embed, from number `first` on.
pub(super) struct EmbeddingJob {
    pub(super) texts: Arc<[Vec<Token>]>,
    pub(super) first: usize,
    /// The tokens' embeddings are wanted, not the text's.
    pub(super) of_tokens: bool,
    pub(super) reply: Sender<Result<Vec<EmbeddingValues>>>,
}

/// A message to the engine's thread.
pub(super) enum Command {
    /// Generates a completion.
    Submit(Box<Submission>),
    /// Gives the completions of the request with this number their prompts, or ends them.
    Prepare(u64, Result<Prepared>),
    /// Copies a slot's sequences out, or in, or erases them, as soon as no request runs in it.
    Session(SessionJob),
    /// Does something with conversations.
    Conversation(ConversationJob),
    /// Computes the embeddings of the job's first texts, as many as one decode computes, and sends them back.
    Embed(EmbeddingJob),
    /// Lets drafters forget earlier outputs.
    ForgetAnswers,
    /// Ends the reasoning of the completions of the request with this number.
    EndReasoning(u64),
    /// Wakes the thread: a request was cancelled, or the engine stops.
    Wake,
}

impl Command {
    /// Whether a pause postpones the command, and two such commands have a step in between.
    pub(super) fn takes_time(&self) -> bool {
        matches!(self, Command::Embed(..) | Command::Session(_))
    }

    /// Whether the command uses the slots and their contexts.
    pub(super) fn uses_slots(&self) -> bool {
        matches!(self, Command::Submit(_) | Command::Session(_) | Command::Conversation(_))
    }
}

/// Work on a free slot's sequences.
pub(super) struct SessionJob {
    pub(super) slot: usize,
    /// The newest request before it.
    pub(super) after: u64,
    pub(super) work: SessionWork,
    pub(super) claim: JobClaim,
}

/// Decides whether the engine does a job, or its caller has given it up. The first one that takes it wins.
#[derive(Debug, Clone, Default)]
pub(super) struct JobClaim(Arc<AtomicBool>);

impl JobClaim {
    /// Takes the job. Returns false if the other side has taken it.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Whether the job is taken.
    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub(super) enum SessionWork {
    Save(Sender<Result<Session>>),
    Load(Box<Session>, Sender<Result<Restored>>),
    Erase(Sender<Result<Erased>>),
}

/// A completion that waits for a slot.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) prompt: PromptState,
    pub(super) sink: CompletionSink,
    pub(super) deadline: Option<Instant>,
    pub(super) rank: Rank,
    /// The tokens that the first run found in the cache of the slot, only for the second run of a comparison.
    pub(super) first_run: Option<CacheOfFirstRun>,
}

/// Whether a waiting completion has its prompt. Without it, it keeps its place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptState {
    Known,
    /// The prompt is being prepared. Until this time a slot is kept for the completion.
    Awaited(Instant),
    /// The preparation takes long, so later requests get the slots.
    Late,
}

impl PromptState {
    /// The state of a completion that is queued at this time.
    pub(super) fn queued(is_prepared: bool, now: Instant) -> PromptState {
        if is_prepared { PromptState::Known } else { PromptState::Awaited(now + PREPARATION_PATIENCE) }
    }

    /// Takes note of the time.
    pub(super) fn look(&mut self, now: Instant) {
        if matches!(self, PromptState::Awaited(until) if *until <= now) {
            *self = PromptState::Late;
        }
    }
}

impl Submission {
    /// A completion that ends at `deadline` at the latest.
    pub(super) fn new(
        request: Request,
        prompt: PromptState,
        sink: CompletionSink,
        deadline: Option<Instant>,
    ) -> Submission {
        let rank = sink.rank(request.options.priority);
        Submission { request, prompt, sink, deadline, rank, first_run: None }
    }
}

/// The tokens that the first run found in the cache of its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheOfFirstRun {
    /// Tokens of the prompt that the first run found in the cache.
    pub(super) n_cached: usize,
    /// Whether they cannot be decoded again with the same result: they came from a file, or were moved to their positions.
    pub(super) is_irreplaceable: bool,
}

impl CacheOfFirstRun {
    /// The part of a prompt that may be taken from the cache.
    pub(super) fn of(self, prompt: &[Token]) -> &[Token] {
        prompt.get(..self.n_cached).unwrap_or(prompt)
    }

    /// Fails if the second run finds another number of tokens in the cache, and the tokens cannot be decoded again.
    ///
    /// # Errors
    /// The tokens of the first run are gone.
    pub(super) fn check(self, reused: usize) -> Result<()> {
        if reused == self.n_cached || !self.is_irreplaceable {
            return Ok(());
        }
        Err(Error::invalid("what the first run found in the cache is no longer there"))
    }
}

/// Sends prompts to an engine, from any thread. It does not keep the engine alive.
#[derive(Clone)]
pub struct PreparedSender {
    pub(super) commands: Sender<Command>,
    pub(super) interrupt: Arc<Interrupt>,
}

impl PreparedSender {
    /// Gives the completions that a [`Reservation`](super::Reservation) has queued their prompts, or ends them
    /// with an error. Does nothing for those that have ended meanwhile.
    pub fn send(&self, handle: &RequestHandle, prepared: Result<Prepared>) {
        // An engine that has ended has ended the request as well.
        let _ = self.commands.send(Command::Prepare(handle.id(), prepared));
        self.interrupt.gate().notify();
    }
}
