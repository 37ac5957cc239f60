//! Schemas and instances of JSONSchemaBench (`maskbench/data` of guidance-ai/jsonschemabench) against their grammars.
//!
//! Environment: `MASKBENCH`, the folder; `EVERY`, to take each n-th schema; `PART`, a part of the files' names; `OPEN`, for properties in any
//! order and additional ones, as in the standard. Otherwise the settings are those of a request by default, and a valid instance that only
//! they refuse is counted by itself: the default promises that order and those names. `MASKBENCH_OUT`, a file with a line of JSON for each schema: its name, why it does not compile, the keywords that are not
//! enforced, for each test whether it is valid, whether it is accepted, and the text around the refused byte; and milliseconds. Instances
//! are written as the benchmark does, by Python's `json.dumps`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_grammar::Grammar;
use foredraft_grammar::tree::TreeBuilder;

use super::{END, Written, automaton};
use crate::{CompileOptions, CompiledSchema, Schema};

/// The separators of Python's `json.dumps`.
struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

fn python_text(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonFormatter)).unwrap();
    out
}

/// The grammar of a schema.
fn compile(schema: &Value, is_open: bool) -> Result<(Grammar, CompiledSchema)> {
    let options = CompileOptions { drop_unenforceable: true, is_open, any_order: is_open, is_lenient: false };
    let tree = TreeBuilder::new();
    let compiled = Schema::new(schema, &Work::new(1 << 23, None))?.compile(&options, &tree)?;
    Ok((automaton(&Written(tree, compiled.node))?, compiled))
}

/// How far a text is accepted, and whether it is as a whole.
fn follow(grammar: &Grammar, text: &[u8]) -> (usize, bool) {
    let mut grammar = grammar.clone();
    let refused = text.iter().position(|byte| grammar.accept_text(&[*byte]).is_err());
    (refused.unwrap_or(text.len()), refused.is_none() && grammar.allows(END).unwrap_or(false))
}

#[test]
#[ignore = "needs the benchmark's data: MASKBENCH"]
fn most_schemas_of_the_benchmark_are_enforced() {
    let variable = |name: &str| std::env::var(name).ok();
    let folder = variable("MASKBENCH").expect("MASKBENCH: the folder with the schemas");
    let every: usize = variable("EVERY").map_or(1, |n| n.parse().unwrap());
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().contains(&variable("PART").unwrap_or_default()));
    files.sort();
    let mut out: Box<dyn Write> = match variable("MASKBENCH_OUT") {
        Some(path) => Box::new(fs::File::create(path).unwrap()),
        None => Box::new(std::io::sink()),
    };
    let is_open = variable("OPEN").is_some();
    let by_promise = "valid refused by the order and names of the default";
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut times = Vec::new();
    for file in files.iter().step_by(every) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let case: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let mut count = |what| *counts.entry(what).or_default() += 1;
        count("schemas");
        let begin = Instant::now();
        let compiled = compile(&case["schema"], is_open);
        let took = begin.elapsed();
        times.push(took);
        let (grammar, compiled) = match compiled {
            Ok(compiled) => compiled,
            Err(error) => {
                writeln!(out, "{}", json!([name, error.message(), [], [], took.as_millis()])).unwrap();
                continue;
            }
        };
        count("compiled");
        count(if compiled.unenforced.is_empty() { "compiled without a warning" } else { "compiled with warnings" });
        let mut results = Vec::new();
        let (mut is_right, mut keeps_promise, mut open) = (true, true, None);
        for test in case["tests"].as_array().unwrap() {
            let text = python_text(&test["data"]);
            let (at, accepted) = follow(&grammar, &text);
            let valid = test["valid"] == json!(true);
            is_right &= accepted == valid;
            let is_promised = !is_open && valid && !accepted && {
                let open = open.get_or_insert_with(|| compile(&case["schema"], true).map(|(grammar, _)| grammar));
                open.as_ref().is_ok_and(|open| follow(open, &text).1)
            };
            keeps_promise &= accepted == valid || is_promised;
            let mut result = vec![json!(valid), json!(accepted)];
            match (valid, accepted) {
                (true, true) => count("valid accepted"),
                (true, false) => {
                    count(if is_promised {
                        "valid refused by the order and names of the default"
                    } else {
                        "valid refused"
                    });
                    let shown = |from: usize, to: usize| String::from_utf8_lossy(&text[from..to]).into_owned();
                    let (from, to) = (at.saturating_sub(60), (at + 30).min(text.len()));
                    result.push(json!(format!("{} <<HERE>> {}", shown(from, at), shown(at, to))));
                }
                (false, true) => count("invalid accepted"),
                (false, false) => count("invalid refused"),
            }
            results.push(result);
        }
        count(if is_right { "all tests right" } else { "a test wrong" });
        count(if keeps_promise { "all tests as promised" } else { "a test not as promised" });
        let reasons = compiled.unenforced.iter().map(|one| format!("{}: {}", one.location, one.reason));
        let reasons: Vec<String> = reasons.collect();
        writeln!(out, "{}", json!([name, "", reasons, results, took.as_millis()])).unwrap();
    }
    times.sort();
    println!("{counts:#?}");
    let part = |of: usize| times[(times.len() * of / 100).min(times.len() - 1)];
    println!("compile: median {:?}, p99 {:?}, most {:?}", part(50), part(99), part(100));
    let share = |of: &str, others: &[&str]| {
        let n = |what: &str| counts.get(what).copied().unwrap_or(0) as f64;
        n(of) / others.iter().map(|other| n(other)).sum::<f64>()
    };
    assert!(share("compiled", &["schemas"]) >= 0.997);
    assert!(share("all tests as promised", &["schemas"]) >= 0.988);
    assert!(share("invalid refused", &["invalid refused", "invalid accepted"]) >= 0.995);
    assert!(share("valid refused", &["valid accepted", "valid refused", by_promise]) <= 0.004);
}
