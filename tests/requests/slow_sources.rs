//! Templates, schemas and patterns that take long: no submit is held much longer than its `timeout_ms`. `FOREDRAFT_SEARCH_SECONDS`: how long
//! to search for such sources, instead of a number of them; `FOREDRAFT_FUZZ_SEED`: the first one.

use std::thread;
use std::time::{Duration, Instant};

use foredraft::Function;
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::{cancel, start};
use crate::processor_time;

const TIMEOUT: Duration = Duration::from_millis(20);
/// The time of a submit beyond its `timeout_ms`, on a processor that is not slow: more than twice what it needs.
const SLACK: Duration = Duration::from_millis(100);
/// How often a source that took long is tried again, each time with a new engine.
const MORE_TRIES: usize = 4;
/// The longest source in bytes.
const MAX_SOURCE: usize = 64 << 10;
/// Enough for every work, so that all of it is on the calling thread.
const STACK: usize = 64 << 20;

/// The least processor time of a few submits, of which all but the first have new engines, or of the first that is within the limit. Returns the
/// limit, too. A thread that shares a core's caches with another one takes longer now and then.
fn least_taken(engine: &JsonEngine, source: &Value) -> (Duration, Duration) {
    let mut found = (taken(engine, source), TIMEOUT + SLACK);
    for _ in 0..MORE_TRIES {
        if found.0 < found.1 {
            break;
        }
        let engine = start(json!({"n_ctx": 256}));
        found = (found.0.min(taken(&engine, source)), found.1.max(TIMEOUT + SLACK.mul_f64(processor_time::slowness())));
    }
    found
}

/// Submits a request, and returns the processor time of that.
fn taken(engine: &JsonEngine, source: &Value) -> Duration {
    let mut request = json!({"messages": [{"role": "user", "content": "Hello?"}], "n_predict": 1});
    request["timeout_ms"] = json!(TIMEOUT.as_millis() as u64);
    request.as_object_mut().expect("an object").extend(source.as_object().expect("an object").clone());
    let request = request.to_string();
    let before = processor_time::of_this_thread();
    let answer = engine.call(Function::Submit, Ok(request.as_bytes()));
    let taken = processor_time::of_this_thread() - before;
    if let Ok(answer) = answer {
        cancel(engine, Foredraft, answer["id"].as_u64().expect("an id"));
    }
    taken
}

/// Runs a test with a stack for all work.
fn on_a_large_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(STACK).spawn(test).expect("a thread").join().expect("no panic");
}

/// JSON could begin at each brace.
#[test]
fn braces_that_a_template_prints_hold_no_call() {
    on_a_large_stack(|| {
        for braces in ["'{\"\":' * 300000", "'{\"a\":[' * 60000", "'{\"a\":[' * 8000"] {
            for condition in ["", "and messages[0].content == 'Hello?'"] {
                let template = format!(
                    "{{% for m in messages %}}{{{{ m.content }}}}{{% if m.tool_calls {condition} %}}{{{{ {braces} }}}}\
                     {{% for c in m.tool_calls %}}{{{{ c.function.name }}}}{{% endfor %}}{{% endif %}}{{% endfor %}}"
                );
                let before = processor_time::of_this_thread();
                // A load finds the format of its template.
                let engine = start(json!({"n_ctx": 256, "chat_template": template}));
                let of_load = processor_time::of_this_thread() - before;
                let own = taken(&engine, &json!({}));
                let (others, limit) = least_taken(&engine, &json!({"chat_template": template + " "}));
                engine.unload();
                assert!(of_load < Duration::from_secs(2).mul_f64(processor_time::slowness()), "{of_load:?}: {braces}");
                assert!(own < TIMEOUT + SLACK.mul_f64(processor_time::slowness()), "{own:?}: {braces}");
                assert!(others < limit, "{others:?} of {limit:?}: {braces}");
            }
        }
    });
}

