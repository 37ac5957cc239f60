//! The engine's reports about a request. They can come from another process: see `api::isolation`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::session::SeedOrigin;
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::Token;
use foredraft_sampling::TokenProbs;
use foredraft_speculation::{DraftOutcome, DrafterKind};

/// A generated token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generated {
    /// Its id.
    pub token: Token,
    /// The drafter that proposed it, or the target.
    pub source: DrafterKind,
    /// Where its text begins, in bytes of the completion.
    pub start: usize,
    /// Its probability and the best alternatives, if requested.
    pub probs: Option<TokenProbs>,
}

/// A report; each is handed out once.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// More of a completion.
    Update(Update),
    /// More of the prompt was decoded.
    Progress(PromptProgress),
    /// The engine's process died, and another one continues the request.
    Restarted {
        /// How it died.
        cause: String,
    },
    /// The end of the request: always the last event, and always sent.
    Finished(Box<Outcome>),
}

/// How much of a prompt has been decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Those that were in the cache.
    pub cached: usize,
    /// Those that are in the cache now.
    pub processed: usize,
    /// The time since the request got its slot.
    pub time: Duration,
}

/// A piece of a completion, with its tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// Whole UTF-8 without any part of a stop string; never empty.
    pub text: String,
    /// The tokens since the last update. (Text that may become part of a stop string comes in a later update than its tokens.)
    pub tokens: Vec<Generated>,
    /// Timings so far.
    pub timings: Timings,
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stop {
    /// The model ended the completion.
    Eos,
    /// One of the stop strings appeared.
    Word(String),
    /// `n_predict` tokens were generated, `t_max_predict_ms` passed, or the context is full and may not shift.
    Limit,
    /// The request's `timeout_ms` passed.
    Timeout,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Error(Error),
}

impl From<Error> for Stop {
    /// The end of a request that fails with this error.
    fn from(error: Error) -> Stop {
        if error.code() == Code::Cancelled { Stop::Cancelled } else { Stop::Error(error) }
    }
}

/// The probabilities of a prompt's tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptProbs {
    /// The first token, which nothing predicts.
    pub first: Token,
    /// Each further token, given those before it.
    pub others: Vec<TokenProbs>,
}

/// How much of the prompt was in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptStats {
    /// Tokens of the prompt as it was sent.
    pub n_total: usize,
    /// Tokens of the prompt after shortening.
    pub n_prompt: usize,
    /// Tokens that were in the slot's cache.
    pub n_cached: usize,
    /// Whether the prompt was shortened.
    pub truncated: bool,
}

/// The times of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Prompt tokens that were decoded.
    pub prompt_n: usize,
    /// The time from the start of the prompt to the first token.
    pub prompt: Duration,
    /// Tokens generated.
    pub predicted_n: usize,
    /// The time from the first token to the last.
    pub predicted: Duration,
    /// Prompt tokens reused from the cache.
    pub cache_n: usize,
    /// How often it made way for a request of a higher priority.
    pub n_preempted: usize,
    /// Tokens that a preparation had generated.
    pub n_begun: usize,
    /// The time since its deadline, 0 before it; `None`: it has none.
    pub deadline_missed: Option<Duration>,
    /// Drafted tokens and how many of them were accepted, when the request speculates.
    pub draft: Option<(usize, usize)>,
}

/// How probable each of the given choices is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionScores {
    /// The most probable one, by index.
    pub choice: usize,
    /// The logarithm of each one's probability under the model.
    #[serde(serialize_with = "write_bits", deserialize_with = "read_bits")]
    pub logprobs: Vec<f64>,
    /// The probabilities, normalized over the choices.
    pub probs: Vec<f64>,
    /// The tokens of the question between the prompt and its choices.
    pub n_tokens: usize,
}

/// The statistics of speculation in a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeculationStats {
    /// Drafted tokens that were verified.
    pub n_drafted: usize,
    /// Those that were accepted.
    pub n_accepted: usize,
    /// Decodes of the target that brought tokens.
    pub n_steps: usize,
    /// How often the draft's 1st, 2nd, ... token was accepted.
    pub accepted_per_position: Vec<usize>,
    /// Drafted and accepted tokens of each drafter.
    pub by_source: BTreeMap<DrafterKind, (usize, usize)>,
    /// Time spent drafting.
    pub t_draft: Duration,
    /// Time that the target's decodes took, drafts included.
    pub t_verify: Duration,
    /// The draft length in use at the end.
    pub n_max_final: usize,
    /// Why all or part of the request went without speculation.
    pub disabled: Option<String>,
    /// The comparison with a run without speculation, if requested.
    pub comparison: Option<Comparison>,
}

