//! Answers: the engine's events and results as JSON.
//!
//! First the outer form of every answer, then updates and final responses of completions, then the objects inside of them.

use serde_json::{Map, Value, json};

use foredraft_chat::ChatMessage;

use super::registry::{CompletionRecord, RequestRecord};
use crate::api::loaded::chat_answer;
use crate::api::prompts::MEDIA;
use crate::api::wire::answer::{error_json, success, with_fields};
use crate::api::wire::request::Reply;
use crate::api::wire::usage::{TokenUsage, finish_reason};
use crate::engine::{
    Comparison, DecisionScores, Difference, Event, Generated, Outcome, PromptProbs, PromptProgress, Restored, Saved,
    SpeculationStats, Stop, Timings, Update,
};
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};
use crate::llama::{Token, TokenPieces};
use crate::sampling::TokenProbs;
use foredraft_base::prompt_fit;

/// The maximum length of the texts in `prompt_stats`, in characters.
const MAX_STATS_TEXT: usize = 1000;

/// The answer of a submit.
pub fn submitted(record: &RequestRecord) -> Value {
    let mut all = record.completions.iter().map(|completion| match completion.expected_cached {
        Some(n_cached) => prompt_stats(record, completion, n_cached),
        None => pending_prompt_stats(record),
    });
    let stats = if record.request.has_results() { all.collect() } else { all.next().unwrap_or_default() };
    success(json!({"id": record.handle.id(), "prompt_stats": stats}), record.warnings())
}

/// Waits until a request has finished, and returns the final response.
///
/// # Errors
/// The process of an isolated engine has refused the request; or a bug in the library.
pub fn wait_for_response(record: &RequestRecord) -> Result<Value> {
    let events = record.handle.wait();
    if let Some(error) = record.refusal.get() {
        return Err(error.clone());
    }
    let answer = final_response(record, events)
        .ok_or_else(|| Error::new(Code::Internal, "the engine ended without a result"))?;
    log_answer(record, &answer);
    Ok(answer)
}

/// Logs an answer if the request has `__debug`.
pub fn log_answer(record: &RequestRecord, answer: &Value) {
    if record.request.reply.debug {
        log::always(Level::Info, &format!("answer: {answer}"));
    }
}

