//! References under identifiers, names of properties, and patterns as generators of schemas write them.

use serde_json::{Value, json};

use super::{accepts, automaton, to_grammar};

/// A schema, documents that it allows, and documents that it does not.
pub(super) type Case = (Value, Vec<Value>, Vec<Value>);

pub(super) fn check(cases: Vec<Case>) {
    for (schema, valid, invalid) in cases {
        let gbnf = to_grammar(&schema).unwrap_or_else(|error| panic!("{error}: {schema}"));
        let grammar = automaton(&gbnf).unwrap_or_else(|error| panic!("{error}: {schema}"));
        for (documents, expected) in [(valid, true), (invalid, false)] {
            for document in documents {
                assert_eq!(accepts(&grammar, &document.to_string()), expected, "{document} under {schema}");
            }
        }
    }
}

#[test]
fn references_are_resolved_against_the_nearest_identifier() {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let object = |id: &str, key: &str| {
        json!({
            key: "http://x/r", "definitions": {"x": text, "far": {key: "sub/far", "type": "null"}}, "type": "object",
            "properties": {
                "p": {
                    key: id, "definitions": {"x": number}, "type": "object",
                    "properties": {"a": {"$ref": "#/definitions/x"}}, "required": ["a"],
                },
                "q": {"$ref": "#/definitions/x"},
                "r": {"$ref": "http://x/sub/far"},
                "s": {"$ref": "/sub/far#"},
            },
        })
    };
    let mut draft_4 = object("http://x/p", "id");
    draft_4["$schema"] = json!("http://json-schema.org/draft-04/schema#");
    for schema in [object("http://x/p", "$id"), object("p", "$id"), object("urn:x:p", "$id"), draft_4] {
        check(vec![(
            schema,
            vec![json!({"p": {"a": 1}}), json!({"q": "x"}), json!({"p": {"a": 1}, "q": "x", "r": null, "s": null})],
            vec![json!({"p": {"a": "x"}}), json!({"q": 1}), json!({"r": 1}), json!({"s": "x"})],
        )]);
    }
}

#[test]
fn anchors_and_encoded_pointers_are_resolved() {
    check(vec![
        (
            json!({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}),
            vec![json!(null)],
            vec![json!(1)],
        ),
        (
            // The same anchor in another resource is another one.
            json!({"$id": "http://x/r", "$ref": "p#here", "$defs": {
                "a": {"$anchor": "here", "type": "null"},
                "b": {"$id": "p", "$defs": {"c": {"$anchor": "here", "type": "boolean"}}},
            }}),
            vec![json!(true)],
            vec![json!(null)],
        ),
        (
            // Drafts 6 and 7 write anchors so.
            json!({"$ref": "#here", "definitions": {"a": {"$id": "#here", "type": "null"}}}),
            vec![json!(null)],
            vec![json!(1)],
        ),
        (
            json!({"$ref": "#/$defs/a%25b%22~1c", "$defs": {"a%b\"/c": {"type": "null"}, "a%25b%22/c": {"const": 1}}}),
            vec![json!(null)],
            vec![json!(1)],
        ),
        (
            json!({"$ref": "#/components/schemas/a", "components": {"schemas": {
                "a": {"type": "array", "items": {"$ref": "#/components/schemas/b"}}, "b": {"type": "null"},
            }}}),
            vec![json!([null])],
            vec![json!([1])],
        ),
        (
            // `$id` in an enum, or as a property's name, is no identifier.
            json!({"$ref": "http://x/a", "$defs": {
                "e": {"enum": [{"$id": "http://x/a", "type": "null"}]},
                "p": {"properties": {"$id": {"type": "string"}}},
                "a": {"$id": "http://x/a", "type": "boolean"},
            }}),
            vec![json!(true)],
            vec![json!(null)],
        ),
    ]);
}

