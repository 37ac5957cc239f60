//! Random templates and completions: no panic, and nothing takes long. `FOREDRAFT_FUZZ`: how many; `FOREDRAFT_FUZZ_SEED`: the first one.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use foredraft_schema::{CompileOptions, Schema};
use serde_json::json;

use super::real_templates::real_templates;
use super::renderer::TestTemplate;
use super::round_trip::{request_tools, start_of, tools, try_constraint, work};
use super::templates;
use crate::{MessageParser, MessageReader, ReaderOptions, TurnRequest};

/// The templates of a run without `FOREDRAFT_FUZZ`.
const SAMPLE: u64 = 150;
/// The longest processor time that a template may take.
const SLOW: Duration = Duration::from_secs(1);

/// Parts of templates.
const WORDS: [&str; 17] = [
    "{{ messages }}",
    "{% for i in range(300) %}{{ messages }}{% endfor %}",
    "{% if tools %}<tools>{% endif %}",
    "{% for call in message.tool_calls or [] %}{{ call }}{% endfor %}",
    "{{ tools | tojson }}",
    "{{ message.content }}",
    "{{ message.reasoning_content }}",
    "{{ message.tool_calls[0].function.arguments | tojson }}",
    "<tool_call>",
    "</think>",
    "<think>",
    "<",
    "[",
    "\0",
    "\u{ff5c}",
    "{\"name\": \"",
    "  \n",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// A place in a text.
    fn place(&mut self, text: &str) -> usize {
        let mut at = self.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// An expression of a template, or any part of it.
    fn part(&mut self, text: &str) -> Range<usize> {
        let starts: Vec<usize> = text.match_indices("{{").map(|(at, _)| at).collect();
        let start = starts.get(self.below(starts.len() + 1));
        match start.and_then(|start| Some(*start..start + text[*start..].find("}}")? + 2)) {
            Some(expression) if self.below(10) > 0 => expression,
            _ => {
                let (one, other) = (self.place(text), self.place(text));
                one.min(other)..one.max(other)
            }
        }
    }

    fn template(&mut self, seeds: &[String]) -> String {
        let mut text = seeds[self.below(seeds.len())].clone();
        for _ in 0..1 + self.below(4) {
            let part = self.part(&text);
            match self.below(4) {
                0 => text.replace_range(part, ""),
                1 => text.insert_str(part.start, WORDS[self.below(WORDS.len())]),
                2 => {
                    let copy = text[part].to_owned();
                    let at = self.part(&text).end;
                    text.insert_str(at, &copy);
                }
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let range = self.part(other);
                    text.replace_range(part, &other[range]);
                }
            }
        }
        text
    }
}

/// The processor time of this thread, so that a busy machine fails no test; where there is none, the time.
fn processor_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let scheduled = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = scheduled.split(' ').next().and_then(|text| text.parse().ok());
    nanoseconds.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// Finds the format of a template, and uses it. Returns whether it is a template.
fn attack(source: &str, random: &mut Random) -> bool {
    let Some(template) = TestTemplate::parse(source) else { return false };
    let format = template.detect();
    let request = request_tools(&json!({"t": {"type": "string"}, "n": {"enum": [1, "x"]}, "l": {"type": "array"}}));
    let tools = tools(&request);
    let start = start_of(&template, &format, &request).unwrap_or_default();
    let document = Schema::new(&json!({"type": "object", "properties": {"a": {"type": "integer"}}}), &work()).unwrap();
    for (is_required, document) in [(false, None), (true, None), (false, Some((&document, CompileOptions::default())))]
    {
        // A grammar can be refused, because a text cannot avoid what ends an argument.
        let turn = TurnRequest { tools: &tools, is_required, parallel: true, document };
        let _ = try_constraint(&format, &turn, &start);
    }
    let mut pieces = format.tags();
    pieces.extend(
        format.calls.iter().flat_map(|calls| [calls.begin.clone(), calls.separator.clone(), calls.end.clone()]),
    );
    pieces.extend(["get_it", "{\"t\": \"x\"}", "\n", "{", "}", "\"", "'", "x", "=", "\u{e9}"].map(str::to_owned));
    for is_enforced in [false, true] {
        let options = ReaderOptions { opened: start.opened.clone(), is_enforced, ..ReaderOptions::default() };
        let mut parser = MessageParser::new(Arc::new(
            MessageReader::new(format.clone(), tools.clone(), options, &foredraft_base::work::Work::unlimited())
                .unwrap(),
        ));
        for _ in 0..200 {
            parser.push(&pieces[random.below(pieces.len())]);
            parser.delta();
        }
        parser.finish();
    }
    true
}

#[test]
fn random_templates_do_no_harm() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, first) = (number("FOREDRAFT_FUZZ").unwrap_or(SAMPLE), number("FOREDRAFT_FUZZ_SEED").unwrap_or(1));
    let mut seeds: Vec<String> = templates::ALL.iter().map(|(_, source)| (*source).to_owned()).collect();
    if number("FOREDRAFT_FUZZ").is_some() {
        seeds.extend(real_templates().into_iter().map(|(_, source)| source));
    }
    let (mut n_parsed, mut slowest) = (0, (Duration::ZERO, 0));
    for seed in first..first + count {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let source = random.template(&seeds);
        let begin = processor_time();
        let parsed = std::panic::catch_unwind(AssertUnwindSafe(|| attack(&source, &mut random)));
        let parsed = parsed.unwrap_or_else(|_| panic!("FOREDRAFT_FUZZ_SEED={seed} FOREDRAFT_FUZZ=1: {source}"));
        let taken = processor_time().saturating_sub(begin);
        n_parsed += u64::from(parsed);
        slowest = slowest.max((taken, seed));
    }
    println!(
        "{count} templates, {n_parsed} parsed; the slowest took {:?} (FOREDRAFT_FUZZ_SEED={})",
        slowest.0, slowest.1
    );
    assert!(slowest.0 < SLOW, "{slowest:?}");
    assert!(n_parsed * 4 > count, "{n_parsed} of {count}");
}

/// A template whose calls print a text of braces, from which JSON could begin anywhere.
fn with_braces(braces: &str, condition: &str) -> String {
    format!(
        "{{% for m in messages %}}{{{{ m.content }}}}{{% if m.tool_calls {condition} %}}{{{{ {braces} }}}}{{% for c in m.tool_calls %}}\
         {{{{ c.function.name }}}}{{% endfor %}}{{% endif %}}{{% endfor %}}"
    )
}

#[test]
fn braces_of_a_template_are_not_read_without_end() {
    let braces = ["'{\"\":' * 300000", "'{\"a\":[' * 60000", "'{\"a\":[' * 10000", "'{\"a\":1},' * 10000"];
    for braces in braces {
        for condition in ["", "and messages[0].content == 'Hello?'", "and messages|length > 1"] {
            let source = with_braces(braces, condition);
            let template = TestTemplate::parse(&source).expect("a template");
            let begin = processor_time();
            template.detect();
            let taken = processor_time().saturating_sub(begin);
            assert!(taken < SLOW, "{taken:?}: {source}");
        }
    }
}
