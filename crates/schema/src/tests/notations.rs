//! Values in the notations of Python and Gemma, and lenient ones.

use foredraft_grammar::tree::{Mark, NodeId, TreeBuilder};
use foredraft_grammar::{CompletionReader, ReadEvent};
use serde_json::{Value, json};

use super::{Written, accepts, automaton, work};
use crate::{CompileOptions, Notation, Schema, Values};

/// Whether a notation's writer of this schema accepts a text.
fn allows(notation: Notation, is_lenient: bool, schema: &Value, text: &str) -> bool {
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient };
    let schema = Schema::new(schema, &work()).unwrap();
    let tree = TreeBuilder::new();
    let root = Values::new(&tree, notation, options).value(&schema).unwrap();
    accepts(&automaton(&Written(tree, root)).unwrap(), text)
}

fn check(notation: Notation, schema: Value, valid: &[&str], invalid: &[&str]) {
    valid.iter().for_each(|text| assert!(allows(notation, false, &schema, text), "{text} under {schema}"));
    invalid.iter().for_each(|text| assert!(!allows(notation, false, &schema, text), "{text} under {schema}"));
}

#[test]
fn values_in_gemmas_notation_obey_the_schema() {
    let text = r#"<|"|>a "b"
c<|"|>"#;
    check(Notation::Gemma, json!({"type": "string"}), &[text, r#"<|"|><|"|>"#], &["a", r#"<|"|>a"#, "\"a\""]);
    check(
        Notation::Gemma,
        json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "n": {"type": "integer", "maximum": 5},
            "l": {"type": "array", "items": {"$ref": "#/$defs/b"}}}, "required": ["a"], "$defs": {"b": {"type": "boolean"}}}),
        &[r#"{a:<|"|>x<|"|>}"#, r#"{n:5,a:<|"|>y<|"|>,l:[true,false]}"#],
        &["{}", r#"{a:<|"|>z<|"|>}"#, r#"{a:<|"|>x<|"|>,n:6}"#, r#"{"a":<|"|>x<|"|>}"#, r#"{a:<|"|>x<|"|>,l:[1]}"#],
    );
    check(
        Notation::Gemma,
        json!({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}}),
        &["{a:null,b:1,ab:2}", "{}"],
        &["{a:1}", "{b:null}", "{a:null,a:null}", "{:1}{"],
    );
    let any = r#"{a:[1,{b:<|"|>x<|"|>}],c:null}"#;
    check(Notation::Gemma, json!({}), &[any, "-1.5e3", "[]", "{}"], &["{a:}", "None", "{1:{}"]);
    check(Notation::Gemma, json!({"enum": [{"k": ["x", 1]}]}), &[r#"{k:[<|"|>x<|"|>,1]}"#], &["{k:[]}"]);
}

#[test]
fn strings_of_python_have_its_escapes() {
    let text = json!({"type": "string"});
    check(
        Notation::Python,
        text,
        &[
            r"'a'",
            r#""a""#,
            r"'\'\x1b\n'",
            r"'\U0001f600'",
            r"'\U0010FFFF'",
            r"'\U000000e9'",
            r"'\u00e9'",
            r"'\ud83d\ude00'",
            r"'\a\0\v'",
        ],
        &[r"'\U0011ffff'", r"'\U00100'", r"'\ud83d'", r"'\q'", r"'a", "'a\nb'", r"'\x1'"],
    );
    for text in [r"'\q'", "'a\nb'", r"'C:\dir'"] {
        assert!(allows(Notation::Python, true, &json!({"type": "integer"}), text), "{text}");
    }
}

#[test]
fn lenient_values_are_any_with_any_space() {
    for (notation, text) in [
        (Notation::Json, "{ \"a\"\n\n\n:   [1 , 2]\t}"),
        (Notation::Python, "{ 'a' :\n [True , None] }"),
        (Notation::Gemma, "{ a : [ 1 , <|\"|>x<|\"|> ] }"),
    ] {
        assert!(allows(notation, true, &json!({"type": "integer"}), text), "{text}");
        assert!(!allows(notation, true, &json!({"type": "integer"}), &format!("{text}]")), "{text}");
    }
}

/// The JSON that a reader of these nodes makes of a text, which arrives byte by byte.
fn read(tree: TreeBuilder, value: NodeId, text: &str) -> Value {
    let root = tree.mark(Mark::Call, value);
    let mut reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
    let mut json = String::new();
    let mut add = |event: ReadEvent<'_>| {
        if let ReadEvent::Arguments(part) = event {
            json.push_str(part);
        }
    };
    text.bytes().for_each(|byte| reader.push(&[byte], &mut add));
    assert!(reader.may_end() && !reader.is_lost(), "{text}");
    reader.finish(&mut add);
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json} of {text}"))
}

