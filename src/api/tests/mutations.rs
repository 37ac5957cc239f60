//! Every parser of foreign bytes, on mutations of valid documents: it returns a value or an error, and panics on none. `scripts/check.sh fuzz` runs
//! them longer (`FOREDRAFT_FUZZ`: executions of each target; `FOREDRAFT_FUZZ_SEED`), and the crates' parsers guided by coverage.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value, json};

use crate::api::life_cycle::legacy::translate;
use crate::api::prompts::chat::{ChatTemplate, RenderInput};
use crate::api::wire::load::LoadRequest;
use crate::api::wire::request::{CompletionRequest, RequestArguments, RequestDefaults};
use crate::api::wire::schema;
use crate::api::{Endpoint, JsonEngine, OldServer};
use crate::engine::session::{SeedOrigin, Session};
use crate::grammar::Grammar;
use crate::llama::{Model, ModelParams};
use crate::ngram::Cache;
use foredraft_base::work::Work;
use foredraft_base::{RowSpan, SavedMedia, Snapshot};
use foredraft_grammar::tree::TreeBuilder;
use foredraft_schema::{CompileOptions, Notation, Schema};

/// Executions in a test run; `scripts/check.sh fuzz` sets more.
const SAMPLE: u64 = 400;
/// An execution that takes longer is a failure, if it does so twice: no document of a few kilobytes may. (The machine may sleep once.)
const SLOW: Duration = Duration::from_secs(20);

/// Deterministic random choices.
pub(in crate::api) struct Mutator(u64);

impl Mutator {
    pub(in crate::api) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }

    pub(in crate::api) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A few changes of one of the seeds: bytes, ranges, words of the format, and parts of other seeds.
    pub(in crate::api) fn bytes(&mut self, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut bytes = self.of(seeds).clone();
        for _ in 0..self.below(6) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(16)).min(bytes.len());
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let part = bytes[at..end].to_vec();
                    let times = 1 + self.below(64);
                    drop(bytes.splice(at..at, part.repeat(times)));
                }
                4 => bytes.truncate(at),
                5 => {
                    let other = self.of(seeds).clone();
                    let from = self.below(other.len());
                    drop(bytes.splice(at..end, other[from..].iter().copied().take(64)));
                }
                _ => {
                    let word = *self.of(words);
                    drop(bytes.splice(at..end, word.bytes()));
                }
            }
        }
        bytes
    }

    pub(in crate::api) fn text(&mut self, seeds: &[Vec<u8>], words: &[&str]) -> String {
        String::from_utf8_lossy(&self.bytes(seeds, words)).into_owned()
    }

    /// A value of any type.
    fn value(&mut self, words: &[&str], depth: usize) -> Value {
        match self.below(if depth > 3 { 8 } else { 10 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(*self.of(&[0_i64, 1, -1, 2, 7, 512, i64::MAX, i64::MIN, 4_294_967_296, -2_147_483_649])),
            3 => json!(*self.of(&[0.5, -0.0, 1e308, -1e-308, 0.1])),
            4..=6 => json!(*self.of(words)),
            7 => json!(self.of(words).repeat(1 + self.below(40))),
            8 => (0..self.below(4)).map(|_| self.value(words, depth + 1)).collect(),
            _ => {
                let mut pair = |_| (self.of(words).to_string(), self.value(words, depth + 1));
                (0..3).map(&mut pair).collect::<Map<_, _>>().into()
            }
        }
    }

    /// Changes some parts of a document, which stays JSON.
    pub(in crate::api) fn document(&mut self, seed: &Value, words: &[&str]) -> Value {
        let mut document = seed.clone();
        for _ in 0..=self.below(4) {
            self.change(&mut document, words);
        }
        document
    }

    fn change(&mut self, value: &mut Value, words: &[&str]) {
        let is_deeper = self.below(3) > 0;
        match value {
            Value::Array(items) if is_deeper && !items.is_empty() => {
                let index = self.below(items.len());
                self.change(&mut items[index], words);
            }
            Value::Object(map) if is_deeper && !map.is_empty() => {
                let key = map.keys().nth(self.below(map.len())).cloned().unwrap();
                self.change(&mut map[&key], words);
            }
            Value::Array(items) if self.below(2) == 0 => items.push(self.value(words, 0)),
            Value::Object(map) if self.below(4) > 0 => {
                let key = self.of(words).to_string();
                map.insert(key, self.value(words, 0));
            }
            value => *value = self.value(words, 0),
        }
    }
}

