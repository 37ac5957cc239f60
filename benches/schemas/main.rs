//! Compiles schemas and follows texts token by token, with a mask of the whole vocabulary before each. `python3 benches/measure schemas` gives it the schemas
//! and prints its figures.
//!
//!     cargo bench -p foredraft-schema --bench schemas -- VOCABULARY [--open] [--check] < JOBS > RESULTS
//!
//! VOCABULARY has the bytes of each token behind their number, a little-endian `u16`; none for control tokens. A job is a line of JSON:
//! `{"id": ..., "schema": ..., "texts": [...]}`. A result is a line, too: microseconds until a grammar of the schema stands, the first error, which texts the
//! grammar accepts whole, and microseconds for each mask. All are times of the CPU.
//! Schemas are compiled as a request does by default; with `--open` with `"property_order": "any"` and `"additional_properties": true`.
//! `--check` compares the masks with what each token by itself is allowed, before every tenth token.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic, and they call C functions"
)]

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, OnceLock};

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_base::{Token, TokenData, TokenTree, Vocabulary};
use foredraft_grammar::Grammar;
use foredraft_grammar::tree::TreeBuilder;
use foredraft_schema::{CompileOptions, Schema};
use serde_json::{Value, json};

/// As many steps as a request has.
const STEPS: u64 = 1 << 23;

/// The candidates are so far apart that a mask of all tokens is still worthwhile.
const SPACING: usize = 32;
/// Linux's clock of the time that the thread has run.
const THREAD_CPU_TIME: i32 = 3;

/// The tokens of a file. Control tokens have no bytes. Texts become the longest tokens.
#[derive(Debug)]
struct FileVocabulary {
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, Token>,
    longest: usize,
    tree: OnceLock<TokenTree>,
}

impl FileVocabulary {
    fn load(path: &str) -> FileVocabulary {
        let data = std::fs::read(path).expect("a vocabulary file");
        let (mut tokens, mut rest) = (Vec::new(), data.as_slice());
        while let [low, high, behind @ ..] = rest {
            let (token, behind) = behind.split_at(u16::from_le_bytes([*low, *high]).into());
            tokens.push(token.to_vec());
            rest = behind;
        }
        let ids = (0..).zip(&tokens).map(|(id, bytes)| (bytes.clone(), id)).collect();
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        FileVocabulary { tokens, ids, longest, tree: OnceLock::new() }
    }

    /// A control token, all of which end a completion.
    fn end(&self) -> Token {
        self.ids.get(&Vec::new()).copied().expect("a control token")
    }
}

impl Vocabulary for FileVocabulary {
    fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        usize::try_from(token).ok().and_then(|token| self.tokens.get(token)).map_or(&[], Vec::as_slice)
    }

    fn is_eog(&self, token: Token) -> bool {
        self.piece(token).is_empty()
    }

    fn token_tree(&self) -> Option<&TokenTree> {
        Some(self.tree.get_or_init(|| self.make_token_tree()))
    }

    fn newline(&self) -> Option<Token> {
        None
    }

    fn tokenize(&self, mut text: &[u8], _: bool) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        while !text.is_empty() {
            let longest = (1..=text.len().min(self.longest)).rev();
            let (n, token) =
                longest.filter_map(|n| Some((n, *self.ids.get(&text[..n])?))).next().expect("all bytes are tokens");
            tokens.push(token);
            text = &text[n..];
        }
        Ok(tokens)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let path = arguments.first().expect("the path of a vocabulary");
    let vocabulary = Arc::new(FileVocabulary::load(path));
    let started = cpu_micros();
    vocabulary.token_tree();
    eprintln!("{} tokens, their tree in {:.0} us", vocabulary.n_tokens(), cpu_micros() - started);
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        writeln!(output, "{}", result(&vocabulary, &job, has("--open"), has("--check"))).expect("somebody reads");
    }
}

fn result(vocabulary: &Arc<FileVocabulary>, job: &Value, is_open: bool, checks: bool) -> Value {
    let started = cpu_micros();
    let grammar = compile(vocabulary, &job["schema"], is_open);
    let compile_us = cpu_micros() - started;
    let grammar = match grammar {
        Ok(grammar) => grammar,
        Err(error) => return json!({"id": job["id"], "compile_us": compile_us, "error": error.message()}),
    };
    let (mut accepted, mut masks) = (Vec::new(), Vec::new());
    for text in job["texts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        accepted.push(follow(vocabulary, grammar.clone(), text, &mut masks));
        if checks {
            check(
                vocabulary,
                [grammar.clone(), compile(vocabulary, &job["schema"], is_open).expect("it compiled")],
                text,
            );
        }
    }
    json!({"id": job["id"], "compile_us": compile_us, "accepted": accepted, "mask_us": masks})
}

fn compile(vocabulary: &Arc<FileVocabulary>, schema: &Value, is_open: bool) -> Result<Grammar> {
    let work = Work::new(STEPS, None);
    let tree = TreeBuilder::new();
    let options = CompileOptions { drop_unenforceable: true, is_open, any_order: is_open, is_lenient: false };
    let compiled = Schema::new(schema, &work)?.compile(&options, &tree)?;
    Grammar::from_tree(Arc::clone(vocabulary) as _, tree, compiled.node, &work)
}

/// Whether the grammar accepts the whole text, by masks before each token. The candidates are few, but enough for a mask of all tokens.
fn follow(vocabulary: &FileVocabulary, mut grammar: Grammar, text: &str, masks: &mut Vec<f64>) -> bool {
    let tokens = vocabulary.tokenize(text.as_bytes(), false).expect("tokens");
    for token in tokens.into_iter().chain([vocabulary.end()]) {
        let mut candidates = candidates((0..vocabulary.n_tokens() as Token).step_by(SPACING).chain([token]));
        let started = cpu_micros();
        if grammar.filter(&mut candidates).is_err() {
            return false;
        }
        masks.push(cpu_micros() - started);
        if candidates.last().is_some_and(|last| last.logit < 0.0) {
            return false;
        }
        if !vocabulary.is_eog(token) {
            grammar.accept(token).expect("an allowed token");
        }
    }
    true
}

/// Asserts that masks allow what each token by itself is allowed. The second grammar makes none.
fn check(vocabulary: &FileVocabulary, [mut masked, mut alone]: [Grammar; 2], text: &str) {
    for (index, token) in vocabulary.tokenize(text.as_bytes(), false).expect("tokens").into_iter().enumerate() {
        if index % 10 == 0 {
            let mut all = candidates(0..vocabulary.n_tokens() as Token);
            let mut each = all.clone();
            masked.filter(&mut all).expect("a mask");
            each.chunks_mut(1).for_each(|one| alone.filter(one).expect("a token"));
            let other = all.iter().zip(&each).find(|(all, each)| all.logit.to_bits() != each.logit.to_bits());
            assert!(other.is_none(), "{text:?}, before token {index}: {other:?}");
        }
        if masked.accept(token).is_err() {
            return;
        }
        alone.accept(token).expect("an allowed token");
    }
}

fn candidates(ids: impl Iterator<Item = Token>) -> Vec<TokenData> {
    ids.map(|id| TokenData { id, logit: 0.0, p: 0.0 }).collect()
}

/// The CPU time of this thread in microseconds.
fn cpu_micros() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanos: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    let mut time = Time { seconds: 0, nanos: 0 };
    // SAFETY: the time is writable, and has the layout of 64-bit Linux.
    unsafe { clock_gettime(THREAD_CPU_TIME, &raw mut time) };
    (time.seconds as f64).mul_add(1e6, (time.nanos as f64 / 100.0).round() / 10.0)
}
