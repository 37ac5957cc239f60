//! `logit_bias`: tokens and texts, each with what is added to its logit.

use serde_json::Value;

use super::prompt::token;
use crate::api::wire::fields::{Fields, c_text_in, number_in, show, unexpected};
use crate::error::Result;
use crate::llama::Token;

/// The maximum `logit_bias`. A sum of a few, divided by a small temperature, still fits into an `f32`.
const MAX_BIAS: f32 = 1e9;

/// An entry of `logit_bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitBias {
    /// The token or text.
    pub target: BiasTarget,
    /// Added to the logit. `-inf` bans the token.
    pub bias: f32,
}

/// The token or text of a `logit_bias` entry.
#[derive(Debug, Clone, PartialEq)]
pub enum BiasTarget {
    /// A token, by its id.
    Token(Token),
    /// Every token of this text.
    Text(String),
}

/// Reads `logit_bias` in all of llama-server's forms: pairs `[id or text, bias]`, objects `{"token", "bias"}` as in its
/// `generation_settings`, or one object `{"id or text": bias}`.
pub(super) fn logit_bias(fields: &mut Fields) -> Result<Vec<LogitBias>> {
    let bias = |name: &str, value: &Value| match value {
        // null is minus infinity in `generation_settings`, as the old server and llama-server write it.
        Value::Bool(false) | Value::Null => Ok(f32::NEG_INFINITY),
        Value::Number(_) => number_in(name, value, -MAX_BIAS..=MAX_BIAS),
        _ => Err(unexpected(name, "a number or false", value)),
    };
    let target = |name: &str, value: &Value| match value {
        Value::String(_) => Ok(BiasTarget::Text(c_text_in(name, value)?.to_owned())),
        Value::Number(_) => token(name, value).map(BiasTarget::Token),
        _ => Err(unexpected(name, "a token id or a string", value)),
    };
    let name = "logit_bias";
    match fields.get(name) {
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| {
                let key = Value::from(key.as_str());
                let id = key.as_str().and_then(|key| key.parse::<i64>().ok()).map(Value::from);
                let name = format!("{name}.{}", show(&key));
                if value.is_null() {
                    return Err(unexpected(&name, "a number or false", value));
                }
                Ok(LogitBias { target: target(&name, id.as_ref().unwrap_or(&key))?, bias: bias(&name, value)? })
            })
            .collect(),
        _ => {
            let entries = fields.list(name, "an array of [token, bias], or an object", |name, entry| {
                let (of, value) = match entry {
                    Value::Array(pair) => match pair.as_slice() {
                        [of, value] => Some((of, value)),
                        _ => None,
                    },
                    Value::Object(map) => map.get("token").zip(map.get("bias")),
                    _ => None,
                }
                .ok_or_else(|| unexpected(name, "[token, bias]", entry))?;
                Ok(LogitBias { target: target(name, of)?, bias: bias(name, value)? })
            })?;
            Ok(entries.unwrap_or_default())
        }
    }
}
