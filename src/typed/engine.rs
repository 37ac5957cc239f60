//! An engine with a loaded model.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::completion::{ConversationInfo, FinalResponse, RankedDocument, error_of, unexpected};
use super::config::HostConfig as Config;
use super::decision::{DecisionAnswer, HostQuestion as Question};
use super::loaded::LoadedModel;
use super::request::HostRequest as Request;
use super::stream::CompletionStream;
use crate::api::Function;
use crate::engine::LogitsCallback;
use foredraft_base::Token;
use foredraft_base::error::Result;

/// An engine with a loaded model. Clones refer to the same engine; the last one that is dropped, with its streams and pauses, unloads it.
///
/// ```no_run
/// use foredraft::{Config, Engine, Request};
///
/// let engine = Engine::load(&Config::new("target.gguf").model_draft("draft.gguf"))?;
/// for update in engine.stream(&Request::prompt("Once upon a time").n_predict(40))? {
///     print!("{}", update?.content);
/// }
/// # Ok::<(), foredraft::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine(pub(super) Arc<LoadedModel>);

impl Engine {
    /// Loads the models of a configuration, and waits for that, which [`crate::EngineLoad`] does not. With the feature `hub` it downloads models such as `hf:owner/name:Q4_K_M`.
    ///
    /// # Errors
    /// The configuration is invalid, or a model cannot be loaded or downloaded.
    pub fn load(config: &Config) -> Result<Engine> {
        let loaded = LoadedModel::new();
        loaded.load(config)?;
        Ok(Engine(Arc::new(loaded)))
    }

    /// Loads other models in the place of those that are loaded, and waits for that. Requests that run end.
    ///
    /// # Errors
    /// The configuration is invalid, or a model cannot be loaded. Then none is loaded.
    pub fn reload(&self, config: &Config) -> Result<()> {
        self.0.load(config)
    }

    /// Generates a completion, and waits for its end.
    ///
    /// # Errors
    /// The request is invalid, the queue is full, or the engine failed.
    pub fn complete(&self, request: &Request) -> Result<FinalResponse> {
        FinalResponse::read(self.call(Function::Complete, &json!(request))?)
    }

    /// Answers questions about a state, any JSON, by their names, and waits for that. Each answer has the bits that it has alone.
    ///
    /// # Errors
    /// A question is invalid, the context is too small, or the engine failed.
    pub fn decide<'a>(
        &self,
        state: &Value,
        questions: impl IntoIterator<Item = (&'a str, Question)>,
    ) -> Result<BTreeMap<String, DecisionAnswer>> {
        let questions: Map<String, Value> =
            questions.into_iter().map(|(name, question)| (name.to_owned(), json!(question))).collect();
        let mut answer = self.call(Function::Decide, &json!({"state": state, "questions": questions}))?;
        if answer.get("stop_type").is_none_or(|stop| stop != "eos") {
            return Err(error_of(&answer));
        }
        let answers = answer.get_mut("answers").map(Value::take).unwrap_or_default();
        serde_json::from_value(answers).map_err(unexpected)
    }

    /// Prepares a request that may come: its conversation is brought to its prompt while no request runs, and the answer is begun if `begins`.
    /// Returns at once, with the number of the preparation.
    ///
    /// # Errors
    /// The request is invalid or names no conversation, or too many preparations wait.
    pub fn prepare(&self, request: &Request, begins: bool) -> Result<u64> {
        let answer = self.call(Function::Prepare, &json!(request.clone().set("begin", begins)))?;
        Ok(answer.get("id").and_then(Value::as_u64).unwrap_or_default())
    }

    /// Begins a completion, and returns its text as it is generated.
    ///
    /// # Errors
    /// The request is invalid, or the queue is full.
    pub fn stream(&self, request: &Request) -> Result<CompletionStream> {
        let answer = self.call(Function::Submit, &json!(request))?;
        let id = answer.get("id").and_then(Value::as_u64).unwrap_or_default();
        Ok(CompletionStream::new(Arc::clone(&self.0), id))
    }

    /// Sets the callback that changes the logits of requests with `logits_callback`, before each token is chosen; `None` removes it. Its
    /// arguments are the request's number, the row of logits, and all tokens before the position. An error or a panic ends the request.
    /// It runs on the engine's thread, where calls that wait are refused. When this returns, the previous callback no longer runs.
    pub fn set_logits_callback(&self, callback: Option<Box<LogitsCallback>>) {
        self.0.engine.set_logits_hook(callback);
    }