/// Runs `work` as often as asked, each time with other random choices, and prints the number.
pub(in crate::api) fn run(target: &str, mut work: impl FnMut(&mut Mutator)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (count, first) = (number("FOREDRAFT_FUZZ").unwrap_or(SAMPLE), number("FOREDRAFT_FUZZ_SEED").unwrap_or(1));
    let begun = Instant::now();
    for execution in 0..count {
        let seed = first + execution;
        let mut duration = || {
            let mut mutator = Mutator(seed.wrapping_mul(0xd134_2543_de82_ef95));
            let started = Instant::now();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut mutator)));
            assert!(result.is_ok(), "{target}: FOREDRAFT_FUZZ_SEED={seed} FOREDRAFT_FUZZ=1 fails");
            started.elapsed()
        };
        if duration() > SLOW {
            let again = duration();
            assert!(again < SLOW, "{target}: FOREDRAFT_FUZZ_SEED={seed} FOREDRAFT_FUZZ=1 takes {again:?}");
        }
    }
    println!("| {target} | {count} executions | {:.0} s | no failure |", begun.elapsed().as_secs_f64());
}

/// The words of requests and loads, from the program's own table.
fn words() -> Vec<&'static str> {
    let fields = crate::api::wire::request::sampler_fields();
    let mut words: Vec<&str> = fields.chain(["mirostat", "samplers", "dry_sequence_breakers"]).collect();
    words.extend([
        "prompt",
        "prompts",
        "messages",
        "role",
        "content",
        "user",
        "assistant",
        "system",
        "tool",
        "tools",
        "function",
        "name",
        "parameters",
        "arguments",
        "tool_calls",
        "tool_choice",
        "required",
        "response_format",
        "json_schema",
        "json_object",
        "schema",
        "grammar",
        "grammar_lazy",
        "choices",
        "text",
        "logit_bias",
        "stop",
        "n_predict",
        "max_tokens",
        "n",
        "n_probs",
        "logprobs",
        "top_logprobs",
        "seed",
        "speculative",
        "type",
        "draft",
        "ngram-cache",
        "suffix",
        "auto",
        "none",
        "verify",
        "rejection",
        "n_max",
        "adaptive",
        "heuristic",
        "compare",
        "prediction",
        "session_load",
        "session_save",
        "lora",
        "id",
        "ids",
        "all",
        "scale",
        "timeout_ms",
        "priority",
        "conversation",
        "deadline_ms",
        "t_max_predict_ms",
        "tag",
        "response_fields",
        "samplers",
        "chat_template",
        "chat_template_kwargs",
        "enable_thinking",
        "reasoning_format",
        "reasoning_budget_tokens",
        "on_overflow",
        "input_prefix",
        "input_suffix",
        "input_extra",
        "filename",
        "model",
        "model_draft",
        "n_ctx",
        "n_parallel",
        "cache_type_k",
        "q8_0",
        "rpc",
        "devices",
        "override_kv",
        "tensor_split",
        "override_tensor",
        "isolate",
        "memory_mb",
        "isolate_cpus",
        "0-3",
        "frame_budget",
        "-1",
        "",
        "a\u{0}b",
        "é",
        "\u{1F600}",
    ]);
    words
}

/// Requests that each of many tests sends, in one.
fn requests() -> Vec<Value> {
    vec![
        json!({"prompt": "Once", "n_predict": 3, "temperature": 0.5, "stop": ["a", "b"], "logit_bias": [[1, 2.5], ["x", false]],
            "samplers": ["top_k", "temperature"], "dry_sequence_breakers": ["\n"], "seed": 7, "n_probs": 2, "tag": {"a": 1}}),
        json!({"prompt": ["a", 1, 2, "b"], "speculative": {"type": ["draft", "suffix"], "n_max": 4, "verify": "match"},
            "prediction": {"type": "content", "content": "x"}, "lora": [{"id": 0, "scale": 0.5}]}),
        json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "auto", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}}),
        json!({"prompts": ["a", "b"], "choices": ["yes", {"text": "no"}], "response_fields": ["content", "timings/prompt_n"]}),
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}], "n_cmpl": 2}),
    ]
}