/// The updates for an event of the engine: one, or two. As in the old server, all text is in updates with `"stop": false`, and
/// the last update, with `"stop": true`, has none.
pub fn event_updates(record: &RequestRecord, index: usize, event: Event) -> Vec<Value> {
    match event {
        Event::Update(update) => {
            chat_answer::push_text(record, index, &update.text);
            vec![partial(record, index, update, usize::MAX)]
        }
        Event::Progress(done) => vec![prompt_progress(record, index, &done)],
        Event::Restarted { cause } => {
            let mut update = new_update(record, index, "");
            update.insert("engine".into(), json!({"event": "restarted", "cause": cause}));
            add_tag(&mut update, record);
            vec![update.into()]
        }
        Event::Finished(mut outcome) => {
            let rest = Update {
                text: std::mem::take(&mut outcome.text),
                tokens: std::mem::take(&mut outcome.tokens),
                timings: outcome.timings,
            };
            let shows_tokens = record.with_probs() || record.request.reply.return_tokens;
            let has_content = !rest.text.is_empty() || (shows_tokens && !rest.tokens.is_empty());
            let end = shown_end(&outcome);
            let (delta, message) = chat_answer::finish_message(record, index, &rest.text).unzip();
            let has_delta = delta.as_ref().and_then(Value::as_object).is_some_and(|delta| !delta.is_empty());
            let mut rest = (has_content || has_delta).then(|| partial(record, index, rest, end));
            if let (Some(Value::Object(rest)), Some(delta)) = (&mut rest, delta) {
                rest.insert("delta".into(), delta);
            }
            let polled = record.polled.take(index);
            let is_copy = record.completions.get(index).is_some_and(|completion| completion.is_copy);
            let of_request = record.ended_usage.add(&outcome, is_copy, record.completions.len());
            let usage = if record.request.reply.include_usage { of_request } else { Some(TokenUsage::of(&outcome)) };
            let ended = EndedCompletion { index, outcome: &outcome, updates: &[], polled: &polled, message, usage };
            let end = completion_response(record, &ended);
            rest.into_iter().chain(end).collect()
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
    if record.request.reply.include_usage {
        answer.insert("usage".into(), Value::Null);
    }
    answer
}

fn add_index(answer: &mut Map<String, Value>, record: &RequestRecord, index: usize) {
    if record.request.has_results() {
        answer.insert("index".into(), index.into());
    }
}

/// An update with text and its tokens. Only tokens that begin before `end` have their probabilities shown.
fn partial(record: &RequestRecord, index: usize, update: Update, end: usize) -> Value {
    let mut answer = new_update(record, index, &update.text);
    let shown = update.tokens.iter().filter(|token| token.start < end);
    add_probabilities(&mut answer, record, shown.clone());
    chat_answer::add_logprobs(&mut answer, record, shown);
    add_token_ids(&mut answer, record, update.tokens.iter());
    if record.request.reply.timings_per_token {
        answer.insert("timings".into(), timings(&update.timings));
    }
    add_tag(&mut answer, record);
    if record.with_probs() {
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
pub fn final_response(record: &RequestRecord, events: Vec<(usize, Event)>) -> Option<Value> {
    let mut usage = TokenUsage::default();
    let mut completions: Vec<(Vec<Update>, Option<Box<Outcome>>)> =
        record.completions.iter().map(|_| Default::default()).collect();
    for (index, event) in events {
        let (updates, end) = completions.get_mut(index)?;
        match event {
            Event::Update(update) => updates.push(update),
            Event::Progress(_) | Event::Restarted { .. } => {}
            Event::Finished(outcome) => *end = Some(outcome),
        }
    }
    let results = completions.into_iter().enumerate().map(|(index, (updates, end))| {
        let outcome = end.as_deref()?;
        usage.add(outcome, record.completions.get(index)?.is_copy);
        let text = |update: &Update| chat_answer::push_text(record, index, &update.text);
        updates.iter().for_each(text);
        let message = chat_answer::finish_message(record, index, &outcome.text).map(|(_, message)| message);
        let own_usage = Some(TokenUsage::of(outcome));
        let ended = EndedCompletion { index, outcome, updates: &updates, polled: &[], message, usage: own_usage };
        completion_response(record, &ended)
    });
    let results: Vec<Value> = results.collect::<Option<_>>()?;
    if !record.request.has_results() {
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
    answer.insert("usage".into(), usage.to_json());
    add_tag(&mut answer, record);
    Some(Value::Object(answer))
}

/// A completion that has ended, for its final response.
struct EndedCompletion<'a> {
    /// Its number in the request.
    index: usize,
    outcome: &'a Outcome,
    /// The updates before the rest in `outcome`, if the response has them.
    updates: &'a [Update],
    /// The tokens that polls have taken, whose probabilities the response has.
    polled: &'a [Generated],
    /// The message, for a request with messages.
    message: Option<ChatMessage>,
    /// The response's `usage`; `None`: null.
    usage: Option<TokenUsage>,
}

/// The final response of one completion. `content` is the text of its updates and of its outcome; the probabilities are those of their
/// tokens and of the polled ones.
fn completion_response(record: &RequestRecord, ended: &EndedCompletion) -> Option<Value> {
    let EndedCompletion { index, outcome, updates, polled, ref message, usage } = *ended;
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
        Some(_) => prompt_stats(record, completion, outcome.prompt.n_cached),
        None => pending_prompt_stats(record),
    };
    let mut settings = record.settings(index);
    if let Value::Object(settings) = &mut settings {
        // Loading a session can change it.
        settings.insert("seed_position".into(), outcome.seed_position.into());
        if completion.prompt.get().is_some() {
            let n_keep = prompt_fit::effective_n_keep(
                record.request.options.n_keep,
                completion.tokens().len(),
                record.model.n_ctx,
            );
            settings.insert("n_keep".into(), n_keep.into());
        }
    }
    let rest = json!({
        "content": content,
        "stop": true,
        "id": record.handle.id(),
        "id_slot": outcome.slot,
        "model": record.model.name,
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
    if record.shows_prompt() {
        answer.insert("prompt".into(), completion.shown_prompt());
    }
    if let Some(stats) = &outcome.speculation {
        answer.insert("speculative".into(), speculative(record, outcome, stats));
    } else if let Some(reason) = record.request.speculative.disabled {
        let stats = SpeculationStats { disabled: Some(reason.to_owned()), ..SpeculationStats::default() };
        answer.insert("speculative".into(), speculative(record, outcome, &stats));
    }
    if let (Some(scores), true) = (outcome.decisions.first(), record.request.questions.is_empty()) {
        answer.insert("choice".into(), scores.choice.into());
        answer.insert("choices".into(), scored_choices(record, scores));
    }
    if !record.request.questions.is_empty() {
        let mut scores = outcome.decisions.iter().map(|scores| scores.probs.as_slice());
        let answers = record.request.questions.iter().map_while(|asked| {
            let orders: Vec<&[f64]> = asked.orders().filter_map(|_| scores.next()).collect();
            (!orders.is_empty()).then(|| (asked.id.clone(), asked.answer(&orders)))
        });
        answer.insert("answers".into(), answers.collect::<Map<_, _>>().into());
    }
    if let Some(restored) = &outcome.session_load {
        answer.insert("session_load".into(), restored_session(restored));
    }
    if let Some(saved) = &outcome.session_save {
        answer.insert("session_save".into(), saved.as_ref().map_or_else(error_json, saved_session));
    }
    let end = shown_end(outcome);
    let shown = polled.iter().chain(tokens.iter().copied()).filter(|token| token.start < end);
    add_probabilities(&mut answer, record, shown.clone());
    let with_function_call = record.request.chat.as_ref().is_some_and(|chat| chat.with_function_call);
    answer.insert("finish_reason".into(), finish_reason(&outcome.stop, message.as_ref(), with_function_call));
    let usage = usage.map_or(Value::Null, |usage| match record.request.questions.is_empty() {
        true => usage.to_json(),
        false => usage.of_decision(),
    });
    answer.insert("usage".into(), usage);
    if let (Some(chat), Some(message)) = (&record.request.chat, message) {
        chat_answer::add_message(&mut answer, chat, message);
        chat_answer::add_logprobs(&mut answer, record, shown);
    }
    if let Some(probs) = &outcome.prompt_probs {
        answer.insert("prompt_logprobs".into(), prompt_logprobs(probs, &record.model.pieces));
    }
    add_token_ids(&mut answer, record, tokens.iter().copied());
    let mut warnings = record.warnings();
    warnings.extend(chat_answer::message_warnings(record, index));
    if !warnings.is_empty() {
        answer.insert("warnings".into(), warnings.into());
    }
    add_tag(&mut answer, record);
    let answer =
        if record.request.reply.response_fields.is_empty() { answer } else { selected(answer, &record.request.reply) };
    Some(Value::Object(answer))
}

/// The choices of a request, each with its log-probability under the model, and its probability among all of them. Minus infinity, of a
/// banned token, is `null`.
fn scored_choices(record: &RequestRecord, scores: &DecisionScores) -> Value {
    let scored =
        record.request.choices.iter().flat_map(|choices| &choices.given).zip(scores.logprobs.iter().zip(&scores.probs));
    scored
        .map(|(choice, (logprob, prob))| {
            with_fields(choice.clone().into(), [("logprob", json!(logprob)), ("prob", json!(prob))])
        })
        .collect()
}

/// The fields that `response_fields` names, as in llama-server: `a/b` selects the field `b` of the object `a`, under the name
/// `a/b`. Absent fields are skipped. The fields by which hosts tell answers apart are always included: `success`, `id`, `stop`, `index`,
/// `tag`, `warnings` and all of an error; and `usage` with `include_usage`.
fn selected(answer: Map<String, Value>, reply: &Reply) -> Map<String, Value> {
    let find = |path: &str| {
        let mut keys = path.split('/');
        let first = answer.get(keys.next()?)?;
        keys.try_fold(first, |value, key| value.as_object()?.get(key))
    };
    let has_failed = answer.get("success") == Some(&Value::Bool(false));
    let of_failure = ["status", "missing_file", "denied_file", "n_prompt_tokens", "n_ctx"];
    let of_failure = of_failure.into_iter().filter(|_| has_failed);
    let always = ["success", "id", "stop", "index", "tag", "warnings", "error", "code"].into_iter().chain(of_failure);
    let asked = reply.include_usage.then_some("usage");
    let names = reply.response_fields.iter().map(String::as_str).chain(always).chain(asked);
    names.filter_map(|name| Some((name.to_owned(), find(name)?.clone()))).collect()
}

fn add_tag(answer: &mut Map<String, Value>, record: &RequestRecord) {
    if let Some(tag) = &record.request.reply.tag {
        answer.insert("tag".into(), tag.clone());
    }
}

fn add_token_ids<'a>(
    answer: &mut Map<String, Value>,
    record: &RequestRecord,
    tokens: impl Iterator<Item = &'a Generated> + Clone,
) {
    if record.request.reply.return_tokens {
        answer.insert("tokens".into(), tokens.clone().map(|token| token.token).collect());
        answer.insert("sources".into(), tokens.map(|token| token.source.as_str()).collect());
    }
}

fn add_probabilities<'a>(
    answer: &mut Map<String, Value>,
    record: &RequestRecord,
    tokens: impl Iterator<Item = &'a Generated>,
) {
    if record.with_probs() {
        let probs: Vec<Value> = tokens
            .filter_map(|token| {
                Some(probabilities(
                    token.probs.as_ref()?,
                    record.request.options.post_sampling_probs,
                    &record.model.pieces,
                ))
            })
            .collect();
        answer.insert("completion_probabilities".into(), probs.into());
    }
}

/// `timings`, under llama-server's names.
fn timings(timings: &Timings) -> Value {
    let prompt_ms = timings.prompt.as_secs_f64() * 1e3;
    let predicted_ms = timings.predicted.as_secs_f64() * 1e3;
    // The first token comes from the prompt's logits, so its time is in `prompt` and not in `predicted`.
    let answer = json!({
        "prompt_n": timings.prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": ratio(prompt_ms, timings.prompt_n as f64),
        "prompt_per_second": ratio(1e3 * timings.prompt_n as f64, prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": ratio(predicted_ms, timings.predicted_n as f64),
        "predicted_per_second": ratio(1e3 * timings.predicted_n as f64, predicted_ms),
        "cache_n": timings.cache_n,
        "preempted_n": timings.n_preempted,
        "begun_n": timings.n_begun,
    });
    let draft =
        timings.draft.map(|(drafted, accepted)| [("draft_n", drafted.into()), ("draft_n_accepted", accepted.into())]);
    let missed = timings.deadline_missed.map(|missed| ("deadline_missed_ms", json!(missed.as_secs_f64() * 1e3)));
    with_fields(answer, draft.into_iter().flatten().chain(missed))
}

/// `speculative`: what was drafted and accepted.
fn speculative(record: &RequestRecord, outcome: &Outcome, stats: &SpeculationStats) -> Value {
    let by_type: Map<String, Value> = stats
        .by_source
        .iter()
        .map(|(source, (drafted, accepted))| {
            (source.as_str().to_owned(), json!({"n_drafted": drafted, "n_accepted": accepted}))
        })
        .collect();
    let requested = &record.request.speculative;
    let kind = requested.settings.as_ref().map_or("none".into(), |_| requested.kind());
    let verify = requested.settings.as_ref().map(|settings| settings.verify.as_str());
    let answer = json!({
        "type": kind,
        "verify": verify,
        "n_drafted": stats.n_drafted,
        "n_accepted": stats.n_accepted,
        "accept_rate": ratio(stats.n_accepted as f64, stats.n_drafted as f64),
        "n_steps": stats.n_steps,
        "tokens_per_step": ratio(outcome.n_predicted as f64, stats.n_steps as f64),
        "accepted_per_position": stats.accepted_per_position,
        "by_type": by_type,
        "t_draft_ms": stats.t_draft.as_secs_f64() * 1e3,
        "t_verify_ms": stats.t_verify.as_secs_f64() * 1e3,
        "n_max_final": stats.n_max_final,
    });
    let disabled = stats.disabled.as_ref().map(|reason| ("disabled", reason.as_str().into()));
    let compared = requested.compare.then(|| comparison(record, outcome, stats.comparison.as_ref()));
    with_fields(answer, disabled.into_iter().chain(compared.into_iter().flatten()))
}

/// The first difference to the completion without speculation, or the reason why it is unknown.
fn comparison(
    record: &RequestRecord,
    outcome: &Outcome,
    comparison: Option<&Comparison>,
) -> Vec<(&'static str, Value)> {
    let skipped = |reason: &str| vec![("compare_skipped", reason.into())];
    let aborted = matches!(outcome.stop, Stop::Cancelled | Stop::Timeout | Stop::Error(_));
    match comparison {
        Some(Comparison::Done(None)) => vec![("first_difference", Value::Null)],
        Some(Comparison::Done(Some(Difference { index, logit_gap }))) => {
            vec![("first_difference", json!(index)), ("first_difference_logit_gap", json!(logit_gap))]
        }
        Some(Comparison::Skipped(reason)) => skipped(reason),
        None if aborted && record.request.speculative.settings.is_some() => {
            skipped("the request was ended before it was complete")
        }
        None => skipped("the request did not speculate"),
    }
}

/// `prompt_stats`: how much of the prompt is cached, and how much remains to be decoded. The beginnings of both parts are
/// included if `response_fields` allows them.
pub fn prompt_stats(record: &RequestRecord, completion: &CompletionRecord, n_cached: usize) -> Value {
    let (prompt, n_ctx) = (completion.tokens(), record.model.n_ctx);
    let dropped = prompt_fit::prompt_truncation(
        prompt.len(),
        prompt_fit::effective_n_keep(record.request.options.n_keep, prompt.len(), n_ctx),
        n_ctx,
    );
    let gap = dropped.clone().unwrap_or(prompt.len()..prompt.len());
    let (head, tail) = (prompt.get(..gap.start).unwrap_or(&[]), prompt.get(gap.end..).unwrap_or(&[]));
    let stats = json!({
        "n_ctx": n_ctx,
        "total_prompt_tokens": prompt.len(),
        "truncated": dropped.is_some(),
        "n_past": n_cached,
        "n_cached": n_cached,
        "n_to_eval": (head.len() + tail.len()).saturating_sub(n_cached),
        "dropped_messages": completion.prompt.get().map_or(0, |prompt| prompt.n_dropped),
    });
    let kept = || head.iter().chain(tail);
    let is_wanted = |name: &str| record.request.reply.wants("prompt_stats", name);
    let cached = is_wanted("cached").then(|| ("cached", beginning(&record.model.pieces, kept().take(n_cached)).into()));
    let to_eval =
        is_wanted("to_eval").then(|| ("to_eval", beginning(&record.model.pieces, kept().skip(n_cached)).into()));
    with_fields(stats, cached.into_iter().chain(to_eval))
}

/// `prompt_stats` of a prompt that is not tokenized yet.
pub fn pending_prompt_stats(record: &RequestRecord) -> Value {
    json!({"n_ctx": record.model.n_ctx, "pending": true})
}

/// The text of the tokens, with pictures as [`MEDIA`], up to [`MAX_STATS_TEXT`] characters.
fn beginning<'a>(pieces: &TokenPieces, tokens: impl Iterator<Item = &'a Token>) -> String {
    let mut bytes = Vec::new();
    let mut in_media = false;
    for token in tokens {
        let is_row = *token < 0;
        bytes.extend_from_slice(match is_row && !in_media {
            true => MEDIA.as_bytes(),
            false => pieces.piece(*token),
        });
        in_media = is_row;
        // A character has at most four bytes.
        if bytes.len() >= 4 * MAX_STATS_TEXT {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).chars().take(MAX_STATS_TEXT).collect()
}

/// The probabilities of one token: the old server's fields, and llama-server's beside them. `post`: they were taken after the
/// sampler chain, where llama-server uses other names.
fn probabilities(probs: &TokenProbs, post: bool, pieces: &TokenPieces) -> Value {
    let describe = |token: Token, logprob: f32| {
        let piece = pieces.piece(token);
        // JSON has no infinity; llama-server writes the smallest float.
        let (name, value) = if post { ("prob", logprob.exp()) } else { ("logprob", logprob.max(f32::MIN)) };
        json!({"id": token, "token": String::from_utf8_lossy(piece), "bytes": piece, name: value})
    };
    let old: Vec<Value> = probs
        .top
        .iter()
        .map(|(token, logprob)| json!({"tok_str": old_piece(pieces.piece(*token)), "prob": logprob.exp()}))
        .collect();
    let top: Vec<Value> = probs.top.iter().map(|(token, logprob)| describe(*token, *logprob)).collect();
    let content = old_piece(pieces.piece(probs.token)).into();
    let top_name = if post { "top_probs" } else { "top_logprobs" };
    with_fields(
        describe(probs.token, probs.logprob),
        [("content", content), ("probs", old.into()), (top_name, top.into())],
    )
}

/// `prompt_logprobs`: an entry for each token of the prompt. Nothing predicts the first one.
fn prompt_logprobs(probs: &PromptProbs, pieces: &TokenPieces) -> Value {
    let first = TokenProbs { token: probs.first, logprob: 0.0, top: Vec::new() };
    let mut all: Vec<Value> =
        std::iter::once(&first).chain(&probs.others).map(|probs| probabilities(probs, false, pieces)).collect();
    for entry in &mut all {
        // The old server's names are not needed here.
        if let Value::Object(entry) = entry {
            entry.retain(|name, _| name != "content" && name != "probs");
        }
    }
    if let Some(logprob) = all.first_mut().and_then(|first| first.get_mut("logprob")) {
        *logprob = Value::Null;
    }
    all.into()
}

/// A piece in the old server's form: a single byte that is part of a character is shown as a number.
fn old_piece(piece: &[u8]) -> String {
    match piece {
        [byte] if *byte >= 0x80 => format!("byte: \\x{byte:02x}"),
        _ => String::from_utf8_lossy(piece).into_owned(),
    }
}

/// The result of `session_save`: llama-server's names, and the draft's share.
pub fn saved_session(saved: &Saved) -> Value {
    json!({"success": true, "n_saved": saved.n_tokens, "n_saved_draft": saved.n_draft, "n_written": saved.n_bytes})
}

/// The result of `session_load`. `seed_position` is the RNG counter of a request whose prompt is exactly the session's tokens.
pub fn restored_session(restored: &Restored) -> Value {
    json!({
        "success": true,
        "n_restored": restored.n_tokens,
        "n_restored_draft": restored.n_draft,
        "seed": restored.seed.map(|seed| seed.seed),
        "seed_position": restored.seed.map(|seed| seed.position(restored.n_tokens)),
    })
}

/// `a / b`, and 0 where `b` is 0: JSON has no infinity.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
