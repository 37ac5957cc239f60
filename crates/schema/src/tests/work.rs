//! All work of a schema is counted, and ends where the signal says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foredraft_base::error::Code;
use foredraft_base::work::Work;
use serde_json::{Value, json};

use foredraft_grammar::tree::TreeBuilder;

use crate::{CompileOptions, Notation, Schema};

/// Schemas of about so many bytes of which some pass takes long.
fn hostile(size: usize) -> Vec<(&'static str, Value)> {
    let pattern = |unit: &str, n: usize| format!("^{}$", unit.repeat(n));
    let named = |n: usize, value: &Value| -> Value {
        (0..n).map(|i| (format!("p{i}"), value.clone())).collect::<serde_json::Map<_, _>>().into()
    };
    let optional = pattern("a?", 8000.min(size / 2));
    let parts: Vec<Value> = (0..size / 60)
        .map(|i| json!({"properties": {format!("p{i}"): {}}, "additionalProperties": {"type": "string"}}))
        .collect();
    let nested = format!("({}){{2}}", "(a?b?c?d?){2}".repeat(16));
    vec![
        ("optional items", json!({"pattern": optional})),
        ("two of them", json!({"properties": {"a": {"pattern": optional}, "b": {"pattern": optional}}})),
        ("anchors everywhere", json!({"pattern": "^a?$|".repeat(size / 5)})),
        ("optional anchors", json!({"pattern": "(^a?|b$)?".repeat(6)})),
        ("nested repetitions", json!({"pattern": pattern(&nested, size / 300)})),
        ("one class", json!({"pattern": format!("[{}]", "a-cx-z".repeat(size / 6))})),
        (
            "patterns of names",
            json!({"patternProperties": named(size / 16, &json!(true)), "properties": named(100, &json!(true))}),
        ),
        ("all of many", json!({ "allOf": parts })),
        (
            "one of many",
            json!({"oneOf": vec![json!({"properties": {"a": {"type": "string"}}, "required": ["a"]}); size / 60]}),
        ),
        ("references", json!({"properties": named(size / 40, &json!({"$ref": "#/$defs/a/b/c"})), "$defs": {"a": {}}})),
        (
            "sets of many states",
            json!({"pattern": "(a|b)*a(a|b){20}$", "maxLength": 4000, "not": {"pattern": "(b|c)*b(b|c){20}$"}, "type": "string"}),
        ),
        ("a long enum", json!({"enum": (0..size / 8).map(|i| format!("v{i}")).collect::<Vec<_>>()})),
    ]
}

fn run(schema: &Value, work: &Work) -> Result<(), foredraft_base::error::Error> {
    let schema = Schema::new(schema, work)?;
    let options = CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
    schema.compile(&options, &TreeBuilder::new())?;
    schema.compile_argument(&["</a>"], Notation::Json, &options, &TreeBuilder::new())?;
    Ok(())
}

#[test]
fn every_schema_ends_soon_after_the_signal() {
    for (name, schema) in hostile(1 << 16) {
        let free = Work::new(1 << 30, None);
        let _ = run(&schema, &free);
        for percent in [0, 10, 50, 90] {
            let limit = free.taken() * percent / 100;
            let asked = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&asked);
            let stop = move || (counted.fetch_add(1, Ordering::Relaxed) + 1) * 4096 > limit;
            let work = Work::new(1 << 30, Some(Arc::new(stop)));
            let result = run(&schema, &work);
            if asked.load(Ordering::Relaxed) * 4096 > limit {
                assert_eq!(result.map_err(|error| error.code()), Err(Code::Cancelled), "{name}, {percent} %");
            }
        }
    }
}

/// Each further item was copied with all before it.
#[test]
fn long_pattern_is_read_in_linear_time() {
    let taken = |n: usize| {
        let work = Work::new(1 << 30, None);
        run(&json!({"pattern": format!("^{}$", "a?".repeat(n))}), &work).unwrap();
        work.taken()
    };
    assert!(taken(8000) < 5 * taken(2000), "{} steps, {} for a fourth", taken(8000), taken(2000));
}

/// Large schemas, and schemas that refer to themselves in each keyword, give a grammar or an error.
#[test]
fn large_and_recursive_schemas_end() {
    let deep = (0..10_000).fold("true".to_owned(), |inner, _| format!("{{\"items\":{inner}}}"));
    assert!(serde_json::from_str::<Value>(&deep).is_err(), "the reader of JSON bounds the nesting");
    let mut schemas = vec![
        json!({"description": "x".repeat(10 << 20), "type": "null"}),
        json!({"pattern": "x".repeat(10 << 20)}),
        json!({"enum": (0..100_000).collect::<Vec<_>>()}),
        json!({"items": {"enum": (0..100_000).map(|i| json!([i])).collect::<Vec<_>>()}}),
        json!({"required": (0..100_000).map(|i| format!("p{i}")).collect::<Vec<_>>()}),
    ];
    for keyword in ["items", "contains", "not", "if", "propertyNames", "additionalProperties", "unevaluatedProperties"]
    {
        schemas.push(json!({keyword: {"$ref": "#"}}));
    }
    for keyword in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        schemas.push(json!({keyword: [{"$ref": "#"}, {"$ref": "#"}]}));
    }
    for keyword in ["properties", "patternProperties", "dependentSchemas", "dependencies"] {
        schemas.push(json!({keyword: {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}));
    }
    let all =
        schemas.iter().filter_map(Value::as_object).flatten().filter(|(_, value)| value.to_string().contains('#'));
    schemas.push(Value::Object(all.map(|(key, value)| (key.clone(), value.clone())).collect()));
    for schema in schemas {
        let work = Work::new(1 << 23, None);
        let result = run(&schema, &work);
        let shown: String = schema.to_string().chars().take(80).collect();
        assert!(result.as_ref().err().is_none_or(|error| error.message().len() < 600), "{shown}: {result:?}");
    }
}
