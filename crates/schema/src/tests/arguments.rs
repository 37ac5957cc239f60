//! Values between tags: the grammar and the reader agree, and no text has the end tag.

use serde_json::{Value, json};

use foredraft_grammar::tree::{NodeId, TreeBuilder};

use super::{Rng, Written, accepts, automaton, random_text, work};
use crate::{ArgumentKind, CompileOptions, CompiledArgument, Notation, Schema};

const TAG: &str = "</parameter>";

/// The rules of an argument, and its schema.
fn argument(schema: &Value, delimiters: &[&str]) -> (TreeBuilder, CompiledArgument, Schema) {
    let schema = Schema::new(schema, &work()).unwrap();
    let tree = TreeBuilder::new();
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    let argument = schema.compile_argument(delimiters, Notation::Json, &options, &tree).unwrap();
    (tree, argument, schema)
}

/// The grammar of an argument with a tag behind it.
fn followed(tree: TreeBuilder, node: NodeId, delimiters: &[&str]) -> Written {
    let end = tree.texts(delimiters);
    let whole = tree.seq(&[node, end]);
    Written(tree, whole)
}

#[test]
fn texts_are_read_as_the_kind_says() {
    use ArgumentKind::{Either, Json, Text};
    let text = |text: &str| (text.to_owned(), Some(json!(text)));
    let means = |text: &str, value: Value| (text.to_owned(), Some(value));
    let never = |text: &str| (text.to_owned(), None);
    for (schema, kind, cases) in [
        (
            json!({"type": "string"}),
            Text,
            vec![text(""), text("a\nb"), text("12"), text("null"), text("\"a\""), text(" <b> "), text("</para")],
        ),
        (
            json!({"type": "string", "enum": ["red", "12", 7]}),
            Text,
            vec![text("red"), text("12"), never("7"), never("blue")],
        ),
        (
            json!({"enum": ["red", 7, null]}),
            Either,
            vec![text("red"), means("7", json!(7)), means("null", Value::Null), never("8")],
        ),
        (json!({"const": "a b"}), Text, vec![text("a b"), never("a")]),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            Text,
            vec![text("ab"), text("a>b"), never("a"), never("abcd")],
        ),
        (json!({"type": "string", "pattern": "^[a-z]{2}$"}), Text, vec![text("ab"), never("AB"), never("abc")]),
        (json!({"type": "string", "pattern": "^https://"}), Text, vec![text("https://x/<y>?z"), never("http")]),
        (
            json!({"type": "string", "format": "date"}),
            Text,
            vec![text("2024-02-29"), never("2023-02-29"), never("\"2024-02-29\"")],
        ),
        (json!({"type": "integer"}), Json, vec![means("12", json!(12)), never("x"), never("1.5"), never("\"1\"")]),
        (
            json!({"type": ["integer", "null"]}),
            Json,
            vec![means("12", json!(12)), means("null", Value::Null), never("nul")],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            Json,
            vec![means("[\"a\", \"b\"]", json!(["a", "b"])), never("a")],
        ),
        (
            json!({}),
            Either,
            vec![
                text("some text"),
                means("true", json!(true)),
                means("null", Value::Null),
                means("{\"a\": [1]}", json!({"a": [1]})),
                text("{\"a\""),
                text(" 1"),
                text("\"a\""),
                text("1e999"),
            ],
        ),
        (
            json!({"type": ["string", "null"]}),
            Either,
            vec![text("x"), means("null", Value::Null), text("12"), text("None")],
        ),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}),
            Either,
            vec![means("7", json!(7)), text("3"), text("x")],
        ),
        (
            json!({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "integer"}]}),
            Either,
            vec![means("7", json!(7)), text("aa"), never("b")],
        ),
        (json!({"$ref": "#/$defs/s", "$defs": {"s": {"type": "string", "description": "x"}}}), Text, vec![text("12")]),
    ] {
        let (tree, CompiledArgument { node, kind: found, .. }, read) = argument(&schema, &[TAG]);
        let gbnf = followed(tree, node, &[TAG]);
        assert_eq!(found, kind, "{schema}");
        let grammar = automaton(&gbnf).unwrap_or_else(|error| panic!("{error}: {gbnf}"));
        for (text, value) in cases {
            let accepted = accepts(&grammar, &format!("{text}{TAG}"));
            assert_eq!(accepted, value.is_some(), "{text:?} under {schema}\n{gbnf}");
            if let Some(value) = value {
                assert_eq!(super::read_argument(&read, kind, &text), Some(value), "{text:?} under {schema}");
            }
        }
    }
    let integer = Schema::new(&json!({"type": "integer"}), &work()).unwrap();
    assert_eq!(
        (super::read_argument(&integer, Json, "x"), super::read_argument(&integer, Json, " 1\n")),
        (None, Some(json!(1)))
    );
}

