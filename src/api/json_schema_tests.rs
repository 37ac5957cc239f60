//! Random texts of many schemas' grammars are valid; what cannot be enforced is refused.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{read, to_grammar, validator};
use crate::grammar::Grammar;
use crate::llama::{Model, ModelParams, Token, TokenData};

/// A generator for test data: xorshift64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn model() -> Arc<Model> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    Arc::new(Model::load(&ModelParams { vocab_only: true, ..ModelParams::new(path) }, |_| true).expect("it loads"))
}

/// Schemas of every kind that is served.
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
        json!({"type": "string", "pattern": "ab|c\\.d"}),
        json!({"type": "string", "pattern": "^[!-~]{2,4}$"}),
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
        json!({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "boolean"}]}),
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
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"enum": [1, 2]}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        }, "required": ["value"]}}}),
        json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a_b"}, "y": {"$ref": "#/$defs/a-b"}}, "required": ["x", "y"],
            "$defs": {"a_b": {"const": 1}, "a-b": {"const": 2}}}),
        json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}),
        json!({"type": "object", "properties": {"a/b": {"const": 1}, "c": {"$ref": "#/properties/a~1b"}}, "required": ["c"]}),
    ]
}

/// A random text of the grammar; `None` when it gets long. What closes is preferred, or texts would not end.
fn random_text(model: &Arc<Model>, grammar: &str, rng: &mut Rng) -> Option<String> {
    let vocab = model.vocab();
    let mut grammar = Grammar::new(model, grammar).unwrap_or_else(|error| panic!("{error}: {grammar}"));
    let mut text = Vec::new();
    for _ in 0..120 {
        let n = Token::try_from(vocab.n_tokens()).unwrap();
        let mut row: Vec<TokenData> = (0..n).map(|id| TokenData { id, logit: 0.0, p: 0.0 }).collect();
        grammar.filter(&mut row).unwrap();
        let mut allowed: Vec<Token> = row.iter().filter(|item| item.logit == 0.0).map(|item| item.id).collect();
        assert!(!allowed.is_empty(), "a dead end after {:?}", String::from_utf8_lossy(&text));
        let ends = allowed.iter().any(|token| vocab.is_eog(*token));
        if ends && (allowed.iter().all(|token| vocab.is_eog(*token)) || rng.below(3) == 0) {
            return Some(String::from_utf8(text).expect("whole characters"));
        }
        allowed.retain(|token| !vocab.is_eog(*token));
        let closing: Vec<Token> =
            allowed.iter().copied().filter(|token| matches!(vocab.piece(*token), b"\"" | b"}" | b"]")).collect();
        let from = if !closing.is_empty() && rng.below(3) > 0 { &closing } else { &allowed };
        let token = from[rng.below(from.len())];
        text.extend_from_slice(vocab.piece(token));
        grammar.accept(token).unwrap();
    }
    None
}

#[test]
fn random_texts_are_valid() {
    let model = model();
    let mut rng = Rng(0x0123_4567_89ab_cdef);
    for schema in schemas() {
        let grammar = to_grammar(&schema).unwrap_or_else(|error| panic!("{error}: {schema}"));
        let mut texts = 0;
        for _ in 0..40 {
            let Some(text) = random_text(&model, &grammar, &mut rng) else { continue };
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{error}: {text:?} under {schema}\n{grammar}"));
            assert!(validator::is_valid(&schema, &schema, &value), "{text:?} under {schema}\n{grammar}");
            texts += 1;
        }
        assert!(texts > 5, "only {texts} texts of {schema}");
    }
}

/// Whether the grammar has this text.
fn accepts(model: &Arc<Model>, grammar: &Grammar, text: &str) -> bool {
    let (vocab, mut grammar) = (model.vocab(), grammar.clone());
    let tokens = vocab.tokenize(text.as_bytes(), false, false).unwrap();
    let follows = tokens.into_iter().all(|token| grammar.allows(token).unwrap() && grammar.accept(token).is_ok());
    follows && vocab.eog_tokens().any(|token| grammar.allows(token).unwrap())
}

