//! `json_schema` in requests: output is valid under the schema for every seed, with and without speculation.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, complete, start, with};
use serde_json::{Value, json};

/// A schema, and a predicate that its values satisfy.
type Case = (Value, fn(&Value) -> bool);

fn cases() -> Vec<Case> {
    vec![
        (
            json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 3, "maximum": 120}}, "required": ["name", "age"]}),
            |value| {
                value["name"].as_str().is_some_and(|name| name.chars().count() <= 8)
                    && value["age"].as_i64().is_some_and(|age| (3..=120).contains(&age))
                    && value.as_object().is_some_and(|object| object.len() == 2)
            },
        ),
        (json!({"enum": ["red", "green", 7, null]}), |value| {
            [json!("red"), json!("green"), json!(7), Value::Null].contains(value)
        }),
        (
            json!({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, "minItems": 1, "maxItems": 3}),
            |value| {
                let of = |value: &Value, most| value.as_array().is_some_and(|list| (1..=most).contains(&list.len()));
                of(value, 3) && value.as_array().into_iter().flatten().all(|list| of(list, 2) && (list[0].is_boolean()))
            },
        ),
        (json!({"type": "string", "format": "date"}), |value| value.as_str().is_some_and(|date| date.len() == 10)),
        (json!({"type": "string", "pattern": "^[A-Z][a-z]{2,5}$"}), |value| {
            value
                .as_str()
                .is_some_and(|text| (3..=6).contains(&text.len()) && text.starts_with(|c: char| c.is_ascii_uppercase()))
        }),
        (json!({"type": "string", "pattern": "^img_", "minLength": 6, "maxLength": 12}), |value| {
            value.as_str().is_some_and(|text| text.starts_with("img_") && (6..=12).contains(&text.chars().count()))
        }),
        (
            json!({"$id": "Node", "type": "object", "required": ["id"], "properties": {
                "id": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "Node"},
            }}),
            |value| {
                let mut nodes = std::iter::successors(Some(value), |node| node.get("next"));
                nodes.all(|node| node["id"].as_u64().is_some_and(|id| id < 10))
            },
        ),
        (
            json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}], "$defs": {"pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}]}}}),
            |value| value.is_null() || value[0].is_i64() && value[1] == "x" && value[2].is_null(),
        ),
    ]
}

#[test]
fn output_is_valid_under_the_schema() {
    let engine = start(json!({"n_ctx": 512}));
    let mut ended = 0;
    for (schema, holds) in cases() {
        for (seed, temperature) in [(1, 0.0), (2, 0.8), (3, 1.5)] {
            let request = json!({
                "prompt": "{\"name\": \"Mia\", \"age\": 7}\n", "n_predict": 80, "json_schema": schema, "seed": seed,
                "temperature": temperature, "cache_prompt": false,
            });
            let plain = complete(&engine, Plain, &request);
            let speculative = json!({"speculative": {"adaptive": false, "n_max": 5}});
            let fast = complete(&engine, Foredraft, &with(&request, speculative));
            assert_eq!(plain["content"], fast["content"], "{schema} {seed}");
            let text = plain["content"].as_str().expect("a text");
            if plain["stop_type"] == "eos" {
                let value: Value =
                    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?} {schema}"));
                assert!(holds(&value), "{text:?} {schema}");
                ended += 1;
            } else {
                assert_eq!(plain["stop_type"], "limit", "{plain}");
            }
        }
    }
    assert!(ended >= 12, "{ended}");
}

#[test]
fn generation_settings_with_a_schema_reproduce_the_output() {
    let engine = start(json!({"n_ctx": 512}));
    for schema in [json!({"enum": ["a", "b"]}), json!("{\"type\": \"integer\", \"maximum\": 9}")] {
        let request = json!({"prompt": "Tom was", "n_predict": 40, "json_schema": schema, "seed": 5});
        let first = complete(&engine, Plain, &request);
        let settings = &first["generation_settings"];
        assert!(settings["json_schema"].is_object() && settings["grammar"] == "", "{settings}");
        let again = complete(&engine, Plain, &with(settings, json!({"prompt": "Tom was"})));
        assert_eq!(first["content"], again["content"]);
        assert_eq!(settings["json_schema"], again["generation_settings"]["json_schema"]);
    }
}

#[test]
fn unsupported_schemas_are_refused() {
    let engine = start(json!({"n_ctx": 256}));
    for (schema, why) in [
        (json!({"$ref": "http://example.com"}), "$ref"),
        (json!({"$ref": "#"}), "refers to itself"),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}), "refers to itself"),
    ] {
        let request = json!({"prompt": "a", "json_schema": schema}).to_string();
        let answer = engine.complete_as(Plain, request.as_bytes());
        let error = answer.expect_err("refused");
        assert!(error.message().contains(why), "{schema}: {error}");
    }
    // What is too large for a grammar is dropped, and said.
    let schema = json!({"type": "array", "minItems": 1_000_000_000});
    let answer = complete(&engine, Plain, &json!({"prompt": "a", "n_predict": 2, "json_schema": schema}));
    assert!(answer["content"].as_str().is_some_and(|content| content.starts_with('[')), "{answer}");
    assert!(answer["warnings"].to_string().contains("minItems: expected at most 100000"), "{answer}");
}

/// Each part of the schema forbids the properties of all others, so the work grows with the square of its length.
#[test]
fn schemas_heed_the_timeout() {
    let engine = start(json!({"n_ctx": 256}));
    let part =
        |index: usize| json!({"properties": {format!("p{index}"): {}}, "additionalProperties": {"type": "string"}});
    let schema = json!({"allOf": (0..1500).map(part).collect::<Vec<_>>()});
    for fields in [json!({"prompt": "a", "json_schema": schema}), tools(&schema)] {
        let request = with(&json!({"n_predict": 1, "timeout_ms": 1}), fields);
        let error = engine.complete_as(Plain, request.to_string().as_bytes()).expect_err("refused");
        assert_eq!(error.message(), "timeout_ms: passed before the schemas were compiled");
        assert_eq!(error.code().as_str(), "invalid_request");
    }
}

/// A chat with a tool of this schema.
fn tools(schema: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
}
