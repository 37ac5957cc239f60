use std::time::{Duration, Instant};

use super::*;
use crate::api::prompts::chat_format::detect::tests::{format, lenient_reader, reader, tools};
use crate::api::prompts::chat_format::message::message_json;
use crate::api::prompts::chat_format::tests::templates::{CHANNELS, OPEN_THINKING_TAGS, PLAIN, THINKING_JSON};

const CALL: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par\u{ed}s \\\"x\\\"\", \"days\": 3}}\n</tool_call>";

/// Adds a delta to a message, as a host does.
fn add(message: &mut Value, delta: &Value) {
    for key in ["role", "content", "reasoning_content"] {
        if let Some(more) = delta[key].as_str() {
            let before = message[key].as_str().unwrap_or_default().to_owned();
            message[key] = (before + more).into();
        }
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = call["index"].as_u64().unwrap() as usize;
        if message["tool_calls"].is_null() {
            message["tool_calls"] = json!([]);
        }
        let calls = message["tool_calls"].as_array_mut().unwrap();
        if index == calls.len() {
            let mut call = call.clone();
            call.as_object_mut().unwrap().remove("index");
            calls.push(call);
        } else {
            assert_eq!(
                (&call["id"], &call["function"]["name"], &call["type"]),
                (&Value::Null, &Value::Null, &Value::Null)
            );
            let before = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
            calls[index]["function"]["arguments"] = (before + call["function"]["arguments"].as_str().unwrap()).into();
        }
    }
}

/// The message of a text that arrives in pieces with these ends, and the sum of its deltas.
fn streamed(reader: &Arc<MessageReader>, text: &str, cuts: &[usize]) -> (Value, Value) {
    let mut stream = MessageStream::new(Some(reader), false, 1);
    let (mut sum, mut at) = (json!({"role": "", "content": ""}), 0);
    for &cut in cuts {
        stream.push(&text[at..cut]);
        at = cut;
        add(&mut sum, &stream.delta());
    }
    stream.push(&text[at..]);
    let (delta, message) = stream.finish();
    add(&mut sum, &delta);
    sum["role"] = "assistant".into();
    (sum, message_json(&message, false))
}

/// Checks that a text gives the same message however it is cut, and returns the message.
pub(in crate::api::prompts::chat_format) fn message_of(reader: &Arc<MessageReader>, text: &str) -> Value {
    let (_, whole) = streamed(reader, text, &[]);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for step in [1, 2, 3, 7] {
        let cuts: Vec<usize> = cuts.iter().copied().step_by(step).collect();
        let (sum, message) = streamed(reader, text, &cuts);
        assert_eq!((&sum, &message), (&whole, &whole), "{text:?} in steps of {step}");
    }
    for &cut in &cuts {
        let (sum, message) = streamed(reader, text, &[cut]);
        assert_eq!((&sum, &message), (&whole, &whole), "{text:?} cut at {cut}");
        // A completion that ends anywhere.
        let (sum, message) =
            streamed(reader, &text[..cut], &[cut / 2 + 1].map(|at| text.floor_char_boundary(at).min(cut)));
        assert_eq!(sum, message, "{text:?} up to {cut}");
    }
    whole
}

#[test]
fn deltas_add_up_to_the_message_at_every_cut() {
    let reader = reader(THINKING_JSON);
    let arguments = r#"{"city": "París \"x\"", "days": 3}"#;
    let call = |id: &str, name: &str, arguments: &str| json!({"type": "function", "function": {"name": name, "arguments": arguments}, "id": id});
    let [first, second] = [0, 1].map(|index| generated_id(1, index));
    for (text, expected) in [
        ("Hello, <b>you</b>!\n\n- a [b] {c}\n", json!({"content": "Hello, <b>you</b>!\n\n- a [b] {c}\n"})),
        ("<think>\nHm, 2 < 3.\n</think>\n\n4", json!({"content": "4", "reasoning_content": "Hm, 2 < 3."})),
        (CALL, json!({"content": "", "tool_calls": [call(&first, "get_weather", arguments)]})),
        (
            &format!("<think>\nSo\n</think>\n\nLet me see.\n{CALL}"),
            json!({"content": "Let me see.", "reasoning_content": "So", "tool_calls": [call(&first, "get_weather", arguments)]}),
        ),
        (
            &format!("{CALL}\n<tool_call>\n{{\"name\": \"get_time\", \"arguments\": {{}}}}\n</tool_call>"),
            json!({"content": "", "tool_calls": [call(&first, "get_weather", arguments), call(&second, "get_time", "{}")]}),
        ),
    ] {
        let mut expected = expected;
        expected["role"] = "assistant".into();
        assert_eq!(message_of(&reader, text), expected, "{text}");
        for (cut, _) in text.char_indices() {
            let content = streamed(&reader, &text[..cut], &[]).1["content"].as_str().unwrap().to_owned();
            assert!(
                !content.contains("<tool_call>") && !content.contains("<think>"),
                "{text:?} up to {cut}: {content}"
            );
        }
    }
}

/// A completion that is polled at a `<` goes on.
#[test]
fn what_may_begin_a_delimiter_does_not_end_the_message() {
    let reader = format(CHANNELS, json!(null), json!({})).reader;
    let message = message_of(&reader, "<|channel|>final<|message|>a <b>c</b> <| d <|en e");
    assert_eq!(message["content"], "a <b>c</b> <| d <|en e");
    let message = message_of(&reader, "<|channel|>final<|message|>a <b><|end|>more <");
    assert_eq!(message["content"], "a <b>more <");
}

