//! Random outputs of the grammars of many schemas are valid; schemas that a grammar cannot enforce are refused.

mod arguments;
mod dropped;
mod maskbench;
mod negation;
mod notations;
mod numbers;
mod random;
mod references;
mod strings;
mod suite;
mod validator;
mod work;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use foredraft_base::error::{Error, Result};
use foredraft_base::work::Work;
use foredraft_base::{Token, TokenData, Vocabulary};
use foredraft_grammar::Grammar;
use foredraft_grammar::tree::{NodeId, TreeBuilder};

use crate::{ArgumentKind, CompileOptions, CompiledSchema, Notation, Schema};

/// A random generator for test data (xorshift64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A vocabulary with a token for each byte, and one that ends the completion.
#[derive(Debug)]
struct ByteVocabulary(Vec<u8>);

const END: Token = 256;

impl Vocabulary for ByteVocabulary {
    fn n_tokens(&self) -> usize {
        257
    }

    fn piece(&self, token: Token) -> &[u8] {
        let at = token as usize;
        self.0.get(at..at + 1).unwrap_or(b"<end>")
    }

    fn is_eog(&self, token: Token) -> bool {
        token == END
    }

    fn newline(&self) -> Option<Token> {
        Some(10)
    }

    fn tokenize(&self, text: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(text.iter().map(|byte| Token::from(*byte)).collect())
    }
}

/// Enough steps for any test.
pub(crate) fn work() -> Work {
    Work::new(1 << 23, None)
}

/// A node in its tree.
#[derive(Debug, Clone)]
pub(super) struct Written(TreeBuilder, NodeId);

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.1)
    }
}

/// The automaton of a grammar.
pub(super) fn automaton(written: &Written) -> Result<Grammar> {
    Grammar::from_tree(
        Arc::new(ByteVocabulary((0..=255).collect())),
        written.0.clone(),
        written.1,
        &foredraft_base::work::Work::unlimited(),
    )
}

/// The grammar of a schema, with errors as the field `json_schema` has them.
pub(super) fn to_grammar(schema: &Value) -> Result<Written> {
    grammar_with(schema, &CompileOptions::default())
}

fn grammar_with(schema: &Value, options: &CompileOptions) -> Result<Written> {
    let tree = TreeBuilder::new();
    let compiled = compile(schema, options, &tree);
    let compiled = compiled.map_err(|error| Error::invalid(format!("json_schema: {}", error.message())))?;
    Ok(Written(tree, compiled.node))
}

/// Reads and compiles a schema.
fn compile(schema: &Value, options: &CompileOptions, tree: &TreeBuilder) -> Result<CompiledSchema> {
    Schema::new(schema, &work())?.compile(options, tree)
}

/// The values that the grammar of a schema allows, as text.
fn values(schema: &Value) -> String {
    format!("{:?}", Schema::new(schema, &work()).unwrap().read(&CompileOptions::default()).unwrap().0)
}

/// Whether the grammar accepts this text.
pub(super) fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut grammar = grammar.clone();
    grammar.allows_text(text.as_bytes()).unwrap() && {
        grammar.accept_text(text.as_bytes()).unwrap();
        grammar.allows(END).unwrap()
    }
}

