//! `lookup_create`, `lookup_merge`, `lookup_stats`: create, merge and evaluate n-gram cache files.
//!
//! They run on the caller's thread and block no other call. Only tokenization uses the model; an unload waits for it. The other steps are
//! cancelled by a later load or unload.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::JsonEngine;
use crate::api::life_cycle::lookup_progress::RunningLookup;
use crate::api::loaded::lookup_cache::ngram_sizes;
use crate::api::loaded::response::ratio;
use crate::api::wire::answer::{success, with_fields};
use crate::api::wire::fields::{Fields, c_text_in, int_in, parse_object, text_in, unexpected};
use crate::error::{Code, Error, Result};
use crate::llama::Token;
use crate::ngram::{self, Acceptance, Cache, LookupStats, Sizes};
use foredraft_base::atomic_write;

/// The default of `n_draft`: llama.cpp's `--draft-max`.
const N_DRAFT: usize = 3;
/// The default of `n_ctx` without a model.
const N_CTX: usize = 4096;
/// llama.cpp rounds the context length up to a multiple of this.
const BLOCK: usize = 256;

impl JsonEngine {
    /// `lookup_create`: writes the n-gram cache of a text to a file.
    ///
    /// # Errors
    /// The request is invalid, a text cannot be tokenized because no model is loaded, a file cannot be read or written, or a later
    /// load or unload cancelled it.
    pub fn lookup_create(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let text = TextSource::read(&mut fields)?;
        let sizes = ngram_sizes(&mut fields, Sizes::STATIC)?;
        let output = output(&mut fields)?;
        let lookup = self.begin_lookup("lookup_create");
        let start = Instant::now();
        let tokens = self.tokens(&lookup, text)?;
        lookup.step("counting")?;
        let cache = ngram::create(&tokens, sizes, &mut lookup.progress()).map_err(|error| lookup.explain(error))?;
        lookup.step("writing")?;
        cache.save(&output)?;
        Ok(success(
            with_statistics(&cache, json!({"n_tokens": tokens.len(), "output": output, "t_ms": ms(start.elapsed())})),
            fields.finish(),
        ))
    }

    /// `lookup_merge`: adds up cache files and writes the sum to a file.
    ///
    /// # Errors
    /// The request is invalid, a file cannot be read or written, or a later load or unload cancelled it.
    pub fn lookup_merge(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let inputs = fields
            .list("inputs", "an array of paths", |name, value| match text_in(name, value)? {
                path if path.is_empty() || path.contains('\0') => Err(unexpected(name, "a path", value)),
                path => Ok(PathBuf::from(path)),
            })?
            .filter(|inputs| !inputs.is_empty())
            .ok_or_else(|| Error::invalid("inputs: expected the paths of one or more files"))?;
        let output = output(&mut fields)?;
        let lookup = self.begin_lookup("lookup_merge");
        let start = Instant::now();
        lookup.step("merging")?;
        let cache = ngram::merge(&inputs, None, &mut lookup.progress()).map_err(|error| lookup.explain(error))?;
        lookup.step("writing")?;
        cache.save(&output)?;
        let n_inputs = inputs.len();
        Ok(success(
            with_statistics(&cache, json!({"n_inputs": n_inputs, "output": output, "t_ms": ms(start.elapsed())})),
            fields.finish(),
        ))
    }

    /// `lookup_stats`: measures how well n-gram caches draft a text; see [`ngram::lookup_stats`].
    ///
    /// # Errors
    /// The request is invalid, a text cannot be tokenized because no model is loaded, a file cannot be read, or a later load or
    /// unload cancelled it.
    pub fn lookup_stats(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let text = TextSource::read(&mut fields)?;
        let n_draft = fields.int("n_draft", 0..=1024)?.unwrap_or(N_DRAFT);
        let n_ctx = fields.int::<usize>("n_ctx", 1..=i64::from(i32::MAX))?;
        let n_ctx = n_ctx.or_else(|| self.n_ctx()).unwrap_or(N_CTX);
        let fixed = fields.c_text("lookup_cache_static")?;
        let dynamic = fields.c_text("lookup_cache_dynamic")?;
        let lookup = self.begin_lookup("lookup_stats");
        let tokens = self.tokens(&lookup, text)?;
        lookup.step("loading")?;
        let start = Instant::now();
        let load = |path: &String| Cache::load(Path::new(path), self.n_vocab());
        let fixed = fixed.as_ref().map(load).transpose()?.unwrap_or_default();
        let mut dynamic = match dynamic.as_ref().map(load).transpose() {
            // As in llama.cpp: the file is created when a generation ends.
            Err(error) if error.code() == Code::NotFound => {
                fields.warn(format!("lookup_cache_dynamic: {}; using an empty cache", error.message()));
                Cache::new()
            }
            loaded => loaded?.unwrap_or_default(),
        };
        let t_draft_flat = start.elapsed();
        lookup.step("drafting")?;
        let stats = ngram::lookup_stats(&tokens, n_draft, n_ctx, &mut dynamic, &fixed, &mut lookup.progress());
        let stats = stats.map_err(|error| lookup.explain(error))?;
        let answer = json!({"n_tokens": tokens.len(), "n_draft": n_draft, "n_ctx": n_ctx});
        Ok(success(with_fields(answer, stats_fields(&stats, t_draft_flat)), fields.finish()))
    }

