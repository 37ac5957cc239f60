//! Calls under schemas and options, for every template that prints calls: keywords that no grammar enforces, order and number of
//! arguments, number of calls, ids, escapes, and space that models add.

use std::sync::Arc;

use serde_json::{Value, json};

use super::real_templates::real_templates;
use super::renderer::TestTemplate;
use super::round_trip::{assistant, completion, constraint, read, refused, start_of, tools, work};
use super::templates;
use crate::{CallPart, ChatFormat, MessageParser, MessageReader, ReaderOptions, TurnRequest, TurnStart};

/// A template with a tool `get_it` of these parameters.
struct Called<'a> {
    template: &'a TestTemplate,
    format: ChatFormat,
    request: Value,
    start: TurnStart,
}

impl Called<'_> {
    fn new(template: &TestTemplate, properties: Value, required: Value) -> Option<Called<'_>> {
        let mut properties = properties;
        for (_, schema) in properties.as_object_mut()? {
            schema["description"] = "d".into();
        }
        let parameters =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let request =
            json!([{"type": "function", "function": {"name": "get_it", "description": "d", "parameters": parameters}}]);
        let format = template.detect();
        let start = start_of(template, &format, &request)?;
        Some(Called { template, format, request, start })
    }

    /// The text that a model writes for calls with these arguments.
    fn text(&self, arguments: &[Value]) -> Option<String> {
        let calls: Vec<(&str, &Value)> = arguments.iter().map(|arguments| ("get_it", arguments)).collect();
        let text = completion(self.template, &self.format, &self.request, &assistant("", "", &calls))?;
        (text.matches("get_it").count() >= arguments.len()).then_some(text)
    }

    /// Where the grammar does not allow a text, with `auto` and when a call is required.
    fn refused(&self, text: &str) -> Option<String> {
        let mode = |is_required| self.refused_in(text, is_required, true);
        mode(true).or_else(|| mode(false))
    }

    fn refused_in(&self, text: &str, is_required: bool, parallel: bool) -> Option<String> {
        let tools = tools(&self.request);
        let turn = TurnRequest { tools: &tools, is_required, parallel, document: None };
        refused(constraint(&self.format, &turn, &self.start), text)
    }

    fn reader(&self, is_enforced: bool) -> Arc<MessageReader> {
        let options = ReaderOptions { opened: self.start.opened.clone(), is_enforced, ..ReaderOptions::default() };
        Arc::new(
            MessageReader::new(
                self.format.clone(),
                tools(&self.request),
                options,
                &foredraft_base::work::Work::unlimited(),
            )
            .unwrap(),
        )
    }

    /// The arguments of the calls in a text.
    fn calls(&self, text: &str) -> Vec<Value> {
        let message = read(&self.reader(true), text).unwrap();
        message
            .calls
            .iter()
            .map(|call| serde_json::from_str(&call.arguments).unwrap_or_else(|_| panic!("{text}: {call:?}")))
            .collect()
    }
}

