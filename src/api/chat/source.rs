//! The source of a template: built-in templates by name, and rewriting for minijinja, so that it accepts what Jinja2 with
//! transformers' extensions accepts.

use std::str::Chars;

use serde_json::Value as Json;

use super::lists;
use crate::api::fields::unexpected;
use crate::error::Result;

/// The template's name in minijinja's environment and in error messages.
pub const NAME: &str = "chat_template";
/// `chatml`: llama.cpp's template for models without one. Messages are not trimmed.
const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The given source, or the built-in template with the given name.
///
/// # Errors
/// It has no Jinja tags, so it is an unknown name (llama.cpp has more names, of templates that are not Jinja). As a source it would
/// render to the same text for all messages.
pub fn named(given: &str) -> Result<&str> {
    match given {
        "chatml" => Ok(CHATML),
        source if source.contains("{{") || source.contains("{%") => Ok(source),
        other => Err(unexpected(NAME, "a Jinja template or the name chatml", &Json::from(other))),
    }
}

/// The source with `\n` as line end, and with some tags replaced:
///
/// - `{% generation %}` and `{% endgeneration %}`, which mark the assistant's text for training, by tags that only open a scope;
/// - the list in `{% set x = [] %}` by a mutable list.
pub fn rewritten(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut result = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        result.push_str(before);
        result.push_str("{%");
        rest = tag;
        let Some((inside, after)) = tag.split_once("%}") else { continue };
        if let Some(inside) = replaced(inside) {
            result.push_str(&inside);
            result.push_str("%}");
            rest = after;
        }
    }
    result + rest
}

/// The string literals in the tags of a source, sorted, without duplicates.
pub fn literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(start) = ["{{", "{%"].iter().filter_map(|tag| rest.find(tag)).min() {
        let mut tag = rest.get(start + 2..).unwrap_or_default().chars();
        // The end of the tag is outside of strings and dictionaries.
        let mut depth = 0_usize;
        while let Some(c) = tag.next() {
            match c {
                '\'' | '"' => literals.push(literal(&mut tag, c)),
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                '}' | '%' if tag.as_str().starts_with('}') => break,
                _ => {}
            }
        }
        rest = tag.as_str();
    }
    literals.sort_unstable();
    literals.dedup();
    literals
}

/// Reads a string literal, after its opening quote.
fn literal(tag: &mut Chars, quote: char) -> String {
    let mut text = String::new();
    while let Some(c) = tag.next().filter(|c| *c != quote) {
        match (c, tag.clone().next()) {
            ('\\', Some(escaped)) => {
                tag.next();
                text.push(match escaped {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                });
            }
            _ => text.push(c),
        }
    }
    text
}

/// The replacement for the text between `{%` and `%}`, if there is one.
fn replaced(inside: &str) -> Option<String> {
    let statement = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_ascii_whitespace());
    let new = match statement {
        "generation" => "with".to_owned(),
        "endgeneration" => "endwith".to_owned(),
        _ => {
            let (target, value) = statement.strip_prefix("set ")?.split_once('=')?;
            let empty = value.trim().strip_prefix('[')?.strip_suffix(']')?.trim().is_empty();
            empty.then(|| format!("set {target}= {}()", lists::MAKE))?
        }
    };
    Some(inside.replacen(statement, &new, 1))
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
        ChatTemplate::parse(template)?.render(&RenderInput {
            messages: &[system, user, json!({"role": "assistant", "content": null})],
            add_generation_prompt,
            bos_token: "<s>",
            eos_token: "</s>",
            tools: None,
            kwargs: &Map::new(),
            now: UNIX_EPOCH,
        })
    }

    #[test]
    fn strings_in_tags_are_found() {
        for (source, expected) in [
            ("it's {{ 'a' + \"it's\" }} don't {% if x == 'a' -%} 'b' {%- endif %}", vec!["a", "it's"]),
            ("{{ '}}' }}{{ \"a\\\"\\n\" }}{{ '", vec!["", "a\"\n", "}}"]),
            ("{{ {'a': {'b': 1}} | tojson('c') }} 'd'", vec!["a", "b", "c"]),
            ("{# 'a' #}{", vec![]),
        ] {
            assert_eq!(literals(source), expected, "{source}");
        }
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
        for name in ["llama3", "ChatML", " chatml", "", "{# chatml #}", "<|im_start|>user\n"] {
            let error = render(name, true).unwrap_err();
            let expected = "chat_template: expected a Jinja template or the name chatml, got ";
            assert!(error.code() == Code::InvalidRequest && error.message().starts_with(expected), "{name:?}: {error}");
        }
        for source in ["{{ messages[0].role }}", "{%- if true -%}system{%- endif -%}"] {
            assert_eq!(render(source, true).unwrap(), "system");
        }
    }
}
