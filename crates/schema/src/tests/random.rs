//! Random schemas: what a grammar accepts is valid, and no schema panics or takes long.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use foredraft_grammar::tree::TreeBuilder;

use super::{Rng, Written, automaton, compile, random_text, validator, work};
use crate::{CompileOptions, Notation, Schema};

/// Schemas of the keywords that the tests' validator knows.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({})),
        Just(json!({"type": "null"})),
        Just(json!({"type": ["boolean", "integer"]})),
        Just(json!({"$ref": "#/$defs/d"})),
        (-30_i32..30, 0_i32..40)
            .prop_map(|(low, span)| json!({"type": "integer", "minimum": low, "maximum": low + span})),
        (-300_i32..300, 1_i32..400, any::<bool>()).prop_map(|(low, span, open)| {
            let (low, high) = (f64::from(low) / 100.0, f64::from(low + span) / 100.0);
            if open {
                json!({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
            } else {
                json!({"type": "number", "minimum": low, "maximum": high})
            }
        }),
        (0_u32..3, 0_u32..3)
            .prop_map(|(low, span)| json!({"type": "string", "minLength": low, "maxLength": low + span})),
        "[a-c]{1,2}".prop_map(|text| json!({"type": "string", "pattern": format!("^{text}?[^a]+$")})),
        proptest::collection::vec(
            prop_oneof![Just(json!(1)), Just(json!("a")), Just(json!(null)), Just(json!([2.5]))],
            1..4
        )
        .prop_map(|values| json!({ "enum": values })),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let properties = proptest::collection::vec(("[ab\"\\\\]{0,2}", inner.clone(), any::<bool>()), 0..4);
        prop_oneof![
            (properties, proptest::option::of(inner.clone()), 0_usize..3, proptest::option::of(1_usize..4)).prop_map(
                |(listed, rest, least, most)| {
                    let properties: Map<String, Value> =
                        listed.iter().map(|(name, schema, _)| (name.clone(), schema.clone())).collect();
                    let mut required: Vec<&String> = listed.iter().filter(|one| one.2).map(|one| &one.0).collect();
                    required.sort();
                    required.dedup();
                    let mut schema = json!({"type": "object", "properties": properties, "required": required});
                    let map = schema.as_object_mut().unwrap();
                    map.extend(rest.map(|rest| ("additionalProperties".to_owned(), rest)));
                    map.extend((least > 0).then(|| ("minProperties".to_owned(), json!(least))));
                    map.extend(most.map(|most| ("maxProperties".to_owned(), json!(most))));
                    schema
                }
            ),
            (inner.clone(), 0_u32..3, 0_u32..3).prop_map(
                |(items, low, span)| json!({"type": "array", "items": items, "minItems": low, "maxItems": low + span})
            ),
            (inner.clone(), inner.clone())
                .prop_map(|(one, rest)| json!({"type": "array", "prefixItems": [one], "items": rest})),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| json!({ "anyOf": parts })),
            proptest::collection::vec(inner.clone(), 1..3).prop_map(|parts| json!({ "allOf": parts })),
            proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| json!({ "oneOf": parts })),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| json!({"allOf": [one], "not": other})),
            (inner.clone(), inner.clone(), inner.clone(), inner).prop_map(|(one, condition, then, other)| {
                json!({"allOf": [one], "if": condition, "then": then, "else": other})
            }),
        ]
    })
}

/// Whether a definition refers to itself for the same value, so that the standard gives it no meaning and a validator would not end.
fn refers_to_itself(schema: &Value) -> bool {
    schema.as_object().into_iter().flatten().any(|(keyword, value)| match keyword.as_str() {
        "$ref" => true,
        "allOf" | "anyOf" | "oneOf" => value.as_array().unwrap().iter().any(refers_to_itself),
        "not" | "if" | "then" | "else" => refers_to_itself(value),
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_grammar_of_a_random_schema_accepts_is_valid(mut schema in schemas(), definition in schemas(), seed in 1_u64.., any_order: bool) {
        schema.as_object_mut().unwrap().insert("$defs".to_owned(), json!({ "d": definition.clone() }));
        let tree = TreeBuilder::new();
        let options = CompileOptions { any_order, ..CompileOptions::default() };
        let Ok(compiled) = compile(&schema, &options, &tree) else { return Ok(()) };
        let gbnf = Written(tree, compiled.node);
        let grammar = automaton(&gbnf).unwrap_or_else(|error| panic!("{error}: {schema}\n{gbnf}"));
        if refers_to_itself(&definition) {
            return Ok(());
        }
        let read = Schema::new(&schema, &work()).unwrap();
        let mut rng = Rng(seed);
        for _ in 0..6 {
            let Some(text) = random_text(&grammar, b"\"}]", &mut rng) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} under {schema}"));
            prop_assert!(validator::is_valid(&schema, &schema, &value), "{text} under {schema}\n{gbnf}");
            prop_assert!(read.is_valid(&value), "{text} under {schema}");
        }
    }

    /// Any words as keywords with any values.
    #[test]
    fn no_schema_panics_or_takes_long(words in proptest::collection::vec((0..WORDS.len(), 0_usize..12), 1..30)) {
        let mut schema = json!({"type": "object"});
        let mut values: Vec<Value> = vec![
            json!(true), json!(false), json!(null), json!(-1), json!(1e300), json!(3), json!("^(a|b)*$"), json!([]), json!({}),
            json!(["a", "a"]), json!({"$ref": "#"}),
        ];
        for (word, value) in words {
            let value = values.get(value).cloned().unwrap_or_else(|| schema.clone());
            let value = match WORDS[word] {
                "allOf" | "anyOf" | "oneOf" | "prefixItems" if value.is_object() => json!([value, {"type": "string"}]),
                "properties" | "$defs" | "patternProperties" if value.is_object() => json!({"a": value, "^b": true}),
                _ => value,
            };
            schema.as_object_mut().unwrap().insert(WORDS[word].to_owned(), value);
            values.push(schema.clone());
        }
        let start = Instant::now();
        for drop_unenforceable in [false, true] {
            let options = CompileOptions { drop_unenforceable, is_open: false, any_order: true, is_lenient: false };
            if let Ok(read) = Schema::new(&schema, &work()) {
                let _ = read.compile(&options, &TreeBuilder::new());
                let _ = read.parameters();
                let _ = read.compile_argument(&["</a>"], Notation::Json, &options, &TreeBuilder::new());
                let _ = read.is_valid(&schema);
            }
        }
        prop_assert!(start.elapsed() < Duration::from_secs(20), "{schema}");
    }
}

const WORDS: [&str; 30] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "exclusiveMaximum",
    "multipleOf",
    "$ref",
    "$defs",
    "allOf",
    "anyOf",
    "oneOf",
    "enum",
    "const",
    "not",
    "if",
];
