//! The outer form of every answer.

use serde_json::{Map, Value, json};

use crate::error::Error;

/// The error object of the C contract: `success`, `status`, `error`, `code`.
pub fn error_json(error: &Error) -> Value {
    json!({
        "success": false,
        "status": error.code().status(),
        "error": error.message(),
        "code": error.code().as_str(),
    })
}

/// A successful answer. `warnings` is left out when there are none.
pub(in crate::api) fn success(answer: Value, warnings: Vec<String>) -> Value {
    let mut all = Map::from_iter([("success".to_owned(), true.into())]);
    if let Value::Object(answer) = answer {
        all.extend(answer);
    }
    if !warnings.is_empty() {
        all.insert("warnings".into(), warnings.into());
    }
    Value::Object(all)
}

/// `a / b`, and 0 where `b` is 0: JSON has no infinity.
pub(in crate::api) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