fn parse_request(value: &Value) {
    let Some(object) = value.as_object() else { return };
    let defaults = RequestDefaults::default();
    let mut objects = vec![(object.clone(), RequestArguments::default())];
    for (endpoint, is_awaited) in [(Endpoint::Completion, true), (Endpoint::Speculative, false)] {
        let mut translated = object.clone();
        let translation = translate(&mut translated, endpoint, is_awaited, &defaults, || Ok(1000));
        let translation = translation.expect("the vocabulary is known");
        objects.push((translated, RequestArguments { translation, ..RequestArguments::default() }));
    }
    for (object, arguments) in objects {
        if let Err(error) = CompletionRequest::from_object(&object, &defaults, arguments) {
            assert!(!error.message().is_empty());
        }
    }
}

#[test]
fn requests_parse_or_fail() {
    let (words, seeds) = (words(), requests());
    run("request", |mutator| {
        let seed = mutator.of(&seeds).clone();
        let mut document = mutator.document(&seed, &words);
        if mutator.below(4) == 0 {
            let text =
                mutator.text(&[document.to_string().into_bytes()], &["\"", "{", "[", ":", ",", "1e999", "\\ud800"]);
            document = serde_json::from_str(&text).unwrap_or_default();
        }
        parse_request(&document);
    });
}

#[test]
fn loads_parse_or_fail() {
    let words = words();
    let seeds = [
        json!({"model": "m", "n_ctx": 512, "lora": [{"path": "a", "scale": 1}], "override_kv": {"k": "int:1"},
            "tensor_split": [1, 2], "speculative": {"type": "draft"}, "log_level": "info"}),
        json!({"model": "m", "model_draft": "d", "cpu_range": "0-3", "frame_budget": {"budget_ms": 6, "interval_ms": 16}}),
    ];
    let lines: Vec<Vec<u8>> = [
        "-m model.gguf -md 'd f.gguf' -c 4096 -ngl 99 --temp 0.5",
        "-m m -fa --draft-max 4 --lora-scaled a:2 --override-kv k=bool:true --rpc h:1 -ts 1,2",
        "--model \"a b\" --cpu-range 0-3 --prio 2 -ctk q8_0 --samplers top_k;temp --logit-bias 1+2",
    ]
    .map(|line| line.as_bytes().to_vec())
    .to_vec();
    let flags = [
        "-m",
        "-c",
        "--",
        "'",
        "\"",
        "\\",
        "=",
        "-ngl",
        "-1",
        "9999999999999",
        "--lora",
        ",",
        ";",
        ":",
        "\u{0}",
        "nan",
    ];
    run("load and command line", |mutator| {
        let bytes = match mutator.below(2) {
            0 => {
                let seed = mutator.of(&seeds).clone();
                mutator.document(&seed, &words).to_string().into_bytes()
            }
            _ => mutator.bytes(&lines, &flags),
        };
        if let Err(error) = LoadRequest::parse(&bytes) {
            assert!(!error.message().is_empty());
        }
    });
}