/// Random outputs: the first end tag is the one behind the text, and what is read is valid.
#[test]
fn random_arguments_end_at_the_first_tag_and_are_valid() {
    let mut rng = Rng(0x0123_4567_89ab_cdef);
    let delimiters: [&[&str]; 4] = [&[TAG], &["\n</p>\n"], &["<|end|>", "<|eot|>"], &["</a>", "</ab>"]];
    for schema in [
        json!({"type": "string"}),
        json!({}),
        json!({"type": "string", "minLength": 1, "maxLength": 6}),
        json!({"type": "string", "minLength": 3}),
        json!({"type": "string", "pattern": "a|<"}),
        json!({"type": "string", "pattern": "^<.{1,3}>"}),
        json!({"type": "string", "pattern": "^[</ap>|end\n]{0,9}$"}),
        json!({"enum": ["a", "</parameter>", "x\n</p>", "<|end|>", 5]}),
        json!({"type": ["string", "integer"], "maxLength": 3}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": "object", "properties": {"</p>": {"const": "<|end|></a>"}, "b": {}}, "additionalProperties": {"type": "boolean"}}),
        json!({"type": "array", "items": {"type": "string", "pattern": "^[</ap>|end]{1,5}$"}, "minItems": 1}),
    ] {
        for delimiters in delimiters {
            let (tree, CompiledArgument { node, kind, .. }, read) = argument(&schema, delimiters);
            let gbnf = Written(tree, node);
            let grammar = automaton(&gbnf).unwrap_or_else(|error| panic!("{error}: {gbnf}"));
            let closing: Vec<u8> = delimiters.concat().into_bytes().into_iter().chain(*b"\"]}").collect();
            let mut texts = 0;
            for _ in 0..60 {
                let Some(text) = random_text(&grammar, &closing, &mut rng) else { continue };
                for tag in delimiters {
                    let whole = format!("{text}{tag}");
                    let found = delimiters.iter().filter_map(|tag| whole.find(tag).map(|at| at + tag.len()));
                    assert_eq!(found.min(), Some(whole.len()), "{whole:?} {delimiters:?} under {schema}\n{gbnf}");
                }
                let value =
                    super::read_argument(&read, kind, &text).unwrap_or_else(|| panic!("{text:?} under {schema}"));
                assert!(read.is_valid(&value), "{text:?} is {value} under {schema}\n{gbnf}");
                texts += 1;
            }
            assert!(texts > 3, "only {texts} outputs of {schema} with {delimiters:?}\n{gbnf}");
        }
    }
}

/// All texts of a few characters, against a search for the delimiters.
#[test]
fn text_until_a_delimiter_is_all_text_without_it() {
    for delimiters in [&["aa"][..], &["ab", "ba"], &["aba"], &["a"], &["abab", "bb"], &["aab", "ab"]] {
        let tree = TreeBuilder::new();
        let text = tree.until(delimiters);
        let gbnf = followed(tree, text, delimiters);
        let grammar = automaton(&gbnf).unwrap();
        let mut texts = vec![String::new()];
        for _ in 0..8 {
            texts = texts.iter().flat_map(|text| ["a", "b"].map(|char| format!("{text}{char}"))).collect();
            for text in &texts {
                // The delimiter that ends first; of several that end there, the longest.
                let first = |text: &str| {
                    let found = delimiters
                        .iter()
                        .filter_map(|tag| text.find(tag).map(|at| (at + tag.len(), std::cmp::Reverse(tag.len()))));
                    found.min().map(|(end, len)| (end, len.0))
                };
                let is_free = |inside: &str| {
                    delimiters.iter().all(|tag| {
                        let whole = format!("{inside}{tag}");
                        first(&whole).is_some_and(|(end, len)| end == whole.len() && len <= tag.len())
                    })
                };
                let expected = delimiters.iter().filter_map(|tag| text.strip_suffix(tag)).any(is_free);
                assert_eq!(accepts(&grammar, text), expected, "{text} {delimiters:?}\n{gbnf}");
            }
        }
    }
}

#[test]
fn json_cannot_avoid_a_delimiter_of_its_own_characters() {
    let schema = Schema::new(&json!({"type": "array"}), &work()).unwrap();
    let error =
        schema.compile_argument(&["}\n"], Notation::Json, &CompileOptions::default(), &TreeBuilder::new()).unwrap_err();
    assert!(error.message().contains("has no character that JSON has only in strings"), "{error}");
}

#[test]
fn values_can_be_literals_of_python() {
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    for (schema, allowed, refused) in [
        (
            json!({"type": "array", "items": {"type": "string"}}),
            vec!["['a', \"b\"]", r"['it\'s', '\n\x1b', '\\']", "[\"it's\"]", "['\u{e9}\u{1f600}']"],
            vec!["['a\"]", "['a'b']", r"['\q']", "['a\nb']", "[a]", r"['\ud83d']", "[1]"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}, "required": ["a"],
                "additionalProperties": {"type": "integer"}}),
            vec!["{'a': True, 'b': None}", "{\"a\": false, 'c': 1}", "{'a': true}"],
            vec!["{'a': TRUE}", "{'b': None}", "{'a': True, 'b': 1}", "{'a': True, 'a': True}", "{'a': 1}"],
        ),
        (
            json!({"type": "array", "items": {"enum": ["it's", "</parameter>", {"k": [true, null, 1.5]}]}}),
            vec![
                r"['it\'s', {'k': [True, None, 1.5]}]",
                r"['\u003c/parameter>']",
                "[\"it's\", {\"k\":[true,null,1.5]}]",
            ],
            vec!["['it', 's']", "['</parameter>']", "[{'k': [True, None]}]"],
        ),
        (
            json!({"type": "array", "items": {"type": "string", "pattern": "^[a']+$"}}),
            vec![r#"['a\'', "a'"]"#, r"['aa']"],
            vec!["['a'']", "['b']"],
        ),
    ] {
        let tree = TreeBuilder::new();
        let parsed = Schema::new(&schema, &work()).unwrap();
        let argument = parsed.compile_argument(&[TAG], Notation::Python, &options, &tree).unwrap();
        let gbnf = followed(tree, argument.node, &[TAG]);
        let grammar = automaton(&gbnf).unwrap_or_else(|error| panic!("{error}: {gbnf}"));
        for (texts, is_allowed) in [(allowed, true), (refused, false)] {
            for text in texts {
                assert_eq!(accepts(&grammar, &format!("{text}{TAG}")), is_allowed, "{text} under {schema}\n{gbnf}");
            }
        }
    }
}

#[test]
fn values_alone_are_no_strings() {
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    for (schema, allowed, refused) in [
        (json!({}), vec!["{'a': ['b']}", "1", "None"], vec!["'a'", "\"a\""]),
        (json!({"type": ["string", "integer"]}), vec!["1"], vec!["'1'", "\"1\"", "1.5"]),
        (json!({"enum": ["a", 2]}), vec!["2"], vec!["'a'"]),
    ] {
        let tree = TreeBuilder::new();
        let values =
            Schema::new(&schema, &work()).unwrap().compile_values(Notation::Python, &options, &tree).unwrap().unwrap();
        let grammar = automaton(&Written(tree, values.node)).unwrap();
        allowed.into_iter().for_each(|text| assert!(accepts(&grammar, text), "{text} under {schema}"));
        refused.into_iter().for_each(|text| assert!(!accepts(&grammar, text), "{text} under {schema}"));
    }
    let none = Schema::new(&json!({"type": "string"}), &work())
        .unwrap()
        .compile_values(Notation::Python, &options, &TreeBuilder::new())
        .unwrap();
    assert_eq!(none, None);
}