    /// The tokens of the text. Given token ids are checked against the vocabulary if a model is loaded.
    fn tokens(&self, lookup: &RunningLookup, text: TextSource) -> Result<Vec<Token>> {
        let text = match text {
            TextSource::Given(text) => Cow::Borrowed(text.as_bytes()),
            TextSource::File(path) => {
                // Without a model, fail before reading a large file.
                self.with_loaded(|_| Ok(()))?;
                Cow::Owned(read(Path::new(path))?)
            }
            TextSource::Tokens(tokens) => {
                let n_vocab = self.n_vocab().unwrap_or(usize::MAX);
                let outside = |token: &&Token| usize::try_from(**token).is_ok_and(|id| id >= n_vocab);
                return match tokens.iter().find(outside) {
                    Some(token) => Err(Error::invalid(format!(
                        "tokens: token {token} is not in the vocabulary of {n_vocab} tokens"
                    ))),
                    None => Ok(tokens),
                };
            }
        };
        lookup.step("tokenizing")?;
        self.with_loaded(|loaded| loaded.models().target.vocab().tokenize(&text, true, true))
    }

    /// The size of the loaded model's vocabulary.
    fn n_vocab(&self) -> Option<usize> {
        self.with_loaded(|loaded| Ok(loaded.models().target.vocab().n_tokens())).ok()
    }

    /// The loaded model's training context, which is llama.cpp's default, rounded up as llama.cpp does.
    fn n_ctx(&self) -> Option<usize> {
        let trained = self.with_loaded(|loaded| Ok(loaded.models().target.n_ctx_train())).ok()?;
        usize::try_from(trained).ok().filter(|n_ctx| *n_ctx > 0).map(|n_ctx| n_ctx.next_multiple_of(BLOCK))
    }
}

/// The source of the text.
enum TextSource<'a> {
    Given(&'a str),
    File(&'a str),
    Tokens(Vec<Token>),
}

impl<'a> TextSource<'a> {
    /// Reads `text`, `file` or `tokens`; exactly one must be given.
    fn read(fields: &mut Fields<'a>) -> Result<TextSource<'a>> {
        let text = fields.get("text").map(|value| text_in("text", value)).transpose()?;
        let file =
            fields.get("file").map(|value| c_text_in("file", value)).transpose()?.filter(|file| !file.is_empty());
        let token = |name: &str, value: &Value| int_in::<Token>(name, value, 0..=i64::from(Token::MAX));
        let tokens = fields.list("tokens", "an array of token ids", token)?;
        match (text, file, tokens) {
            (Some(text), None, None) => Ok(TextSource::Given(text)),
            (None, Some(file), None) => Ok(TextSource::File(file)),
            (None, None, Some(tokens)) => Ok(TextSource::Tokens(tokens)),
            _ => Err(Error::invalid("text, file, tokens: expected exactly one of them")),
        }
    }
}

/// Reads a text file in UTF-8, without a line feed at its end, as llama.cpp's `--file` does.
fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::invalid(format!("{}: {error}", path.display()));
    let file = atomic_write::open(path)?;
    let length = file.metadata().map_err(failed)?.len();
    let most = i32::MAX.unsigned_abs();
    if length > u64::from(most) {
        return Err(Error::invalid(format!("{}: expected at most {most} bytes, got {length}", path.display())));
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).map_err(failed)?;
    if let Err(error) = std::str::from_utf8(&text) {
        let offset = error.valid_up_to();
        return Err(Error::invalid(format!("{}: not UTF-8 at byte {offset}", path.display())));
    }
    text.pop_if(|last| *last == b'\n');
    Ok(text)
}

fn output(fields: &mut Fields) -> Result<PathBuf> {
    let path = fields.c_text("output")?;
    path.map(PathBuf::from).ok_or_else(|| Error::invalid("output: expected the path of a file, got nothing"))
}

/// Adds the statistics of a saved cache to the answer.
fn with_statistics(cache: &Cache, answer: Value) -> Value {
    let statistics = cache.statistics();
    let fields = [
        ("n_ngrams", cache.len().into()),
        ("ngrams_by_size", statistics.ngrams.to_vec().into()),
        ("n_continuations", statistics.continuations.into()),
        ("n_observations", statistics.observations.into()),
        ("size", statistics.file_bytes.into()),
        ("memory", statistics.bytes.into()),
    ];
    with_fields(answer, fields)
}

fn stats_fields(stats: &LookupStats, t_draft_flat: Duration) -> [(&'static str, Value); 11] {
    let Acceptance { drafted, accepted } = stats.all();
    let t_draft = ms(stats.t_draft);
    let tally = |tally: &Acceptance| json!({"n_drafted": tally.drafted, "n_accept": tally.accepted});
    let [context, dynamic, fixed] = stats.by_level.each_ref().map(tally);
    let positions = |tallies: &[Acceptance]| -> Value { tallies.iter().map(tally).collect() };
    [
        ("n_predict", stats.n_predict.into()),
        ("n_drafted", drafted.into()),
        ("n_accept", accepted.into()),
        ("accept_rate", ratio(accepted as f64, drafted as f64).into()),
        ("t_draft_flat_ms", ms(t_draft_flat).into()),
        ("t_draft_ms", t_draft.into()),
        ("us_per_token", ratio(1e3 * t_draft, drafted as f64).into()),
        ("tokens_per_second", ratio(1e3 * drafted as f64, t_draft).into()),
        ("by_level", json!({"context": context, "dynamic": dynamic, "static": fixed})),
        ("by_size", stats.by_size.iter().map(|tallies| positions(tallies)).collect::<Value>()),
        ("by_static", positions(&stats.static_cache)),
    ]
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}