/// Runs a check of one template with the small ones, or the real ones. Returns how many it applied to.
fn all(is_real: bool, check: &dyn Fn(&TestTemplate) -> Option<Vec<String>>) -> usize {
    let small = || templates::ALL.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
    let sources = if is_real { real_templates() } else { small() };
    let (mut n, mut wrong) = (0, Vec::new());
    for (name, source) in sources {
        let Some(faults) = check(&TestTemplate::new(&source)) else { continue };
        n += 1;
        wrong.extend(faults.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    n
}

/// Schemas with a keyword that no grammar enforces, a value that violates only the keyword, and one of another type.
fn keywords() -> Vec<(&'static str, Value, Value, Value)> {
    let list = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
    vec![
        ("uniqueItems", list, json!(["a", "a"]), json!(7)),
        ("minimum", json!({"type": "number", "minimum": 1.234_567_890_123_456e-30}), json!(0.5), json!("a")),
        ("multipleOf", json!({"type": "integer", "multipleOf": 1_000_003}), json!(7), json!("a")),
        ("not", json!({"type": "string", "not": {"pattern": "^a(?=b)"}}), json!("abc"), json!([1])),
        (
            "if",
            json!({"type": "integer", "if": {"multipleOf": 1_000_003}, "then": {"maximum": 3}}),
            json!(7),
            json!("a"),
        ),
    ]
}

fn keyword_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let mut wrong = Vec::new();
    for (keyword, schema, value, other) in keywords() {
        let called = Called::new(template, json!({"x": schema}), json!(["x"]))?;
        let text = called.text(&[json!({"x": value})])?;
        wrong.extend(called.refused(&text).map(|fault| format!("{keyword}: {fault} of {text:?}")));
        if called.calls(&text) != [json!({"x": value})] {
            wrong.push(format!("{keyword}: {:?} from {text:?}", called.calls(&text)));
        }
        // The rest of the schema is enforced. A text in tags can be anything.
        let empty = called.text(&[json!({})])?;
        if called.refused(&empty).is_none() {
            wrong.push(format!("{keyword}: {empty:?} is let through"));
        }
        if !other.is_array()
            && let Some(text) = called.text(&[json!({"x": other})])
            && called.refused(&text).is_none()
        {
            wrong.push(format!("{keyword}: {text:?} is let through"));
        }
        let tools = tools(&called.request);
        let turn = TurnRequest { tools: &tools, is_required: true, parallel: true, document: None };
        let grammar = called.format.grammar(&turn, &called.start, &work()).unwrap().unwrap();
        let named = |(tool, one): &(Option<String>, foredraft_schema::Unenforced)| {
            tool.as_deref() == Some("get_it") && one.keyword == keyword && one.location == "#/properties/x"
        };
        if !grammar.unenforced.iter().any(named) {
            wrong.push(format!("{keyword} is not named: {:?}", grammar.unenforced));
        }
    }
    Some(wrong)
}

#[test]
fn keyword_that_is_not_enforced_leaves_the_rest_of_a_call() {
    assert_eq!(all(false, &keyword_faults), templates::ALL.len());
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn keyword_that_is_not_enforced_leaves_the_rest_of_a_call_of_real_templates() {
    assert!(all(true, &keyword_faults) > 55);
}

/// Optional arguments: none, each once, in any order. None twice.
fn argument_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let properties = json!({"pa": {"type": "string"}, "pb": {"type": "string"}, "pc": {"type": "integer"}});
    let called = Called::new(template, properties, json!([]))?;
    let mut wrong = Vec::new();
    let (a, b, c) = (("pa", json!("x")), ("pb", json!("y")), ("pc", json!(3)));
    for chosen in [vec![], vec![&a], vec![&c], vec![&c, &a], vec![&b, &a, &c], vec![&c, &b, &a], vec![&a, &c, &b]] {
        let arguments: Value = chosen
            .into_iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let text = called.text(std::slice::from_ref(&arguments))?;
        wrong.extend(called.refused(&text).map(|fault| format!("{fault} of {text:?}")));
        if called.calls(&text) != [arguments] {
            wrong.push(format!("{:?} from {text:?}", called.calls(&text)));
        }
    }
    let twice = called.text(&[json!({"pa": "x", "pb": "y"})])?.replace("pb", "pa");
    for is_required in [true, false] {
        let is_refused = called.refused_in(&twice, is_required, true).is_some();
        let mut parser = MessageParser::new(called.reader(false));
        parser.push(&twice);
        parser.finish();
        if !is_refused && !parser.message().calls.is_empty() {
            wrong.push(format!("twice (required: {is_required}): {twice:?}"));
        }
    }
    Some(wrong)
}

#[test]
fn optional_arguments_come_in_any_order_and_once() {
    assert_eq!(all(false, &argument_faults), templates::ALL.len());
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn optional_arguments_of_real_templates_come_in_any_order_and_once() {
    assert!(all(true, &argument_faults) > 55);
}

/// A second call only where several are allowed.
fn parallel_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let called = Called::new(template, json!({"pa": {"type": "string"}}), json!([]))?;
    let (one, two) = (called.text(&[json!({"pa": "x"})])?, called.text(&[json!({"pa": "x"}), json!({"pa": "y"})])?);
    let mut wrong = Vec::new();
    for is_required in [true, false] {
        for (text, parallel, is_allowed) in [(&one, false, true), (&two, false, false), (&two, true, true)] {
            let refused = called.refused_in(text, is_required, parallel);
            if refused.is_none() != is_allowed {
                wrong.push(format!("required: {is_required}, parallel: {parallel}: {refused:?} of {text:?}"));
            }
        }
    }
    if called.calls(&two).len() != 2 {
        wrong.push(format!("{:?} from {two:?}", called.calls(&two)));
    }
    Some(wrong)
}

#[test]
fn second_call_needs_parallel_calls() {
    assert_eq!(all(false, &parallel_faults), templates::ALL.len() - 1);
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn second_call_of_real_templates_needs_parallel_calls() {
    assert!(all(true, &parallel_faults) > 50);
}

/// Ids that the template prints come back.
fn id_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let called = Called::new(template, json!({"pa": {"type": "string"}}), json!([]))?;
    let text = called.text(&[json!({"pa": "x"})])?;
    let printed = ["functions.get_it:0", "call00000"].into_iter().find(|id| text.contains(id))?;
    let is_part = |part: &CallPart| match part {
        CallPart::Id | CallPart::NumberedName { .. } => true,
        CallPart::Object(object) => object.id.is_some(),
        _ => false,
    };
    let mut wrong = Vec::new();
    if !called.format.calls[0].call.iter().any(is_part) {
        wrong.push(format!("the id is no part of the format: {text:?}"));
    }
    let message = read(&called.reader(true), &text).unwrap();
    if message.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>() != [printed] {
        wrong.push(format!("{message:?} from {text:?}"));
    }
    Some(wrong)
}

#[test]
fn ids_come_back() {
    assert_eq!(all(false, &id_faults), 1);
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn ids_of_real_templates_come_back() {
    assert!(all(true, &id_faults) > 3);
}

/// Characters beyond the basic plane, as JSON escapes them in ASCII.
fn escape_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let called = Called::new(template, json!({"pa": {"type": "string"}}), json!([]))?;
    let (escaped, mark) = ("\\ud83d\\ude00", "a-mark");
    let marked = called.text(&[json!({"pa": mark})])?;
    let is_json = marked.contains("\"a-mark\"");
    let text = marked.replace(mark, escaped);
    let value = if is_json { "\u{1f600}" } else { escaped };
    let mut wrong: Vec<String> = called.refused(&text).into_iter().collect();
    if called.calls(&text) != [json!({"pa": value})] && called.calls(&text) != [json!({"pa": "\u{1f600}"})] {
        wrong.push(format!("{:?} from {text:?}", called.calls(&text)));
    }
    Some(wrong)
}

#[test]
fn escaped_pairs_are_characters() {
    assert_eq!(all(false, &escape_faults), templates::ALL.len());
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn escaped_pairs_of_real_templates_are_characters() {
    assert!(all(true, &escape_faults) > 55);
}

/// Arguments of finished calls are JSON that the schema allows, wherever a model adds a character, if the grammar allows the text. Without a
/// grammar, a warning says that the schema does not allow them.
fn added_faults(template: &TestTemplate) -> Option<Vec<String>> {
    let properties = json!({"t": {"type": "string"}, "n": {"type": "integer"}});
    let called = Called::new(template, properties, json!(["t", "n"]))?;
    let text = called.text(&[json!({"t": "two words", "n": 3})])?;
    let schema = foredraft_schema::Schema::new(&called.request[0]["function"]["parameters"], &work()).unwrap();
    let tools = tools(&called.request);
    let turn = TurnRequest { tools: &tools, is_required: false, parallel: true, document: None };
    let constraint = constraint(&called.format, &turn, &called.start);
    let invalid = |parser: &MessageParser| {
        let has_warning = !parser.warnings().is_empty();
        parser.message().calls.into_iter().find(|call| {
            let arguments = serde_json::from_str::<Value>(&call.arguments);
            arguments.is_err() || !has_warning && !arguments.is_ok_and(|arguments| schema.is_valid(&arguments))
        })
    };
    let mut wrong = Vec::new();
    let readers = [false, true].map(|is_enforced| (is_enforced, called.reader(is_enforced)));
    for (at, _) in text.char_indices() {
        for added in [" ", "\n", "x", "{", "\"", "'", ","] {
            let text = format!("{}{added}{}", &text[..at], &text[at..]);
            for (is_enforced, reader) in &readers {
                if *is_enforced && refused(constraint.clone(), &text).is_some() {
                    continue;
                }
                let mut parser = MessageParser::new(Arc::clone(reader));
                parser.push(&text);
                parser.finish();
                if let Some(call) = invalid(&parser) {
                    wrong.push(format!("(enforced: {is_enforced}) {call:?} from {text:?}"));
                }
            }
        }
    }
    wrong.truncate(3);
    Some(wrong)
}

#[test]
fn calls_with_added_characters_are_valid_or_warned_of() {
    assert_eq!(all(false, &added_faults), templates::ALL.len());
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn calls_of_real_templates_with_added_characters_are_valid_or_warned_of() {
    assert!(all(true, &added_faults) > 55);
}
