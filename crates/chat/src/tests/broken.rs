//! Texts that do not have the format: nothing is lost, and the message does not depend on how the text was cut.

use std::sync::Arc;

use serde_json::json;

use super::renderer::TestTemplate;
use super::round_trip::{read, tools};
use super::templates;
use crate::{ChatMessage, MessageParser, MessageReader, ReaderOptions};

/// The reader of a template's answers, with a tool `get_it` that has a required text `t`.
fn reader(source: &str, options: ReaderOptions) -> Arc<MessageReader> {
    let request = json!([{"type": "function", "function": {"name": "get_it", "parameters":
        {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": false}}}]);
    Arc::new(
        MessageReader::new(
            TestTemplate::new(source).detect(),
            tools(&request),
            options,
            &foredraft_base::work::Work::unlimited(),
        )
        .unwrap(),
    )
}

fn named(name: &str) -> &'static str {
    templates::ALL.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Pieces of which texts are made: parts of formats, and what looks like them.
const PIECES: [&str; 24] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    "x",
    "{",
    "}",
    "\"",
    "{\"name\": \"get_it\"",
    ", \"arguments\": {\"t\": \"v\"}}",
    "get_it",
    "<function=get_it>",
    "<parameter=t>",
    "\n</parameter>\n",
    "</function>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<calls>[",
    "]</calls>",
    "<",
    "{\"t\": \"<tool_call>\"}",
    "\u{e9}",
];

#[test]
fn message_depends_on_the_text_alone() {
    let mut state = 7_u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for (name, source) in templates::ALL {
        for is_enforced in [false, true] {
            let reader = reader(source, ReaderOptions { is_enforced, ..ReaderOptions::default() });
            for _ in 0..400 {
                let n = 1 + next(9);
                let text: String = (0..n).map(|_| PIECES[next(PIECES.len())]).collect();
                read(&reader, &text).unwrap_or_else(|error| panic!("{name}: {text:?}: {error}"));
            }
        }
    }
}

fn message(reader: &Arc<MessageReader>, text: &str) -> (ChatMessage, Vec<String>) {
    let mut parser = MessageParser::new(Arc::clone(reader));
    parser.push(text);
    parser.finish();
    (parser.message(), parser.warnings().to_vec())
}

#[test]
fn what_is_no_call_is_content() {
    let reader = reader(named("JSON in tags"), ReaderOptions::default());
    for text in [
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_it\", \"arguments\": {\"t\": \"x\"",
        "A <tool_call> is not one.",
        "<tool_call>\n{\"name\": \"get_it\", \"arguments\": [1]}\n</tool_call>",
    ] {
        let (message, _) = message(&reader, text);
        assert_eq!((message.content.as_str(), message.calls.len()), (text, 0));
    }
}

#[test]
fn call_with_invalid_arguments_is_one_with_a_warning() {
    let reader = reader(named("JSON in tags"), ReaderOptions::default());
    for (arguments, found) in [(", \"arguments\": {\"t\": 1}", "{\"t\": 1}"), (", \"arguments\": {}", "{}"), ("", "{}")]
    {
        let text = format!("<tool_call>\n{{\"name\": \"get_it\"{arguments}}}\n</tool_call>");
        let (message, warnings) = message(&reader, &text);
        assert_eq!((message.content.as_str(), message.calls[0].arguments.as_str()), ("", found));
        assert_eq!(warnings, ["tool_calls: the arguments of get_it are not valid under its parameters"]);
    }
}

/// Under a grammar a call is reported while it is written.
#[test]
fn call_that_breaks_off_is_a_beginning_of_it() {
    let options = ReaderOptions { is_enforced: true, is_required: true, ..ReaderOptions::default() };
    let reader = reader(named("bare JSON"), options);
    let whole = "{\"name\": \"get_it\", \"parameters\": {\"t\": \"some text\"}}";
    for end in 0..whole.len() {
        let (message, _) = message(&reader, &whole[..end]);
        assert_eq!(message.content, "", "{end}");
        let arguments = message.calls.first().map_or("", |call| call.arguments.as_str());
        assert!("{\"t\": \"some text\"}".starts_with(arguments), "{end}: {arguments}");
    }
}

/// Many texts that look like calls, and a value that nests deeply.
#[test]
fn hostile_text_takes_little_time_and_stack() {
    let reader = reader(named("JSON in tags"), ReaderOptions::default());
    let begun = "<tool_call>{\"name\": \"get_it\", \"arguments\": {\"t\": \"";
    for text in [
        begun.repeat(2000),
        "<tool_call>".repeat(20_000),
        format!("{begun}{}", "[".repeat(1 << 20)),
        "[".repeat(1 << 20),
    ] {
        let (message, _) = message(&reader, &text);
        assert_eq!(message.content.len(), text.len());
    }
    let deep = format!("<tool_call>{{\"name\": \"get_it\", \"arguments\": {{\"t\": {}", "[".repeat(1 << 16));
    assert_eq!(message(&reader, &deep).0.content, deep);
}

/// The least time of parsing 4,000 tokens: as one piece, and with a delta after each. It is printed, not checked.
#[test]
#[ignore = "measures"]
fn time_of_parsing() {
    let words = "The quick brown fox (it is 3 < 4) jumps over lazy dogs,\\n".repeat(286);
    for (what, name, text) in [
        ("text", "JSON in tags", words.clone()),
        ("reasoning", "JSON in tags", format!("<think>\n{words}\n</think>\n\nok")),
        (
            "a call in JSON",
            "JSON in tags",
            format!("<tool_call>\n{{\"name\": \"get_it\", \"arguments\": {{\"t\": \"{words}\"}}}}\n</tool_call>"),
        ),
        (
            "a call in tags",
            "tags",
            format!("<tool_call>\n<function=get_it>\n<parameter=t>\n{words}\n</parameter>\n</function>\n</tool_call>"),
        ),
    ] {
        let reader = reader(named(name), ReaderOptions { is_enforced: true, ..ReaderOptions::default() });
        let tokens: Vec<&str> = text.as_bytes().chunks(4).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
        let least = |pieces: &[&str]| {
            let rounds = (0..20).map(|_| {
                let mut parser = MessageParser::new(Arc::clone(&reader));
                let start = std::time::Instant::now();
                for piece in pieces {
                    parser.push(piece);
                    parser.delta();
                }
                parser.finish();
                start.elapsed().as_nanos() / tokens.len() as u128
            });
            rounds.min().unwrap()
        };
        let (each, one) = (least(&tokens), least(&[&text]));
        println!("{what}: {each} ns for each of {} tokens, {one} ns in one piece", tokens.len());
    }
}