/// `Type.Recursive` and `Type.Module` of TypeBox.
#[test]
fn recursion_as_typebox_writes_it_is_supported() {
    let node = json!({
        "$id": "Node", "type": "object", "required": ["id", "nodes"],
        "properties": {"id": {"type": "integer"}, "nodes": {"type": "array", "items": {"$ref": "Node"}}},
    });
    let (valid, invalid) = (
        json!({"id": 1, "nodes": [{"id": 2, "nodes": []}, {"id": 3, "nodes": []}]}),
        json!({"id": 1, "nodes": [{"id": 2, "nodes": 1}]}),
    );
    let wrapped = json!({"type": "array", "items": node});
    let module = json!({"$ref": "Node", "$defs": {"Node": node, "Other": {"$id": "Other", "type": "null"}}});
    check(vec![
        (node.clone(), vec![valid.clone()], vec![invalid.clone()]),
        (module, vec![valid.clone()], vec![invalid.clone(), json!(null)]),
        (wrapped, vec![json!([valid]), json!([])], vec![json!([invalid]), valid]),
    ]);
}

#[test]
fn references_that_lead_nowhere_or_depend_on_the_draft_are_refused() {
    let beside = json!({
        "$id": "http://x/base/", "definitions": {
            "a": {"$id": "http://x/foo.json", "type": "string"}, "b": {"$id": "foo.json", "type": "number"},
        },
        "properties": {"p": {"$id": "http://x/", "$ref": "foo.json"}},
    });
    let mut named = beside.clone();
    named["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    check(vec![(named.clone(), vec![json!({"p": 1})], vec![json!({"p": "x"})])]);
    named["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    check(vec![(named, vec![json!({"p": "x"})], vec![json!({"p": 1})])]);
    let nested = |reference: &str| json!({"$defs": {"x": {}}, "items": {"$id": "http://x/p", "items": {"$ref": reference}}, "type": "array"});
    for (schema, why) in [
        (beside, "#/properties/p: $ref \"foo.json\": its schema depends on the draft; name the draft in $schema"),
        (nested("#/$defs/x"), "http://x/p#/$defs/x"),
        (nested("#none"), "cannot resolve $ref \"#none\""),
        (nested("other"), "http://x/other#\\\": only references inside the same schema"),
        (json!({"$ref": "#/$defs/a%25b", "$defs": {"a%25b": {}}}), "cannot resolve $ref \"#/$defs/a%25b\""),
        (json!({"$ref": "#/$defs/%zz", "$defs": {"%zz": {}}}), "cannot resolve $ref"),
        (
            json!({"$ref": "twice", "$defs": {"a": {"$id": "twice"}, "b": {"$id": "twice", "type": "null"}}}),
            "only references inside the same schema",
        ),
        (json!({"$dynamicRef": "#x"}), "$dynamicRef cannot be enforced"),
    ] {
        let error = to_grammar(&schema).expect_err(&schema.to_string());
        let message = error.message().replace('"', "\\\"");
        assert!(message.contains(why) || error.message().contains(why), "{schema}: {error}");
    }
}

#[test]
fn names_of_properties_are_enforced_where_they_are_a_list() {
    let record =
        |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    let list = json!({"type": "string", "enum": ["a", "b", "a"]});
    check(vec![
        (record(json!({"type": "string"})), vec![json!({}), json!({"x": 1})], vec![json!({"x": null})]),
        (record(json!(true)), vec![json!({"x": 1})], vec![json!({"x": null})]),
        (record(list.clone()), vec![json!({}), json!({"a": 1, "b": 2})], vec![json!({"c": 1}), json!({"a": null})]),
        (
            json!({"propertyNames": {"$ref": "#/$defs/n"}, "required": ["a"], "properties": {"a": {"type": "null"}, "c": {}},
                "additionalProperties": true, "$defs": {"n": {"anyOf": [{"const": "a"}, {"const": "b"}]}}}),
            vec![json!({"a": null}), json!({"a": null, "b": "x"})],
            vec![json!({"a": 1}), json!({"b": 1}), json!({"a": null, "c": 1})],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "c": {}}, "propertyNames": list}),
            vec![json!({}), json!({"a": null})],
            vec![json!({"b": 1}), json!({"c": 1})],
        ),
        (record(json!(false)), vec![json!({})], vec![json!({"a": 1})]),
    ]);
    for (names, why) in [
        (json!({"pattern": "b(?=a)"}), "#/propertyNames: the pattern has a lookahead"),
        (json!({"$ref": "#/propertyNames"}), "#/propertyNames: allOf refers to itself"),
    ] {
        let error = to_grammar(&record(names)).unwrap_err();
        assert!(error.message().contains(why), "{error}");
    }
    let error = to_grammar(&json!({"propertyNames": {"const": "a"}, "required": ["b"]})).unwrap_err();
    assert!(error.message().contains("\"b\" is required, and propertyNames forbids it"), "{error}");
}

