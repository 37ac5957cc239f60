//! Small templates, one for each way to write calls, and formats.

use super::renderer::TestTemplate;
use crate::families;
use crate::{Block, CallArguments, CallPart, Calls, ChatFormat, TagKind, TaggedValue, Tags};

/// Reasoning in `<think>`, calls as JSON in `<tool_call>`.
const JSON_IN_TAGS: &str = r#"{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}

{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// The prompt ends with `<think>`. Calls with a tag for each argument.
const TAGS: &str = r#"{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}<think>
{{ message.reasoning_content or '' }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"#;

/// Calls with a tag for each argument, whose values are printed as Python does.
const PYTHON_TAGS: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}{% for call in message.tool_calls or [] %}<call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>{{ value }}</parameter>
{% endfor %}</function>
</call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// A name, then JSON.
const NAME_THEN_JSON: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}{% if message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- else %}{{ message.content }}{% for call in message.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}"#;

/// An array of calls with ids in JSON.
const ARRAY: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% if message.tool_calls %}<calls>[
{%- for call in message.tool_calls %}{{ '{"id": "' + call.id + '", "tool": "' + call.function.name + '", "parameters": ' + (call.function.arguments | tojson) + '}' }}{% if not loop.last %}, {% endif %}{% endfor %}]</calls>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// Only the one call, as JSON without anything around it.
const BARE_JSON: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}<|{{ message.role }}|>{% if message.tool_calls %}{% if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}{{ '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' + (message.tool_calls[0].function.arguments | tojson) + '}' }}{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// The templates with their names.
pub(super) const ALL: [(&str, &str); 6] = [
    ("JSON in tags", JSON_IN_TAGS),
    ("tags", TAGS),
    ("Python in tags", PYTHON_TAGS),
    ("name then JSON", NAME_THEN_JSON),
    ("array", ARRAY),
    ("bare JSON", BARE_JSON),
];

/// Keys and values in tags of their own.
const GLM: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}<|{{ message.role }}|>
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for name, value in call.function.arguments | items %}<arg_key>{{ name }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// DeepSeek V4.
pub(super) const DSML_V4: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}{% if message.role == 'user' %}<|User|>{{ message.content }}{% else %}<|Assistant|>{{ message.content or '' }}{% if message.tool_calls %}

<｜DSML｜tool_calls>
{% for call in message.tool_calls %}<｜DSML｜invoke name="{{ call.function.name }}">
{% for name, value in call.function.arguments | items %}<｜DSML｜parameter name="{{ name }}" string="{{ 'true' if value is string else 'false' }}">{{ value if value is string else value | tojson }}</｜DSML｜parameter>
{% endfor %}</｜DSML｜invoke>
{% endfor %}</｜DSML｜tool_calls>{% endif %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"#;

/// DeepSeek V3.2: a section of calls, and strings in other tags than JSON.
fn dsml() -> ChatFormat {
    let value = |flag: &str, kind| TaggedValue {
        open: format!("\" string=\"{flag}\">"),
        close: "</\u{ff5c}DSML\u{ff5c}parameter>\n".to_owned(),
        kind,
    };
    let tags = Tags {
        before_key: "<\u{ff5c}DSML\u{ff5c}parameter name=\"".to_owned(),
        values: vec![value("true", TagKind::Text), value("false", TagKind::Json(""))],
        ..Tags::default()
    };
    let text = |text: &str| CallPart::Text(text.to_owned());
    ChatFormat {
        reasoning: Some(Block::new("<think>", "</think>")),
        calls: vec![Calls {
            begin: "<\u{ff5c}DSML\u{ff5c}function_calls>\n".to_owned(),
            end: "</\u{ff5c}DSML\u{ff5c}function_calls>".to_owned(),
            call: vec![
                text("<\u{ff5c}DSML\u{ff5c}invoke name=\""),
                CallPart::Name,
                text("\">\n"),
                CallPart::Arguments(CallArguments::Tags(tags)),
                text("</\u{ff5c}DSML\u{ff5c}invoke>\n"),
            ],
            ..Calls::default()
        }],
        ..ChatFormat::default()
    }
}

/// The formats of these templates, and of all families.
pub(super) fn formats() -> Vec<(&'static str, ChatFormat)> {
    let small = ALL.into_iter().chain([("GLM", GLM)]);
    let small = small.map(|(name, source)| (name, TestTemplate::new(source).detect()));
    small.chain([("DSML", dsml())]).chain(families::tests::all()).collect()
}

pub(super) fn format(name: &str) -> ChatFormat {
    formats().into_iter().find(|(known, _)| *known == name).unwrap().1
}
