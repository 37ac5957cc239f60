//! Keywords that no grammar enforces, where they are dropped; the order of properties; parameters.

use serde_json::{Value, json};

use foredraft_grammar::tree::TreeBuilder;

use super::{Written, accepts, automaton, compile, endless, grammar_with, work};
use crate::{CompileOptions, Notation, Schema, Values};

const DROPS: CompileOptions =
    CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };

/// Only the keyword is dropped, its location is said, and the rest of the schema is enforced.
#[test]
fn only_the_keyword_is_dropped() {
    let object = |property: Value| json!({"type": "object", "properties": {"x": property}, "required": ["x"]});
    for (property, keywords, valid, invalid) in [
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            vec!["uniqueItems"],
            json!([1, 1]),
            json!(["a"]),
        ),
        (json!({"type": "number", "multipleOf": 1e-20, "minimum": 3}), vec!["multipleOf"], json!(4), json!(2)),
        (json!({"type": "string", "not": {"pattern": "b(?=a)"}}), vec!["not"], json!("ba"), json!(1)),
        (json!({"type": "string", "pattern": "b(?=a)"}), vec!["pattern"], json!("c"), json!(1)),
        (json!({"type": "string", "pattern": "^b(?!a)", "maxLength": 2}), vec!["pattern"], json!("ab"), json!("abc")),
        (
            json!({"type": "string", "pattern": "^(a|bb)*$", "maxLength": 50_000}),
            vec!["maxLength"],
            json!("abb"),
            json!("ab"),
        ),
        (json!({"if": {"items": {}}, "then": {}, "type": "boolean"}), vec!["if"], json!(true), json!(1)),
        (
            json!({"type": "array", "contains": {"const": 1}, "maxContains": 1}),
            vec!["contains", "maxContains"],
            json!([2]),
            json!(1),
        ),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), vec!["oneOf"], json!(1), json!("a")),
        (
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "patternProperties": {"^b": {}}, "additionalProperties": false}]}),
            vec!["additionalProperties"],
            json!({"a": 1, "b": 2}),
            json!({"c": 1}),
        ),
    ] {
        let schema = object(property);
        let tree = TreeBuilder::new();
        let compiled = compile(&schema, &DROPS, &tree).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let dropped: Vec<&str> = compiled.unenforced.iter().map(|one| one.keyword.as_str()).collect();
        assert_eq!(dropped, keywords, "{schema}: {:?}", compiled.unenforced);
        assert!(
            compiled.unenforced.iter().all(|one| one.location.starts_with("#/properties/x")),
            "{:?}",
            compiled.unenforced
        );
        let grammar = automaton(&Written(tree, compiled.node)).unwrap();
        assert!(accepts(&grammar, &json!({ "x": valid }).to_string()), "{valid} under {schema}");
        assert!(!accepts(&grammar, &json!({ "x": invalid }).to_string()), "{invalid} under {schema}");
        assert!(!accepts(&grammar, "{}"), "{schema}");
        // Without the option it is an error that names the keyword and the location.
        let error = compile(&schema, &CompileOptions::default(), &TreeBuilder::new()).unwrap_err();
        assert!(error.message().starts_with("#/properties/x"), "{error}");
    }
}

