//! The chat templates of llama.cpp that hosts choose by name (`--chat-template llama3`), as Jinja templates. llama.cpp has them and more in
//! C++ (`llama-chat.cpp`), for strings alone; as Jinja they mark what comes from messages like any other template. tests/against_llama
//! compares each of them with llama.cpp.

use Turns::{Each, Jinja};

/// Llama 2: how a system message is printed.
macro_rules! llama_2 {
    ($system:literal) => {
        concat!(
            "{% set ns = namespace(inside=true) %}{{ '[INST] ' }}{% for message in messages %}{% set content = message.content %}",
            "{% if not ns.inside %}{{ '[INST] ' }}{% set ns.inside = true %}{% endif %}{% if message.role == 'system' %}{{ ",
            $system,
            " }}{% elif message.role == 'user' %}{{ content ~ ' [/INST]' }}{% else %}{{ content ~ '</s>' }}",
            "{% set ns.inside = false %}{% endif %}{% endfor %}"
        )
    };
}

/// Mistral before version 7: what begins and ends an instruction, and an answer.
macro_rules! mistral {
    ($begin:literal, $end:literal, $answer:literal) => {
        concat!(
            "{% set ns = namespace(inside=false) %}{% for message in messages %}{% if not ns.inside %}{{ ",
            $begin,
            " }}{% set ns.inside = true %}{% endif %}{% if message.role == 'system' %}{{ message.content ~ '\\n\\n' }}",
            "{% elif message.role == 'user' %}{{ message.content ~ ",
            $end,
            " }}{% else %}{{ ",
            $answer,
            " ~ '</s>' }}{% set ns.inside = false %}{% endif %}{% endfor %}"
        )
    };
}