#[test]
fn arguments_in_tags_are_json() {
    let call = "I see.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nA \"b\"\\\nc\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let message = message_of(&reader(OPEN_THINKING_TAGS), call);
    assert_eq!(message["reasoning_content"], "I see.");
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"city": "A \"b\"\\\nc", "days": 3}"#);
}

#[test]
fn text_without_a_format_is_content() {
    let reader = reader(PLAIN);
    for text in ["", "a", "<tool>\n{\"name\": 1}", "[[[", "<think>x</think>y"] {
        let (sum, message) = streamed(&reader, text, &[]);
        assert_eq!((sum["content"].as_str(), message["content"].as_str()), (Some(text), Some(text)));
    }
}

/// A text that looks like a call and is none is content, and so is a text behind calls.
#[test]
fn broken_format_takes_nothing_back() {
    let (strict, lenient) = (reader(THINKING_JSON), lenient_reader(THINKING_JSON));
    let texts = [
        (format!("{CALL} and so on"), "and so on", 1),
        (
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>".to_owned(),
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
            0,
        ),
        ("Now:\n<tool_call>\nx".to_owned(), "Now:\n<tool_call>\nx", 0),
        ("<think>\na\n</think>\n\n<tool_call>\nx".to_owned(), "<tool_call>\nx", 0),
        ("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Li".to_owned(), "", 1),
    ];
    for (text, content, n_calls) in texts {
        // Under a grammar, a call is reported while it is written.
        let reader = if content.is_empty() { &strict } else { &lenient };
        let (_, whole) = streamed(reader, &text, &[]);
        assert_eq!(whole["content"], content, "{text}");
        assert_eq!(whole["tool_calls"].as_array().map_or(0, Vec::len), n_calls, "{text}: {whole}");
        for (cut, _) in text.char_indices() {
            let (sum, message) = streamed(reader, &text, &[cut]);
            assert_eq!((&sum, &message), (&whole, &whole), "{text:?} cut at {cut}");
        }
        let all: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        assert_eq!(streamed(reader, &text, &all), (whole.clone(), whole), "{text:?} cut everywhere");
    }
}

#[test]
fn deep_nesting_is_content() {
    let text = "[".repeat(100_000);
    for reader in [reader(PLAIN), reader(THINKING_JSON)] {
        assert_eq!(streamed(&reader, &text, &[]).1["content"], text.as_str());
    }
    let call = format!("<tool_call>\n{{\"name\": \"any\", \"arguments\": {{\"x\": {text}");
    let reader = format(
        THINKING_JSON,
        json!([{"type": "function", "function": {"name": "any", "parameters": {"type": "object",
        "properties": {"x": {}}, "required": ["x"]}}}]),
        json!({}),
    )
    .reader;
    let (sum, message) = streamed(&reader, &call, &[50, 500]);
    assert_eq!(sum, message);
    assert_eq!(message["tool_calls"][0]["function"]["name"], "any");
}

/// The time that parsing takes if a host polls after each of 4,000 tokens, in all and at the end. It is printed, not checked.
#[test]
#[ignore = "measures"]
fn time_of_parsing() {
    let words = "The quick brown fox (it is 3 < 4) jumps over lazy dogs,\\n".repeat(280);
    let reader = format(
        THINKING_JSON,
        json!([{"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}]),
        json!({}),
    )
    .reader;
    let call = format!("<tool_call>\n{{\"name\": \"write\", \"arguments\": {{\"text\": \"{words}\"}}}}\n</tool_call>");
    for (what, text) in
        [("plain text", words.clone()), ("reasoning", format!("<think>\n{words}\n</think>\n\nok")), ("a call", call)]
    {
        let mut stream = MessageStream::new(Some(&reader), false, 1);
        let pieces: Vec<&str> =
            text.as_bytes().chunks(text.len() / 4000).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
        let mut each = Vec::new();
        for piece in &pieces {
            stream.push(piece);
            let start = Instant::now();
            stream.delta();
            each.push(start.elapsed());
        }
        let total: Duration = each.iter().sum();
        println!(
            "{what}: {} bytes, {total:?} for {} parses, {:?} for the last",
            text.len(),
            each.len(),
            each.last().unwrap()
        );
    }
}

#[test]
fn given_part_is_not_repeated() {
    let reader = format(
        THINKING_JSON,
        tools(),
        json!({"continue_final_message": true, "messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer"}]}),
    )
    .reader;
    let (sum, message) = streamed(&reader, " is 4.", &[2]);
    assert_eq!((&sum["content"], &message["content"]), (&json!(" is 4."), &json!(" is 4.")));
}

#[test]
fn older_function_call_is_given_too() {
    let format = format(
        THINKING_JSON,
        json!(null),
        json!({"functions": [{"name": "get_weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]}),
    );
    let mut stream = MessageStream::new(Some(&format.reader), true, 1);
    stream.push(&CALL[..CALL.len() - 30]);
    let delta = stream.delta();
    assert_eq!(delta["function_call"]["name"], "get_weather");
    stream.push(&CALL[CALL.len() - 30..]);
    let (delta, message) = stream.finish();
    assert!(delta["function_call"]["name"].is_null() && delta["function_call"]["arguments"].is_string(), "{delta}");
    assert_eq!(message_json(&message, true)["function_call"]["name"], "get_weather");
}

#[test]
fn ids_have_the_form_that_templates_demand() {
    let ids: Vec<String> = (0..4).flat_map(|seed| (0..4).map(move |index| generated_id(seed, index))).collect();
    assert!(ids.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())), "{ids:?}");
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len());
}