/// Where the completions of both runs of a comparison begin to differ.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The generated token, counted from 0.
    pub index: usize,
    /// In the run without speculation: the logit of its own token minus that of the other run's token.
    /// `None`: one of the completions has ended before.
    pub logit_gap: Option<f32>,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Comparison {
    /// Both runs ended; `None`: with the same tokens.
    Done(Option<Difference>),
    /// The second run did not end, and why.
    Skipped(String),
}

/// The result of a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it ended.
    pub stop: Stop,
    /// Text not sent in an update yet.
    pub text: String,
    /// Tokens not sent in an update yet.
    pub tokens: Vec<Generated>,
    /// Where the completion ends, in bytes of the generated text: a stop string, and what follows it, is cut off.
    pub text_end: usize,
    /// The slot it ran in.
    pub slot: Option<usize>,
    /// The prompt.
    pub prompt: PromptStats,
    /// The probabilities of the prompt's tokens, if requested.
    pub prompt_probs: Option<PromptProbs>,
    /// Tokens generated.
    pub n_predicted: usize,
    /// Tokens in the slot's cache at the end.
    pub n_cached: usize,
    /// Whether the prompt was shortened, or the context shifted, or filled up.
    pub truncated: bool,
    /// Timings.
    pub timings: Timings,
    /// The statistics of speculation, if requested.
    pub speculation: Option<SpeculationStats>,
    /// The RNG counter of the first generated token.
    pub seed_position: usize,
    /// The result of a decision for each of the request's questions.
    pub decisions: Vec<DecisionScores>,
    /// The session that was loaded, if requested.
    pub session_load: Option<Restored>,
    /// The session that was saved, if requested.
    pub session_save: Option<Result<Saved>>,
}

/// Writes numbers that can be minus infinity, which JSON has not.
fn write_bits<S: Serializer>(numbers: &[f64], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| number.to_bits()))
}

fn read_bits<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<f64>, D::Error> {
    Ok(Vec::<u64>::deserialize(deserializer)?.into_iter().map(f64::from_bits).collect())
}

impl SpeculationStats {
    /// Adds the result of a verified draft.
    pub(super) fn record(&mut self, outcome: &DraftOutcome) {
        let DraftOutcome { kind: Some(kind), n_drafted, n_longest, n_accepted } = *outcome else { return };
        self.n_drafted += n_drafted;
        self.n_accepted += n_accepted;
        if self.accepted_per_position.len() < n_longest {
            self.accepted_per_position.resize(n_longest, 0);
        }
        for count in self.accepted_per_position.iter_mut().take(n_accepted) {
            *count += 1;
        }
        let (drafted, accepted) = self.by_source.entry(kind).or_default();
        *drafted += n_drafted;
        *accepted += n_accepted;
    }
}

/// A session as it was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Tokens in the target's context.
    pub n_tokens: usize,
    /// Tokens in the draft's.
    pub n_draft: usize,
    /// Bytes of the file.
    pub n_bytes: u64,
}

/// A session as it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Tokens in the target's context.
    pub n_tokens: usize,
    /// Tokens in the draft's; 0 where there is none, or another than the one that the session was saved with.
    pub n_draft: usize,
    /// The seed that a request can continue, and its RNG counter.
    pub seed: Option<SeedOrigin>,
}

/// The tokens that a slot had when it was erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    /// Tokens in the target's context.
    pub n_tokens: usize,
    /// Tokens in the draft's.
    pub n_draft: usize,
}

impl Outcome {
    /// The result of a request that never ran.
    pub fn never_ran(stop: Stop, n_prompt: usize, speculates: bool) -> Outcome {
        Outcome {
            stop,
            text: String::new(),
            tokens: Vec::new(),
            text_end: 0,
            slot: None,
            prompt: PromptStats { n_total: n_prompt, n_prompt, ..PromptStats::default() },
            prompt_probs: None,
            n_predicted: 0,
            n_cached: 0,
            truncated: false,
            timings: Timings::default(),
            speculation: speculates.then(SpeculationStats::default),
            seed_position: 0,
            decisions: Vec::new(),
            session_load: None,
            session_save: None,
        }
    }
}
