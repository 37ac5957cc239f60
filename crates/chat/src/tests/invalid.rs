//! Invalid calls: the grammar does not let them through.

use std::sync::Arc;

use serde_json::{Value, json};

use super::real_templates::real_templates;
use super::renderer::TestTemplate;
use super::round_trip::{assistant, completion, constraint, refused, start_of, tools};
use super::templates;
use crate::{MessageParser, MessageReader, ReaderOptions, Tool, TurnRequest};

/// The tools: one with required parameters, and one with the name of a part of another's.
fn request_tools() -> Value {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters":
            {"type": "object", "properties": properties, "required": required, "additionalProperties": false}}})
    };
    json!([
        tool(
            "get_it",
            json!({"t": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": ["a", "b"]}}),
            json!(["t", "n"])
        ),
        tool("get_it_all", json!({}), json!([])),
    ])
}

/// Names and arguments of calls, each with what is wrong.
fn wrong_calls() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("a required argument is missing", "get_it", json!({"t": "x"})),
        ("a required text is missing", "get_it", json!({"n": 1})),
        ("all arguments are missing", "get_it", json!({})),
        ("an argument is unknown", "get_it", json!({"t": "x", "n": 1, "other": "y"})),
        ("an argument of a tool without parameters", "get_it_all", json!({"t": "x"})),
        ("a text in the place of a number", "get_it", json!({"t": "x", "n": "three"})),
        ("a fraction in the place of an integer", "get_it", json!({"t": "x", "n": 1.5})),
        ("null in the place of a number", "get_it", json!({"t": "x", "n": null})),
        ("a value that is not in the enumeration", "get_it", json!({"t": "x", "n": 1, "e": "c"})),
        ("an object in the place of a number", "get_it", json!({"t": "x", "n": {"a": 1}})),
        ("the tool is unknown", "get_it_not", json!({"t": "x", "n": 1})),
        ("the tool's name has other letters", "Get_it", json!({"t": "x", "n": 1})),
    ]
}

/// The number of wrong calls, and those that a template lets through.
fn let_through(template: &TestTemplate) -> (usize, Vec<String>) {
    let format = template.detect();
    let request = request_tools();
    let tools = tools(&request);
    let Some(start) = start_of(template, &format, &request) else { return (0, Vec::new()) };
    let (mut n, mut wrong) = (0, Vec::new());
    let named: Vec<Tool> = tools.iter().filter(|tool| tool.name == "get_it").cloned().collect();
    for (mode, is_required, tools) in [("auto", false, &tools), ("required", true, &tools), ("named", true, &named)] {
        let check = |arguments: &Value, name: &str| {
            let text = completion(template, &format, &request, &assistant("", "", &[(name, arguments)]))?;
            let request = TurnRequest { tools, is_required, parallel: true, document: None };
            Some((refused(constraint(&format, &request, &start), &text), text))
        };
        for (what, name, arguments) in wrong_calls() {
            let Some((refused, text)) = check(&arguments, name) else { continue };
            // A template that leaves out null prints a call that is not wrong, or is wrong otherwise.
            if arguments["n"].is_null()
                && arguments.get("n").is_some()
                && !text.contains("null")
                && !text.contains("None")
            {
                continue;
            }
            n += 1;
            // Text that the grammar allows must not be a call.
            let options = ReaderOptions { opened: start.opened.clone(), ..ReaderOptions::default() };
            let reader = Arc::new(
                MessageReader::new(format.clone(), tools.clone(), options, &foredraft_base::work::Work::unlimited())
                    .unwrap(),
            );
            let mut parser = MessageParser::new(reader);
            parser.push(&text);
            parser.finish();
            if refused.is_none() && !parser.message().calls.is_empty() {
                wrong.push(format!("{what} ({mode}): {text:?}"));
            }
        }
        // The same grammar allows the right call.
        if let Some((refused, text)) = check(&json!({"t": "x", "n": 1, "e": "b"}), "get_it") {
            wrong.extend(refused.map(|refused| format!("the right call: {refused} of {text:?}")));
        }
    }
    (n, wrong)
}

#[test]
fn invalid_calls_are_refused() {
    for (name, source) in templates::ALL {
        let (n, wrong) = let_through(&TestTemplate::new(source));
        assert!(n >= 30 && wrong.is_empty(), "{name}: {n} {wrong:#?}");
    }
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn real_templates_refuse_invalid_calls() {
    let (mut n_all, mut all) = (0, Vec::new());
    for (name, source) in real_templates() {
        let (n, wrong) = let_through(&TestTemplate::new(&source));
        n_all += n;
        all.extend(wrong.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    println!("{n_all} invalid calls, {} let through", all.len());
    assert!(all.is_empty() && n_all > 1500, "{all:#?}");
}

/// A tool without listed properties takes any arguments.
#[test]
fn tools_without_listed_properties_take_any_arguments() {
    let request = json!([{"type": "function", "function": {"name": "get_it", "description": "d", "parameters": {"type": "object"}}}]);
    let arguments = json!({"tags": "x", "n": "2 or so"});
    for (name, source) in templates::ALL {
        let template = TestTemplate::new(source);
        let (format, tools) = (template.detect(), tools(&request));
        let start = start_of(&template, &format, &request).unwrap();
        let text = completion(&template, &format, &request, &assistant("", "", &[("get_it", &arguments)])).unwrap();
        let turn = TurnRequest { tools: &tools, is_required: true, parallel: true, document: None };
        assert_eq!(refused(constraint(&format, &turn, &start), &text), None, "{name}");
        let options = ReaderOptions { opened: start.opened, ..ReaderOptions::default() };
        let mut parser = MessageParser::new(Arc::new(
            MessageReader::new(format, tools, options, &foredraft_base::work::Work::unlimited()).unwrap(),
        ));
        parser.push(&text);
        parser.finish();
        let calls = parser.message().calls;
        assert_eq!(serde_json::from_str::<Value>(&calls[0].arguments).unwrap(), arguments, "{name}");
    }
}
