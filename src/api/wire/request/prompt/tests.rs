use serde_json::json;

use super::super::tests::{check_error, read, request};
use super::*;

fn inputs(all: Vec<Input>, listed: bool) -> Inputs {
    Inputs { all, listed, parse_special: true, on_overflow: Overflow::Truncate }
}

#[test]
fn prompt_forms_are_parsed() {
    let text = |text: &str| Piece::Text(text.into());
    let check = |given: Value, pieces: Vec<Piece>| {
        let request = request(json!({"prompt": given}));
        let input = Input { prompt: Prompt::Text(pieces), given };
        assert_eq!(request.inputs, inputs(vec![input], false));
    };
    check(json!("Once"), vec![text("Once")]);
    check(json!("a\0b"), vec![text("a\0b")]);
    check(json!(["Once", 5, 6.0, "upon"]), vec![text("Once"), Piece::Token(5), Piece::Token(6), text("upon")]);
    check(json!([0, i32::MAX]), vec![Piece::Token(0), Piece::Token(i32::MAX)]);
    check(json!([]), vec![]);
    let listed = request(json!({"prompts": ["a", ["b", 5], []], "prompt": ""})).inputs;
    let input = |pieces, given| Input { prompt: Prompt::Text(pieces), given };
    let all = vec![
        input(vec![text("a")], json!("a")),
        input(vec![text("b"), Piece::Token(5)], json!(["b", 5])),
        input(vec![], json!([])),
    ];
    assert_eq!(listed, inputs(all, true));
    assert!(!request(json!({"prompts": [], "prompt": "a"})).inputs.listed, "an empty list does not count");
    for nothing in [json!({"prompts": []}), json!({"prompts": [], "prompt": ""})] {
        check_error(nothing, "prompts: expected at least one prompt, got []");
    }
    assert!(request(json!({"prompts": ["a"]})).has_results() && !request(json!({"prompt": "a"})).has_results());
    check_error(json!({"prompts": ["a", 5]}), "prompts[1]: expected a string, or an array of strings and token ids");
    check_error(json!({"prompts": ["a", ["b", [5]]]}), "prompts[1][1]: expected a string or a token id, got [5]");
    check_error(json!({"prompts": "a"}), "prompts: expected an array of prompts, got \"a\"");
    check_error(json!({"prompts": ["a"], "prompt": "b"}), "prompts: expected either prompt or prompts, got both");
    let hello = json!([{"role": "user", "content": "Hello"}]);
    check_error(json!({"prompts": ["a"], "messages": hello}), "messages: expected either prompts or messages");

    check_error(json!({"prompt": 5}), "prompt: expected a string, or an array of strings and token ids, got 5");
    check_error(json!({"prompt": {"a": 1}}), "prompt: expected a string");
    check_error(json!({"prompt": ["a", -1]}), "prompt[1]: expected a whole number from 0 to 2147483647, got -1");
    check_error(json!({"prompt": [2147483648u32]}), "prompt[0]: expected a whole number");
    check_error(json!({"prompt": [1.5]}), "prompt[0]");
    check_error(json!({"prompt": ["a", ["b"]]}), "prompt[1]: expected a string or a token id, got [\"b\"]");
    check_error(json!({"prompt": [null]}), "prompt[0]: expected a string or a token id, got null");
}

#[test]
fn infill_fields_are_parsed() {
    let text = |text: &str| Piece::Text(text.into());
    let infill = |document: Value| match request(document).inputs.all.remove(0).prompt {
        Prompt::Infill(infill) => infill,
        other => panic!("{other:?}"),
    };
    let found = infill(json!({"input_prefix": ["a", 5], "input_suffix": "b", "prompt": "c",
        "input_extra": [{"text": "d"}, {"filename": "e", "text": ""}]}));
    let extra =
        [("tmp", "d"), ("e", "")].map(|(name, text)| Extra { filename: name.into(), text: text.into() }).to_vec();
    assert_eq!(
        found,
        Infill { prefix: vec![text("a"), Piece::Token(5)], prompt: vec![text("c")], suffix: vec![text("b")], extra }
    );
    assert_eq!(infill(json!({"input_suffix": "b"})).prompt, []);
    infill(json!({"input_extra": [{"text": "a"}]}));
    // Hosts that always send these fields, but mean a plain prompt.
    let plain = request(json!({"input_prefix": "", "input_suffix": "", "input_extra": [], "prompt": "a"}));
    assert_eq!(plain.inputs, request(json!({"prompt": "a"})).inputs);

    check_error(json!({"input_prefix": 5}), "input_prefix: expected a string, or an array of strings and token ids");
    check_error(json!({"input_suffix": [[]]}), "input_suffix[0]: expected a string or a token id");
    check_error(json!({"input_extra": "a"}), "input_extra: expected an array of");
    check_error(json!({"input_extra": [{"filename": "a"}]}), "input_extra[0]: expected {\"filename\", \"text\"}");
    check_error(json!({"input_extra": [{"text": 5}]}), "input_extra[0].text: expected a string, got 5");
    check_error(json!({"input_extra": [{"text": "", "filename": 5}]}), "input_extra[0].filename: expected a string");
    check_error(
        json!({"input_prefix": "a", "prompts": ["b"]}),
        "input_prefix, input_suffix, input_extra: expected only together with prompt",
    );
    check_error(
        json!({"input_prefix": "a", "messages": [{"role": "user"}]}),
        "input_prefix, input_suffix, input_extra: ",
    );
}

