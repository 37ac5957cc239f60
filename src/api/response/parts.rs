//! The objects inside of answers: timings, speculation, prompt statistics, probabilities, sessions.

use serde_json::{Map, Value, json};

use super::answer::ratio;
use crate::api::registry::{CompletionRecord, RequestRecord};
use crate::engine::{Comparison, Difference, Outcome, Restored, Saved, SpeculationStats, Stop, Timings};
use crate::llama::{Token, Vocab};
use crate::sampling::TokenProbs;
use crate::session;

/// The maximum length of the texts in `prompt_stats`, in characters.
const MAX_STATS_TEXT: usize = 1000;

/// `timings`, under llama-server's names.
pub(super) fn timings(timings: &Timings) -> Value {
    let prompt_ms = timings.prompt.as_secs_f64() * 1e3;
    let predicted_ms = timings.predicted.as_secs_f64() * 1e3;
    // The first token comes from the prompt's logits, so its time is in `prompt` and not in `predicted`.
    let mut answer = json!({
        "prompt_n": timings.prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": ratio(prompt_ms, timings.prompt_n as f64),
        "prompt_per_second": ratio(1e3 * timings.prompt_n as f64, prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": ratio(predicted_ms, timings.predicted_n as f64),
        "predicted_per_second": ratio(1e3 * timings.predicted_n as f64, predicted_ms),
        "cache_n": timings.cache_n,
    });
    if let (Some((drafted, accepted)), Value::Object(answer)) = (timings.draft, &mut answer) {
        answer.insert("draft_n".into(), drafted.into());
        answer.insert("draft_n_accepted".into(), accepted.into());
    }
    answer
}

/// `speculative`: what was drafted and accepted.
pub(super) fn speculative(record: &RequestRecord, outcome: &Outcome, stats: &SpeculationStats) -> Value {
    let by_type: Map<String, Value> = stats
        .by_source
        .iter()
        .map(|(source, (drafted, accepted))| {
            (source.as_str().to_owned(), json!({"n_drafted": drafted, "n_accepted": accepted}))
        })
        .collect();
    let kind = record.speculation.as_ref().map_or("none".into(), |(kind, _)| kind.clone());
    let verify = record.speculation.as_ref().map(|(_, verify)| verify.as_str());
    let mut answer = json!({
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
    if let (Some(reason), Value::Object(answer)) = (&stats.disabled, &mut answer) {
        answer.insert("disabled".into(), reason.as_str().into());
    }
    if let (true, Value::Object(answer)) = (record.compare, &mut answer) {
        answer.extend(comparison(record, outcome, stats.comparison.as_ref()));
    }
    answer
}

/// The first difference to the completion without speculation, or the reason why it is unknown.
fn comparison(record: &RequestRecord, outcome: &Outcome, comparison: Option<&Comparison>) -> Map<String, Value> {
    let aborted = matches!(outcome.stop, Stop::Cancelled | Stop::Timeout | Stop::Error(_));
    let answer = match comparison {
        Some(Comparison::Done(None)) => json!({"first_difference": null}),
        Some(Comparison::Done(Some(Difference { index, logit_gap }))) => {
            json!({"first_difference": index, "first_difference_logit_gap": logit_gap})
        }
        Some(Comparison::Skipped(reason)) => json!({"compare_skipped": reason}),
        None if aborted && record.speculation.is_some() => {
            json!({"compare_skipped": "the request was ended before it was complete"})
        }
        None => json!({"compare_skipped": "the request did not speculate"}),
    };
    match answer {
        Value::Object(answer) => answer,
        _ => Map::new(),
    }
}

/// `prompt_stats`: how much of the prompt is cached, and how much remains to be decoded. The beginnings of both parts are
/// included if `response_fields` allows them.
pub(in crate::api) fn prompt_stats(
    vocab: &Vocab,
    record: &RequestRecord,
    completion: &CompletionRecord,
    n_cached: usize,
) -> Value {
    let (prompt, n_ctx) = (completion.tokens(), record.n_ctx);
    let dropped =
        session::prompt_truncation(prompt.len(), session::effective_n_keep(record.n_keep, prompt.len(), n_ctx), n_ctx);
    let gap = dropped.clone().unwrap_or(prompt.len()..prompt.len());
    let (head, tail) = (prompt.get(..gap.start).unwrap_or(&[]), prompt.get(gap.end..).unwrap_or(&[]));
    let mut stats = json!({
        "n_ctx": n_ctx,
        "total_prompt_tokens": prompt.len(),
        "truncated": dropped.is_some(),
        "n_past": n_cached,
        "n_cached": n_cached,
        "n_to_eval": (head.len() + tail.len()).saturating_sub(n_cached),
        "dropped_messages": completion.prompt.get().map_or(0, |prompt| prompt.n_dropped),
    });
    if let Value::Object(stats) = &mut stats {
        let kept = || head.iter().chain(tail);
        if record.reply.wants("prompt_stats", "cached") {
            stats.insert("cached".into(), beginning(vocab, kept().take(n_cached)).into());
        }
        if record.reply.wants("prompt_stats", "to_eval") {
            stats.insert("to_eval".into(), beginning(vocab, kept().skip(n_cached)).into());
        }
    }
    stats
}

/// `prompt_stats` of a prompt that is not tokenized yet.
pub(in crate::api) fn pending_prompt_stats(record: &RequestRecord) -> Value {
    json!({"n_ctx": record.n_ctx, "pending": true})
}

/// The text of the tokens, up to [`MAX_STATS_TEXT`] characters.
fn beginning<'a>(vocab: &Vocab, tokens: impl Iterator<Item = &'a Token>) -> String {
    let mut bytes = Vec::new();
    for token in tokens {
        bytes.extend_from_slice(vocab.piece(*token));
        // A character has at most four bytes.
        if bytes.len() >= 4 * MAX_STATS_TEXT {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).chars().take(MAX_STATS_TEXT).collect()
}

/// The probabilities of one token: the old server's fields, and llama-server's beside them. `post`: they were taken after the
/// sampler chain, where llama-server uses other names.
pub(super) fn probabilities(probs: &TokenProbs, post: bool, vocab: &Vocab) -> Value {
    let describe = |token: Token, logprob: f32| {
        let piece = vocab.piece(token);
        // JSON has no infinity; llama-server writes the smallest float.
        let (name, value) = if post { ("prob", logprob.exp()) } else { ("logprob", logprob.max(f32::MIN)) };
        json!({"id": token, "token": String::from_utf8_lossy(piece), "bytes": piece, name: value})
    };
    let old: Vec<Value> = probs
        .top
        .iter()
        .map(|(token, logprob)| json!({"tok_str": old_piece(vocab.piece(*token)), "prob": logprob.exp()}))
        .collect();
    let top: Vec<Value> = probs.top.iter().map(|(token, logprob)| describe(*token, *logprob)).collect();
    let mut answer = match describe(probs.token, probs.logprob) {
        Value::Object(answer) => answer,
        _ => Map::new(),
    };
    answer.insert("content".into(), old_piece(vocab.piece(probs.token)).into());
    answer.insert("probs".into(), old.into());
    answer.insert(if post { "top_probs" } else { "top_logprobs" }.into(), top.into());
    Value::Object(answer)
}

/// A piece in the old server's form: a single byte that is part of a character is shown as a number.
fn old_piece(piece: &[u8]) -> String {
    match piece {
        [byte] if *byte >= 0x80 => format!("byte: \\x{byte:02x}"),
        _ => String::from_utf8_lossy(piece).into_owned(),
    }
}

/// The result of `session_save`: llama-server's names, and the draft's share.
pub(in crate::api) fn saved_session(saved: &Saved) -> Value {
    json!({"success": true, "n_saved": saved.n_tokens, "n_saved_draft": saved.n_draft, "n_written": saved.n_bytes})
}

/// The result of `session_load`. `seed_position` is the RNG counter of a request whose prompt is exactly the session's tokens.
pub(in crate::api) fn restored_session(restored: &Restored) -> Value {
    json!({
        "success": true,
        "n_restored": restored.n_tokens,
        "n_restored_draft": restored.n_draft,
        "seed": restored.seed.map(|seed| seed.seed),
        "seed_position": restored.seed.map(|seed| seed.position(restored.n_tokens)),
    })
}
