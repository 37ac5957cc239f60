//! How JSON strings may be spelled.

use serde_json::{Value, json};

use super::{accepts, automaton, to_grammar};

/// Whether the grammar of a schema accepts a JSON text.
fn allows(schema: &Value, text: &str) -> bool {
    accepts(&automaton(&to_grammar(schema).unwrap()).unwrap(), text)
}

#[test]
fn surrogates_are_allowed_only_in_pairs() {
    let quoted = |inside: &str| format!("\"{inside}\"");
    for schema in [json!({"type": "string"}), json!({}), json!({"type": "string", "minLength": 1, "maxLength": 9})] {
        for inside in
            [r"\ud83d\ude00", r"\uD83D\uDE00x", r"\udbff\udfff", r"a\u00e9", r"\ud7ff", r"\ue000", r"\/", "😀"]
        {
            assert!(allows(&schema, &quoted(inside)), "{inside} under {schema}");
            assert!(serde_json::from_str::<String>(&quoted(inside)).is_ok(), "{inside}");
        }
        for inside in [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\n", r"\ud83d\ud83d", r"\ude00\ud83d", r"\ud83d\u0041"]
        {
            assert!(!allows(&schema, &quoted(inside)), "{inside} under {schema}");
            assert!(serde_json::from_str::<String>(&quoted(inside)).is_err(), "{inside}");
        }
    }
}

/// A pair of escapes is one character.
#[test]
fn lengths_count_characters() {
    let schema = json!({"type": "string", "maxLength": 2});
    assert!(allows(&schema, r#""\ud83d\ude00\n""#) && allows(&schema, "\"😀é\""));
    assert!(!allows(&schema, r#""\ud83d\ude00\n!""#));
}

/// Another spelling of a listed name is not an additional name.
#[test]
fn additional_names_are_no_other_spelling_of_a_listed_name() {
    let schema = json!({"properties": {"ab": {"const": 1}, "\n/": {"const": 1}}, "additionalProperties": {"const": 2}});
    for name in [r"\u0061b", r"a\u0062", "ab", r"\n/", r"\n\/", r"\u000a/"] {
        assert!(!allows(&schema, &format!("{{\"{name}\":2}}")), "{name}");
    }
    for name in ["a", "abc", "", r"ac\u0062", r"\n", r"\t/", "/", r"x\u0061b", "b"] {
        assert!(allows(&schema, &format!("{{\"{name}\":2}}")), "{name}");
    }
}

/// Models write JSON compact, with spaces, or with line breaks and indentation.
#[test]
fn space_stands_where_models_write_it() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}}, "required": ["a"]});
    for text in [
        r#"{"a":[1,2],"b":{}}"#,
        r#"{"a": [1, 2], "b": {"c": [null, true]}}"#,
        "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": [ ]\n}",
        "{ \"a\" : [ 1 ] }",
        "{\n\n\t\"a\": []\n}",
    ] {
        assert!(allows(&schema, text), "{text}");
    }
    assert!(!allows(&schema, "{   \"a\":[]}") && !allows(&schema, "{\n\n\n\"a\":[]}"));
}

/// Not all regular expressions, but no text that is none.
#[test]
fn regular_expressions_are_enforced() {
    let grammar = automaton(&to_grammar(&json!({"type": "string", "format": "regex"})).unwrap()).unwrap();
    for regex in [
        "^a$",
        "a|b",
        "([abc])+\\s+$",
        "^(?:x{2,3}y{1,20})?$",
        "(a(b(c)))",
        "[^a-z0-9_.-]+?",
        "^(?!.*\\.js$)",
        "\\u00e9\\/",
        r"^/(?<=a)[\w\]]{4}\b",
        "",
    ] {
        assert!(accepts(&grammar, &json!(regex).to_string()), "{regex}");
    }
    for text in ["*", "[", "^(abc]", "a)", "a**", "a{3,2}", "(", "[z-a]", r"\a", r"\", "a{", "[]", "(?a)", "x+++"] {
        assert!(!accepts(&grammar, &json!(text).to_string()), "{text}");
    }
    // Beside a length the format is not enforced.
    assert!(allows(&json!({"type": "string", "format": "regex", "maxLength": 60}), "\"*\""));
    // A value of a list is one of the document's own.
    assert!(allows(&json!({"enum": ["((((((a))))))"], "type": "string", "format": "regex"}), "\"((((((a))))))\""));
}

/// Names are enforced in objects of any depth.
#[test]
fn names_are_enforced_in_nested_objects() {
    let mut schema = json!({"type": "object", "propertyNames": {"$ref": "#/$defs/name"}});
    let (mut valid, mut invalid) = (json!({"a1": 1}), json!({"b": 1}));
    for _ in 0..6 {
        schema = json!({"type": "object", "properties": {"x": schema}});
        (valid, invalid) = (json!({ "x": valid }), json!({ "x": invalid }));
    }
    schema["$defs"] = json!({"name": {"oneOf": [{"type": "number"}, {"type": "string", "pattern": "^a[0-9]*$"}]}});
    assert!(allows(&schema, &valid.to_string()));
    assert!(!allows(&schema, &invalid.to_string()));
}