#[test]
fn keywords_beside_a_reference_are_merged_with_it() {
    check(vec![(
        json!({"$ref": "#/$defs/x", "maximum": 5, "$defs": {"x": {"type": "integer", "minimum": 3}}}),
        vec![json!(3), json!(5)],
        vec![json!(2), json!(6)],
    )]);
}

#[test]
fn names_by_a_pattern_are_enforced() {
    check(vec![
        (
            json!({"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 3}, "additionalProperties": {"type": "null"}}),
            vec![json!({}), json!({"a": null, "abc": null})],
            vec![json!({"b": null}), json!({"abcd": null}), json!({"a": 1})],
        ),
        (
            json!({"properties": {"a": {}, "b": {}}, "propertyNames": {"pattern": "^a"}}),
            vec![json!({}), json!({"a": 1})],
            vec![json!({"b": 1}), json!({"ab": 1})],
        ),
        (
            json!({"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": false}),
            vec![json!({}), json!({"n": 1, "no": 2})],
            vec![json!({"n": "x"}), json!({"x": 1})],
        ),
        (
            json!({"properties": {"n": {"minimum": 3}, "x": {"type": "null"}}, "required": ["no"], "patternProperties": {"^n": {"type": "integer"}}}),
            vec![json!({"no": 1}), json!({"n": 3, "x": null, "no": 2})],
            vec![json!({"n": 2, "no": 1}), json!({"n": 3.5, "no": 1}), json!({"no": "x"}), json!({"x": null})],
        ),
    ]);
}

#[test]
fn dependent_properties_are_alternatives() {
    let properties = json!({"a": {}, "b": {"type": "integer"}, "c": {}});
    check(vec![
        (
            json!({"properties": properties, "dependentRequired": {"a": ["b"]}}),
            vec![json!({}), json!({"b": 1}), json!({"a": 1, "b": 2}), json!({"b": 1, "c": 1})],
            vec![json!({"a": 1}), json!({"a": 1, "c": 1}), json!({"a": 1, "b": "x"})],
        ),
        (
            json!({"properties": properties, "required": ["a"], "dependencies": {"a": ["b"], "b": {"required": ["c"]}}}),
            vec![json!({"a": 1, "b": 2, "c": 3})],
            vec![json!({"a": 1, "b": 2}), json!({"a": 1, "c": 1}), json!({"b": 1, "c": 1})],
        ),
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}, "additionalProperties": {"type": "null"}}),
            vec![json!({}), json!({"x": null}), json!({"a": null, "b": null, "x": null})],
            vec![json!({"a": null}), json!({"x": 1})],
        ),
    ]);
}