#[test]
fn dates_are_days_of_the_calendar() {
    let model = model();
    for (format, rest) in [("date", ""), ("date-time", "T23:59:59.125+01:30")] {
        let grammar = Grammar::new(&model, &to_grammar(&json!({"type": "string", "format": format})).unwrap()).unwrap();
        for year in ["0000", "0004", "1900", "1996", "2000", "2023", "2024", "2100", "2400"] {
            for (month, day) in (0..=13).flat_map(|month| (0..=32).map(move |day| (month, day))) {
                let text = format!("{year}-{month:02}-{day:02}{rest}");
                let valid = validator::has_format(&text, format);
                assert_eq!(accepts(&model, &grammar, &format!("{text:?}")), valid, "{text}");
            }
        }
    }
}

#[test]
fn the_validator_knows_formats_and_patterns() {
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

#[test]
fn what_cannot_be_enforced_is_refused() {
    let deep = (0..1000).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}));
    let many: Vec<String> = (0..5000).map(|i| format!("value {i}")).collect();
    let names = |n: usize| (0..n).map(|i| (format!("p{i}"), json!({}))).collect::<serde_json::Map<_, _>>();
    for (schema, why) in [
        (json!({"type": "nothing"}), "#: unrecognized type \"nothing\""),
        (json!({"type": 5}), "#: type must be"),
        (json!({"properties": {"a": {"type": "strin"}}}), "#/properties/a: unrecognized type"),
        (json!({"$ref": "https://example.com/schema"}), "only references into the same schema"),
        (json!({"$ref": "#/$defs/none"}), "cannot resolve $ref"),
        (json!({"$ref": 3}), "$ref must be a string"),
        (json!({"not": {}}), "not cannot be enforced"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "array", "minItems": 1_000_000_000}), "minItems of 1000000000"),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "minItems of 3 is more than maxItems of 2"),
        (json!({"type": "string", "minLength": -1}), "non-negative"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "no integer"),
        (json!({"type": "integer", "multipleOf": 5}), "multipleOf"),
        (json!({"type": "number", "minimum": 0}), "minimum is enforced on the type integer alone"),
        (json!({"type": "string", "pattern": "^(?=a)b$"}), "look around"),
        (json!({"type": "string", "pattern": "^a$", "minLength": 2}), "a length beside pattern"),
        (json!({"type": "string", "pattern": "a{1,9999999}"}), "whole numbers up to 2000"),
        (json!({"type": "string", "pattern": "(".repeat(100_000)}), "nested deeper"),
        (json!({"enum": []}), "no value"),
        (json!({"type": "string", "enum": [1]}), "no value"),
        (json!({"enum": many}), "more than 4000 values"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "0 and 1 may both be valid"),
        (json!({"anyOf": []}), "not empty"),
        (json!({"anyOf": [{}], "properties": {}}), "beside anyOf"),
        (json!({"allOf": [{"$ref": "#"}]}), "refers to itself"),
        (json!({"allOf": [{"minLength": 1}, {"minLength": 2}]}), "minLength in two parts"),
        (json!({"required": ["a"], "additionalProperties": false}), "is no property"),
        (json!({"properties": names(500)}), "more than 128 properties"),
        (json!({"properties": {"x".repeat(1000): {}}}), "more than 256 bytes"),
        (json!({"properties": {"a]": {}}, "additionalProperties": true}), "cannot be told from"),
        (json!({"properties": {"a": 5}}), "expected a schema, got 5"),
        (deep, "names of more than"),
    ] {
        let shown: String = schema.to_string().chars().take(100).collect();
        let error = to_grammar(&schema).expect_err(&shown);
        assert!(error.message().starts_with("json_schema: "), "{error}");
        assert!(error.message().contains(why), "{shown}: {error}");
        assert!(error.message().len() < 600, "{}", error.message().len());
    }
}

#[test]
fn the_field_is_an_object_or_a_string_that_holds_one() {
    assert_eq!(read(&json!({"type": "null"})).unwrap(), json!({"type": "null"}));
    assert_eq!(read(&json!(" {\"type\": \"null\"}")).unwrap(), json!({"type": "null"}));
    for (given, why) in [
        (json!("{"), "not JSON: EOF"),
        (json!("[1]"), "expected an object"),
        (json!(true), "expected an object, or a string that holds one, got true"),
        (json!([]), "expected an object"),
    ] {
        let error = read(&given).unwrap_err();
        assert!(error.message().starts_with("json_schema: ") && error.message().contains(why), "{error}");
    }
}
