//! The examples in docs/reference.md and docs/reference/: each request gets the answer that stands below it.
//!
//! An example is a comment `<!-- example: FUNCTION -->`, a block of JSON with the request (none for functions that take only an engine), and a block with the
//! answer. `...` at the end of an object or array stands for members that the example leaves out; all others must be equal, fractions to six digits. Paths in `/tmp` are in a folder of the
//! test's own, and ids are those that the engine gives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use foredraft::api::{JsonEngine, error_json};
use foredraft::{Function, Result};
use serde_json::{Number, Value, json};

use crate::common::{model, root, tiny_models};

const FUNCTIONS: [Function; 18] = [
    Function::Complete,
    Function::Decide,
    Function::Prepare,
    Function::Submit,
    Function::Tokenize,
    Function::Detokenize,
    Function::ApplyTemplate,
    Function::ModelInfo,
    Function::Embed,
    Function::Rerank,
    Function::SessionSave,
    Function::SessionLoad,
    Function::SessionErase,
    Function::Conversation,
    Function::LookupCache,
    Function::LookupCreate,
    Function::LookupMerge,
    Function::LookupStats,
];

/// Functions that take only an engine.
const WITHOUT_REQUEST: [&str; 3] = ["status", "pause", "resume"];

struct Example {
    /// Its function, without `foredraft_`.
    function: String,
    request: Option<String>,
    answer: String,
}

/// The examples of a page.
fn examples(text: &str) -> Vec<Example> {
    let parts = text.split("<!-- example: foredraft_").skip(1);
    let example = |part: &str| {
        let (function, rest) = part.split_once(" -->\n").expect("the comment's end");
        let mut blocks =
            rest.split("```json\n").skip(1).map(|block| block.split_once("```").expect("its end").0.to_owned());
        let mut next = || blocks.next().unwrap_or_else(|| panic!("{function}: a block is missing"));
        let request = (!WITHOUT_REQUEST.contains(&function)).then(&mut next);
        Example { function: function.to_owned(), request, answer: next() }
    };
    parts.map(example).collect()
}