/// A pattern is searched for; `^` and `$` are its only anchors.
#[test]
fn unanchored_patterns_are_surrounded_by_any_text() {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let texts = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
    check(vec![
        (pattern("\\S"), texts(&["a", "ab", " a ", "\"", "\\", "a\nb", "é"]), texts(&["", " ", "\n\t"])),
        (pattern("^img_"), texts(&["img_", "img_1.png"]), texts(&["img", "an img_"])),
        (pattern("_img$"), texts(&["_img", "a\\_img"]), texts(&["_img ", "img"])),
        (pattern(""), texts(&["", "a", "\"b\"\n"]), vec![json!(1)]),
        (pattern("^a$|^b$"), texts(&["a", "b"]), texts(&["ab", "", "c"])),
        (pattern("^(?<year>\\d{4})-(?<month>\\d\\d)$"), texts(&["2024-05"]), texts(&["2024-5"])),
        (pattern("^<.+?>$"), texts(&["<a>", "<a>b>", "<\">"]), texts(&["<>", "<\n>"])),
        (pattern("^[^\\S ]+$"), texts(&["\t", "\n\t"]), texts(&[" ", "a", ""])),
        (pattern("^[\\D]$"), texts(&["a", "\"", "é"]), texts(&["1"])),
        (pattern("^\\u{1F600}\\uD83D\\uDE00$"), texts(&["😀😀"]), texts(&["😀"])),
    ]);
    let mut bounded = pattern("^[a-z]+$");
    bounded["maxLength"] = json!(3);
    bounded["minLength"] = json!(2);
    check(vec![(bounded, texts(&["ab", "abc"]), texts(&["a", "abcd", "AB"]))]);
}

/// Zod writes this for `z.uuid()` and `z.iso.date()`: the pattern says exactly what the format means.
#[test]
fn pattern_counts_beside_a_format() {
    let uuid = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|\
                00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$";
    let date = "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\
                \\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|\
                (?:02)-(?:0[1-9]|1\\d|2[0-8])))$";
    check(vec![
        (
            json!({"type": "string", "format": "uuid", "pattern": uuid}),
            vec![json!("01234567-89ab-4def-8bcd-000000000000"), json!("ffffffff-ffff-ffff-ffff-ffffffffffff")],
            vec![json!("01234567-89ab-0def-8bcd-000000000000")],
        ),
        (
            json!({"type": "string", "format": "date", "pattern": date}),
            vec![json!("2024-02-29"), json!("2023-12-31")],
            vec![json!("2023-02-29"), json!("2023-13-01")],
        ),
    ]);
}

#[test]
fn unevaluated_properties_and_items_are_those_that_nothing_lists() {
    let base = json!({"properties": {"a": {"type": "integer"}}});
    let defs = json!({"base": base});
    let one = json!({"properties": {"b": {"const": 1}}, "required": ["b"]});
    check(vec![
        (
            json!({"$ref": "#/$defs/base", "properties": {"b": {"type": "integer"}}, "unevaluatedProperties": false, "$defs": defs}),
            vec![json!({"b": 2, "a": 1}), json!({"b": 2}), json!({})],
            vec![json!({"c": 1}), json!({"a": 1, "c": 1}), json!({"a": "x"})],
        ),
        (
            json!({"$ref": "#/$defs/base", "unevaluatedProperties": {"type": "string"}, "$defs": defs}),
            vec![json!({"a": 1, "c": "x"}), json!({"c": "x"})],
            vec![json!({"c": 1}), json!({"a": "x"})],
        ),
        (
            json!({"type": "object", "anyOf": [one, base], "unevaluatedProperties": false}),
            vec![json!({"a": 1}), json!({"b": 1})],
            vec![json!({"b": 1, "c": 1}), json!({"c": 1})],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}}),
            vec![json!([1]), json!([1, "x"])],
            vec![json!([1, 2]), json!(["x"])],
        ),
    ]);
    // A part does not evaluate what another part lists.
    let part =
        json!({"allOf": [{"properties": {"a": true}, "unevaluatedProperties": false}, {"properties": {"b": true}}]});
    assert_eq!(
        to_grammar(&part).unwrap_err().message(),
        "json_schema: #: unevaluatedProperties in a part of allOf cannot be enforced"
    );
}