/// Messages keep what the template may search for, so its literals are sought in them.
#[test]
fn long_literals_of_a_template_are_sought_in_moments() {
    on_a_large_stack(|| {
        let engine = start(json!({"n_ctx": 256}));
        for literal in ["[<{", "<", "ab<"] {
            let literal = literal.repeat((MAX_SOURCE - 200) / literal.len());
            let template =
                format!("{{% for m in messages %}}{{{{ m.content }}}}{{{{ '{literal}' if m.none }}}}{{% endfor %}}");
            let request = json!({"messages": [{"role": "user", "content": literal}], "chat_template": template});
            let before = processor_time::of_this_thread();
            let answer = engine.call(Function::ApplyTemplate, Ok(request.to_string().as_bytes())).expect("a prompt");
            let taken = processor_time::of_this_thread() - before;
            assert_eq!(answer["prompt"], *literal);
            assert!(taken < Duration::from_secs(2), "{taken:?}: {:?} again and again", &literal[..3]);
        }
    });
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }

    /// A few of the texts, again and again.
    fn repeated(&mut self, texts: &[&str], most: usize) -> String {
        let unit: String = (0..1 + self.below(3)).map(|_| self.of(texts)).collect();
        let most = [100, 1000, 10_000, most][self.below(4)].min(most);
        unit.repeat(1 + self.below(most / unit.len().max(1)))
    }

    fn template(&mut self) -> String {
        const PRINTED: [&str; 12] = [
            "{\"a\":[",
            "{\"\":",
            "<",
            "<tool_call>",
            "[",
            "{",
            "}",
            "\"",
            "probe_alpha_71c3",
            "</think>",
            "x ",
            "\u{ff5c}",
        ];
        const TAGS: [&str; 8] = [
            "{{ m.content }}",
            "{{ m.tool_calls }}",
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}",
            "{{ m.content * 99 }}",
            "{{ tools | tojson }}",
            "{% for i in range(99) %}{{ m.content }}{% endfor %}",
            "{{ m.content | replace('e', 'ee') | upper | trim }}",
            "{% set x = messages | map(attribute='content') | list %}",
        ];
        let condition =
            self.of(&["true", "m.tool_calls", "tools", "messages[0].content == 'Hello?'", "add_generation_prompt"]);
        let times = [1, 9, 999, 99_999][self.below(4)];
        let printed = self.repeated(&PRINTED, 20_000);
        let tags: String = (0..1 + self.below(4)).map(|_| self.of(&TAGS)).collect();
        let tags = if self.below(4) == 0 { self.repeated(&TAGS, 40_000) } else { tags };
        let order = match self.below(2) {
            0 => format!("{{{{ '{printed}' * {times} }}}}{tags}"),
            _ => format!("{tags}{{{{ '{printed}' * {times} }}}}"),
        };
        format!("{{% for m in messages %}}{{{{ m.content }}}}{{% if {condition} %}}{order}{{% endif %}}{{% endfor %}}")
    }

    fn pattern(&mut self) -> String {
        const ATOMS: [&str; 14] = [
            "a?",
            "a*",
            "(a|b)",
            "[a-z]",
            "a{0,9}",
            "(a*)*",
            "(ab|a)+",
            ".",
            "\\d{1,99}",
            "a|",
            "(?:",
            ")",
            "\\p{L}",
            "(?=a)",
        ];
        let pattern = self.repeated(&ATOMS, 30_000);
        if self.below(2) == 0 { format!("^{pattern}$") } else { pattern }
    }

    fn schema(&mut self) -> Value {
        // (`json!` copies what it gets.)
        let object = |key: String, value: Value| Value::Object([(key, value)].into_iter().collect());
        let n = [10, 100, 1000][self.below(3)];
        match self.below(7) {
            0 => (0..n).fold(json!({"type": "string"}), |inner, _| {
                object("anyOf".into(), Value::Array(vec![inner, json!({"type": "null"})]))
            }),
            1 => {
                let properties: serde_json::Map<String, Value> =
                    (0..n).map(|index| (format!("p{index}"), json!({"type": "integer", "maximum": index}))).collect();
                json!({"type": "object", "properties": properties})
            }
            2 => json!({"enum": (0..n).map(|index| format!("value {index}")).collect::<Vec<_>>()}),
            3 => json!({"type": "string", "minLength": n, "maxLength": n * n}),
            4 => json!({"allOf": (0..n / 5).map(|index| json!({"not": {"const": index}})).collect::<Vec<_>>()}),
            5 => {
                json!({"type": "array", "items": {"type": "number", "minimum": -0.5}, "minItems": n, "maxItems": 2 * n})
            }
            _ => (0..n.min(100))
                .fold(json!({}), |inner, index| object("properties".into(), object(index.to_string(), inner))),
        }
    }

    /// A template, mostly with a tool.
    fn template_request(&mut self) -> Value {
        let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}});
        match self.below(3) {
            0 => json!({"chat_template": self.template()}),
            _ => json!({"chat_template": self.template(), "tools": [tool]}),
        }
    }

    fn schema_request(&mut self) -> Value {
        match self.below(2) {
            0 => json!({"json_schema": self.schema()}),
            _ => json!({"json_schema": {"type": "string", "pattern": self.pattern()}}),
        }
    }
}

/// Submits so many sources, which take some ten seconds, or as many as a given time allows.
fn search(source: fn(&mut Random) -> Value, n_sources: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = number("FOREDRAFT_SEARCH_SECONDS").map(Duration::from_secs);
    let first = number("FOREDRAFT_FUZZ_SEED").unwrap_or(1);
    on_a_large_stack(move || {
        let engine = start(json!({"n_ctx": 256}));
        let (begin, mut seed, mut slowest) = (Instant::now(), first, (Duration::ZERO, 0));
        while time.map_or(seed - first < n_sources, |time| begin.elapsed() < time) {
            let source = source(&mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            if source.to_string().len() <= MAX_SOURCE {
                let (taken, limit) = least_taken(&engine, &source);
                let shown: String = source.to_string().chars().take(300).collect();
                assert!(taken < limit, "{taken:?} of {limit:?}: FOREDRAFT_FUZZ_SEED={seed}: {shown}");
                slowest = slowest.max((taken, seed));
            }
            seed += 1;
        }
        let n = seed - first;
        println!("| submits of slow sources | {n} | the slowest took {:?} (seed {}) |", slowest.0, slowest.1);
    });
}

#[test]
fn no_template_holds_a_submit() {
    search(Random::template_request, 250);
}

#[test]
fn no_schema_or_pattern_holds_a_submit() {
    search(Random::schema_request, 2000);
}