#[test]
fn polls_parse_or_fail() {
    let seeds = [r#"{"id": 7, "timeout_ms": 0}"#, r#"{"ids": [1, 2, 3]}"#, r#"{"all": true}"#, "", "7", "null"];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec());
    let words = ["\"id\"", "\"ids\"", "-1", "1e99", "18446744073709551616", "[", "{", "null", "\"\\u0000\"", "true"];
    let engine = JsonEngine::new();
    let old_server = OldServer::new(engine.clone());
    run("poll command", |mutator| {
        let bytes = mutator.bytes(&seeds, &words);
        let _ = engine.poll(Some(&bytes));
        for endpoint in [Endpoint::Completion, Endpoint::Speculative] {
            let _ = old_server.poll(endpoint, Some(&bytes));
        }
    });
}

const GBNF: [&str; 4] = [
    "root ::= \"a\" | [b-d]* (\"e\" root)? # c\n",
    "root ::= item{1,3} ws\nitem ::= [^\"\\\\] | \"\\\\\" [\"\\\\/bfnrt]\nws ::= [ \\t\\n]*\n",
    "root ::= \"{\" pair (\",\" pair)* \"}\"\npair ::= string \":\" value\nstring ::= \"\\\"\" [a-z]+ \"\\\"\"\nvalue ::= string | root\n",
    "root ::= <[1]> !<[2]> . \"\\u00e9\" [\\x41-\\U0001F600]",
];

#[test]
fn grammars_compile_or_fail() {
    let seeds = GBNF.map(|seed| seed.as_bytes().to_vec());
    let words =
        ["root", "::=", "|", "(", ")", "*", "+", "?", "{0,}", "{3}", "{,9}", "[^a]", "\"", "\\", "\n", "<[", "]>", "."];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-draft.gguf");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(path) };
    let model = Arc::new(Model::load(&params, |_| true).unwrap());
    run("GBNF", |mutator| {
        let gbnf = mutator.text(&seeds, &words);
        let Ok(mut grammar) = Grammar::new(&model, &gbnf, &foredraft_base::work::Work::unlimited()) else { return };
        for _ in 0..8 {
            let token = i32::try_from(mutator.below(300)).unwrap();
            if grammar.allows(token).unwrap_or(false) {
                let _ = grammar.accept(token);
            }
        }
    });
}

#[test]
fn schemas_convert_or_fail() {
    let words = [
        "type",
        "object",
        "array",
        "string",
        "integer",
        "number",
        "null",
        "boolean",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalProperties",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$ref",
        "#/$defs/a",
        "#",
        "$defs",
        "pattern",
        "^[a-z]+(b|c){2,3}$",
        "(?=a)",
        "\\d+",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "format",
        "date-time",
        "uuid",
        "a",
        "b",
        "",
        "if",
        "then",
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "unevaluatedProperties",
        "contains",
        "uniqueItems",
    ];
    let seeds = [
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}, "b": {"$ref": "#/$defs/a"}},
            "required": ["a"], "$defs": {"a": {"type": "array", "items": {"type": "integer", "minimum": 3}, "maxItems": 4}}}),
        json!({"anyOf": [{"const": 1}, {"enum": ["x", null]}, {"type": "string", "format": "date-time", "minLength": 2}]}),
        json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": false}], "not": {"required": ["c"]}}),
    ];
    run("JSON schema", |mutator| {
        let seed = mutator.of(&seeds).clone();
        let schema = mutator.document(&seed, &words);
        if let Ok(parsed) = schema::parse(&schema) {
            let work = Work::new(1 << 23, None);
            let _ = schema::to_grammar(&parsed, &CompileOptions::default(), &work);
            let tree = TreeBuilder::new();
            if let Ok(read) = Schema::new(&parsed, &work) {
                let options =
                    CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };
                let _ = read.compile(&options, &tree);
                let _ = read.compile_argument(&["</parameter>"], Notation::Json, &options, &tree);
                let _ = read.parameters();
                let _ = read.is_valid(&schema);
            }
        }
    });
}

#[test]
fn templates_render_or_fail() {
    let sources = [
        "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        "{%- set ns = namespace(x=0) -%}{% for m in messages %}{% set ns.x = ns.x + 1 %}{{ loop.index0 ~ m.content[:3] }}{% endfor %}{{ ns.x }}",
        "{% macro f(a, b=2) %}{{ a * b }}{% endmacro %}{{ f(3) }}{{ tools | tojson(indent=2) if tools }}{{ raise_exception('x') if not messages }}",
        "{% macro f(a0, a1=2) %}{{ a0 ~ varargs|length ~ kwargs|length }}{% endmacro %}{{ f(*l, *l) }}{{ f(**d) }}{{ '{0}{a1}'.format(*l, **d) }}",
        "{% for a in l recursive %}{{ loop.index }}{% endfor %}{{ dict(**d) }}{{ namespace(d, **d) }}",
        "{{ bos_token }}{{ messages | map(attribute='role') | join(',') }}{{ 'a,b'.split(',') | last | upper }}{{ '{}'.format(1) }}",
    ];
    let seeds: Vec<Vec<u8>> = sources.iter().map(|source| source.as_bytes().to_vec()).collect();
    let words = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "-%}",
        "if",
        "else",
        "endif",
        "for",
        "in",
        "endfor",
        "set",
        "messages",
        "loop",
        "[0]",
        "[::-1]",
        "| length",
        "| list",
        "| batch(3)",
        "| replace('a', 'bb')",
        "* 99",
        "** 9",
        "~",
        "is defined",
        "not",
        "range(9)",
        ".items()",
        "(",
        ")",
        "'",
        "\"",
        "\\",
        "namespace()",
        "*l, ",
        "**d",
        "(*l, *l)",
        "(**d)",
        "loop([loop])",
        "varargs",
        "recursive",
        "caller()",
        "é",
    ];
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u <|im_end|>"},
        {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]);
    let message_words =
        ["role", "content", "user", "assistant", "tool", "tool_calls", "name", "text", "type", "arguments", ""];
    // A list and a dictionary that make long lists of arguments.
    let (list, names): (Value, Map<_, _>) =
        ((0..1000).collect(), (0..1000).map(|at| (format!("a{at}"), json!(at))).collect());
    let kwargs = Map::from_iter([("l".to_owned(), list), ("d".to_owned(), names.into())]);
    run("chat template and messages", |mutator| {
        let Ok(template) = ChatTemplate::parse(&mutator.text(&seeds, &words), None) else { return };
        let messages = mutator.document(&messages, &message_words);
        let Some(messages) = messages.as_array().filter(|all| all.iter().all(Value::is_object)) else { return };
        let input = RenderInput {
            messages,
            add_generation_prompt: true,
            bos_token: "<s>",
            eos_token: "</s>",
            tools: None,
            kwargs: &kwargs,
            now: SystemTime::UNIX_EPOCH,
            interrupt: None,
        };
        let _ = template.render(&input);
    });
}