    /// The tokens of a text, with those that a prompt begins with.
    ///
    /// # Errors
    /// The engine failed.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        self.read(Function::Tokenize, &json!({"text": text}), "ids")
    }

    /// The text of tokens, with that of control tokens.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the engine failed.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String> {
        self.read(Function::Detokenize, &json!({"tokens": tokens}), "content")
    }

    /// The embedding of a text, from an engine that was loaded with `embedding`.
    ///
    /// # Errors
    /// The engine makes no embeddings, or failed.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        self.read(Function::Embed, &json!({"content": text}), "embedding")
    }

    /// The embedding of each token of a text, from an engine that was loaded with `embedding`.
    ///
    /// # Errors
    /// The engine makes no embeddings, or failed.
    pub fn embed_tokens(&self, text: &str) -> Result<Vec<Vec<f32>>> {
        self.read(Function::Embed, &json!({"content": text, "of_tokens": true}), "embedding")
    }

    /// How well each document answers a query, the best first, from an engine that was loaded with `reranking`.
    ///
    /// # Errors
    /// The model has no classifier, a document is too long, or the engine failed.
    pub fn rerank<'a>(&self, query: &str, documents: impl IntoIterator<Item = &'a str>) -> Result<Vec<RankedDocument>> {
        let documents: Vec<&str> = documents.into_iter().collect();
        self.read(Function::Rerank, &json!({"query": query, "documents": documents}), "results")
    }

    /// Saves what a slot has read to a file, and returns its number of tokens. Waits for the request that runs there.
    ///
    /// # Errors
    /// The slot is empty, or the file cannot be written.
    pub fn save_session(&self, path: &str, slot: usize) -> Result<usize> {
        self.read(Function::SessionSave, &json!({"filename": path, "id_slot": slot}), "n_saved")
    }

    /// Puts a saved session into a slot, and returns its number of tokens. Waits for the request that runs there.
    ///
    /// # Errors
    /// The file is missing, damaged, or of another model.
    pub fn load_session(&self, path: &str, slot: usize) -> Result<usize> {
        self.read(Function::SessionLoad, &json!({"filename": path, "id_slot": slot}), "n_restored")
    }

    /// Empties a slot. Waits for the request that runs there.
    ///
    /// # Errors
    /// The engine failed.
    pub fn erase_session(&self, slot: usize) -> Result<()> {
        self.call(Function::SessionErase, &json!({"id_slot": slot})).map(|_| ())
    }

    /// The conversations that requests have by name, in the order of their names.
    ///
    /// # Errors
    /// The engine failed.
    pub fn conversations(&self) -> Result<Vec<ConversationInfo>> {
        self.read(Function::Conversation, &json!({"action": "list"}), "conversations")
    }

    /// Forgets the state of a conversation.
    ///
    /// # Errors
    /// There is no such conversation.
    pub fn drop_conversation(&self, name: &str) -> Result<ConversationInfo> {
        self.conversation(json!({"action": "drop", "conversation": name}))
    }

    /// Gives the conversation `to` a copy of the state of `name`.
    ///
    /// # Errors
    /// There is no such conversation, no room for the copy, or a request of `to` runs.
    pub fn fork_conversation(&self, name: &str, to: &str) -> Result<ConversationInfo> {
        self.conversation(json!({"action": "fork", "conversation": name, "to": to}))
    }

    /// Pins a conversation, so that its state makes no room for others, or not.
    ///
    /// # Errors
    /// There is no such conversation.
    pub fn pin_conversation(&self, name: &str, is_pinned: bool) -> Result<ConversationInfo> {
        self.conversation(json!({"action": if is_pinned { "pin" } else { "unpin" }, "conversation": name}))
    }

    /// Cuts the state of a conversation back to the end of a turn, counted from 1; 0: to the beginning.
    ///
    /// # Errors
    /// There is no such conversation or turn, or a request of the conversation runs.
    pub fn rewind_conversation(&self, name: &str, turn: usize) -> Result<ConversationInfo> {
        self.conversation(json!({"action": "rewind", "conversation": name, "turn": turn}))
    }

    /// Saves the state of a conversation to a file.
    ///
    /// # Errors
    /// There is no such conversation, or the file cannot be written.
    pub fn save_conversation(&self, name: &str, path: &str) -> Result<ConversationInfo> {
        self.conversation(json!({"action": "save", "conversation": name, "filename": path}))
    }

    /// Gives a conversation the state of a file.
    ///
    /// # Errors
    /// The file is missing, damaged, or of another model; or a request of the conversation runs.
    pub fn load_conversation(&self, name: &str, path: &str) -> Result<ConversationInfo> {
        self.conversation(json!({"action": "load", "conversation": name, "filename": path}))
    }

    fn conversation(&self, request: Value) -> Result<ConversationInfo> {
        serde_json::from_value(self.call(Function::Conversation, &request)?).map_err(unexpected)
    }

    /// A field of a function's answer.
    fn read<T: serde::de::DeserializeOwned>(&self, function: Function, request: &Value, field: &str) -> Result<T> {
        let mut answer = self.call(function, request)?;
        serde_json::from_value(answer.get_mut(field).map(Value::take).unwrap_or_default()).map_err(unexpected)
    }

    /// Any function of the C interface that takes a JSON document and returns one.
    ///
    /// # Errors
    /// Those of the function.
    pub fn call(&self, function: Function, request: &Value) -> Result<Value> {
        self.0.engine.call(function, Ok(request.to_string().as_bytes()))
    }

    /// Ends all requests.
    ///
    /// # Errors
    /// The engine failed.
    pub fn cancel_all(&self) -> Result<()> {
        self.0.engine.cancel(Some(br#"{"all": true}"#)).map(|_| ())
    }

    /// Lets the engine's threads sleep until the result is dropped, as `foredraft_pause` does. Pauses may overlap. Returns at once.
    ///
    /// # Errors
    /// There are 2^32 - 1 pauses already.
    pub fn pause(&self) -> Result<EnginePause> {
        self.0.engine.pause().map(|()| EnginePause(Arc::clone(&self.0)))
    }

    /// The answer of `foredraft_status`.
    pub fn status(&self) -> Value {
        self.0.engine.status()
    }
}

/// A pause of an engine, which ends when this is dropped.
#[must_use = "the pause ends when it is dropped"]
pub struct EnginePause(Arc<LoadedModel>);

impl Drop for EnginePause {
    fn drop(&mut self) {
        // The engine has counted this pause.
        let _ = self.0.engine.resume();
    }
}
