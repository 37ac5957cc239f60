//! Templates by name.

use serde_json::Value as Json;

use crate::api::wire::fields::{did_you_mean, unexpected};
use crate::error::{Error, Result};
use crate::llama::template_names;

/// The template's name in error messages.
pub const NAME: &str = "chat_template";

/// Whether a template is given by its name.
///
/// # Errors
/// It has no Jinja tags, so it is an unknown name. As a source it would render to the same text for all messages.
pub fn is_name(given: &str) -> Result<bool> {
    let names = template_names();
    let is_name = names.contains(&given);
    if is_name || given.contains("{{") || given.contains("{%") {
        return Ok(is_name);
    }
    let expected = format!("a Jinja template or one of the names {}", names.join(", "));
    let hint = did_you_mean(given, names);
    Err(Error::invalid(format!("{}{hint}", unexpected(NAME, &expected, &Json::from(given)).message())))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::{Map, json};

    use super::*;
    use crate::api::{ChatTemplate, RenderInput};
    use crate::error::Code;

    fn render(template: &str, add_generation_prompt: bool) -> Result<String> {
        let system = json!({"role": "system", "content": " Be brief.\n"});
        let user = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        ChatTemplate::parse(template, None)?.render(&RenderInput {
            messages: &[system, user, json!({"role": "assistant", "content": null})],
            add_generation_prompt,
            bos_token: "<s>",
            eos_token: "</s>",
            tools: None,
            kwargs: &Map::new(),
            now: UNIX_EPOCH,
            interrupt: None,
        })
    }

    #[test]
    fn chatml_is_a_template_name() {
        let turns = "<|im_start|>system\n Be brief.\n<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n\
            <|im_start|>assistant\n<|im_end|>\n";
        assert_eq!(render("chatml", false).unwrap(), turns);
        assert_eq!(render("chatml", true).unwrap(), format!("{turns}<|im_start|>assistant\n"));
    }

    #[test]
    fn unknown_template_names_are_refused() {
        for name in ["llama33", "ChatML", " chatml", "", "{# chatml #}", "<|im_start|>user\n"] {
            let error = render(name, true).unwrap_err();
            let expected = "chat_template: expected a Jinja template or one of the names ";
            assert!(error.code() == Code::InvalidRequest && error.message().starts_with(expected), "{name:?}: {error}");
        }
        for source in ["{{ messages[0].role }}", "{%- if true -%}system{%- endif -%}"] {
            assert_eq!(render(source, true).unwrap(), "system");
        }
    }
}
