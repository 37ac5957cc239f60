//! `not`, `if`, `oneOf` of schemas that share values, and closed schemas in `allOf`.

use serde_json::{Value, json};

use super::{accepts, automaton, to_grammar};

/// Properties of any integer.
fn numbered(n: usize) -> Value {
    (0..n).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect::<serde_json::Map<_, _>>().into()
}

/// Schemas with values that their grammars allow, and values that they do not.
fn cases() -> Vec<(Value, Vec<Value>, Vec<Value>)> {
    let letters = json!({"a": {"type": "integer"}, "b": {"type": "integer"}});
    let closed = json!({"x": {"type": "object", "properties": {"a": {}}, "additionalProperties": false}});
    vec![
        (
            json!({"type": "object", "properties": letters, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            vec![json!({"a": 1}), json!({"b": 1})],
            vec![json!({}), json!({"a": 1, "b": 1})],
        ),
        (
            json!({"type": "object", "properties": letters, "not": {"required": ["a", "b"]}}),
            vec![json!({}), json!({"a": 1}), json!({"b": 1})],
            vec![json!({"a": 1, "b": 1})],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "integer"}},
                "required": ["kind"], "additionalProperties": false,
                "if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]},
                "else": {"properties": {"number": false}}}),
            vec![json!({"kind": "card", "number": 1}), json!({"kind": "cash"})],
            vec![json!({"kind": "card"}), json!({"kind": "cash", "number": 1}), json!({"number": 1})],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "string"}, "n": {"type": "integer"}}, "required": ["kind"],
            "allOf": [
                {"if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"required": ["n"]}},
                {"if": {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}, "then": {"properties": {"n": {"maximum": 5}}}},
            ]}),
            vec![
                json!({"kind": "a", "n": 9}),
                json!({"kind": "b", "n": 5}),
                json!({"kind": "ab"}),
                json!({"kind": "", "n": 9}),
            ],
            vec![json!({"kind": "a"}), json!({"kind": "b", "n": 6})],
        ),
        (
            json!({"type": "string", "not": {"enum": ["a", "ab"]}}),
            vec![json!("b"), json!("abc"), json!("")],
            vec![json!("a"), json!("ab")],
        ),
        (
            json!({"type": "string", "not": {"enum": ["a", "b"]}, "anyOf": [{"type": ["string", "null"]}, {"enum": ["b", "c"]}]}),
            vec![json!("c"), json!("d")],
            vec![json!("a"), json!("b"), json!(null)],
        ),
        (
            json!({"allOf": [{"type": "string", "not": {"enum": ["a"]}}, {"type": ["null", "string"], "not": {"enum": ["b"]}}, {"type": ["string"]}]}),
            vec![json!("c"), json!("")],
            vec![json!("a"), json!("b"), json!(null)],
        ),
        (
            // In this draft the type does not count.
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"x": {"type": ["string", "null"]}},
                "type": ["boolean", "null"], "not": {"$ref": "#/definitions/x", "type": "string"}}),
            vec![json!(true)],
            vec![json!(null), json!("a")],
        ),
        (
            json!({"not": {"type": ["string", "number"]}}),
            vec![json!(null), json!([1]), json!(true)],
            vec![json!("a"), json!(1)],
        ),
        (
            // A list of arrays has no opposite, but the name that each schema alone requires has.
            json!({"oneOf": [
                {"type": "string"},
                {"type": "object", "properties": {"a": {"items": {"type": "array"}}, "n": {}}, "required": ["a", "n"]},
                {"type": "object", "properties": {"b": {"items": {"type": "array"}}, "n": {}}, "required": ["b", "n"]},
            ]}),
            vec![json!("x"), json!({"a": [[]], "n": 1}), json!({"b": [], "n": 1})],
            vec![json!({"n": 1}), json!({"a": [], "b": [], "n": 1}), json!(1), json!({"a": [1], "n": 1})],
        ),
        (
            // Nine schemas, each of which requires a name.
            json!({"type": "object", "properties": numbered(9),
                "oneOf": (0..9).map(|n| json!({"required": [format!("p{n}")]})).collect::<Vec<_>>()}),
            vec![json!({"p0": 1}), json!({"p8": 1})],
            vec![json!({}), json!({"p0": 1, "p8": 1}), json!({"p3": 1, "p4": 1})],
        ),
        (
            json!({"type": "object", "properties": numbered(7), "allOf": [
                {"dependentRequired": {"p1": ["p2"], "p4": ["p2"]}},
                {"dependentRequired": {"p4": ["p5"], "p5": ["p6"]}},
                {"anyOf": [{"required": ["p5"]}, {"required": ["p6"]}]},
            ]}),
            vec![json!({"p6": 1}), json!({"p5": 1, "p6": 2}), json!({"p1": 0, "p2": 1, "p4": 1, "p5": 1, "p6": 1})],
            vec![json!({}), json!({"p5": 1}), json!({"p1": 1, "p6": 1}), json!({"p4": 1, "p5": 1, "p6": 1})],
        ),
        (
            json!({"allOf": [
                {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "^b": {"minimum": 3}}},
                {"type": "object", "patternProperties": {"^b": {"type": "integer"}}},
            ]}),
            vec![json!({"a": 1, "b": 3})],
            vec![json!({"a": "x"}), json!({"b": 2}), json!({"b": "x"})],
        ),
        (
            // The second one forbids what the first one requires.
            json!({"oneOf": [
                {"type": "object", "properties": {"a": {"items": {"type": "array"}}, "n": {}}, "required": ["a"]},
                {"type": "object", "properties": {"n": {}}, "additionalProperties": false},
            ]}),
            vec![json!({"a": [], "n": 1}), json!({"n": 1}), json!({})],
            vec![json!({"b": 1})],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 3}, {"maximum": 5}]}),
            vec![json!(2), json!(6)],
            vec![json!(3), json!(5)],
        ),
        (json!({"type": "integer", "not": {"minimum": 3}}), vec![json!(2)], vec![json!(3)]),
        (
            json!({"type": ["boolean", "null"], "not": {"const": true}}),
            vec![json!(false), json!(null)],
            vec![json!(true)],
        ),
        (
            json!({"allOf": [{"$ref": "#/$defs/x", "properties": {"b": {"type": "integer"}}}], "$defs": closed}),
            vec![json!({}), json!({"a": 1})],
            vec![json!({"b": 1})],
        ),
        (
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "additionalProperties": {"type": "integer"}}]}),
            vec![json!({"a": 1, "b": "x"})],
            vec![json!({"a": "x"}), json!({"a": "x", "b": 1})],
        ),
    ]
}