/// A file that each execution writes anew, in memory where the system has such a folder.
fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from("/dev/shm");
    let folder = if folder.is_dir() { folder } else { std::env::temp_dir() };
    folder.join(format!("foredraft-{}-{name}", std::process::id()))
}

#[test]
fn session_files_are_read_or_refused() {
    let path = scratch("session");
    let target = Snapshot {
        identity: vec![("model".into(), "m".into()), ("adapters".into(), String::new())],
        tokens: (0..40).collect(),
        blocks: 2,
        spans: Default::default(),
        state: (0..200).collect(),
        checkpoints: vec![(20, Arc::new(vec![1; 30]))],
    };
    let seed = Some(SeedOrigin { seed: 7, origin: 3 });
    let text = Session { draft: Some(target.clone()), target, seed, lora: vec![1.0], media: Vec::new() };
    let mut seen = text.clone();
    seen.target.tokens.splice(10..14, [-3, -4, -5, -6]);
    seen.target.spans = Arc::new(vec![RowSpan { start: 10, rows: 4, positions: 2 }]);
    seen.media = vec![SavedMedia { first: -2, rows: 5, hash: [9; 32] }];
    let seeds = [&text, &seen].map(|session| {
        session.write(&path).unwrap();
        assert_eq!(Session::read(&path).as_ref(), Ok(session));
        std::fs::read(&path).unwrap()
    });
    run("session file", |mutator| {
        std::fs::write(&path, mutator.bytes(&seeds, &["\u{0}\u{0}\u{0}\u{0}", "\u{7f}\u{7f}"])).unwrap();
        let _ = Session::read(&path);
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ngram_files_are_read_or_refused() {
    let mut cache = Cache::new();
    let tokens: Vec<i32> = (0..200).map(|index| index * index % 17).collect();
    cache.update(&tokens, tokens.len(), crate::ngram::Sizes::ALL);
    let mut seed = Vec::new();
    cache.write(&mut seed).unwrap();
    let seeds = [seed, Vec::new()];
    run("n-gram file", |mutator| {
        let bytes =
            mutator.bytes(&seeds, &["\u{0}\u{0}\u{0}\u{0}", "\u{1}\u{0}\u{0}\u{0}", "\u{7f}\u{7f}\u{7f}\u{7f}"]);
        let _ = Cache::parse(&bytes, &PathBuf::from("file"), Some(1000));
    });
}

/// The header as this library reads it, and then llama.cpp.
#[test]
fn model_files_are_read_or_refused() {
    let path = scratch("gguf");
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-draft.gguf")).unwrap();
    // Most of the file is weights.
    let header = whole[..60_000].to_vec();
    let seeds = [header.clone(), header[..400].to_vec()];
    let words = [
        "GGUF",
        "\u{3}\u{0}\u{0}\u{0}",
        "general.architecture",
        "llama",
        "split.count",
        "\u{7f}\u{7f}\u{7f}\u{7f}",
        "\u{0}",
    ];
    run("GGUF header", |mutator| {
        let mut bytes = mutator.bytes(&seeds, &words);
        // The changes near the start matter most.
        for _ in 0..mutator.below(4) {
            let at = mutator.below(bytes.len().min(3000));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(mutator.below(256)).unwrap();
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let _ = Model::load(&ModelParams { vocab_only: true, ..ModelParams::new(&path) }, |_| true);
    });
    std::fs::remove_file(&path).unwrap();
}
