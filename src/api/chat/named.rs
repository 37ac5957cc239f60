//! llama.cpp's named chat templates (`--chat-template llama3`) as Jinja templates. llama.cpp has them in C++ (`llama-chat.cpp`), for strings
//! alone; as Jinja they mark what comes from messages like any other template. tests/against_llama compares each of them with llama.cpp.

use Turns::{Each, Jinja};

/// Llama 2 and its variants: how a system message is printed, what begins a later turn, and the content.
macro_rules! llama_2 {
    ($system:literal, $begin:literal, $content:literal) => {
        concat!(
            "{% set ns = namespace(inside=true) %}{{ '[INST] ' }}{% for message in messages %}{% set content = ",
            $content,
            " %}{% if not ns.inside %}{{ ",
            $begin,
            " }}{% set ns.inside = true %}{% endif %}{% if message.role == 'system' %}{{ ",
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

/// Ling and Ring: what is before all turns, what ends a turn, and what begins the reply.
macro_rules! bailing {
    ($start:literal, $end:literal, $reply:literal) => {
        concat!(
            $start,
            "{% for message in messages %}{{ '<role>' ~ ('HUMAN' if message.role == 'user' else message.role | upper) ~ '</role>' ~ message.content",
            $end,
            " }}{% endfor %}{% if add_generation_prompt %}{{ ",
            $reply,
            " }}{% endif %}"
        )
    };
}

/// What a template prints for each message.
enum Turns {
    /// By role: what is before and after the content, and whether the content is trimmed. The role `*` is any other; `%r` is its name.
    Each { start: &'static str, roles: &'static [TurnFormat], reply: &'static str },
    /// A Jinja template.
    Jinja(&'static str),
}

/// Role, text before and after the content, and whether the content is trimmed.
type TurnFormat = (&'static str, &'static str, &'static str, bool);

const fn each(roles: &'static [TurnFormat], reply: &'static str) -> Turns {
    Each { start: "", roles, reply }
}

/// The Jinja source of the template with this name.
pub(super) fn source(name: &str) -> Option<String> {
    let (_, turns) = TEMPLATES.iter().find(|(known, _)| *known == name)?;
    Some(match turns {
        Jinja(source) => (*source).to_owned(),
        Each { start, roles, reply } => from_roles(start, roles, reply),
    })
}

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

fn from_roles(start: &str, roles: &[TurnFormat], reply: &str) -> String {
    let mut source = format!("{{{{ {} }}}}{{% for message in messages %}}", literal(start));
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
    ("llama2", Jinja(llama_2!("content ~ '\\n'", "'[INST] '", "message.content"))),
    ("llama2-sys", Jinja(llama_2!("'<<SYS>>\\n' ~ content ~ '\\n<</SYS>>\\n\\n'", "'[INST] '", "message.content"))),
    (
        "llama2-sys-bos",
        Jinja(llama_2!("'<<SYS>>\\n' ~ content ~ '\\n<</SYS>>\\n\\n'", "'<s>[INST] '", "message.content")),
    ),
    (
        "llama2-sys-strip",
        Jinja(llama_2!("'<<SYS>>\\n' ~ content ~ '\\n<</SYS>>\\n\\n'", "'[INST] '", "message.content | trim")),
    ),
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
    ("falcon3", each(&[("*", "<|%r|>\n", "\n", false)], "<|assistant|>\n")),
    ("zephyr", each(&[("*", "<|%r|>\n", "<|endoftext|>\n", false)], "<|assistant|>\n")),
    (
        "monarch",
        Jinja(
            "{% for message in messages %}{{ ('' if loop.first else '<s>') ~ message.role ~ '\\n' ~ message.content ~ '</s>\\n' }}{% endfor %}\
             {% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}",
        ),
    ),
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
        "orion",
        Jinja(
            "{% set ns = namespace(system='') %}{% for message in messages %}{% if message.role == 'system' %}\
             {% set ns.system = ns.system ~ message.content %}{% elif message.role == 'user' %}{{ 'Human: ' }}\
             {% if ns.system %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}{% endif %}\
             {{ message.content ~ '\\n\\nAssistant: </s>' }}{% else %}{{ message.content ~ '</s>' }}{% endif %}{% endfor %}",
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
    ("deepseek-ocr", each(&[("*", "", "", false)], "")),
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
    ("chatglm3", Each { start: "[gMASK]sop", roles: &[("*", "<|%r|>\n ", "", false)], reply: "<|assistant|>" }),
    ("chatglm4", Each { start: "[gMASK]<sop>", roles: &[("*", "<|%r|>\n", "", false)], reply: "<|assistant|>\n" }),
    ("glmedge", each(&[("*", "<|%r|>\n", "", false)], "<|assistant|>")),
    ("minicpm", each(&[("user", "<用户>", "<AI>", true), ("*", "", "", true)], "")),
    (
        "exaone3",
        each(
            &[
                ("system", "[|system|]", "[|endofturn|]\n", true),
                ("user", "[|user|]", "\n", true),
                ("assistant", "[|assistant|]", "[|endofturn|]\n", true),
            ],
            "[|assistant|]",
        ),
    ),
    (
        "exaone4",
        each(
            &[
                ("system", "[|system|]", "[|endofturn|]\n", true),
                ("user", "[|user|]", "\n", true),
                ("assistant", "[|assistant|]", "[|endofturn|]\n", true),
                ("tool", "[|tool|]", "[|endofturn|]\n", true),
            ],
            "[|assistant|]",
        ),
    ),
    (
        "exaone-moe",
        each(
            &[
                ("system", "<|system|>\n", "<|endofturn|>\n", true),
                ("user", "<|user|>\n", "<|endofturn|>\n", true),
                ("assistant", "<|assistant|>\n", "<|endofturn|>\n", true),
                ("tool", "<|tool|>\n", "<|endofturn|>\n", true),
            ],
            "<|assistant|>\n",
        ),
    ),
    (
        "rwkv-world",
        Jinja(
            "{% for message in messages %}{% set content = message.content | trim %}{% if message.role == 'system' %}\
             {{ 'System: ' ~ content ~ '\\n\\n' }}{% elif message.role == 'user' %}{{ 'User: ' ~ content ~ '\\n\\n' }}\
             {% if loop.last %}{{ 'Assistant:' }}{% endif %}{% elif message.role == 'assistant' %}\
             {{ 'Assistant: ' ~ content ~ '\\n\\n' }}{% endif %}{% endfor %}",
        ),
    ),
    (
        "granite",
        each(
            &[
                (
                    "assistant_tool_call",
                    "<|start_of_role|>assistant_tool_call<|end_of_role|><|tool_call|>",
                    "<|end_of_text|>\n",
                    false,
                ),
                ("*", "<|start_of_role|>%r<|end_of_role|>", "<|end_of_text|>\n", false),
            ],
            "<|start_of_role|>assistant<|end_of_role|>",
        ),
    ),
    ("granite-4.0", GRANITE_4),
    ("granite-4.1", GRANITE_4),
    (
        "gigachat",
        Jinja(
            "{{ '<s>' }}{% for message in messages %}{% if message.role == 'system' and loop.first %}\
             {{ message.content ~ '<|message_sep|>' }}{% elif message.role == 'user' %}\
             {{ 'user<|role_sep|>' ~ message.content ~ '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' }}\
             {% elif message.role == 'assistant' %}{{ 'assistant<|role_sep|>' ~ message.content ~ '<|message_sep|>' }}{% endif %}\
             {% endfor %}{% if add_generation_prompt %}{{ 'assistant<|role_sep|>' }}{% endif %}",
        ),
    ),
    (
        "megrez",
        each(&[("*", "<|role_start|>%r<|role_end|>", "<|turn_end|>", false)], "<|role_start|>assistant<|role_end|>"),
    ),
    (
        "yandex",
        each(
            &[("user", " Пользователь: ", "\n\n", false), ("assistant", " Ассистент: ", "\n\n", false)],
            " Ассистент:[SEP]",
        ),
    ),
    ("bailing", Jinja(bailing!("", "", "'<role>ASSISTANT</role>'"))),
    ("bailing-think", Jinja(bailing!("", "", "'<role>ASSISTANT</role><think>'"))),
    (
        "bailing2",
        Jinja(bailing!(
            "{% if not messages or messages[0].role != 'system' %}{{ '<role>SYSTEM</role>detailed thinking off<|role_end|>' }}{% endif %}",
            " ~ '<|role_end|>'",
            "'<role>ASSISTANT</role>'"
        )),
    ),
    (
        "llama4",
        each(
            &[("*", "<|header_start|>%r<|header_end|>\n\n", "<|eot|>", true)],
            "<|header_start|>assistant<|header_end|>\n\n",
        ),
    ),
    (
        "smolvlm",
        Each {
            start: "<|im_start|>",
            roles: &[
                ("system", "", "\n\n", false),
                ("user", "User: ", "<end_of_utterance>\n", false),
                ("*", "Assistant: ", "<end_of_utterance>\n", false),
            ],
            reply: "Assistant:",
        },
    ),
    (
        "hunyuan-moe",
        each(
            &[
                ("system", "<|startoftext|>", "<|extra_4|>", false),
                ("assistant", "", "<|eos|>", false),
                ("*", "<|startoftext|>", "<|extra_0|>", false),
            ],
            "",
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
    (
        "hunyuan-dense",
        Jinja(
            "{% for message in messages %}{% if message.role == 'system' and loop.first %}\
             {{ message.content ~ '<｜hy_place▁holder▁no▁3｜>' }}{% elif message.role == 'assistant' %}\
             {{ '<｜hy_Assistant｜>' ~ message.content ~ '<｜hy_place▁holder▁no▁2｜>' }}{% elif message.role == 'user' %}\
             {{ '<｜hy_User｜>' ~ message.content ~ '<｜hy_Assistant｜>' }}{% endif %}{% endfor %}",
        ),
    ),
    (
        "hunyuan-vl",
        Jinja(
            "{{ '<｜hy_begin▁of▁sentence｜>' }}{% for message in messages %}{% if message.role == 'system' and loop.first %}\
             {{ message.content ~ '<｜hy_place▁holder▁no▁3｜>' }}{% elif message.role == 'user' %}\
             {{ message.content ~ '<｜hy_User｜>' }}{% elif message.role == 'assistant' %}\
             {{ message.content ~ '<｜hy_Assistant｜>' }}{% endif %}{% endfor %}",
        ),
    ),
    (
        "kimi-k2",
        each(
            &[
                ("system", "<|im_system|>system<|im_middle|>", "<|im_end|>", false),
                ("user", "<|im_user|>user<|im_middle|>", "<|im_end|>", false),
                ("assistant", "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", false),
                ("tool", "<|im_system|>tool<|im_middle|>", "<|im_end|>", false),
                ("*", "", "<|im_end|>", false),
            ],
            "<|im_assistant|>assistant<|im_middle|>",
        ),
    ),
    (
        "seed_oss",
        each(
            &[("assistant", "<seed:bos>assistant\n", "<seed:eos>", true), ("*", "<seed:bos>%r\n", "<seed:eos>", false)],
            "<seed:bos>assistant\n",
        ),
    ),
    (
        "grok-2",
        each(
            &[
                ("system", "System: ", "<|separator|>\n\n", true),
                ("user", "Human: ", "<|separator|>\n\n", true),
                ("assistant", "Assistant: ", "<|separator|>\n\n", false),
            ],
            "Assistant:",
        ),
    ),
    (
        "pangu-embedded",
        Jinja(
            "{% set names = {'system': '系统', 'user': '用户', 'assistant': '助手', 'tool': '工具', 'function': '方法'} %}\
             {% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '[unused9]系统：[unused10]' }}{% endif %}\
             {% if message.role in names %}{{ '[unused9]' ~ names[message.role] ~ '：' ~ message.content ~ '[unused10]' }}{% endif %}\
             {% endfor %}{% if add_generation_prompt %}{{ '[unused9]助手：' }}{% endif %}",
        ),
    ),
    ("solar-open", each(&[("*", "<|begin|>%r<|content|>", "<|end|>", false)], "<|begin|>assistant")),
];

const GRANITE_4: Turns = each(
    &[
        ("assistant_tool_call", "<|start_of_role|>assistant<|end_of_role|><|tool_call|>", "<|end_of_text|>\n", false),
        ("*", "<|start_of_role|>%r<|end_of_role|>", "<|end_of_text|>\n", false),
    ],
    "<|start_of_role|>assistant<|end_of_role|>",
);