/// An example's JSON, in which `...` is the member `"..."`.
fn parsed(text: &str) -> Value {
    let text = text.replace(", ...}", ", \"...\": true}").replace(", ...]", ", \"...\"]");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Where an answer differs from the example's.
fn difference(shown: &Value, answer: &Value, place: &str) -> Option<String> {
    match (shown, answer) {
        (Value::Object(shown), Value::Object(answer)) => {
            let more = answer.keys().find(|key| !shown.contains_key(*key) && !shown.contains_key("..."));
            let keys = shown.keys().filter(|key| *key != "...").chain(more);
            keys.map(|key| (key, shown.get(key).unwrap_or(&Value::Null), answer.get(key))).find_map(
                |(key, shown, answer)| match answer {
                    Some(answer) => difference(shown, answer, &format!("{place}/{key}")),
                    None => Some(format!("{place}/{key}: it is not there")),
                },
            )
        }
        (Value::Array(shown), Value::Array(answer)) => {
            let abridged = shown.last().is_some_and(|last| last == "...");
            let shown = if abridged { &shown[..shown.len() - 1] } else { shown };
            if shown.len() > answer.len() || (!abridged && shown.len() != answer.len()) {
                return Some(format!("{place}: {} elements instead of {}", answer.len(), shown.len()));
            }
            shown
                .iter()
                .zip(answer)
                .enumerate()
                .find_map(|(at, (shown, answer))| difference(shown, answer, &format!("{place}/{at}")))
        }
        // The pages round fractions; `1` and `1.0` are the same number.
        (Value::Number(shown), Value::Number(answer)) if is_rounded(shown, answer) => None,
        _ => (shown != answer).then(|| format!("{place}: {answer} instead of {shown}")),
    }
}

/// Whether a number of a page is an answer's, rounded to six digits if it is a fraction.
fn is_rounded(shown: &Number, answer: &Number) -> bool {
    let [shown, answer] = [shown, answer].map(|number| number.as_f64().expect("a number"));
    let tolerance = if shown.fract() == 0.0 { 0.0 } else { 1e-5 * shown.abs() };
    (shown - answer).abs() <= tolerance
}

/// An engine for the examples of a page.
struct Reader {
    engine: JsonEngine,
    /// Names of files in the pages, and their paths.
    files: Vec<(String, String)>,
    /// Ids of the pages, and the engine's.
    ids: BTreeMap<u64, u64>,
}

impl Reader {
    fn new() -> Reader {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("reference");
        std::fs::create_dir_all(&folder).expect("target is writable");
        let files = [
            ("/tmp/", format!("{}/", folder.display())),
            ("models/stories-target.gguf", model("target")),
            ("models/stories-draft.gguf", model("draft")),
            ("reranker.gguf", tiny_models::reranker()),
        ];
        let files = files.map(|(name, path)| (format!("\"{name}"), format!("\"{path}"))).to_vec();
        Reader { engine: JsonEngine::new(), files, ids: BTreeMap::new() }
    }

    fn try_call(&self, function: &str, request: &str) -> Result<Value> {
        match function {
            "load" => self.engine.load(request.as_bytes()).map(|()| json!(0)),
            "pause" => self.engine.pause().map(|()| json!(0)),
            "resume" => self.engine.resume().map(|()| json!(0)),
            "status" => Ok(self.engine.status()),
            "cancel" => self.engine.cancel(Some(request.as_bytes())),
            "poll" => {
                // How the text is divided among polls depends on the time: these are all of them.
                let mut answer = self.engine.poll(Some(request.as_bytes()))?;
                while answer["finished"] == false {
                    let mut next = self.engine.poll(Some(request.as_bytes()))?;
                    let updates = next["completion_updates"].take();
                    answer["completion_updates"]
                        .as_array_mut()
                        .expect("updates")
                        .extend(updates.as_array().cloned().expect("updates"));
                    (answer["finished"], answer["state"]) = (next["finished"].take(), next["state"].take());
                }
                Ok(answer)
            }
            _ => {
                let named = FUNCTIONS.into_iter().find(|it| it.as_str() == function);
                self.engine.call(named.unwrap_or_else(|| panic!("{function}")), Ok(request.as_bytes()))
            }
        }
    }

    /// The answer to a request of a page, with the files' names that the page uses.
    fn call(&self, function: &str, request: &str) -> Value {
        let place = |text: &str| self.files.iter().fold(text.to_owned(), |text, (name, path)| text.replace(name, path));
        let mut request: String = place(request);
        for (shown, id) in &self.ids {
            request = request.replace(&format!("\"id\": {shown}"), &format!("\"id\": {id}"));
        }
        let answer = self.try_call(function, &request).unwrap_or_else(|error| error_json(&error));
        let name = |text: String| self.files.iter().fold(text, |text, (name, path)| text.replace(path, name));
        let mut answer: Value = serde_json::from_str(&name(answer.to_string())).expect("JSON");
        self.with_shown_ids(&mut answer);
        answer
    }

    /// Puts the page's ids in the place of the engine's.
    fn with_shown_ids(&self, answer: &mut Value) {
        match answer {
            Value::Object(members) => {
                for (key, value) in members {
                    match self.ids.iter().find(|(_, id)| value.as_u64() == Some(**id)) {
                        Some((shown, _)) if key == "id" => *value = json!(shown),
                        _ => self.with_shown_ids(value),
                    }
                }
            }
            Value::Array(elements) => elements.iter_mut().for_each(|element| self.with_shown_ids(element)),
            _ => {}
        }
    }

    /// Why the engine's answer is not the example's.
    fn check(&mut self, example: &Example) -> Option<String> {
        let request = example.request.as_deref().unwrap_or_default();
        let mut answer = self.call(&example.function, request);
        let shown = parsed(&example.answer);
        if let (Some(shown), Some(id)) = (shown["id"].as_u64(), answer["id"].as_u64())
            && !self.ids.contains_key(&shown)
        {
            self.ids.insert(shown, id);
            self.with_shown_ids(&mut answer);
        }
        difference(&shown, &answer, "").map(|what| format!("{}: {what}\n{request}{answer:#}", example.function))
    }
}

#[test]
fn requests_of_the_reference_have_the_answers_below_them() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("UTF-8");
    let links = summary.split("](").filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let pages: Vec<&str> = links.filter(|link| link.starts_with("reference")).collect();
    assert!(pages.len() > 8, "{pages:?}");
    let load = std::fs::read_to_string(docs.join("reference/load.md")).expect("UTF-8");
    let load = examples(&load).remove(0);
    let (mut wrong, mut shown) = (Vec::new(), BTreeSet::new());
    for page in pages {
        let text = std::fs::read_to_string(docs.join(page)).expect("UTF-8");
        let examples = examples(&text);
        let mut reader = Reader::new();
        if examples.first().is_some_and(|first| first.function != "load") {
            assert_eq!(reader.check(&load), None);
        }
        for example in &examples {
            shown.insert(format!("foredraft_{}", example.function));
            wrong.extend(reader.check(example).map(|what| format!("docs/{page}: {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));

    // Every function of the header that answers something.
    let header = include_str!("../../include/foredraft.h");
    let declared = header
        .lines()
        .filter_map(|line| line.strip_prefix("FOREDRAFT_API char *").or(line.strip_prefix("FOREDRAFT_API int32_t ")));
    // The devices of each machine are others.
    let declared: BTreeSet<String> = declared
        .filter_map(|line| line.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name != "foredraft_devices")
        .collect();
    assert_eq!(shown, declared);
}

#[test]
fn answers_that_differ_from_an_example_are_found() {
    let answer = json!({"a": 1, "b": [1, 2, 3], "c": {"d": "x"}, "f": 0.123_456_789});
    for same in [r#"{"a": 1.0, "b": [1, ...], "c": {"d": "x"}, "f": 0.123457}"#, r#"{"b": [1, 2, 3], ...}"#] {
        assert_eq!(difference(&parsed(same), &answer, ""), None, "{same}");
    }
    for other in [
        r#"{"a": 1}"#,
        r#"{"a": 2, ...}"#,
        r#"{"f": 0.1235, ...}"#,
        r#"{"b": [1, 2], ...}"#,
        r#"{"b": [1, 3, ...], ...}"#,
        r#"{"b": [1, 2, 3, 4, ...], ...}"#,
        r#"{"c": {"d": "y", ...}, ...}"#,
        r#"{"e": null, ...}"#,
    ] {
        assert!(difference(&parsed(other), &answer, "").is_some(), "{other}");
    }
}
