//! The requests of a server, by number: those that run, and those that have ended and were not polled yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use serde_json::Value;

use super::Endpoint;
use super::request::Reply;
use crate::engine::{Generated, RequestHandle};
use crate::error::{Code, Error, Result};
use crate::llama::Token;
use crate::speculative;

/// Ended requests whose results wait to be polled; of more than these, those that ended first are forgotten.
pub const MAX_UNPOLLED: usize = 256;
/// RequestRegistry that were polled to their end and are still known to be `finished` (without their results).
pub const MAX_ENDED: usize = 4096;

/// What the answers to a request need beside the engine's events.
pub(super) struct Record {
    pub(super) handle: Arc<RequestHandle>,
    pub(super) family: Endpoint,
    /// Whether its caller waits for all of it, so that polls take nothing.
    pub(super) awaited: bool,
    /// Its texts.
    pub(super) texts: Vec<Text>,
    /// Whether its prompts were made before it was queued.
    pub(super) is_prepared: bool,
    /// Whether the answer is `results`, and updates have an `index`.
    pub(super) has_results: bool,
    pub(super) model: String,
    pub(super) n_ctx: usize,
    /// Whether the draft model answers.
    pub(super) draft_only: bool,
    pub(super) n_keep: Option<usize>,
    pub(super) with_probs: bool,
    /// Whether the probabilities are those after the sampler chain.
    pub(super) post_sampling_probs: bool,
    pub(super) reply: Reply,
    /// What `type` it speculates with, and how drafts are verified.
    pub(super) speculation: Option<(Value, speculative::Verify)>,
    /// Why a request that is to report on speculation does not speculate.
    pub(super) not_speculating: Option<String>,
    /// Whether its texts are compared with those without speculation.
    pub(super) compare: bool,
    pub(super) warnings: Vec<String>,
    /// With `n_probs`: what polls have taken so far.
    pub(super) reported: Reported,
}

/// The tokens that polls have taken of each text, for the last update of a text, which has the probabilities of all of them.
#[derive(Default)]
pub(super) struct Reported(Mutex<BTreeMap<usize, Vec<Generated>>>);

impl Reported {
    /// More tokens of a text.
    pub(super) fn add(&self, text: usize, tokens: Vec<Generated>) {
        self.0.lock().entry(text).or_default().extend(tokens);
    }

    /// All tokens of a text.
    pub(super) fn take(&self, text: usize) -> Vec<Generated> {
        self.0.lock().remove(&text).unwrap_or_default()
    }
}

/// A prompt as the engine gets it and as the answer shows it.
#[derive(Debug, Clone)]
pub(super) struct PreparedPrompt {
    pub(super) tokens: Arc<[Token]>,
    /// The text, where the request did not have it.
    pub(super) text: Option<Value>,
    /// Messages that were left out.
    pub(super) n_dropped: usize,
    pub(super) warning: Option<String>,
}

/// What is special about one of the texts of a request.
pub(super) struct Text {
    /// The prompt, once it is prepared.
    pub(super) prompt: OnceCell<Arc<PreparedPrompt>>,
    /// The prompt as the request has it; null for messages and infill.
    pub(super) given: Arc<Value>,
    /// The LoRA scales, which a cached prompt must have too.
    pub(super) lora: Vec<f32>,
    /// Whether it uses what a slot's cache has of the prompt.
    pub(super) reuses: bool,
    /// The only slot that it runs in.
    pub(super) slot: Option<usize>,
    /// `generation_settings`.
    pub(super) settings: Value,
}

impl Record {
    /// The prompts of all texts are prepared.
    pub(super) fn set_prompts(&self, prompts: Vec<Arc<PreparedPrompt>>) {
        for (text, prompt) in self.texts.iter().zip(prompts) {
            // Done once.
            let _ = text.prompt.set(prompt);
        }
    }

    /// What was wrong about the request and no error, as far as is known.
    pub(super) fn warnings(&self) -> Vec<String> {
        // The messages are one prompt, which all texts have.
        let of_prompt = self.texts.first().and_then(|text| text.prompt.get()?.warning.clone());
        self.warnings.iter().cloned().chain(of_prompt).collect()
    }
}

impl Text {
    /// The prompt's tokens as sent; none until it is prepared.
    pub(super) fn tokens(&self) -> &[Token] {
        self.prompt.get().map_or(&[], |prompt| &prompt.tokens)
    }

    /// The prompt as the answer shows it.
    pub(super) fn shown_prompt(&self) -> Value {
        let made = self.prompt.get().and_then(|prompt| prompt.text.clone());
        made.unwrap_or_else(|| self.given.as_ref().clone())
    }
}

/// All requests of a server.
#[derive(Default)]
pub(super) struct RequestRegistry {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By number, which is the order in which they came.
    records: BTreeMap<u64, Arc<Record>>,
    /// Polled to the end.
    ended: VecDeque<u64>,
    newest: [Option<u64>; 2],
}

/// A request asked for by number.
pub(super) enum Found {
    /// Its updates can be taken.
    Here(Arc<Record>),
    /// It was polled to its end.
    Ended,
}

/// The place of a family in [`Inner::newest`]; requests of `foredraft_*` are named by number alone.
fn index(family: Endpoint) -> Option<usize> {
    match family {
        Endpoint::Completion => Some(0),
        Endpoint::Speculative => Some(1),
        Endpoint::Foredraft => None,
    }
}

impl RequestRegistry {
    /// Adds a request, which is its family's newest unless it is awaited.
    pub(super) fn add(&self, record: Arc<Record>) {
        let mut inner = self.inner.lock();
        let id = record.handle.id();
        if !record.awaited
            && let Some(newest) = index(record.family).and_then(|index| inner.newest.get_mut(index))
        {
            // Two threads may submit at once and get here in the other order.
            *newest = (*newest).max(Some(id));
        }
        inner.records.insert(id, record);
        let mut ended: Vec<_> =
            inner.records.iter().filter_map(|(id, record)| Some((record.handle.ended()?, *id))).collect();
        let surplus = ended.len().saturating_sub(MAX_UNPOLLED);
        if surplus > 0 {
            ended.sort_unstable();
        }
        for (_, id) in ended.iter().take(surplus) {
            inner.records.remove(id);
        }
    }

    /// The number of the family's newest request.
    pub(super) fn newest(&self, family: Endpoint) -> Option<u64> {
        self.inner.lock().newest.get(index(family)?).copied().flatten()
    }

    /// The request of that number.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(&self, wanted: u64) -> Result<Found> {
        let inner = self.inner.lock();
        if let Some(record) = inner.records.get(&wanted) {
            return Ok(Found::Here(Arc::clone(record)));
        }
        if inner.ended.contains(&wanted) {
            return Ok(Found::Ended);
        }
        Err(unknown(wanted))
    }

    /// The last update of a request was handed out.
    pub(super) fn ended(&self, id: u64) {
        let mut inner = self.inner.lock();
        if inner.records.remove(&id).is_some() {
            inner.ended.push_back(id);
        }
        while inner.ended.len() > MAX_ENDED {
            inner.ended.pop_front();
        }
    }
}

/// The error for a number that no request of this engine has, or has any more.
pub(super) fn unknown(id: u64) -> Error {
    Error::new(Code::NotFound, format!("id: there is no request {id}"))
}