#[test]
fn opposites_are_enforced() {
    for (schema, valid, invalid) in cases() {
        let gbnf = to_grammar(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let grammar = automaton(&gbnf).unwrap();
        for (values, expected) in [(valid, true), (invalid, false)] {
            for value in values {
                assert_eq!(accepts(&grammar, &value.to_string()), expected, "{value} under {schema}\n{gbnf}");
            }
        }
    }
}

/// The properties of an opposite would count as evaluated.
#[test]
fn conditions_beside_unevaluated_properties_are_refused() {
    let schema = json!({"type": "object", "if": {"properties": {"a": {"const": "x"}}, "required": ["a"]},
        "else": {"properties": {"b": {}}}, "unevaluatedProperties": false});
    assert!(to_grammar(&schema).is_err());
}

/// The pattern that is forbidden is compared by its place, not by its text.
#[test]
fn nothing_matches_a_pattern_and_its_opposite() {
    for pattern in ["^b$", "^b?[^a]+$"] {
        for not in [json!({"pattern": pattern}), json!({"type": "string", "pattern": pattern})] {
            let schema = json!({"type": "string", "pattern": pattern, "not": not});
            assert!(to_grammar(&schema).is_err(), "{schema}");
        }
    }
}

/// Alternatives repeat the schemas of properties, which are written once.
#[test]
fn repeated_properties_count_once() {
    let wide: Value = (0..40)
        .map(|n| (format!("q{n}"), json!({"type": ["integer", "null"]})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let wide = json!({"type": "object", "properties": wide, "additionalProperties": false});
    let mut properties = numbered(5);
    properties["wide"] = wide;
    let schema = json!({"type": "object", "properties": properties, "dependencies": {"p0": ["p1"], "p1": ["p2"], "p2": ["p3"], "p3": ["p4"], "p4": ["wide"]},
        "anyOf": [{"required": ["p0"]}, {"required": ["p3"]}, {"required": ["wide"]}]});
    let gbnf = to_grammar(&schema).unwrap();
    let grammar = automaton(&gbnf).unwrap();
    for (value, expected) in [
        (json!({"p4": 1, "wide": {"q39": 1}}), true),
        (json!({"wide": {"q0": null}}), true),
        (json!({"p4": 1}), false),
        (json!({"p3": 1, "wide": {}}), false),
        (json!({"wide": {"q40": 1}}), false),
    ] {
        assert_eq!(accepts(&grammar, &value.to_string()), expected, "{value}");
    }
}
