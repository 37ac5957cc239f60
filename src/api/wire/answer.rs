//! The outer form of answers: `success`, or an error's code and message.

use serde_json::{Map, Value, json};

use crate::error::Error;

/// The error object of the C contract: `success`, `status`, `error`, `code`; `missing_file` or `denied_file` where a file does not exist,
/// or the process may not use it; and `n_prompt_tokens` and `n_ctx` where a prompt does not fit.
pub fn error_json(error: &Error) -> Value {
    let mut answer = json!({
        "success": false,
        "status": error.code().status(),
        "error": error.message(),
        "code": error.code().as_str(),
    });
    if let Value::Object(answer) = &mut answer {
        let files = [("missing_file", error.missing_file()), ("denied_file", error.denied_file())];
        answer.extend(files.into_iter().filter_map(|(key, path)| Some((key.to_owned(), path?.into()))));
    }
    if let (Some(overflow), Value::Object(answer)) = (error.overflow(), &mut answer) {
        answer.insert("n_prompt_tokens".into(), overflow.n_prompt_tokens.into());
        answer.insert("n_ctx".into(), overflow.n_ctx.into());
    }
    answer
}

/// A successful answer. `warnings` is left out when there are none.
pub fn success(answer: Value, warnings: Vec<String>) -> Value {
    let mut all = Map::from_iter([("success".to_owned(), true.into())]);
    if let Value::Object(answer) = answer {
        all.extend(answer);
    }
    if !warnings.is_empty() {
        all.insert("warnings".into(), warnings.into());
    }
    Value::Object(all)
}