/// Schemas with every supported keyword.
fn schemas() -> Vec<Value> {
    vec![
        json!({}),
        json!({"type": "object"}),
        json!({"type": "array"}),
        json!({"type": ["string", "null", "boolean"]}),
        json!({"type": "number"}),
        json!({"type": "integer"}),
        json!({"const": {"a": [1, "x\n\"y\"", null], "é": 1.5}}),
        json!({"enum": ["red", 7, null, [1], {"b": false}]}),
        json!({"type": "string", "enum": ["red", 7]}),
        json!({"type": "integer", "minimum": 100}),
        json!({"type": "integer", "minimum": 205, "exclusiveMaximum": 3000.5}),
        json!({"type": "integer", "maximum": -205}),
        json!({"type": "integer", "minimum": -13, "maximum": 7}),
        json!({"type": "integer", "exclusiveMinimum": 9, "maximum": 11}),
        json!({"minimum": 3, "maximum": 3}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "maxLength": 0}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "pattern": "^(\\d{3}-)?[A-Z][a-z]{1,4}$"}),
        json!({"type": "string", "pattern": "^[^x]{1,3}.?\\w+é+$"}),
        json!({"type": "string", "pattern": "^(ab|c\\.d)$|^x"}),
        json!({"type": "string", "pattern": "^[!-~]{2,4}$"}),
        json!({"type": "string", "pattern": "^[\\da-c-]{2}$"}),
        json!({"type": "string", "pattern": "^[A-Z]:(\\\\[a-z]{1,3}){1,2}$"}),
        json!({"type": "string", "pattern": "^\"[a-z]{1,3}\"$"}),
        json!({"type": "string", "pattern": "^(ok|x\\\\y|[\\n\"]{2}|a\\x01\\x7Fb)$"}),
        json!({"properties": {"day": {"format": "date"}}, "required": ["day"]}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "minItems": 1, "maxItems": 3}),
        json!({"type": "array", "items": false}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": {"type": "null"}}),
        json!({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}),
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name"]}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"const": 1}}}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "ab": {"const": 2}}, "additionalProperties": {"type": "null"}, "required": ["ab"]}),
        json!({"type": "object", "properties": {"kind": {"const": "k"}}, "additionalProperties": true}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({"properties": {"a b": {"const": 1}, "": {"const": 2}, "\"q\"": {"const": 3}, "root": {"const": 4}, "string": {"type": "null"}}, "required": ["", "root"]}),
        json!({"type": "object", "required": ["x"], "properties": {"y": {"type": "null"}}}),
        json!({"type": "object", "properties": {"a": false, "b": {"type": "null"}}, "additionalProperties": false}),
        json!({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "boolean"}]}),
        json!({"oneOf": [{"enum": ["a", "b"]}, {"enum": [1, 2, "c"]}, {"const": null}]}),
        json!({"oneOf": [{"enum": [1, 2.5]}, {"enum": [1.5, 2]}, {"const": [1]}]}),
        json!({"oneOf": [{"const": 9_007_199_254_740_992_u64}, {"const": 9_007_199_254_740_993_u64}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["kind", "lives"]},
            {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string", "maxLength": 3}}, "required": ["kind"]},
        ]}),
        json!({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}, false]}),
        json!({"allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"$ref": "#/$defs/b"},
            {"properties": {"a": {"minimum": 3, "maximum": 5, "type": "integer"}}},
        ], "$defs": {"b": {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}}}),
        json!({"allOf": [{"$ref": "#/$defs/x", "required": ["a"]}],
            "$defs": {"x": {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": false}}}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"enum": [1, 2]}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        }, "required": ["value"]}}}),
        json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a_b"}, "y": {"$ref": "#/$defs/a-b"}}, "required": ["x", "y"],
            "$defs": {"a_b": {"const": 1}, "a-b": {"const": 2}}}),
        json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}),
        json!({"type": "object", "properties": {"a/b": {"const": 1}, "c": {"$ref": "#/properties/a~1b"}}, "required": ["c"]}),
        json!({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "maxProperties": 2, "minProperties": 1}),
        json!({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"], "minProperties": 3}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2}),
        json!({"properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": {"type": "null"}, "maxProperties": 3}),
        json!({"properties": {"a": {"const": 1}}, "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 1},
            "required": ["a"], "maxProperties": 2}),
        json!({"type": "string", "anyOf": [{"maxLength": 2}, {"const": "long"}, {"type": "integer"}]}),
        json!({"type": ["object", "null"], "properties": {"a": {"const": 1}, "b": {"const": 2}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"type": "number", "oneOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "string"}]}),
        json!({"type": "object", "properties": {"a": false, "\"q\\\n": {"const": 1}}, "additionalProperties": {"type": "integer"}}),
        json!({"type": "number", "minimum": 0}),
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        json!({"type": "number", "minimum": -90.5, "exclusiveMaximum": 90.25}),
        json!({"type": "number", "minimum": 0.15, "maximum": 0.1525}),
        json!({"type": "number", "exclusiveMaximum": -1e-3}),
        json!({"type": "number", "minimum": -2.5, "maximum": -0.125}),
        json!({"allOf": [{"minLength": 1}, {"minLength": 2, "maxLength": 3}, {"maxLength": 4}], "type": "string"}),
        json!({"type": "array", "items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": {"const": 1}, "minItems": 3}),
        json!({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "maxItems": 1}),
        json!({"enum": [1, 2.5, "abc", "de", [1], [1, 1], {"a": 1}, {"b": 1}], "minLength": 3, "minimum": 2, "minItems": 2, "required": ["a"]}),
        json!({"oneOf": [{"enum": [1, 2, 3]}, {"enum": ["x", 3]}]}),
        json!({"additionalProperties": {"type": "null"}, "minProperties": 1}),
        json!({"type": "integer", "minimum": 3, "anyOf": [{"$ref": "#/$defs/small"}, true], "$defs": {"small": {"maximum": 9, "type": "number"}}}),
    ]
}

/// A random output of the grammar; `None` if it gets long. Characters of `closing` are preferred, or outputs would not end.
fn random_text(grammar: &Grammar, closing: &[u8], rng: &mut Rng) -> Option<String> {
    let mut grammar = grammar.clone();
    let mut text = Vec::new();
    for _ in 0..200 {
        let mut row: Vec<TokenData> = (0..=END).map(|id| TokenData { id, logit: 0.0, p: 0.0 }).collect();
        grammar.filter(&mut row).unwrap();
        let mut allowed: Vec<Token> = row.iter().filter(|item| item.logit == 0.0).map(|item| item.id).collect();
        assert!(!allowed.is_empty(), "a dead end after {:?}", String::from_utf8_lossy(&text));
        let ends = allowed.contains(&END);
        if ends && (allowed.len() == 1 || rng.below(3) == 0) {
            return Some(String::from_utf8(text).expect("whole characters"));
        }
        allowed.retain(|token| *token != END);
        let is_closing = |token: &&Token| closing.contains(&(**token as u8));
        let closing: Vec<Token> = allowed.iter().filter(is_closing).copied().collect();
        let from = if !closing.is_empty() && rng.below(3) > 0 { &closing } else { &allowed };
        let token = from[rng.below(from.len())];
        text.push(token as u8);
        grammar.accept(token).unwrap();
    }
    None
}

#[test]
fn random_grammar_outputs_are_valid_under_the_schema() {
    let mut rng = Rng(0x0123_4567_89ab_cdef);
    for schema in schemas() {
        let grammar = to_grammar(&schema).unwrap_or_else(|error| panic!("{error}: {schema}"));
        let automaton = automaton(&grammar).unwrap_or_else(|error| panic!("{error}: {grammar}"));
        let schema_read = crate::Schema::new(&schema, &work()).unwrap();
        let mut texts = 0;
        for _ in 0..40 {
            let Some(text) = random_text(&automaton, b"\"}]", &mut rng) else { continue };
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{error}: {text:?} under {schema}\n{grammar}"));
            assert!(validator::is_valid(&schema, &schema, &value), "{text:?} under {schema}\n{grammar}");
            assert!(schema_read.is_valid(&value), "{text:?} under {schema}");
            texts += 1;
        }
        assert!(texts > 5, "only {texts} outputs of {schema}");
    }
}

/// The grammar of an object with a number of properties accepts all numbers that are allowed, and no others.
#[test]
fn numbers_of_properties_are_exact() {
    let many: Map<String, Value> = (0..20).map(|i| (format!("p{i}"), json!({"const": 1}))).collect();
    let few = json!({"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}, "d": {"const": 1}});
    for (schema, valid, invalid) in [
        (
            json!({"properties": few, "maxProperties": 2}),
            vec!["{}", r#"{"a":1}"#, r#"{"a":1,"d":1}"#, r#"{"b":1,"c":1}"#],
            vec![r#"{"a":1,"b":1,"c":1}"#],
        ),
        (
            json!({"properties": few, "minProperties": 3}),
            vec![r#"{"a":1,"b":1,"c":1}"#, r#"{"b":1,"c":1,"d":1}"#, r#"{"a":1,"b":1,"c":1,"d":1}"#],
            vec!["{}", r#"{"a":1,"b":1}"#],
        ),
        // Too many pairs: only the first two, which is narrower.
        (
            json!({"properties": many, "maxProperties": 2}),
            vec!["{}", r#"{"p0":1,"p1":1}"#],
            vec![r#"{"p0":1,"p1":1,"p2":1}"#],
        ),
        (
            json!({"type": "object", "maxProperties": 2}),
            vec!["{}", r#"{"x":null,"y":[1]}"#],
            vec![r#"{"x":1,"y":{},"z":3}"#],
        ),
        (
            json!({"additionalProperties": {"const": 1}, "maxProperties": 3}),
            vec!["{}", r#"{"x":1}"#, r#"{"x":1,"y":1,"z":1}"#],
            vec![r#"{"w":1,"x":1,"y":1,"z":1}"#, r#"{"x":2}"#],
        ),
        (
            json!({"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}, "maxProperties": 3}),
            vec!["{}", r#"{"a":1}"#, r#"{"x":2}"#, r#"{"a":1,"x":2,"y":2}"#, r#"{"x":2,"y":2}"#],
            vec![r#"{"a":1,"x":2,"y":2,"z":2}"#, r#"{"x":2,"y":2,"z":2,"w":2}"#],
        ),
        (json!({"additionalProperties": true, "maxProperties": 0}), vec!["{}"], vec![r#"{"x":1}"#]),
    ] {
        let grammar = automaton(&to_grammar(&schema).unwrap()).unwrap();
        for (texts, expected) in [(&valid, true), (&invalid, false)] {
            texts.iter().for_each(|text| assert_eq!(accepts(&grammar, text), expected, "{text} under {schema}"));
        }
    }
}

#[test]
fn date_format_allows_only_calendar_days() {
    for (format, rest) in [("date", ""), ("date-time", "T23:59:59.125+01:30")] {
        let grammar = automaton(&to_grammar(&json!({"type": "string", "format": format})).unwrap()).unwrap();
        for year in ["0000", "0004", "1900", "1996", "2000", "2023", "2024", "2100", "2400"] {
            for (month, day) in (0..=13).flat_map(|month| (0..=32).map(move |day| (month, day))) {
                let text = format!("{year}-{month:02}-{day:02}{rest}");
                let valid = validator::has_format(&text, format);
                assert_eq!(accepts(&grammar, &format!("{text:?}")), valid, "{text}");
            }
        }
    }
}

#[test]
fn enforced_format_implies_type_string() {
    let grammar = |schema: Value| values(&schema);
    for format in ["date", "time", "date-time", "uuid"] {
        assert_eq!(grammar(json!({ "format": format })), grammar(json!({"type": "string", "format": format})));
    }
    assert_eq!(grammar(json!({"format": "color"})), grammar(json!({})));
    let email = automaton(&to_grammar(&json!({"format": "email"})).unwrap()).unwrap();
    for (text, is_valid) in [("12", true), ("{}", true), ("\"a@b.c\"", true), ("\"a\"", false)] {
        assert_eq!(accepts(&email, text), is_valid, "{text}");
    }
}

#[test]
fn international_addresses_and_templates_are_enforced() {
    for (format, valid, invalid) in [
        ("uri", vec!["http://a.b/c?d=%20#e", "urn:a:b"], vec!["a", "http://a.b/é", "http://a b"]),
        (
            "iri",
            vec!["http://ä.b/é?è#ê", "urn:a:b", "http://a.b/𝒳"],
            vec!["ä", "http://a b", "http://a/\u{80}", "not-an-iri"],
        ),
        ("iri-reference", vec!["é", "/é/?ü", "http://ä"], vec!["a b", "<é>"]),
        (
            "uri-template",
            vec!["http://a/{x}/{+y,z:3}{?q*}é", "", "{a.b}%20{#%20}"],
            vec!["http://a/{", "}", "{}", "{x y}", "a b", "{x:0}"],
        ),
    ] {
        let grammar = automaton(&to_grammar(&json!({"type": "string", "format": format})).unwrap()).unwrap();
        for (texts, is_valid) in [(valid, true), (invalid, false)] {
            for text in texts {
                assert_eq!(accepts(&grammar, &json!(text).to_string()), is_valid, "{text:?} as {format}");
            }
        }
    }
}

#[test]
fn whitespace_and_line_ends_in_patterns_follow_ecma_262() {
    let grammar = |pattern: &str| {
        let schema = json!({"type": "string", "pattern": pattern});
        automaton(&to_grammar(&schema).unwrap()).unwrap()
    };
    let has = |grammar: &Grammar, char: char| accepts(grammar, &format!("\"{char}\""));
    let (blank, any) = (grammar("^\\s$"), grammar("^.$"));
    let others = [grammar("^\\S$"), grammar("^[^\\s]$")];
    let lines = ['\u{2028}', '\u{2029}'];
    let blanks = [' ', '\u{A0}', '\u{1680}', '\u{202F}', '\u{205F}', '\u{3000}', '\u{FEFF}'];
    for char in blanks.into_iter().chain('\u{2000}'..='\u{200A}').chain(lines) {
        assert!(has(&blank, char) && !others.iter().any(|other| has(other, char)), "{char:?}");
        assert_eq!(has(&any, char), !lines.contains(&char), "{char:?}");
    }
    for char in ['x', 'é', '\u{85}', '\u{180E}', '\u{200B}', '\u{2060}'] {
        assert!(!has(&blank, char) && others.iter().all(|other| has(other, char)) && has(&any, char), "{char:?}");
    }
}

#[test]
fn longest_arrays_are_supported() {
    for items in [json!({"type": "integer"}), json!({"$ref": "#/$defs/x"}), json!({"type": "array", "maxItems": 2000})]
    {
        for (least, most) in [(0, 1998), (0, 1999), (0, 2000), (0, 1_000_000), (1, 2000), (2000, 2000)] {
            let schema = json!({
                "type": "array", "items": items, "minItems": least, "maxItems": most,
                "$defs": {"x": {"type": "integer"}},
            });
            let grammar = to_grammar(&schema).unwrap();
            let grammar = automaton(&grammar).unwrap_or_else(|error| panic!("{error}: {schema}"));
            assert_eq!(accepts(&grammar, "[]"), least == 0, "{schema}");
        }
    }
}

#[test]
fn many_and_long_names_are_distinguished_from_additional_properties() {
    let many = (0..100_u8).map(|i| format!("{}{}", char::from(b'!' + 3 + i % 50), format!("{i:02}").repeat(15)));
    let long = ["a", "b", "c", "d"].map(|name| name.repeat(256));
    for names in [many.filter(|name| !name.contains(['[', ']', '^', '-', '*', '\\'])).collect(), long.to_vec()] {
        let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({"const": 1}))).collect();
        let schema = json!({"properties": properties, "additionalProperties": {"const": 2}});
        let grammar = automaton(&to_grammar(&schema).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        for name in &names {
            assert!(accepts(&grammar, &json!({ name: 1 }).to_string()), "{name}");
            assert!(!accepts(&grammar, &json!({ name: 2 }).to_string()), "{name}");
            assert!(accepts(&grammar, &json!({format!("{name}x"): 2}).to_string()), "{name}");
        }
        assert!(accepts(&grammar, r#"{"":2}"#));
    }
}

#[test]
fn deep_schemas_fit_a_small_stack() {
    let inner = (0..100).fold(json!({"allOf": [{"$ref": "#/$defs/d"}]}), |inner, _| json!({"items": inner}));
    let schema = json!({"$ref": "#/$defs/d", "$defs": {"d": inner}});
    let grammar = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        thread.spawn_scoped(scope, || to_grammar(&schema).unwrap()).unwrap().join().unwrap()
    });
    let text = format!("{}{}", "[".repeat(250), "]".repeat(250));
    assert!(accepts(&automaton(&grammar).unwrap(), &text));
}

/// Deep schemas and values, within the limit, on the stack of a small thread.
#[test]
fn deep_values_fit_a_small_stack() {
    let schema = (0..60).fold(json!({}), |inner, _| json!({"properties": {"a": inner}, "required": ["a"]}));
    let union = (0..60).fold(
        json!({"type": "null"}),
        |inner, _| json!({"anyOf": [{"type": "array", "items": {}}, inner], "minItems": 1}),
    );
    let value = (0..60).fold(json!(1), |inner, _| json!({ "a": inner }));
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let work = || {
            for schema in [&schema, &union] {
                let read = crate::Schema::new(schema, &work()).unwrap();
                let tree = TreeBuilder::new();
                let _ = read.compile(&options, &tree);
                let _ = read.compile_argument(&["</a>"], Notation::Json, &options, &tree);
                let _ = read.parameters();
                let _ = read.is_valid(&value);
            }
        };
        thread.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

#[test]
fn test_validator_checks_formats_and_patterns() {
    for (schema, valid, invalid) in [
        (
            json!({"format": "date"}),
            vec!["2024-02-29"],
            vec!["2023-02-29", "2024-2-9", "2024-02-290", "+024-02-01", ""],
        ),
        (
            json!({"format": "time"}),
            vec!["00:00:00Z", "23:59:59.5+00:00", "01:02:03-23:59"],
            vec!["24:00:00Z", "00:60:00Z", "00:00:00", "00:00:00.Z", "00:00:00+1:00", "0:00:00Z", "00:00:00ZZ"],
        ),
        (json!({"format": "date-time"}), vec!["2024-02-29T00:00:00Z"], vec!["2024-02-29 00:00:00Z", "2024-02-29"]),
        (
            json!({"format": "uuid"}),
            vec!["01234567-89ab-cdef-ABCD-000000000000"],
            vec![
                "01234567-89ab-cdef-ABCD-00000000000",
                "0123456789abcdefABCD000000000000",
                "g1234567-89ab-cdef-ABCD-000000000000",
            ],
        ),
        (json!({"pattern": "^[^x]{1,3}\\w\\d+é$"}), vec!["aéb7é"], vec!["xb7é", "aéé7é", "ab7é!"]),
        (json!({"pattern": "b|c"}), vec!["abc", "c"], vec!["", "a"]),
        (json!({"format": "of-no-kind"}), vec!["", "x"], vec![]),
    ] {
        let check = |text: &&str| validator::is_valid(&schema, &schema, &json!(text));
        assert!(valid.iter().all(check) && !invalid.iter().any(check), "{schema}");
        assert!(validator::is_valid(&schema, &schema, &json!(5)));
    }
}

/// Schemas whose grammar would accept values that they do not allow.
fn wider() -> Vec<(Value, &'static str)> {
    let (array, tuple) = (json!({"type": "array", "items": {"type": "integer"}}), json!({"prefixItems": [{}, {}]}));
    let closes = "additionalProperties beside patternProperties in another part";
    let rest = "items beside prefixItems in another part";
    vec![
        (json!({"type": "array", "prefixItems": [{}, {}], "items": [{"type": "null"}]}), "#: items beside prefixItems"),
        (
            json!({"allOf": [{"patternProperties": {"^a": {}}}, {"properties": {"b": {}}, "additionalProperties": false}]}),
            closes,
        ),
        (json!({"allOf": [array, tuple]}), rest),
        (json!({"allOf": [tuple, array]}), rest),
        (json!({"type": "string", "pattern": "^[a-\\d]$"}), "a range that ends with a class"),
        (json!({"format": 5}), "format must be a string"),
        (json!({"oneOf": [{"const": 1}, {"const": 1.0}]}), "no value of the enum is valid"),
        (
            json!({"oneOf": [{"const": {"a": [1], "b": -0.0}}, {"const": {"b": 0, "a": [1.0]}}]}),
            "no value of the enum is valid",
        ),
        (json!({"oneOf": [{"enum": [1, [2]]}, {"enum": [[2.0], 1.0]}]}), "no value of the enum is valid"),
    ]
}

#[test]
fn unenforceable_schemas_are_refused() {
    let deep = (0..1000).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}));
    let many: Vec<String> = (0..66_000).map(|i| format!("value {i}")).collect();
    let names = |n: usize| (0..n).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>();
    for (schema, why) in [
        (json!({"type": "nothing"}), "#: unrecognized type \"nothing\""),
        (json!({"type": 5}), "#: type must be"),
        (json!({"type": vec!["string"; 8]}), "#: type must be"),
        (json!({"properties": {"a": {"type": "strin"}}}), "#/properties/a: unrecognized type"),
        (json!({"$ref": "https://example.com/schema"}), "only references inside the same schema"),
        (json!({"$ref": "#/$defs/none"}), "cannot resolve $ref"),
        (json!({"$ref": 3}), "$ref must be a string"),
        (json!({"not": {}}), "no value is valid"),
        (json!({"type": "string", "not": {"pattern": "b(?=a)"}}), "a lookahead"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "array", "minItems": 1_000_000_000}), "minItems: expected at most 100000, got 1000000000"),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "minItems (3) is greater than maxItems (2)"),
        (json!({"type": "string", "minLength": -1}), "non-negative"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "no integer"),
        (json!({"type": "number", "multipleOf": 1e-20}), "multipleOf"),
        (json!({"type": "integer", "multipleOf": 5, "minimum": 6, "maximum": 9}), "no number within the bounds"),
        (json!({"type": "string", "pattern": "^b(?=a)$"}), "a lookahead"),
        (json!({"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 3}), "no string is valid"),
        (json!({"type": "string", "pattern": "a{1,9999999}"}), "whole numbers up to 8192"),
        (json!({"type": "string", "pattern": "(".repeat(100_000)}), "nested deeper"),
        (json!({"type": "string", "pattern": "^a{+2}$"}), "whole numbers up to 8192"),
        (json!({"type": "string", "pattern": "^\\u+041$"}), "an invalid escape"),
        (json!({"type": "string", "pattern": "^\\uD83D$"}), "an empty class"),
        (json!({"type": "string", "pattern": "^(a|[])$"}), "an empty class"),
        (
            json!({"properties": {"a": {}}, "required": ["a", "a"], "minProperties": 2}),
            "minProperties and maxProperties cannot",
        ),
        (json!({"enum": []}), "no value"),
        (json!({"type": "string", "enum": [1]}), "no value"),
        (json!({"enum": many}), "more than 65536 values"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "0 and 1 can both be valid"),
        (json!({"anyOf": []}), "not empty"),
        (json!({"anyOf": [{"type": "null"}], "type": "string"}), "no value is valid under false"),
        (json!({"oneOf": [{"multipleOf": 2}, {"maximum": 5}], "type": "integer"}), "0 and 1 can both be valid"),
        (json!({"allOf": [{"type": "string"}, {"type": ["null", "integer"]}]}), "no value has the types"),
        (
            json!({"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}),
            "minProperties and maxProperties cannot",
        ),
        (json!({"allOf": [{"$ref": "#"}]}), "refers to itself"),
        (json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]}), "refers to itself as an alternative"),
        (json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "refers to itself, so that no value is valid"),
        (json!({"additionalProperties": {}, "minProperties": 2}), "minProperties and maxProperties cannot"),
        (json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1}), "no number of at most 15 digits"),
        (json!({"patternProperties": {"b(?=a)": {}}}), "patternProperties cannot"),
        (json!({"required": ["a"], "additionalProperties": false}), "is not a property"),
        (json!({"properties": names(2100)}), "more than 2000 properties"),
        (json!({"properties": {"a": 5}}), "expected a schema, got 5"),
        (deep, "#: nested deeper than 128"),
    ]
    .into_iter()
    .chain(wider())
    {
        let shown: String = schema.to_string().chars().take(100).collect();
        let error = to_grammar(&schema).expect_err(&shown);
        assert!(error.message().starts_with("json_schema: "), "{error}");
        assert!(error.message().contains(why), "{shown}: {error}");
        assert!(error.message().len() < 600, "{}", error.message().len());
    }
}

/// `n` parts of an `allOf`, each with a schema for the same property.
fn parts_of_one_property(n: usize) -> Vec<Value> {
    (0..n).map(|i| json!({"properties": {"x": {"title": i.to_string()}}})).collect()
}

/// Short schemas that would take exponential time or space to compare or expand, with part of the error.
fn endless() -> Vec<(Value, &'static str)> {
    let names = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    let each = |names: &[String], schema: Value| -> Map<String, Value> {
        names.iter().map(|name| (name.clone(), schema.clone())).collect()
    };
    let to = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let mut chain: Map<String, Value> =
        (1..=8).map(|i| (format!("a{i}"), json!({"allOf": vec![to(&format!("a{}", i + 1)); 100]}))).collect();
    chain.insert("a9".into(), json!({}));
    let twenty = names("p", 20);
    let own = |name: &str| json!({"type": "object", "required": twenty, "properties": each(&twenty, to(name))});
    let consts: Vec<Value> = (0..100_000).map(|i| json!({ "const": i })).collect();
    let (some, others) = (names("a", 100_000), names("b", 100_000));
    let hundred = names("p", 100);
    let wide = |name: &str| json!({"title": name, "properties": each(&hundred, json!({}))});
    let wide: Map<String, Value> = hundred.iter().map(|name| (name.clone(), wide(name))).collect();
    let wide = json!({ "properties": wide });
    let copies = each(&hundred, json!({"allOf": [to("big")]}));
    vec![
        (json!({"allOf": parts_of_one_property(20_000)}), "more than 2000 schemas"),
        (json!({"$ref": "#/$defs/a1", "$defs": chain}), "steps to read"),
        (json!({"oneOf": [to("a"), to("b")], "$defs": {"a": own("a"), "b": own("b")}}), "#/oneOf: takes more than"),
        (json!({"oneOf": consts}), "more than 2000 schemas"),
        (
            json!({"oneOf": [to("a"), to("b")], "$defs": {"a": {"enum": some}, "b": {"enum": others}}}),
            "more than 65536 values",
        ),
        (json!({"properties": each(&some, json!(false)), "required": others}), "more than 2000 properties"),
        (wide, "more than 2000 schemas"),
        (json!({"properties": copies, "$defs": {"big": {"const": vec![0; 20_000]}}}), "steps to read"),
        (json!({"properties": {"": {"allOf": [{"$ref": "#"}], "minProperties": 0}}}), "more than 2000 schemas"),
    ]
}

#[test]
fn schemas_that_expand_without_bound_are_refused() {
    for (schema, why) in endless() {
        let shown: String = schema.to_string().chars().take(100).collect();
        let error = to_grammar(&schema).expect_err(&shown);
        assert!(error.message().starts_with("json_schema: ") && error.message().contains(why), "{shown}: {error}");
    }
}

#[test]
fn allof_may_constrain_one_property_many_times() {
    let grammar = |schema: Value| values(&schema);
    assert_eq!(grammar(json!({"allOf": parts_of_one_property(1500)})), grammar(json!({"properties": {"x": {}}})));
    let whole = json!({"properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}}, "required": ["a"]});
    let whole = grammar(whole);
    for first in [
        json!({"type": "integer"}),
        json!({"allOf": [{"type": "integer"}]}),
        json!({"allOf": [{"type": "integer"}, {"title": "a"}], "minimum": 3}),
    ] {
        let parts = json!([
            {"properties": {"a": first}},
            {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
            {"properties": {"a": first}},
            {"properties": {"a": {"allOf": [{"maximum": 5}]}}},
        ]);
        assert_eq!(grammar(json!({ "allOf": parts })), whole, "{first}");
    }
}

#[test]
fn union_of_many_types_is_supported() {
    let kinds: Vec<String> = (0..300).map(|i| format!("kind{i}")).collect();
    let kind = |name: &String| json!({"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]});
    let defs: Map<String, Value> = kinds.iter().map(|name| (name.clone(), kind(name))).collect();
    let list: Vec<Value> = kinds.iter().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect();
    let grammar = automaton(&to_grammar(&json!({"oneOf": list, "$defs": defs})).unwrap()).unwrap();
    assert!(kinds.iter().all(|name| accepts(&grammar, &format!("{{\"kind\":\"{name}\"}}"))));
}

/// A class cannot begin a range, so a hyphen after one is literal, as in ECMA-262.
#[test]
fn hyphen_after_a_class_is_literal() {
    for (pattern, yes, no) in [
        ("^[\\d-z]$", ["5", "-", "z"], ["a", ":", "A"]),
        ("^[\\w-.]$", ["a", "-", "."], ["/", "+", " "]),
        ("^[\\w-\\.]$", ["a", "-", "."], ["/", "+", "\\"]),
    ] {
        let grammar = to_grammar(&json!({"type": "string", "pattern": pattern})).unwrap();
        let grammar = automaton(&grammar).unwrap();
        for (text, expected) in yes.map(|text| (text, true)).into_iter().chain(no.map(|text| (text, false))) {
            assert_eq!(accepts(&grammar, &json!(text).to_string()), expected, "{pattern} {text}");
        }
    }
}

/// `property_order` and `additional_properties` of a request widen what is allowed.
#[test]
fn order_and_further_properties_are_free_where_the_options_say_so() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "no": false},
        "required": ["b"], "patternProperties": {"^x-": {"type": "boolean"}}});
    for (is_open, any_order, valid, invalid) in [
        (
            false,
            false,
            vec![r#"{"a": 1, "b": null}"#, r#"{"b": null, "x-y": true}"#],
            vec![r#"{"b": null, "c": 1}"#, r#"{"x-y": true, "b": null}"#],
        ),
        (
            true,
            false,
            vec![r#"{"b": null, "c": [1], "": 2}"#, r#"{"b":null,"x-y":true,"x":1}"#],
            vec![r#"{"c": 1, "b": null}"#],
        ),
        (
            true,
            true,
            vec![r#"{"c": 1, "b": null, "a": 1}"#, r#"{"x-y": false, "b": null, "x": 3}"#],
            vec![r#"{"c": 1}"#],
        ),
        (false, true, vec![r#"{"b": null, "a": 1}"#], vec![r#"{"b": null, "c": 1}"#]),
    ] {
        let options = CompileOptions { is_open, any_order, ..CompileOptions::default() };
        let grammar = automaton(&grammar_with(&schema, &options).unwrap()).unwrap();
        valid.iter().for_each(|text| assert!(accepts(&grammar, text), "{text} {options:?}"));
        // Names that are listed or of a pattern never stand for others.
        let never = [
            r#"{"b": null, "a": "x"}"#,
            r#"{"b": null, "b": 1}"#,
            r#"{"b": null, "no": 1}"#,
            r#"{"b": null, "x-": 1}"#,
        ];
        invalid.iter().chain(&never).for_each(|text| assert!(!accepts(&grammar, text), "{text} {options:?}"));
    }
}

/// Keywords that are enforced together, and values that are valid under one of them alone.
#[test]
fn keywords_beside_each_other_are_enforced_together() {
    references::check(vec![
        (
            json!({"type": "string", "pattern": "^(ab|c)+$", "minLength": 2, "maxLength": 4}),
            vec![json!("cc"), json!("abab"), json!("cabc")],
            vec![json!("c"), json!("ababc"), json!("aa")],
        ),
        (
            json!({"type": "string", "format": "email", "maxLength": 8, "not": {"pattern": "^x"}}),
            vec![json!("a@b.cd"), json!("ab@c.de")],
            vec![json!("x@b.cd"), json!("abc@de.fg"), json!("a@"), json!("a b@c")],
        ),
        (
            json!({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b$"}, {"not": {"enum": ["ab"]}}]}),
            vec![json!("aab"), json!("bab")],
            vec![json!("ab"), json!("a"), json!("b")],
        ),
        (
            json!({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 30}),
            vec![json!(14), json!(28)],
            vec![json!(7), json!(15), json!(35)],
        ),
        (
            json!({"type": "number", "multipleOf": 0.25, "minimum": -1, "maximum": 2}),
            vec![json!(0.25), json!(-0.5), json!(2), json!(1.75)],
            vec![json!(0.3), json!(2.25), json!(0.125)],
        ),
        (
            json!({"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": true, "minItems": 2}),
            vec![json!(["a", "b"]), json!([1, "b", "a"])],
            vec![json!(["a"]), json!(["a", "a"]), json!(["a", "b", "a"])],
        ),
        (
            json!({"properties": {"a": {"type": "integer"}, "no": {"not": {}}, "none": {"type": "string", "enum": [1]}}, "additionalProperties": true}),
            vec![json!({"a": 1}), json!({"x": 1})],
            vec![json!({"no": 1}), json!({"none": 1}), json!({"none": "1"})],
        ),
        (
            json!({"properties": {"next": {"$ref": "#/$defs/never"}}, "$defs": {"never": {"properties": {"a": {"$ref": "#/$defs/never"}}, "required": ["a"]}}}),
            vec![json!({})],
            vec![json!({"next": {}})],
        ),
        (
            json!({"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "boolean"}}, "properties": {"c": {}}, "additionalProperties": {"type": "integer"}}),
            vec![json!({"a": null, "b": true}), json!({"c": "x", "d": 1})],
            vec![json!({"a": 1}), json!({"b": 1}), json!({"ab": 1}), json!({"d": true})],
        ),
    ]);
    let grammar = automaton(&to_grammar(&json!({"const": {"a": [1, {}]}})).unwrap()).unwrap();
    assert!(
        accepts(&grammar, r#"{"a": [1, {}]}"#)
            && accepts(&grammar, r#"{"a":[1,{}]}"#)
            && !accepts(&grammar, r#"{"a": [1]}"#)
    );
}

/// The value that the text of an argument means. `None`: it must be JSON, and is not. The value can be invalid under the schema, if the
/// text does not come from the grammar.
fn read_argument(schema: &Schema, kind: ArgumentKind, text: &str) -> Option<Value> {
    let string = || Value::String(text.to_owned());
    match kind {
        ArgumentKind::Text => Some(string()),
        ArgumentKind::Json => serde_json::from_str(text).ok(),
        ArgumentKind::Either => {
            let is_bare = text.trim().len() == text.len();
            let json = serde_json::from_str::<Value>(text).ok().filter(|value| is_bare && !value.is_string());
            Some(json.filter(|value| schema.is_valid(value)).unwrap_or_else(string))
        }
    }
}
