//! The table's frame: a row is sent in every way, and its check sees the answer in one shape.

use foredraft::api::Endpoint::{Completion, Speculative};
use foredraft::api::{Endpoint, System};
use serde_json::{Map, Value, json};

use crate::common::{complete, drain, merge, submit, with};

/// How a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `get_completion`.
    Whole,
    /// `async_completion_init` and polling.
    Polled,
    /// `speculative_completion`.
    Speculative,
}

pub const WAYS: [Way; 3] = [Way::Whole, Way::Polled, Way::Speculative];

impl Way {
    pub fn family(self) -> Endpoint {
        if self == Way::Speculative { Speculative } else { Completion }
    }
}

/// One line of the table.
pub struct Row {
    /// The fields of the contract that it is about.
    pub fields: &'static [&'static str],
    /// What is sent, on top of [`base`].
    pub sent: Value,
    /// What must be seen.
    pub check: fn(&Seen),
}

pub fn row(fields: &'static [&'static str], sent: Value, check: fn(&Seen)) -> Row {
    Row { fields, sent, check }
}

/// What is sent in every row, unless it says otherwise. Nothing is left in the cache from one row to the next.
pub fn base(way: Way) -> Value {
    let mut request = json!({
        "prompt": "Once upon a time there was a child named", "n_predict": 16, "seed": 7, "temperature": 0.8,
        "cache_prompt": false, "return_tokens": true,
    });
    if way == Way::Speculative {
        merge(&mut request, &json!({"speculative": {"adaptive": false, "n_max": 3}}));
    }
    request
}

/// An answer and how it came.
pub struct Seen<'a> {
    pub system: &'a System,
    pub way: Way,
    pub request: Value,
    /// The final response; when polled with all of the text, the tokens and the probabilities.
    pub answer: Value,
    /// When polled.
    pub updates: Vec<Value>,
}

impl<'a> Seen<'a> {
    pub fn of(system: &'a System, way: Way, request: Value) -> Seen<'a> {
        if way == Way::Polled {
            let id = submit(system, Completion, &request);
            let updates = drain(system, Completion, id);
            let answer = joined(&updates);
            assert_eq!(answer["success"], true, "{request}: {answer}");
            return Seen { system, way, request, answer, updates };
        }
        let answer = complete(system, way.family(), &request);
        Seen { system, way, request, answer, updates: Vec::new() }
    }

    /// The same request with other fields, in the same way.
    pub fn ask(&self, more: Value) -> Seen<'a> {
        Seen::of(self.system, self.way, with(&self.request, more))
    }

    /// The same request without a field.
    pub fn without(&self, field: &str) -> Seen<'a> {
        let mut request = self.request.clone();
        request.as_object_mut().expect("an object").remove(field);
        Seen::of(self.system, self.way, request)
    }

    /// The error that the same request with other fields is refused with.
    pub fn refused(&self, more: Value) -> String {
        let request = with(&self.request, more).to_string();
        let answer = self.system.with_server(|server| match self.way {
            Way::Polled => server.submit(Completion, request.as_bytes()),
            way => server.complete(way.family(), request.as_bytes()),
        });
        answer.expect_err(&request).message().to_owned()
    }

    pub fn content(&self) -> &str {
        self.answer["content"].as_str().unwrap_or_else(|| panic!("no content: {}", self.answer))
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

/// The ids that `tokenize` gives.
pub fn tokenized(system: &System, request: Value) -> Vec<i64> {
    let request = request.to_string();
    numbers(&system.with_server(|server| server.tokenize(request.as_bytes())).expect("tokens")["ids"])
}

pub fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// A polled answer as it would have come whole. Updates with an `index` are joined by it.
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
    assert_eq!(last["content"], "", "{last}");
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

/// Sends each row in each way.
pub fn run(system: &System, rows: &[Row]) {
    for row in rows {
        for way in WAYS {
            let request = with(&base(way), row.sent.clone());
            // Which row it is, should it fail.
            eprintln!("{:?} {way:?} {}", row.fields, row.sent);
            (row.check)(&Seen::of(system, way, request));
        }
    }
}
