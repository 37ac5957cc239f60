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

pub(crate) fn object(name: &str, arguments: &str) -> CallPart {
    let (name, arguments) = (Some(name.to_owned()), arguments.to_owned());
    CallPart::Object(CallObject { name, arguments, ..CallObject::default() })
}

fn tags(before_key: &str, open: &str, close: &str, separator: &str) -> Tags {
    let value = TaggedValue { open: open.to_owned(), close: close.to_owned(), kind: TagKind::BySchema };
    Tags { before_key: before_key.to_owned(), values: vec![value], separator: separator.to_owned(), ..Tags::default() }
}

/// Calls between texts. `call`: one call, where `{arguments}` stands for these, other names in braces for what they name, and texts in
/// braces with `/` between them for any of them.
fn calls(begin: &str, call: &str, separator: &str, end: &str, arguments: &CallArguments) -> Calls {
    let part = |(index, part): (usize, &str)| match part {
        part if index % 2 == 0 => text(part),
        "name" => CallPart::Name,
        "id" => CallPart::Id,
        "number" => CallPart::Number,
        "functions.name:number" => {
            CallPart::NumberedName { prefix: "functions.".to_owned(), separator: ":".to_owned() }
        }
        "arguments" => CallPart::Arguments(arguments.clone()),
        any => CallPart::AnyText(any.split('/').map(str::to_owned).collect()),
    };
    let parts = call.split(['{', '}']).enumerate().filter(|(_, part)| !part.is_empty());
    let [begin, separator, end] = [begin, separator, end].map(str::to_owned);
    Calls { begin, separator, end, call: parts.map(part).collect(), ..Calls::default() }
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
    let call = |header: &str, after: &[&str]| {
        let call = format!("{header}{{name}}{{{}}}{{arguments}}", after.join("/"));
        Calls { is_single: true, ..calls("", &call, "", "", &CallArguments::Json) }
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
            call("<|channel|>commentary to={functions./}", &behind),
            call(" to=functions.", &channel),
            call("<|channel|>analysis to={functions./}", &behind),
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
    ChatFormat {
        reasoning: Some(Block::new(" to=self<|message|>", "<|eom|>")),
        content: Some(Block { begins: texts(&[" to=user<|message|>"]), ends: texts(&["<|eom|>", "<|eot|>"]) }),
        calls: vec![calls(
            "",
            " to={name}<|message|><atem:function_calls>\n<atem:invoke name=\"{name}\">\n{arguments}</atem:invoke>\n</atem:function_calls>",
            "<|eom|><|start|>assistant",
            "",
            &CallArguments::Tags(tags("<atem:parameter name=\"", "\">", "</atem:parameter>\n", "")),
        )],
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
        calls: vec![calls(
            "<|open|>tools<|sep|>",
            "<|open|>call tool=\"{name}\" index=\"{number}\"<|sep|>{arguments}<|close|>call<|sep|>",
            "",
            "<|close|>tools<|sep|>",
            &CallArguments::Tags(tags),
        )],
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
        calls: vec![calls(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>{functions.name:number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            "",
            "<|tool_calls_section_end|>",
            &CallArguments::Json,
        )],
        // Models write these in place of the section's own.
        between: texts(&["<|tool_call_section_begin|>", "<|tool_call_section_end|>"]),
        ..ChatFormat::default()
    }
}

/// functionary 3.2: content and calls begin with the same text.
fn arrows() -> ChatFormat {
    ChatFormat {
        content: Some(Block { begins: texts(&[">>>all\n"]), ends: Vec::new() }),
        calls: vec![calls("", ">>>{name}\n{arguments}", "", "", &CallArguments::Json)],
        ..ChatFormat::default()
    }
}

/// LFM2: a list of calls in Python.
fn python_list(reasoning: Option<Block>) -> ChatFormat {
    let tags = CallArguments::Tags(Tags { is_python: true, ..tags("", "=", "", ", ") });
    ChatFormat {
        reasoning,
        calls: vec![calls("<|tool_call_start|>[", "{name}({arguments})", ", ", "]<|tool_call_end|>", &tags)],
        ..ChatFormat::default()
    }
}

/// Gemma 4: objects with bare keys.
fn gemma() -> ChatFormat {
    ChatFormat {
        reasoning: Some(Block::new("<|channel>thought\n", "<channel|>")),
        calls: vec![calls("", "<|tool_call>{call:/}{name}{arguments}<tool_call|>", "", "", &CallArguments::Gemma)],
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
        calls: vec![calls(
            "<|tool_calls|>",
            "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
            "",
            "",
            &CallArguments::Json,
        )],
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
        calls: vec![calls(
            "",
            "<function name=\"{name}\">{arguments}</function>",
            "\n",
            "",
            &CallArguments::Tags(tags),
        )],
        ..ChatFormat::default()
    }
}

/// MiniMax M3: an element with the argument's name.
fn element_tags() -> ChatFormat {
    const MARK: &str = "]<]minimax[>[";
    let tags = Tags { has_elements: true, ..tags(&format!("{MARK}<"), ">", &format!("{MARK}</{KEY}>"), "") };
    ChatFormat {
        reasoning: Some(Block::new("<mm:think>", "</mm:think>")),
        calls: vec![calls(
            &format!("{MARK}<tool_call>\n"),
            &format!("{MARK}<invoke name=\"{{name}}\">{{arguments}}{MARK}</invoke>\n"),
            "",
            &format!("{MARK}</tool_call>"),
            &CallArguments::Tags(tags),
        )],
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

#[cfg(test)]
pub(crate) mod tests;
