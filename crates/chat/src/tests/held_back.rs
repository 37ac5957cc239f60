//! Text is a part of the message as soon as it is certain what it is: only what may become a tag, or a call that is not complete, is held back.

use std::sync::Arc;

use serde_json::json;

use super::round_trip::tools;
use super::templates;
use crate::{Block, ChatFormat, ChatMessage, MessageParser, MessageReader, ReaderOptions};

/// Text with characters that begin tags, and nothing that ends the strings of a format.
const PROSE: &str =
    "It is 3 < 4, so f(x) [see below] gives {a: 1, b: 2}. Call get_it or functions. \"Yes\" > no; to=us, name: f\n";
/// The most bytes that wait for more: the longest tag of a format, with the space before it.
const MOST: usize = 40;

fn reader(format: &ChatFormat, is_enforced: bool) -> Arc<MessageReader> {
    let request = json!([{"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}}}]);
    let options = ReaderOptions { is_enforced, ..ReaderOptions::default() };
    Arc::new(
        MessageReader::new(format.clone(), tools(&request), options, &foredraft_base::work::Work::unlimited()).unwrap(),
    )
}

/// Reads a text byte by byte behind another one. Returns the most bytes of it that were held back.
fn most_held_back(reader: &Arc<MessageReader>, begun: &str, text: &str, part: fn(&ChatMessage) -> usize) -> usize {
    let mut parser = MessageParser::new(Arc::clone(reader));
    parser.push(begun);
    let mut most = 0;
    for (at, char) in text.char_indices() {
        parser.push(&text[at..at + char.len_utf8()]);
        most = most.max((at + char.len_utf8()).saturating_sub(part(&parser.message())));
    }
    most
}

#[test]
fn prose_is_content_at_once() {
    let prose = PROSE.repeat(4);
    for (name, format) in templates::formats() {
        for is_enforced in [false, true] {
            let reader = reader(&format, is_enforced);
            let begun = format.content.as_ref().map_or("", Block::begin);
            let most = most_held_back(&reader, begun, &prose, |message| message.content.len());
            assert!(most <= MOST, "{name}, enforced {is_enforced}: {most}");
        }
    }
}

#[test]
fn prose_is_reasoning_at_once() {
    let prose = PROSE.repeat(4);
    for (name, format) in templates::formats() {
        let Some(block) = &format.reasoning else { continue };
        for is_enforced in [false, true] {
            let reader = reader(&format, is_enforced);
            let most = most_held_back(&reader, block.begin(), &prose, |message| message.reasoning.len());
            assert!(most <= MOST, "{name}, enforced {is_enforced}: {most}");
        }
    }
}

/// Under a grammar the strings in calls are reported while they are written.
#[test]
fn strings_in_calls_are_reported_at_once() {
    let prose = "It is 3 < 4, so f(x) [see below] gives {a: 1, b: 2}. ".repeat(8);
    for (name, begun) in [
        ("JSON in tags", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \""),
        ("tags", "</think>\n<tool_call>\n<function=f>\n<parameter=s>\n"),
        ("GLM", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>"),
        (
            "DSML",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">",
        ),
        ("LFM2", "<|tool_call_start|>[f(s='"),
        ("LFM2", "<|tool_call_start|>[f(s=\""),
        ("Gemma", "<|tool_call>call:f{s:<|\"|>"),
        (
            "Kimi K2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"",
        ),
        (
            "Kimi K3",
            "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>",
        ),
        ("MiniMax M3", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>"),
    ] {
        let reader = reader(&templates::format(name), true);
        let arguments = |message: &ChatMessage| message.calls.first().map_or(0, |call| call.arguments.len());
        let most = most_held_back(&reader, begun, &prose, arguments);
        assert!(most <= MOST, "{name}: {most} behind {begun:?}");
    }
}
