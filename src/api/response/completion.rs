//! Updates and final responses of completions.

use serde_json::{Map, Value, json};

use super::answer::error_json;
use super::parts::{
    pending_prompt_stats, probabilities, prompt_stats, restored_session, saved_session, speculative, timings,
};
use crate::api::registry::RequestRecord;
use crate::engine::{Event, Generated, Outcome, PromptProgress, SpeculationStats, Stop, Update};
use crate::llama::Vocab;
use crate::llama::log::{self, Level};

/// Logs an answer if the request has `__debug`.
pub(in crate::api) fn log_answer(record: &RequestRecord, answer: &Value) {
    if record.reply.debug {
        log::always(Level::Info, &format!("answer: {answer}"));
    }
}

/// The updates for an event of the engine: one, or two. As in the old server, all text is in updates with `"stop": false`, and
/// the last update, with `"stop": true`, has none.
pub(in crate::api) fn event_updates(record: &RequestRecord, index: usize, event: Event, vocab: &Vocab) -> Vec<Value> {
    match event {
        Event::Update(update) => vec![partial(record, index, update, vocab, usize::MAX)],
        Event::Progress(done) => vec![prompt_progress(record, index, &done)],
        Event::Finished(mut outcome) => {
            let rest = Update {
                text: std::mem::take(&mut outcome.text),
                tokens: std::mem::take(&mut outcome.tokens),
                timings: outcome.timings,
            };
            let shows_tokens = record.with_probs || record.reply.return_tokens;
            let has_content = !rest.text.is_empty() || (shows_tokens && !rest.tokens.is_empty());
            let end = shown_end(&outcome);
            let rest = has_content.then(|| partial(record, index, rest, vocab, end));
            let polled = record.polled.take(index);
            rest.into_iter().chain(completion_response(record, index, &outcome, &[], &polled, vocab)).collect()
        }
    }
}

/// The end of the text whose tokens have their probabilities shown. A stop string is not part of the completion, and its tokens'
/// probabilities are not either.
fn shown_end(outcome: &Outcome) -> usize {
    if matches!(outcome.stop, Stop::Word(_)) { outcome.text_end } else { usize::MAX }
}

/// The fields that every update begins with.
fn new_update(record: &RequestRecord, index: usize, text: &str) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert("content".into(), text.into());
    answer.insert("stop".into(), false.into());
    answer.insert("id".into(), record.handle.id().into());
    add_index(&mut answer, record, index);
    answer
}

fn add_index(answer: &mut Map<String, Value>, record: &RequestRecord, index: usize) {
    if record.has_results {
        answer.insert("index".into(), index.into());
    }
}

/// An update with text and its tokens. Only tokens that begin before `end` have their probabilities shown.
fn partial(record: &RequestRecord, index: usize, update: Update, vocab: &Vocab, end: usize) -> Value {
    let mut answer = new_update(record, index, &update.text);
    add_probabilities(&mut answer, record, update.tokens.iter().filter(|token| token.start < end), vocab);
    add_token_ids(&mut answer, record, update.tokens.iter());
    if record.reply.timings_per_token {
        answer.insert("timings".into(), timings(&update.timings));
    }
    add_tag(&mut answer, record);
    if record.with_probs {
        record.polled.add(index, update.tokens);
    }
    Value::Object(answer)
}

/// llama-server's update while a prompt is being decoded: numbers of tokens, and milliseconds since the request got its slot.
fn prompt_progress(record: &RequestRecord, index: usize, done: &PromptProgress) -> Value {
    let mut answer = new_update(record, index, "");
    add_token_ids(&mut answer, record, std::iter::empty());
    let progress = json!({
        "total": done.total,
        "cache": done.cached,
        "processed": done.processed,
        "time_ms": done.time.as_secs_f64() * 1e3,
    });
    answer.insert("prompt_progress".into(), progress);
    add_tag(&mut answer, record);
    Value::Object(answer)
}

/// The final response of a request that was not polled: of its single completion, or with the `results` of all of them, which is
/// successful if all of them are. `None` if the end of a completion is missing from `events`.
pub(in crate::api) fn final_response(
    record: &RequestRecord,
    events: Vec<(usize, Event)>,
    vocab: &Vocab,
) -> Option<Value> {
    let mut completions: Vec<(Vec<Update>, Option<Box<Outcome>>)> =
        record.completions.iter().map(|_| Default::default()).collect();
    for (index, event) in events {
        let (updates, end) = completions.get_mut(index)?;
        match event {
            Event::Update(update) => updates.push(update),
            Event::Progress(_) => {}
            Event::Finished(outcome) => *end = Some(outcome),
        }
    }
    let results = completions
        .into_iter()
        .enumerate()
        .map(|(index, (updates, end))| completion_response(record, index, end.as_deref()?, &updates, &[], vocab));
    let results: Vec<Value> = results.collect::<Option<_>>()?;
    if !record.has_results {
        return results.into_iter().next();
    }
    let failed = results.iter().find(|result| result.get("success") != Some(&Value::Bool(true)));
    let mut answer = Map::new();
    answer.insert("success".into(), failed.is_none().into());
    answer.insert("status".into(), 200.into());
    for key in ["status", "error", "code"] {
        if let Some(value) = failed.and_then(|failed| failed.get(key)) {
            answer.insert(key.into(), value.clone());
        }
    }
    answer.insert("id".into(), record.handle.id().into());
    answer.insert("results".into(), results.into());
    add_tag(&mut answer, record);
    Some(Value::Object(answer))
}

