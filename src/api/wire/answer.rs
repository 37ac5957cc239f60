//! The outer form of answers: `success`, or an error's code and message.

use serde_json::{Map, Value, json};

use crate::error::Error;

/// The error object of the C contract: `success`, `status`, `error`, `code`; `missing_file` or `denied_file` where a file does not exist,
/// or the process may not use it; and `n_prompt_tokens` and `n_ctx` where a prompt does not fit.
pub fn error_json(error: &Error) -> Value {
    let answer = json!({
        "success": false,
        "status": error.code().status(),
        "error": error.message(),
        "code": error.code().as_str(),
    });
    let files = [("missing_file", error.missing_file()), ("denied_file", error.denied_file())];
    let files = files.into_iter().filter_map(|(key, path)| Some((key, path?.into())));
    let overflow = error.overflow();
    let overflow = overflow.map(|it| [("n_prompt_tokens", it.n_prompt_tokens.into()), ("n_ctx", it.n_ctx.into())]);
    with_fields(answer, files.chain(overflow.into_iter().flatten()))
}

/// An object with more fields.
pub fn with_fields<'k>(mut object: Value, more: impl IntoIterator<Item = (&'k str, Value)>) -> Value {
    if let Value::Object(object) = &mut object {
        object.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    }
    object
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
