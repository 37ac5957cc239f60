//! The field `json_schema`, and the schemas of llama.cpp's chat formats.

use serde_json::json;

use super::{fix_grammar, parse, simplified, to_grammar};
use crate::grammar::Grammar;
use crate::llama::{Model, ModelParams, schema_to_grammar};

#[test]
fn json_schema_field_is_an_object_or_its_json_string() {
    assert_eq!(parse(&json!({"type": "null"})).unwrap(), json!({"type": "null"}));
    assert_eq!(parse(&json!(" {\"type\": \"null\"}")).unwrap(), json!({"type": "null"}));
    for (given, why) in [
        (json!("{"), "not JSON: EOF"),
        (json!("[1]"), "expected an object"),
        (json!(true), "expected an object, or a string that contains one, got true"),
        (json!([]), "expected an object"),
    ] {
        let error = parse(&given).unwrap_err();
        assert!(error.message().starts_with("json_schema: ") && error.message().contains(why), "{error}");
    }
}

#[test]
fn errors_begin_with_the_field() {
    let error = to_grammar(&json!({"properties": {"a": {"type": "strin"}}})).unwrap_err();
    assert_eq!(error.message(), "json_schema: #/properties/a: unrecognized type \"strin\"");
}

/// The grammar for llama.cpp's formats, by its converter, accepts what the schema allows and nothing else.
#[test]
fn simplified_schemas_are_not_wider() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    let model = Model::load(&ModelParams { vocab_only: true, ..ModelParams::new(path) }, |_| true).expect("it loads");
    let model = std::sync::Arc::new(model);
    for (schema, valid, invalid) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{2}$"}, "b": {"$ref": "#/$defs/b"}}, "required": ["a"],
                "$defs": {"b": {"type": "array", "items": {"type": "integer", "minimum": 3}, "maxItems": 2}}}),
            [r#"{"a":"xy"}"#, r#"{"a":"xy", "b":[3,4]}"#],
            [r#"{"a":"x"}"#, r#"{"a":"xy","b":[2]}"#],
        ),
        (
            json!({"anyOf": [{"enum": ["x", 1]}, {"type": "object", "additionalProperties": {"type": "null"}}], "$defs": {}}),
            [r#""x""#, r#"{"q":null}"#],
            ["2", r#"{"q":1}"#],
        ),
    ] {
        let text = simplified(&schema, "t0").unwrap().to_string();
        let grammar = Grammar::new(&model, &fix_grammar(&schema_to_grammar(&text).unwrap())).unwrap();
        for (texts, expected) in [(valid, true), (invalid, false)] {
            for text in texts {
                let (mut grammar, vocab) = (grammar.clone(), model.vocab());
                let allowed = grammar.allows_text(text.as_bytes()).unwrap();
                let ends = allowed && grammar.accept_text(text.as_bytes()).is_ok();
                let ends = ends && vocab.eog_tokens().any(|token| grammar.allows(token).unwrap());
                assert_eq!(ends, expected, "{text} under {schema}");
            }
        }
    }
}
