//! Answers as models write them, which differ from what templates print: each is allowed by the grammar, and is read in the same way with it
//! and without.

use std::sync::Arc;

use serde_json::json;

use super::round_trip::{constraint, read, refused, tools};
use super::templates;
use crate::{ChatFormat, MessageParser, MessageReader, ReaderOptions, Tool, TurnRequest, TurnStart};

fn one_tool() -> Vec<Tool> {
    let properties = json!({"s": {"type": "string"}, "n": {"type": ["integer", "null"]}, "b": {"type": "boolean"}});
    tools(&json!([{"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": properties, "required": ["s"]}}}]))
}

fn reader(format: &ChatFormat, is_enforced: bool) -> Arc<MessageReader> {
    Arc::new(
        MessageReader::new(
            format.clone(),
            one_tool(),
            ReaderOptions { is_enforced, ..ReaderOptions::default() },
            &foredraft_base::work::Work::unlimited(),
        )
        .unwrap(),
    )
}

/// The calls' arguments, with a text before them if there is content.
fn check(format: &ChatFormat, text: &str, content: &str, arguments: &[&str]) {
    let tools = one_tool();
    let turn = TurnRequest { tools: &tools, is_required: false, parallel: true, document: None };
    assert_eq!(refused(constraint(format, &turn, &TurnStart::default()), text), None, "{text}");
    for is_enforced in [false, true] {
        let message = read(&reader(format, is_enforced), text).unwrap();
        let calls: Vec<serde_json::Value> =
            message.calls.iter().map(|call| serde_json::from_str(&call.arguments).unwrap()).collect();
        let expected: Vec<serde_json::Value> =
            arguments.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        assert_eq!((message.content.as_str(), calls), (content, expected), "enforced {is_enforced}: {text}");
    }
}

#[test]
fn calls_with_other_space_and_tags_than_the_template_prints_are_read() {
    let lima = [r#"{"s": "Lima"}"#];
    for text in [
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"Lima\"}<|tool_call_end|>",
        "<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"Lima\"}<|tool_call_end|><|tool_call_section_end|>",
        "<|tool_calls_section_begin|> <|tool_call_begin|>\nfunctions.f:0 <|tool_call_argument_begin|> {\"s\": \"Lima\"}<|tool_call_end|>\n<|tool_calls_section_end|>",
    ] {
        check(&templates::format("Kimi K2"), text, "", &lima);
    }
    for space in ["", " ", "\n"] {
        check(
            &templates::format("LFM2"),
            &format!("<|tool_call_start|>{space}[f(s='Lima')]{space}<|tool_call_end|>"),
            "",
            &lima,
        );
    }
    check(
        &templates::format("LFM2"),
        r"<|tool_call_start|>[f(s='it\'s\n', n=None, b=True)]<|tool_call_end|>",
        "",
        &[r#"{"s": "it's\n", "n": null, "b": true}"#],
    );
    check(&templates::format("Gemma"), "<|tool_call>f{s:<|\"|>Lima<|\"|>}<tool_call|>", "", &lima);
    check(&templates::format("Gemma"), "<|tool_call> call:f{s:<|\"|>Lima<|\"|>}<tool_call|>", "", &lima);
    let invoke = "<\u{ff5c}DSML\u{ff5c}invoke name=\"f\">\n<\u{ff5c}DSML\u{ff5c}parameter name=\"s\" string=\"true\">Lima</\u{ff5c}DSML\u{ff5c}parameter>\n</\u{ff5c}DSML\u{ff5c}invoke>";
    check(&templates::format("DSML"), invoke, "", &lima);
    check(
        &templates::format("DSML"),
        &format!("<\u{ff5c}DSML\u{ff5c}function_calls>{invoke}</\u{ff5c}DSML\u{ff5c}function_calls>"),
        "",
        &lima,
    );
}

#[test]
fn calls_in_tags_are_read_with_their_variants() {
    let format = templates::format("tags");
    let lima = r#"{"s": "Lima"}"#;
    let call = "<tool_call>\n<function=f>\n<parameter=s>\nLima\n</parameter>\n</function>\n</tool_call>";
    for text in [
        call,
        "<tool_call><function=f>\n<parameter=s>\nLima\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f><parameter=s>Lima</parameter></function> </tool_call>",
        "<function=f>\n<parameter=s>\nLima\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}\n</tool_call>",
    ] {
        check(&format, text, "", &[lima]);
    }
    check(&format, &format!("Look: {call}\n{call}"), "Look:", &[lima, lima]);
    let flags = "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\nNone\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>";
    check(&format, flags, "", &[r#"{"s": "a", "n": null, "b": true}"#]);
}

/// Models add ids that the template does not print.
#[test]
fn ids_in_calls_are_read() {
    for call in [
        r#"{"id": "call_1", "name": "f", "arguments": {"s": "x"}}"#,
        r#"{"name": "f", "arguments": {"s": "x"}, "id": "call_1"}"#,
        r#"{"name" : "f" , "arguments":{"s":"x"}}"#,
    ] {
        check(&templates::format("JSON in tags"), &format!("<tool_call>{call}</tool_call>"), "", &[r#"{"s": "x"}"#]);
    }
}

#[test]
fn recipients_that_are_not_offered_are_neither_content_nor_calls() {
    let reader = reader(&templates::format("gpt-oss"), false);
    for header in [
        "<|channel|>commentary to=python code",
        "<|channel|>analysis to=browser.search code",
        " to=python<|channel|>analysis code",
    ] {
        let text =
            format!("<|channel|>analysis<|message|>R<|end|><|start|>assistant{header}<|message|>print(1)<|call|>");
        let mut parser = MessageParser::new(Arc::clone(&reader));
        parser.push(&text);
        parser.finish();
        let message = parser.message();
        assert_eq!(
            (message.reasoning.as_str(), message.content.as_str(), message.calls.len()),
            ("R", "", 0),
            "{header}"
        );
        assert_eq!(parser.warnings().len(), 1, "{header}: {:?}", parser.warnings());
    }
    let text = "<|channel|>commentary to=f <|constrain|>json<|message|>{\"s\":\"x\"}";
    check(&templates::format("gpt-oss"), text, "", &[r#"{"s": "x"}"#]);
}
