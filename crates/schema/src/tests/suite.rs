//! The JSON Schema test suite: no grammar accepts a document that its schema refuses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{accepts, automaton, to_grammar};

/// The results of a draft's groups.
#[derive(Default)]
struct Counts {
    groups: usize,
    refused: usize,
    /// Valid documents that a grammar rejects, because it is narrower than its schema.
    narrower: usize,
    documents: usize,
    reasons: BTreeMap<String, usize>,
}

/// Optional files about keywords that are annotations here, as they are by default in the standard.
const ANNOTATIONS: [&str; 2] = ["content.json", "format-assertion.json"];
/// The formats that are enforced.
const FORMATS: [&str; 14] = [
    "date.json",
    "time.json",
    "date-time.json",
    "uuid.json",
    "duration.json",
    "email.json",
    "hostname.json",
    "ipv4.json",
    "ipv6.json",
    "uri.json",
    "uri-reference.json",
    "json-pointer.json",
    "regex.json",
    "relative-json-pointer.json",
];

/// All groups of tests of a draft: schema and tests. Optional ones too.
fn groups(draft: &Path) -> Vec<Value> {
    let mut groups = Vec::new();
    for folder in [draft.to_owned(), draft.join("optional"), draft.join("optional/format")] {
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "json")) {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap();
            let is_optional = folder != draft;
            let is_format = folder.ends_with("format");
            if is_optional && ANNOTATIONS.contains(&name) || is_format && !FORMATS.contains(&name) {
                continue;
            }
            let list: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
            groups.extend_from_slice(list.as_array().unwrap());
        }
    }
    groups
}

#[test]
#[ignore = "needs the JSON Schema test suite: scripts/check.sh schemas"]
fn no_grammar_accepts_what_the_test_suite_calls_invalid() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/json-schema-test-suite");
    let mut unsound = Vec::new();
    for draft in ["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"] {
        let mut counts = Counts::default();
        for group in groups(&suite.join(draft)) {
            counts.groups += 1;
            let grammar = to_grammar(&group["schema"]).and_then(|gbnf| automaton(&gbnf));
            let grammar = match grammar {
                Ok(grammar) => grammar,
                Err(error) => {
                    counts.refused += 1;
                    let why = error.message().rsplit(": ").next().unwrap_or_default().to_owned();
                    *counts.reasons.entry(why).or_default() += 1;
                    continue;
                }
            };
            for test in group["tests"].as_array().unwrap() {
                let accepted = accepts(&grammar, &test["data"].to_string());
                counts.documents += 1;
                counts.narrower += usize::from(!accepted && test["valid"] == json!(true));
                if accepted && test["valid"] == json!(false) {
                    unsound.push(format!("{draft}: {}: {}: {}", group["description"], group["schema"], test["data"]));
                }
            }
        }
        println!(
            "{draft}: {} of {} groups are refused; of {} documents of the others, {} valid ones are rejected",
            counts.refused, counts.groups, counts.documents, counts.narrower
        );
        for (why, n) in &counts.reasons {
            println!("    {n:3} {why}");
        }
        assert!(counts.refused < counts.groups / 2 + 10, "{draft}");
    }
    assert!(unsound.is_empty(), "{}", unsound.join("\n"));
}