#[test]
fn messages_are_parsed() {
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let chat = |document: Value| match request(document).inputs.all.remove(0).prompt {
        Prompt::Messages(chat) => chat,
        other => panic!("{other:?}"),
    };
    let found = chat(json!({"messages": hello, "prompt": ""}));
    assert_eq!(
        found,
        ChatInput {
            messages: hello.as_array().unwrap().clone(),
            media: std::sync::Arc::default(),
            tools: vec![],
            chat_template: None,
            chat_template_kwargs: Map::new(),
            add_generation_prompt: true,
            shown_schema: None,
            continued: None,
            state: None,
        }
    );
    let tool = json!({"type": "function", "function": {"name": "a"}});
    let found = chat(json!({"messages": hello, "tools": [tool], "chat_template": "chatml",
        "chat_template_kwargs": {"enable_thinking": false}, "add_generation_prompt": false}));
    assert_eq!(
        (found.tools, found.chat_template, found.add_generation_prompt),
        (vec![tool], Some("chatml".into()), false)
    );
    assert_eq!(Value::Object(found.chat_template_kwargs), json!({"enable_thinking": false}));
    chat(json!({"messages": [{"role": "assistant", "content": null, "tool_calls": []}, {"role": "user"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]}]}));

    check_error(json!({"messages": hello, "prompt": "a"}), "messages: expected either prompt or messages, got both");
    check_error(json!({"messages": hello, "prompt": []}), "got both");
    check_error(json!({"messages": []}), "messages: expected at least one message");
    check_error(
        json!({"messages": "a"}),
        "messages: expected an array of messages, such as [{\"role\": \"user\", \"content\": \"Hello\"}], got \"a\"",
    );
    check_error(
        json!({"prompt": [{"role": "user", "content": "a"}]}),
        "prompt[0]: expected a string or a token id (messages are given as \"messages\"), got",
    );
    check_error(json!({"messages": ["a"]}), "messages[0]: expected an object with role and content, got \"a\"");
    check_error(json!({"messages": [{"role": "user"}, {"role": 5}]}), "messages[1].role: expected a string, got 5");
    check_error(json!({"messages": [{"content": "a"}]}), "messages[0].role: expected a string, got null");
    check_error(
        json!({"messages": [{"role": "user", "content": 5}]}),
        "messages[0].content: expected a string or an array of parts, got 5",
    );
    check_error(
        json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        "messages[0].content[0].image_url.url: expected a string",
    );
    check_error(
        json!({"messages": hello, "tools": ["a"]}),
        r#"tools[0]: expected {"type": "function", "function": {"name", ...}}, got "a""#,
    );
    check_error(json!({"messages": hello, "chat_template_kwargs": []}), "chat_template_kwargs: expected an object");
    assert_eq!(read(&json!({"tools": []})).unwrap().warnings, ["tools: ignored without messages"]);
}

#[test]
fn special_tokens_and_overflow() {
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let read = |document: Value| {
        let inputs = request(document).inputs;
        (inputs.parse_special, inputs.on_overflow)
    };
    assert_eq!(read(json!({"prompt": "a"})), (true, Overflow::Truncate));
    assert_eq!(read(json!({"messages": hello})), (false, Overflow::DropTurns));
    assert_eq!(read(json!({"prompt": "a", "parse_special": false, "on_overflow": "error"})), (false, Overflow::Error));
    for overflow in [Overflow::DropTurns, Overflow::Truncate, Overflow::Error] {
        let document = json!({"messages": hello, "parse_special": true, "on_overflow": overflow.as_str()});
        assert_eq!(read(document), (true, overflow));
    }
    check_error(
        json!({"prompt": "a", "on_overflow": "drop_turns"}),
        "on_overflow: expected \"drop_turns\" only together with messages",
    );
    check_error(
        json!({"prompts": ["a"], "on_overflow": "drop_turns"}),
        "on_overflow: expected \"drop_turns\" only together with messages",
    );
    check_error(json!({"prompt": "a", "on_overflow": "drop"}), "on_overflow: expected one of \"drop_turns\"");
    check_error(json!({"prompt": "a", "parse_special": 1}), "parse_special: expected true or false, got 1");
}