#[test]
fn what_is_read_is_the_json_value() {
    let options = |is_lenient| CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient };
    let schema = json!({"type": "object", "properties": {"a": {}, "l": {"type": "array", "items": {"enum": ["x\"y", 1, true, null]}},
        "p": {"type": "string", "pattern": "^[a'\\\\]+$"}}, "additionalProperties": {"type": "string"}});
    let schema = Schema::new(&schema, &work()).unwrap();
    for (notation, text, expected) in [
        (
            Notation::Gemma,
            r#"{a:<|"|>say "x"\n<|"|>,l:[<|"|>x"y<|"|>,1,true,null]}"#,
            json!({"a": "say \"x\"\\n", "l": ["x\"y", 1, true, null]}),
        ),
        (Notation::Gemma, r#"{p:<|"|>a'\<|"|>,other:<|"|>x<|"|>}"#, json!({"p": "a'\\", "other": "x"})),
        (Notation::Gemma, "{a:{b:[-1.5],c:{}}}", json!({"a": {"b": [-1.5], "c": {}}})),
        (
            Notation::Python,
            r#"{'a': 'it\'s "x"', "l": ['x"y', 1, True, None]}"#,
            json!({"a": "it's \"x\"", "l": ["x\"y", 1, true, null]}),
        ),
        (
            Notation::Python,
            r"{'a': '\x41\u00e9\U0001f600\ud83d\ude00\U000000e9\U0010fffd', 'p': 'a\'\\'}",
            json!({"a": "A\u{e9}\u{1f600}\u{1f600}\u{e9}\u{10fffd}", "p": "a'\\"}),
        ),
        (Notation::Python, r"{'x': '', 'l': [], 'a': {'k': [False]}}", json!({"x": "", "l": [], "a": {"k": [false]}})),
    ] {
        for is_lenient in [false, true] {
            let tree = TreeBuilder::new();
            let value = Values::new(&tree, notation, options(is_lenient)).object(&schema).unwrap();
            assert_eq!(read(tree, value, text), expected, "{text}");
        }
    }
}

/// Text between tags is JSON if it is that of a value that the schema allows, and a string otherwise.
#[test]
fn text_between_tags_is_read_by_its_schema() {
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    for (schema, text, expected) in [
        (json!({"type": "string"}), "12 \"x\"\n", json!("12 \"x\"\n")),
        (json!({"type": "integer"}), "12", json!(12)),
        (json!({"type": ["integer", "string"]}), "12", json!(12)),
        (json!({"type": ["integer", "string"]}), "12a", json!("12a")),
        (json!({}), "[1, {\"a\": null}]", json!([1, {"a": null}])),
        (json!({}), "[1, {\"a\": nul", json!("[1, {\"a\": nul")),
        (json!({"enum": ["a", "ab", 7]}), "ab", json!("ab")),
        (json!({"enum": ["a", "ab", 7]}), "7", json!(7)),
        (json!({"type": "string", "pattern": "^a+"}), "aa<b", json!("aa<b")),
    ] {
        let schema = Schema::new(&schema, &work()).unwrap();
        let tree = TreeBuilder::new();
        let argument = schema.compile_argument(&["</p>"], Notation::Json, &options, &tree).unwrap();
        assert_eq!(read(tree, argument.node, text), expected, "{text}");
        assert_eq!(super::read_argument(&schema, argument.kind, text), Some(expected), "{text}");
    }
}
