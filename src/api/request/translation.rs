//! How an adaptor in front of the engine has translated a request, besides the fields that every host can set.

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, text_in, unexpected};
use crate::error::Result;

/// The traits of another interface that a request translated from it keeps. The default is a request that was not translated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translation {
    /// The warnings of the translation, which come before those of the request.
    pub warnings: Vec<String>,
    /// The request speculates only if it has `speculative`, and otherwise its answer does not mention speculation.
    pub speculates_if_asked: bool,
    /// The prompt is tokenized before the submit returns, however long it is, so that `prompt_stats` is complete.
    pub is_prepared_first: bool,
    /// A stop string that has begun at the end of the completion is cut.
    pub cuts_begun_stop: bool,
    /// `generation_settings` shows the bias of a banned token as null instead of false.
    pub bans_as_null: bool,
    /// `__debug` logs the answer alone, because the request was logged before it was translated.
    pub is_logged: bool,
    /// The final response has the prompt, whether or not `response_fields` names it.
    pub shows_prompt: bool,
}

impl Translation {
    /// The key of the request that has it.
    const KEY: &str = "__translation";

    pub(super) fn read(fields: &mut Fields) -> Result<Translation> {
        let Some(value) = fields.get(Translation::KEY) else { return Ok(Translation::default()) };
        let object = value.as_object().ok_or_else(|| unexpected(Translation::KEY, "an object", value))?;
        let mut inner = Fields::nested("__translation.", object);
        let text = |name: &str, value: &Value| text_in(name, value).map(str::to_owned);
        let warnings = inner.list("warnings", "an array of strings", text)?.unwrap_or_default();
        let mut flag = |key| Ok(inner.flag(key)?.unwrap_or(false));
        let translation = Translation {
            warnings,
            speculates_if_asked: flag("speculates_if_asked")?,
            is_prepared_first: flag("is_prepared_first")?,
            cuts_begun_stop: flag("cuts_begun_stop")?,
            bans_as_null: flag("bans_as_null")?,
            is_logged: flag("is_logged")?,
            shows_prompt: flag("shows_prompt")?,
        };
        fields.absorb(inner);
        Ok(translation)
    }

    /// Adds it to a request.
    pub(in crate::api) fn add_to(&self, request: &mut Map<String, Value>) {
        let value = json!({
            "warnings": self.warnings,
            "speculates_if_asked": self.speculates_if_asked,
            "is_prepared_first": self.is_prepared_first,
            "cuts_begun_stop": self.cuts_begun_stop,
            "bans_as_null": self.bans_as_null,
            "is_logged": self.is_logged,
            "shows_prompt": self.shows_prompt,
        });
        request.insert(Translation::KEY.to_owned(), value);
    }
}
