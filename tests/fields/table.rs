//! Rows of the field table: each is sent in every call mode, and its check gets the response in one form.

use foredraft::api::JsonEngine;
use serde_json::{Map, Value, json};

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Endpoint, Requests as _, complete, drain, merge, submit, with};

/// The functions by which a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMode {
    /// `foredraft_complete`, not drafted.
    Blocking,
    /// `foredraft_submit` and polling, not drafted.
    Polled,
    /// `foredraft_complete`, drafted.
    Speculative,
}

pub const MODES: [CallMode; 3] = [CallMode::Blocking, CallMode::Polled, CallMode::Speculative];

impl CallMode {
    pub fn endpoint(self) -> Endpoint {
        if self == CallMode::Speculative { Foredraft } else { Plain }
    }
}

/// A row of the table.
pub struct Row {
    /// The documented fields that it covers.
    pub fields: &'static [&'static str],
    /// The keys that are sent, in addition to [`base`].
    pub sent: Value,
    /// Asserts on the response.
    pub check: fn(&Response),
}

pub fn row(fields: &'static [&'static str], sent: Value, check: fn(&Response)) -> Row {
    Row { fields, sent, check }
}

/// The request that every row starts from. `cache_prompt` is off, so rows do not affect each other.
pub fn base(mode: CallMode) -> Value {
    let mut request = json!({
        "prompt": "Once upon a time there was a child named", "n_predict": 16, "seed": 7, "temperature": 0.8,
        "cache_prompt": false, "return_tokens": true,
    });
    if mode == CallMode::Speculative {
        merge(&mut request, &json!({"speculative": {"adaptive": false, "n_max": 3}}));
    }
    request
}

/// A response, with the request and the call mode that it belongs to.
pub struct Response<'a> {
    pub engine: &'a JsonEngine,
    pub mode: CallMode,
    pub request: Value,
    /// The final response. If polled, with the text, tokens and probabilities of all updates.
    pub answer: Value,
    /// The updates, if polled.
    pub updates: Vec<Value>,
}

impl<'a> Response<'a> {
    pub fn of(engine: &'a JsonEngine, mode: CallMode, request: Value) -> Response<'a> {
        if mode == CallMode::Polled {
            let id = submit(engine, mode.endpoint(), &request);
            let updates = drain(engine, mode.endpoint(), id);
            let answer = joined(&updates);
            assert_eq!(answer["success"], true, "{request}: {answer}");
            return Response { engine, mode, request, answer, updates };
        }
        let answer = complete(engine, mode.endpoint(), &request);
        Response { engine, mode, request, answer, updates: Vec::new() }
    }

    /// Sends the same request in the same mode with the keys of `more` set.
    pub fn ask(&self, more: Value) -> Response<'a> {
        Response::of(self.engine, self.mode, with(&self.request, more))
    }

    /// Sends the same request without a field.
    pub fn without(&self, field: &str) -> Response<'a> {
        let mut request = self.request.clone();
        request.as_object_mut().expect("an object").remove(field);
        Response::of(self.engine, self.mode, request)
    }

    /// The error message with which the same request is refused when the keys of `more` are set.
    pub fn refused(&self, more: Value) -> String {
        let request = with(&self.request, more).to_string();
        let answer = match self.mode {
            CallMode::Polled => self.engine.submit_as(Plain, request.as_bytes()),
            mode => self.engine.complete_as(mode.endpoint(), request.as_bytes()),
        };
        answer.expect_err(&request).message().to_owned()
    }

    pub fn content(&self) -> &str {
        self.answer["content"].as_str().unwrap_or_else(|| panic!("no content: {}", self.answer))
    }

    /// The text of the prompt's tokens, without the first one (BOS).
    pub fn prompt(&self) -> String {
        let stats = &self.answer["prompt_stats"];
        let part = |key: &str| stats[key].as_str().unwrap_or_else(|| panic!("no {key}: {}", self.answer));
        let text = part("cached").to_owned() + part("to_eval");
        text.strip_prefix("<|endoftext|>").unwrap_or(&text).to_owned()
    }

    /// The ids of the generated tokens.
    pub fn tokens(&self) -> Vec<i64> {
        numbers(&self.answer["tokens"])
    }

    /// `generation_settings`, as used.
    pub fn setting(&self, name: &str) -> &Value {
        &self.answer["generation_settings"][name]
    }
}

pub fn numbers(list: &Value) -> Vec<i64> {
    list.as_array().expect("an array").iter().map(|id| id.as_i64().expect("a number")).collect()
}

/// The token ids that `tokenize` returns.
pub fn tokenized(engine: &JsonEngine, request: Value) -> Vec<i64> {
    let request = request.to_string();
    numbers(&engine.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens")["ids"])
}

pub fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Joins the updates of a polled request to the response that a blocking call returns. Updates with an `index` are grouped by it.
fn joined(updates: &[Value]) -> Value {
    if updates.iter().any(|update| update.get("index").is_some()) {
        let n = 1 + updates.iter().filter_map(|update| update["index"].as_u64()).max().expect("an index");
        let of = |index| updates.iter().filter(|update| update["index"] == index).cloned().collect::<Vec<_>>();
        let results: Vec<Value> = (0..n).map(|index| joined_text(&of(index))).collect();
        return json!({"success": true, "id": updates[0]["id"], "results": results});
    }
    joined_text(updates)
}

fn joined_text(updates: &[Value]) -> Value {
    let (last, earlier) = updates.split_last().expect("a final response");
    let mut answer: Map<String, Value> = last.as_object().expect("an object").clone();
    // The last update has no text, and the probabilities of all of it.
    if let Some(content) = last.get("content") {
        assert_eq!(content, "", "{last}");
    }
    if let Some(whole) = last.get("completion_probabilities") {
        let told = earlier.iter().filter_map(|update| update["completion_probabilities"].as_array());
        assert_eq!(*whole, told.flatten().cloned().collect::<Value>());
    }
    for update in earlier.iter().rev() {
        for (key, value) in &mut answer {
            match (value, update.get(key)) {
                (Value::String(text), Some(Value::String(before))) if key == "content" => text.insert_str(0, before),
                (Value::Array(list), Some(Value::Array(before))) if ["tokens", "sources"].contains(&key.as_str()) => {
                    list.splice(0..0, before.iter().cloned());
                }
                _ => {}
            }
        }
    }
    Value::Object(answer)
}

/// Sends every row in every call mode.
pub fn run(engine: &JsonEngine, rows: &[Row]) {
    for row in rows {
        for mode in MODES {
            let request = with(&base(mode), row.sent.clone());
            // Names the row if it fails.
            eprintln!("{:?} {mode:?} {}", row.fields, row.sent);
            (row.check)(&Response::of(engine, mode, request));
        }
    }
}