/// The final response of one completion. `content` is the text of `updates` and of `outcome`; the probabilities are those of their
/// tokens and of the tokens that were `polled` before.
fn completion_response(
    record: &RequestRecord,
    index: usize,
    outcome: &Outcome,
    updates: &[Update],
    polled: &[Generated],
    vocab: &Vocab,
) -> Option<Value> {
    let completion = record.completions.get(index)?;
    let content: String = updates.iter().map(|update| update.text.as_str()).chain([outcome.text.as_str()]).collect();
    let tokens: Vec<&Generated> = updates.iter().flat_map(|update| &update.tokens).chain(&outcome.tokens).collect();
    let (stop_type, word, error) = match &outcome.stop {
        Stop::Eos => ("eos", "", None),
        Stop::Word(word) => ("word", word.as_str(), None),
        Stop::Limit => ("limit", "", None),
        Stop::Timeout => ("timeout", "", None),
        Stop::Cancelled => ("cancelled", "", None),
        Stop::Error(error) => ("error", "", Some(error)),
    };
    let mut answer = match error.map(error_json) {
        Some(Value::Object(answer)) => answer,
        _ => Map::from_iter([("success".to_owned(), true.into()), ("status".to_owned(), 200.into())]),
    };
    let prompt = match completion.prompt.get() {
        Some(_) => prompt_stats(vocab, record, completion, outcome.prompt.n_cached),
        None => pending_prompt_stats(record),
    };
    let mut settings = completion.settings.clone();
    // Loading a session can change it.
    if let Value::Object(settings) = &mut settings {
        settings.insert("seed_position".into(), outcome.seed_position.into());
    }
    let rest = json!({
        "content": content,
        "stop": true,
        "id": record.handle.id(),
        "id_slot": outcome.slot,
        "model": record.model,
        "tokens_predicted": outcome.n_predicted,
        "tokens_evaluated": outcome.prompt.n_total,
        "generation_settings": settings,
        "truncated": outcome.truncated,
        "stopped_eos": stop_type == "eos",
        "stopped_word": stop_type == "word",
        "stopped_limit": stop_type == "limit",
        "stopping_word": word,
        "stop_type": stop_type,
        "tokens_cached": outcome.n_cached,
        "timings": timings(&outcome.timings),
        "prompt_stats": prompt,
    });
    if let Value::Object(rest) = rest {
        answer.extend(rest);
    }
    add_index(&mut answer, record, index);
    if record.endpoint.is_old() || record.reply.response_fields.iter().any(|field| field == "prompt") {
        answer.insert("prompt".into(), completion.shown_prompt());
    }
    if let Some(stats) = &outcome.speculation {
        answer.insert("speculative".into(), speculative(record, outcome, stats));
    } else if let Some(reason) = &record.not_speculating {
        let stats = SpeculationStats { disabled: Some(reason.clone()), ..SpeculationStats::default() };
        answer.insert("speculative".into(), speculative(record, outcome, &stats));
    }
    if let Some(restored) = &outcome.session_load {
        answer.insert("session_load".into(), restored_session(restored));
    }
    if let Some(saved) = &outcome.session_save {
        answer.insert("session_save".into(), saved.as_ref().map_or_else(error_json, saved_session));
    }
    let end = shown_end(outcome);
    let shown = polled.iter().chain(tokens.iter().copied()).filter(|token| token.start < end);
    add_probabilities(&mut answer, record, shown, vocab);
    add_token_ids(&mut answer, record, tokens.iter().copied());
    let warnings = record.warnings();
    if !warnings.is_empty() {
        answer.insert("warnings".into(), warnings.into());
    }
    add_tag(&mut answer, record);
    let answer =
        if record.reply.response_fields.is_empty() { answer } else { selected(answer, &record.reply.response_fields) };
    Some(Value::Object(answer))
}

/// The fields that `response_fields` names, as in llama-server: `a/b` selects the field `b` of the object `a`, under the name
/// `a/b`. Absent fields are skipped. `success`, the error, `index` and `tag` are always included.
fn selected(answer: Map<String, Value>, names: &[String]) -> Map<String, Value> {
    let find = |path: &str| {
        let mut keys = path.split('/');
        let first = answer.get(keys.next()?)?;
        keys.try_fold(first, |value, key| value.as_object()?.get(key))
    };
    let always = ["success", "index", "tag", "status", "error", "code"]
        .into_iter()
        .filter(|key| ["success", "index", "tag"].contains(key) || answer.get("success") == Some(&Value::Bool(false)));
    let names = names.iter().map(String::as_str).chain(always);
    names.filter_map(|name| Some((name.to_owned(), find(name)?.clone()))).collect()
}

fn add_tag(answer: &mut Map<String, Value>, record: &RequestRecord) {
    if let Some(tag) = &record.reply.tag {
        answer.insert("tag".into(), tag.clone());
    }
}

fn add_token_ids<'a>(
    answer: &mut Map<String, Value>,
    record: &RequestRecord,
    tokens: impl Iterator<Item = &'a Generated> + Clone,
) {
    if record.reply.return_tokens {
        answer.insert("tokens".into(), tokens.clone().map(|token| token.token).collect());
        answer.insert("sources".into(), tokens.map(|token| token.source.as_str()).collect());
    }
}

fn add_probabilities<'a>(
    answer: &mut Map<String, Value>,
    record: &RequestRecord,
    tokens: impl Iterator<Item = &'a Generated>,
    vocab: &Vocab,
) {
    if record.with_probs {
        let probs: Vec<Value> = tokens
            .filter_map(|token| Some(probabilities(token.probs.as_ref()?, record.post_sampling_probs, vocab)))
            .collect();
        answer.insert("completion_probabilities".into(), probs.into());
    }
}
