//! The constraints on the completion beside `grammar`: when the grammar begins, and how long the model may reason.

use serde_json::{Value, json};

use super::prompt::token;
use crate::api::wire::answer::with_fields;
use crate::api::wire::fields::{Fields, c_text_in, text_in, unexpected, word_in};
use crate::error::Result;
use crate::llama::Token;

/// The most entries of `preserved_tokens`.
const MAX_PRESERVED: usize = 1 << 12;
/// The most tokens of reasoning that a budget can allow.
const MAX_BUDGET: i64 = i32::MAX as i64;

/// When the grammar begins, and how long the model may reason. A request with messages gets from its template what it does not set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConstraintOptions {
    /// The grammar applies from the first trigger on.
    pub grammar_lazy: bool,
    /// The texts and tokens from which on a lazy grammar applies.
    pub grammar_triggers: Vec<GrammarTrigger>,
    /// The text that the grammar begins with before the completion begins.
    pub grammar_prefix: String,
    /// The completion begins inside of reasoning, behind which the grammar's texts stand.
    pub is_behind_reasoning: bool,
    /// Texts of control tokens that are part of the completion.
    pub preserved_tokens: Vec<String>,
    /// The end of the prompt, which may begin reasoning.
    pub generation_prompt: String,
    /// The text after which the model reasons. Empty: unknown.
    pub reasoning_start: String,
    /// The texts that end reasoning. The first one is written when the budget is used up.
    pub reasoning_ends: Vec<String>,
    /// The most tokens of reasoning; `None`: any number.
    pub reasoning_budget: Option<u32>,
    /// Written before reasoning is ended.
    pub reasoning_message: String,
}

/// A trigger of a lazy grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarTrigger {
    /// The kind of trigger.
    pub kind: TriggerKind,
    /// A word, or a regular expression; of a token its text, or empty.
    pub value: String,
    /// The token, if it is given by its id.
    pub token: Option<Token>,
}

foredraft_base::words! {
    /// The kinds of triggers, numbered as in llama.cpp.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TriggerKind {
        /// A token.
        Token => "token",
        /// A text.
        Word => "word",
        /// A regular expression that matches a part of the completion.
        Pattern => "pattern",
        /// A regular expression that matches the completion so far.
        FullPattern => "pattern_full",
        /// A text at the beginning of the completion, or behind reasoning.
        Beginning => "beginning",
    }
}

impl ConstraintOptions {
    /// Reads the fields.
    ///
    /// # Errors
    /// A field has the wrong type or value.
    pub(super) fn read(fields: &mut Fields) -> Result<ConstraintOptions> {
        let text = |name: &str, value: &Value| match c_text_in(name, value)? {
            "" => Err(unexpected(name, "a string that is not empty", value)),
            text => Ok(text.to_owned()),
        };
        let preserved_tokens = fields.list("preserved_tokens", "an array of strings", text)?.unwrap_or_default();
        if preserved_tokens.len() > MAX_PRESERVED {
            let n = preserved_tokens.len();
            let message = format!("preserved_tokens: expected at most {MAX_PRESERVED} strings, got {n}");
            return Err(crate::error::Error::invalid(message));
        }
        let budget: Option<i64> = fields.int("reasoning_budget_tokens", -1..=MAX_BUDGET)?;
        Ok(ConstraintOptions {
            grammar_lazy: fields.flag("grammar_lazy")?.unwrap_or(false),
            grammar_triggers: fields.list("grammar_triggers", "an array of triggers", trigger)?.unwrap_or_default(),
            grammar_prefix: fields.c_text("grammar_prefix")?.unwrap_or_default(),
            is_behind_reasoning: false,
            preserved_tokens,
            generation_prompt: fields.c_text("generation_prompt")?.unwrap_or_default(),
            reasoning_start: fields.c_text("reasoning_budget_start_tag")?.unwrap_or_default(),
            reasoning_ends: fields.list("reasoning_budget_end_tags", "an array of strings", text)?.unwrap_or_default(),
            reasoning_budget: budget.and_then(|budget| u32::try_from(budget).ok()),
            reasoning_message: fields.c_text("reasoning_budget_message")?.unwrap_or_default(),
        })
    }

    /// The JSON of the fields that [`ConstraintOptions::read`] reads.
    pub(super) fn report(&self) -> [(&'static str, Value); 9] {
        let triggers = self.grammar_triggers.iter().map(|trigger| {
            let json = json!({"type": trigger.kind.as_str(), "value": trigger.value});
            with_fields(json, trigger.token.map(|token| ("token", token.into())))
        });
        [
            ("grammar_lazy", json!(self.grammar_lazy)),
            ("grammar_triggers", triggers.collect()),
            ("grammar_prefix", json!(self.grammar_prefix)),
            ("preserved_tokens", json!(self.preserved_tokens)),
            ("generation_prompt", json!(self.generation_prompt)),
            ("reasoning_budget_start_tag", json!(self.reasoning_start)),
            ("reasoning_budget_end_tags", json!(self.reasoning_ends)),
            ("reasoning_budget_tokens", self.reasoning_budget.map_or(json!(-1), Value::from)),
            ("reasoning_budget_message", json!(self.reasoning_message)),
        ]
    }
}

/// Reads a trigger: `{"type": "word", "value": "..."}`. The type can be llama.cpp's number.
fn trigger(name: &str, value: &Value) -> Result<GrammarTrigger> {
    let Value::Object(map) = value else {
        return Err(unexpected(name, r#"{"type": "word", "value": ...}"#, value));
    };
    let kind = map.get("type").unwrap_or(&Value::Null);
    let by_number = kind.as_u64().and_then(|number| TriggerKind::WORDS.get(usize::try_from(number).ok()?));
    let kind = match by_number {
        Some((_, kind)) => *kind,
        None => word_in(&format!("{name}.type"), kind, &TriggerKind::WORDS)?,
    };
    let id = map.get("token").filter(|token| !token.is_null());
    let id = id.map(|id| token(&format!("{name}.token"), id)).transpose()?;
    let text = match map.get("value") {
        None | Some(Value::Null) if id.is_some() => "",
        text => text_in(&format!("{name}.value"), text.unwrap_or(&Value::Null))?,
    };
    Ok(GrammarTrigger { kind, value: text.to_owned(), token: id.filter(|_| kind == TriggerKind::Token) })
}
