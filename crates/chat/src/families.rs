//! Formats that do not show by comparing conversations, recognized by what their templates render.

use crate::format::{Block, CallArguments, CallObject, CallPart, Calls, ChatFormat, KEY, TagKind, TaggedValue, Tags};
use crate::probes::Probes;

/// XML's mark of text that is not parsed.
const CDATA: &str = "CDATA";

/// The tags around all calls of DeepSeek V3.2 and V4.
const DSML_SECTIONS: [&str; 4] =
    ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"];

/// The tag around calls of Qwen's models.
pub(crate) const TOOL_CALL: &str = "<tool_call>";

fn text(text: &str) -> CallPart {
    CallPart::Text(text.to_owned())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn object(name: &str, arguments: &str) -> CallPart {
    let (name, arguments) = (Some(name.to_owned()), arguments.to_owned());
    CallPart::Object(CallObject { name, arguments, ..CallObject::default() })
}

fn tags(before_key: &str, open: &str, close: &str, separator: &str) -> Tags {
    let value = TaggedValue { open: open.to_owned(), close: close.to_owned(), kind: TagKind::BySchema };
    Tags { before_key: before_key.to_owned(), values: vec![value], separator: separator.to_owned(), ..Tags::default() }
}

/// The format of a template with a description of its own.
pub(crate) fn recognize(probes: &Probes) -> Option<ChatFormat> {
    let calls = probes.calls.as_deref().or(probes.call.as_deref()).unwrap_or_default();
    let begun = probes.generation_prompt();
    let has = |word: &str| calls.contains(word) || probes.text.contains(word);
    let in_texts = |word: &str| probes.has_text(word);
    Some(match () {
        () if has("<|channel|>") && begun.contains("<|start|>assistant") => harmony(),
        () if has(" to=user<|message|>") => recipients(),
        () if has("<|open|>message") => open_close(),
        () if in_texts("<|tool_call_argument_begin|>") => sections(probes.reasoning()),
        () if begun.ends_with(">>>") => arrows(),
        () if in_texts("<|tool_call_start|>") || in_texts("List of tools: ") => python_list(probes.reasoning()),
        () if has("<|tool_call>call:") || in_texts("<|tool_call>call:") => gemma(),
        () if has("<|tool_call:begin|>") => named_sections(),
        () if has(CDATA) || in_texts(CDATA) => cdata(),
        () if has("]<]minimax[>[<tool_call>") => element_tags(),
        () => return None,
    })
}

/// gpt-oss: channels with headers. Models also call in the channel of reasoning.
fn harmony() -> ChatFormat {
    let call = |header: &str, prefixes: &[&str], after: &[&str]| Calls {
        call: vec![
            text(header),
            CallPart::AnyText(texts(prefixes)),
            CallPart::Name,
            CallPart::AnyText(texts(after)),
            CallPart::Arguments(CallArguments::Json),
        ],
        is_single: true,
        ..Calls::default()
    };
    let behind = [" <|constrain|>json<|message|>", "<|message|>"];
    let channel = [
        "<|channel|>commentary json<|message|>",
        "<|channel|>commentary <|constrain|>json<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>analysis json<|message|>",
        "<|channel|>analysis <|constrain|>json<|message|>",
        "<|channel|>analysis<|message|>",
    ];
    ChatFormat {
        reasoning: Some(Block { begins: texts(&["<|channel|>analysis<|message|>"]), ends: texts(&["<|end|>"]) }),
        content: Some(Block {
            begins: texts(&[
                "<|channel|>final<|message|>",
                "<|channel|>commentary<|message|>",
                "<|channel|>final <|constrain|>json<|message|>",
            ]),
            ends: texts(&["<|end|>", "<|return|>"]),
        }),
        calls: vec![
            call("<|channel|>commentary to=", &["functions.", ""], &behind),
            call(" to=functions.", &[""], &channel),
            call("<|channel|>analysis to=", &["functions.", ""], &behind),
        ],
        foreign: texts(&["<|channel|>commentary to=", "<|channel|>analysis to=", "<|start|>assistant to="]),
        between: texts(&["<|start|>assistant", "<|call|>", "<|channel|>commentary to=assistant"]),
        before_calls: "<|start|>assistant".to_owned(),
        before_content: "<|start|>assistant".to_owned(),
        ..ChatFormat::default()
    }
}

/// Muse: messages to recipients, and calls in tags.
fn recipients() -> ChatFormat {
    let mut tags = tags("<atem:parameter name=\"", "\">", "</atem:parameter>\n", "");
    tags.separator.clear();
    ChatFormat {
        reasoning: Some(Block::new(" to=self<|message|>", "<|eom|>")),
        content: Some(Block { begins: texts(&[" to=user<|message|>"]), ends: texts(&["<|eom|>", "<|eot|>"]) }),
        calls: vec![Calls {
            separator: "<|eom|><|start|>assistant".to_owned(),
            call: vec![
                text(" to="),
                CallPart::Name,
                text("<|message|><atem:function_calls>\n<atem:invoke name=\""),
                CallPart::Name,
                text("\">\n"),
                CallPart::Arguments(CallArguments::Tags(tags)),
                text("</atem:invoke>\n</atem:function_calls>"),
            ],
            ..Calls::default()
        }],
        between: texts(&["<|start|>assistant"]),
        before_calls: "<|start|>assistant".to_owned(),
        before_content: "<|start|>assistant".to_owned(),
        ..ChatFormat::default()
    }
}

/// Kimi K3: elements that are opened and closed, and a type with each argument.
fn open_close() -> ChatFormat {
    let value = |name: &'static str, kind: TagKind| TaggedValue {
        open: format!("\" type=\"{name}\"<|sep|>"),
        close: "<|close|>argument<|sep|>".to_owned(),
        kind,
    };
    let mut values = vec![value("string", TagKind::Text)];
    values.extend(["number", "object", "array", "boolean", "null"].map(|name| value(name, TagKind::Json(name))));
    let tags = Tags { before_key: "<|open|>argument key=\"".to_owned(), values, ..Tags::default() };
    ChatFormat {
        reasoning: Some(Block::new("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
        content: Some(Block::new("<|open|>response<|sep|>", "<|close|>response<|sep|>")),
        calls: vec![Calls {
            begin: "<|open|>tools<|sep|>".to_owned(),
            end: "<|close|>tools<|sep|>".to_owned(),
            call: vec![
                text("<|open|>call tool=\""),
                CallPart::Name,
                text("\" index=\""),
                CallPart::Number,
                text("\"<|sep|>"),
                CallPart::Arguments(CallArguments::Tags(tags)),
                text("<|close|>call<|sep|>"),
            ],
            ..Calls::default()
        }],
        before_calls: "<|open|>response<|sep|><|close|>response<|sep|>".to_owned(),
        turn_end: "<|close|>message<|sep|>".to_owned(),
        ..ChatFormat::default()
    }
}

/// The tags of DeepSeek's sections of calls in other versions than that of these calls, whose models write them, too.
pub(crate) fn other_sections(calls: &[Calls]) -> Vec<String> {
    let own: Vec<&str> = calls.iter().flat_map(|calls| [calls.begin.trim(), calls.end.trim()]).collect();
    if !own.iter().any(|tag| DSML_SECTIONS.contains(tag)) {
        return Vec::new();
    }
    texts(&DSML_SECTIONS.into_iter().filter(|tag| !own.contains(tag)).collect::<Vec<_>>())
}

/// Kimi K2: the id of a call has its name and number.
fn sections(reasoning: Option<Block>) -> ChatFormat {
    ChatFormat {
        reasoning,
        calls: vec![Calls {
            begin: "<|tool_calls_section_begin|>".to_owned(),
            end: "<|tool_calls_section_end|>".to_owned(),
            call: vec![
                text("<|tool_call_begin|>"),
                CallPart::NumberedName { prefix: "functions.".to_owned(), separator: ":".to_owned() },
                text("<|tool_call_argument_begin|>"),
                CallPart::Arguments(CallArguments::Json),
                text("<|tool_call_end|>"),
            ],
            ..Calls::default()
        }],
        // Models write these in place of the section's own.
        between: texts(&["<|tool_call_section_begin|>", "<|tool_call_section_end|>"]),
        ..ChatFormat::default()
    }
}

/// functionary 3.2: content and calls begin with the same text.
fn arrows() -> ChatFormat {
    ChatFormat {
        content: Some(Block { begins: texts(&[">>>all\n"]), ends: Vec::new() }),
        calls: vec![Calls {
            call: vec![text(">>>"), CallPart::Name, text("\n"), CallPart::Arguments(CallArguments::Json)],
            ..Calls::default()
        }],
        ..ChatFormat::default()
    }
}

/// LFM2: a list of calls in Python.
fn python_list(reasoning: Option<Block>) -> ChatFormat {
    let mut tags = tags("", "=", "", ", ");
    tags.is_python = true;
    ChatFormat {
        reasoning,
        calls: vec![Calls {
            begin: "<|tool_call_start|>[".to_owned(),
            separator: ", ".to_owned(),
            end: "]<|tool_call_end|>".to_owned(),
            call: vec![CallPart::Name, text("("), CallPart::Arguments(CallArguments::Tags(tags)), text(")")],
            ..Calls::default()
        }],
        ..ChatFormat::default()
    }
}

/// Gemma 4: objects with bare keys.
fn gemma() -> ChatFormat {
    ChatFormat {
        reasoning: Some(Block::new("<|channel>thought\n", "<channel|>")),
        calls: vec![Calls {
            call: vec![
                text("<|tool_call>"),
                CallPart::AnyText(texts(&["call:", ""])),
                CallPart::Name,
                CallPart::Arguments(CallArguments::Gemma),
                text("<tool_call|>"),
            ],
            ..Calls::default()
        }],
        // Models repeat the tags of reasoning.
        between: texts(&["<|tool_response>", "<channel|>", "<|channel>"]),
        ..ChatFormat::default()
    }
}

/// Solar: parts with a beginning of their own, and the ids of calls.
fn named_sections() -> ChatFormat {
    ChatFormat {
        reasoning: Some(Block::new("<|think|>", "<|end|>")),
        content: Some(Block { begins: texts(&["<|content|>"]), ends: texts(&["<|end|>"]) }),
        calls: vec![Calls {
            begin: "<|tool_calls|>".to_owned(),
            end: String::new(),
            call: vec![
                text("<|tool_call:begin|>"),
                CallPart::Id,
                text("<|tool_call:name|>"),
                CallPart::Name,
                text("<|tool_call:args|>"),
                CallPart::Arguments(CallArguments::Json),
                text("<|tool_call:end|>"),
            ],
            ..Calls::default()
        }],
        between: texts(&["<|begin|>assistant", "<|calls|>"]),
        before_calls: "<|begin|>assistant".to_owned(),
        before_content: "<|begin|>assistant".to_owned(),
        ..ChatFormat::default()
    }
}

/// MiniCPM 5: texts with special characters are CDATA.
fn cdata() -> ChatFormat {
    let plain = TaggedValue { open: "\">".to_owned(), close: "</param>".to_owned(), kind: TagKind::BySchema };
    let quoted = TaggedValue { open: format!("\"><![{CDATA}["), close: "]]></param>".to_owned(), kind: TagKind::Text };
    let tags = Tags {
        before_key: "<param name=\"".to_owned(),
        values: vec![plain, quoted],
        prints_python: true,
        ..Tags::default()
    };
    ChatFormat {
        reasoning: Some(Block::new("<think>", "</think>")),
        calls: vec![Calls {
            separator: "\n".to_owned(),
            call: vec![
                text("<function name=\""),
                CallPart::Name,
                text("\">"),
                CallPart::Arguments(CallArguments::Tags(tags)),
                text("</function>"),
            ],
            ..Calls::default()
        }],
        ..ChatFormat::default()
    }
}

/// MiniMax M3: an element with the argument's name.
fn element_tags() -> ChatFormat {
    const MARK: &str = "]<]minimax[>[";
    let tags = Tags { has_elements: true, ..tags(&format!("{MARK}<"), ">", &format!("{MARK}</{KEY}>"), "") };
    ChatFormat {
        reasoning: Some(Block::new("<mm:think>", "</mm:think>")),
        calls: vec![Calls {
            begin: format!("{MARK}<tool_call>\n"),
            end: format!("{MARK}</tool_call>"),
            call: vec![
                text(&format!("{MARK}<invoke name=\"")),
                CallPart::Name,
                text("\">"),
                CallPart::Arguments(CallArguments::Tags(tags)),
                text(&format!("{MARK}</invoke>\n")),
            ],
            ..Calls::default()
        }],
        ..ChatFormat::default()
    }
}

/// Calls as Qwen's and Hermes' models write them.
pub(crate) fn json_in_tags() -> Calls {
    Calls {
        separator: "\n".to_owned(),
        call: vec![text(&format!("{TOOL_CALL}\n")), object("name", "arguments"), text("\n</tool_call>")],
        ..Calls::default()
    }
}

/// Calls that a template does not print, as its instructions for the model or its markup describe them.
pub(crate) fn instructed(probes: &Probes) -> Option<Calls> {
    let in_texts = |word: &str| probes.has_text(word);
    if in_texts("<tool_call>") {
        return Some(json_in_tags());
    }
    if in_texts("<|tool_call|>") {
        return Some(Calls {
            begin: "<|tool_call|>[".to_owned(),
            separator: ", ".to_owned(),
            end: "]".to_owned(),
            call: vec![object("name", "arguments")],
            ..Calls::default()
        });
    }
    None
}

/// The formats of all families.
#[cfg(test)]
pub(crate) fn all() -> Vec<(&'static str, ChatFormat)> {
    let thinks = || Some(Block::new("<think>", "</think>"));
    vec![
        ("gpt-oss", harmony()),
        ("Muse", recipients()),
        ("Kimi K3", open_close()),
        ("Kimi K2", sections(thinks())),
        ("functionary", arrows()),
        ("LFM2", python_list(thinks())),
        ("Gemma", gemma()),
        ("Solar", named_sections()),
        ("MiniCPM", cdata()),
        ("MiniMax M3", element_tags()),
    ]
}