/// Equal names count as several properties, which the warning says.
#[test]
fn further_properties_are_counted_where_nothing_else_reaches_the_least() {
    for any_order in [true, false] {
        let schema =
            json!({"properties": {"a": {"const": 1}}, "additionalProperties": {"type": "null"}, "minProperties": 3});
        let tree = TreeBuilder::new();
        let options = CompileOptions { any_order, ..DROPS };
        let compiled = compile(&schema, &options, &tree).unwrap();
        let reasons: Vec<&str> = compiled.unenforced.iter().map(|one| one.keyword.as_str()).collect();
        assert_eq!(reasons, ["minProperties"]);
        let grammar = automaton(&Written(tree, compiled.node)).unwrap();
        for (text, is_accepted) in [
            ("{}", false),
            (r#"{"a":1}"#, false),
            (r#"{"a":1,"b":null}"#, false),
            (r#"{"b":null,"c":null}"#, false),
            (r#"{"b":null,"b":null,"b":null}"#, true),
            (r#"{"a":1,"b":null,"c":null}"#, true),
            (r#"{"b":null,"c":null,"d":null,"e":null}"#, true),
            (r#"{"b":null,"c":null,"a":1}"#, any_order),
        ] {
            assert_eq!(accepts(&grammar, text), is_accepted, "{text} {any_order}");
        }
        // With a maximum that the listed properties and one further one cannot reach, too.
        let (mut schema, tree) = (schema, TreeBuilder::new());
        schema["maxProperties"] = json!(3);
        let compiled = compile(&schema, &options, &tree).unwrap();
        let grammar = automaton(&Written(tree, compiled.node)).unwrap();
        assert!(accepts(&grammar, r#"{"a":1,"b":null,"c":null}"#), "{any_order}");
        assert!(!accepts(&grammar, r#"{"a":1,"b":null,"c":null,"d":null}"#), "{any_order}");
        assert!(!accepts(&grammar, r#"{"a":1,"b":null}"#), "{any_order}");
    }
}

#[test]
fn invalid_schemas_are_errors_also_where_keywords_are_dropped() {
    for schema in [
        json!({"type": "nothing"}),
        json!({"properties": {"a": 5}}),
        json!(false),
        json!({"enum": []}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"$ref": "#/$defs/none"}),
    ] {
        assert!(compile(&schema, &DROPS, &TreeBuilder::new()).is_err(), "{schema}");
    }
}

/// Every order of five properties, each once, none missing, and no others.
#[test]
fn properties_of_small_objects_come_in_any_order() {
    let names = ["a", "b", "c", "d", "e"];
    let properties = names.map(|name| format!("{name:?}: {{\"const\": {name:?}}}")).join(", ");
    let schema: Value =
        serde_json::from_str(&format!(r#"{{"properties": {{{properties}}}, "required": ["b", "d"]}}"#)).unwrap();
    let grammar = automaton(&grammar_with(&schema, &DROPS).unwrap()).unwrap();
    let mut todo: Vec<Vec<&str>> = vec![Vec::new()];
    let mut accepted = 0;
    while let Some(given) = todo.pop() {
        let members: Vec<String> = given.iter().map(|name| format!("{name:?}:{name:?}")).collect();
        let is_valid = given.contains(&"b") && given.contains(&"d") && {
            let mut unique = given.clone();
            unique.sort_unstable();
            unique.dedup();
            unique.len() == given.len()
        };
        assert_eq!(accepts(&grammar, &format!("{{{}}}", members.join(","))), is_valid, "{given:?}");
        accepted += usize::from(is_valid);
        if given.len() < 6 && given.len() < 3 + usize::from(is_valid) * 3 {
            todo.extend(names.iter().map(|name| [given.as_slice(), &[name]].concat()));
        }
    }
    assert!(accepted > 80, "{accepted}");
}

/// Properties come in the order of the schema, or the required ones first, unless any order is asked for.
#[test]
fn properties_of_large_objects_come_in_two_orders_or_any() {
    let properties: serde_json::Map<String, Value> =
        (0..12).map(|i| (format!("p{i:02}"), json!({"const": i}))).collect();
    let schema = json!({"properties": properties, "required": ["p03", "p05"]});
    for options in [DROPS, CompileOptions::default()] {
        let grammar = automaton(&grammar_with(&schema, &options).unwrap()).unwrap();
        for (text, expected) in [
            (r#"{"p03":3,"p05":5}"#, true),
            (r#"{"p03":3,"p05":5,"p00":0,"p11":11}"#, true),
            (r#"{"p00":0,"p03":3,"p05":5,"p11":11}"#, true),
            (r#"{"p00":0,"p03":3,"p04":4,"p05":5}"#, true),
            (r#"{"p05":5,"p03":3}"#, options.any_order),
            (r#"{"p11":11,"p05":5,"p03":3,"p00":0}"#, options.any_order),
            (r#"{"p03":3}"#, false),
            (r#"{"p03":3,"p05":5,"p05":5}"#, false),
            (r#"{"p03":3,"p05":5,"x":1}"#, false),
        ] {
            assert_eq!(accepts(&grammar, text), expected, "{text}");
        }
    }
}

#[test]
fn parameters_are_those_of_all_alternatives() {
    let read = |schema: Value| Schema::new(&schema, &work()).unwrap().parameters().unwrap();
    let names = |parameters: &crate::Parameters| -> Vec<(String, bool)> {
        parameters.properties.iter().map(|one| (one.name.clone(), one.is_required)).collect()
    };
    let pair = |name: &str, required: bool| (name.to_owned(), required);
    let one = read(
        json!({"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "properties": {"a": {"$ref": "#/$defs/i"}, "b": {}},
        "required": ["a"], "additionalProperties": {"type": "null"}}, "i": {"type": "integer"}}}),
    );
    assert_eq!(names(&one), [pair("a", true), pair("b", false)]);
    assert!(
        one.additional.is_some_and(|rest| rest.is_valid(&Value::Null) && !rest.is_valid(&json!(1)))
            && one.unenforced.is_empty()
    );
    let first = &one.properties.first().unwrap().schema;
    assert!(first.is_valid(&json!(3)) && !first.is_valid(&json!("x")));
    let several = read(json!({"type": "object", "anyOf": [
        {"properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind", "x"]},
        {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        {"type": "null"},
    ]}));
    assert_eq!(names(&several), [pair("kind", true), pair("x", false)]);
    assert_eq!(several.unenforced.iter().map(|one| one.keyword.as_str()).collect::<Vec<_>>(), ["anyOf"]);
    let kind = &several.properties.first().unwrap().schema;
    assert!(kind.is_valid(&json!("a")) && kind.is_valid(&json!("b")) && !kind.is_valid(&json!("c")));
    assert!(read(json!({})).additional.is_some() && read(json!({"type": "object"})).properties.is_empty());
    assert!(read(json!({"type": "object", "properties": {}})).additional.is_none());
    assert!(Schema::new(&json!({"type": "string"}), &work()).unwrap().parameters().is_err());
}

/// One large part of a tool refused the whole request.
#[test]
fn what_is_too_large_for_a_grammar_is_dropped() {
    for (schema, why) in endless().into_iter().filter(|(_, why)| why.starts_with("more than")) {
        let shown: String = schema.to_string().chars().take(100).collect();
        let compiled = compile(&schema, &DROPS, &TreeBuilder::new()).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert!(compiled.unenforced.iter().any(|one| one.reason.contains(why)), "{shown}: {:?}", compiled.unenforced);
    }
    let properties: serde_json::Map<String, Value> = (0..2100).map(|i| (format!("p{i}"), json!({}))).collect();
    let schema = Schema::new(&json!({"type": "object", "properties": properties}), &work()).unwrap();
    let parameters = schema.parameters().unwrap();
    assert!(parameters.properties.is_empty() && parameters.additional.is_some() && parameters.unenforced.len() == 1);
    let tree = TreeBuilder::new();
    let root = Values::new(&tree, Notation::Json, DROPS).object(&schema).unwrap();
    let grammar = automaton(&Written(tree, root)).unwrap();
    assert!(accepts(&grammar, r#"{"p1":{},"q":[]}"#) && !accepts(&grammar, "[]"));
}

#[test]
fn many_properties_and_values_are_enforced() {
    let properties: serde_json::Map<String, Value> = (0..150).map(|i| (format!("p{i}"), json!({"const": i}))).collect();
    let values: Vec<String> = (0..5000).map(|i| format!("value {i}")).collect();
    let grammar = |schema: Value| automaton(&grammar_with(&schema, &DROPS).unwrap()).unwrap();
    let object = grammar(json!({"type": "object", "properties": properties}));
    let backwards: Vec<String> = (0..150).rev().map(|i| format!("\"p{i}\":{i}")).collect();
    assert!(accepts(&object, &format!("{{{}}}", backwards.join(","))) && accepts(&object, "{}"));
    assert!(!accepts(&object, r#"{"p7":7,"p8":8,"p7":7}"#) && !accepts(&object, r#"{"p7":8}"#));
    let list = grammar(json!({"enum": values}));
    assert!(accepts(&list, "\"value 4999\"") && !accepts(&list, "\"value 5000\"") && !accepts(&list, "\"value \""));
    let nested: Vec<String> = (0..1000).map(|n| "a".repeat(n)).collect();
    assert!(accepts(&grammar(json!({ "enum": nested })), &format!("{:?}", "a".repeat(999))));
}