/// The text that a template prints for each message.
enum Turns {
    /// By role: what is before and after the content, and whether the content is trimmed. The role `*` is any other; `%r` is its name.
    Each { roles: &'static [TurnFormat], reply: &'static str },
    /// A Jinja template.
    Jinja(&'static str),
}

/// Role, text before and after the content, and whether the content is trimmed.
type TurnFormat = (&'static str, &'static str, &'static str, bool);

const fn each(roles: &'static [TurnFormat], reply: &'static str) -> Turns {
    Each { roles, reply }
}

/// The Jinja source of the template with this name.
pub(super) fn source(name: &str) -> Option<String> {
    let (_, turns) = TEMPLATES.iter().find(|(known, _)| *known == name)?;
    Some(match turns {
        Jinja(source) => (*source).to_owned(),
        Each { roles, reply } => from_roles(roles, reply),
    })
}

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

fn from_roles(roles: &[TurnFormat], reply: &str) -> String {
    let mut source = "{% for message in messages %}".to_owned();
    for (index, (role, before, after, trims)) in roles.iter().enumerate() {
        let test = format!("message.role == {}", literal(role));
        source += &match (index, *role) {
            (0, "*") => "{% if true %}".to_owned(),
            (_, "*") => "{% else %}".to_owned(),
            (0, _) => format!("{{% if {test} %}}"),
            _ => format!("{{% elif {test} %}}"),
        };
        let before: Vec<String> = before.split("%r").map(literal).collect();
        let (before, after) = (before.join(" ~ message.role ~ "), literal(after));
        let content = if *trims { "(message.content | trim)" } else { "message.content" };
        source += &format!("{{{{ {before} ~ {content} ~ {after} }}}}");
    }
    let reply = literal(reply);
    source + &format!("{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {reply} }}}}{{% endif %}}")
}

/// A text as a Jinja string.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
}

const TEMPLATES: &[(&str, Turns)] = &[
    ("chatml", each(&[("*", "<|im_start|>%r\n", "<|im_end|>\n", false)], "<|im_start|>assistant\n")),
    ("llama2", Jinja(llama_2!("content ~ '\\n'"))),
    ("llama2-sys", Jinja(llama_2!("'<<SYS>>\\n' ~ content ~ '\\n<</SYS>>\\n\\n'"))),
    ("mistral-v1", Jinja(mistral!("' [INST] '", "' [/INST]'", "' ' ~ message.content"))),
    ("mistral-v3", Jinja(mistral!("'[INST] '", "'[/INST]'", "' ' ~ (message.content | trim)"))),
    ("mistral-v3-tekken", Jinja(mistral!("'[INST]'", "'[/INST]'", "message.content"))),
    (
        "mistral-v7",
        each(
            &[
                ("system", "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]", false),
                ("user", "[INST] ", "[/INST]", false),
                ("*", " ", "</s>", false),
            ],
            "",
        ),
    ),
    (
        "mistral-v7-tekken",
        each(
            &[
                ("system", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", false),
                ("user", "[INST]", "[/INST]", false),
                ("*", "", "</s>", false),
            ],
            "",
        ),
    ),
    ("phi3", each(&[("*", "<|%r|>\n", "<|end|>\n", false)], "<|assistant|>\n")),
    ("phi4", each(&[("*", "<|im_start|>%r<|im_sep|>", "<|im_end|>", false)], "<|im_start|>assistant<|im_sep|>")),
    ("zephyr", each(&[("*", "<|%r|>\n", "<|endoftext|>\n", false)], "<|assistant|>\n")),
    (
        "gemma",
        Jinja(
            "{% set ns = namespace(system='') %}{% for message in messages %}{% if message.role == 'system' %}\
             {% set ns.system = ns.system ~ (message.content | trim) %}{% else %}\
             {% set role = 'model' if message.role == 'assistant' else message.role %}{{ '<start_of_turn>' ~ role ~ '\\n' }}\
             {% if ns.system and role != 'model' %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}{% endif %}\
             {{ (message.content | trim) ~ '<end_of_turn>\\n' }}{% endif %}{% endfor %}\
             {% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
        ),
    ),
    (
        "openchat",
        Jinja(
            "{% for message in messages %}{% if message.role == 'system' %}{{ message.content ~ '<|end_of_turn|>' }}{% else %}\
             {{ 'GPT4 Correct ' ~ (message.role | capitalize) ~ ': ' ~ message.content ~ '<|end_of_turn|>' }}{% endif %}{% endfor %}\
             {% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}",
        ),
    ),
    (
        "vicuna",
        each(
            &[
                ("system", "", "\n\n", false),
                ("user", "USER: ", "\n", false),
                ("assistant", "ASSISTANT: ", "</s>\n", false),
            ],
            "ASSISTANT:",
        ),
    ),
    (
        "vicuna-orca",
        each(
            &[
                ("system", "SYSTEM: ", "\n", false),
                ("user", "USER: ", "\n", false),
                ("assistant", "ASSISTANT: ", "</s>\n", false),
            ],
            "ASSISTANT:",
        ),
    ),
    (
        "deepseek",
        each(
            &[
                ("system", "", "", false),
                ("user", "### Instruction:\n", "\n", false),
                ("assistant", "### Response:\n", "\n<|EOT|>\n", false),
            ],
            "### Response:\n",
        ),
    ),
    (
        "deepseek2",
        each(
            &[
                ("system", "", "\n\n", false),
                ("user", "User: ", "\n\n", false),
                ("assistant", "Assistant: ", "<｜end▁of▁sentence｜>", false),
            ],
            "Assistant:",
        ),
    ),
    (
        "deepseek3",
        each(
            &[
                ("system", "", "\n\n", false),
                ("user", "<｜User｜>", "", false),
                ("assistant", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", false),
            ],
            "<｜Assistant｜>",
        ),
    ),
    (
        "command-r",
        each(
            &[
                ("system", "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>", true),
                ("user", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>", true),
                ("assistant", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", true),
            ],
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        ),
    ),
    (
        "llama3",
        each(
            &[("*", "<|start_header_id|>%r<|end_header_id|>\n\n", "<|eot_id|>", true)],
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ),
    (
        "llama4",
        each(
            &[("*", "<|header_start|>%r<|header_end|>\n\n", "<|eot|>", true)],
            "<|header_start|>assistant<|header_end|>\n\n",
        ),
    ),
    (
        "gpt-oss",
        each(
            &[
                ("assistant", "<|start|>assistant<|message|>", "<|return|>", false),
                ("*", "<|start|>%r<|message|>", "<|end|>", false),
            ],
            "<|start|>assistant",
        ),
    ),
];
