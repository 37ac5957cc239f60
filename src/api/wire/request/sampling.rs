//! The sampler's fields: one table of names and ranges. Reading and reporting use it, and a test compares it with docs/reference/request.md.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, c_text_in, set, shortest, show, text_in, unavailable, unexpected, word_in};
use crate::error::{Error, Result};
use crate::sampling::{MirostatVersion, SamplingSettings, Stage};

/// The maximum number of past tokens that a penalty considers: more than any context has, and small enough to store.
pub const MAX_WINDOW: i64 = 1 << 24;
/// The maximum number of candidates: more than any vocabulary has.
const MAX_CANDIDATES: i64 = 1 << 20;
/// The maximum length of `samplers`.
const MAX_STAGES: usize = 64;
/// The maximum number of `dry_sequence_breakers`: the engine's thread searches the whole vocabulary for each.
const MAX_BREAKERS: usize = 64;
const ANY: f32 = f32::MAX;

/// A row of the table.
struct SamplerField {
    key: &'static str,
    setting: SettingRef,
}

/// The setting that a field sets in [`SamplingSettings`], with its minimum and maximum.
enum SettingRef {
    Number(fn(&mut SamplingSettings) -> &mut f32, f32, f32),
    Int(fn(&mut SamplingSettings) -> &mut i32, i64, i64),
    Count(fn(&mut SamplingSettings) -> &mut usize, i64, i64),
    Flag(fn(&mut SamplingSettings) -> &mut bool),
}

use SettingRef::{Count, Flag, Int, Number};

const fn field(key: &'static str, setting: SettingRef) -> SamplerField {
    SamplerField { key, setting }
}

const I32: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

/// If two keys have the same setting, the later one is used.
static FIELDS: [SamplerField; 27] = [
    field("temp", Number(|s| &mut s.temperature, -ANY, 1000.0)),
    field("temperature", Number(|s| &mut s.temperature, -ANY, 1000.0)),
    field("dynatemp_range", Number(|s| &mut s.dynatemp_range, 0.0, 1000.0)),
    field("dynatemp_exponent", Number(|s| &mut s.dynatemp_exponent, 0.0, 1000.0)),
    field("top_k", Int(|s| &mut s.top_k, I32.0, I32.1)),
    field("top_p", Number(|s| &mut s.top_p, 0.0, 1.0)),
    field("min_p", Number(|s| &mut s.min_p, 0.0, 1.0)),
    field("tfs_z", Number(|s| &mut s.tfs_z, 0.0, 1.0)),
    field("typical_p", Number(|s| &mut s.typical_p, 0.0, 1.0)),
    field("top_n_sigma", Number(|s| &mut s.top_n_sigma, -ANY, 1000.0)),
    field("xtc_probability", Number(|s| &mut s.xtc_probability, 0.0, 1.0)),
    field("xtc_threshold", Number(|s| &mut s.xtc_threshold, 0.0, 1.0)),
    field("dry_multiplier", Number(|s| &mut s.dry.multiplier, 0.0, 1000.0)),
    field("dry_base", Number(|s| &mut s.dry.base, 1.0, 1000.0)),
    field("dry_allowed_length", Int(|s| &mut s.dry.allowed_length, 0, MAX_WINDOW)),
    field("dry_penalty_last_n", Int(|s| &mut s.dry.penalty_last_n, -1, MAX_WINDOW)),
    field("repeat_last_n", Int(|s| &mut s.repeat_last_n, -1, MAX_WINDOW)),
    field("repeat_penalty", Number(|s| &mut s.repeat_penalty, 0.01, 100.0)),
    field("presence_penalty", Number(|s| &mut s.presence_penalty, -1e4, 1e4)),
    field("frequency_penalty", Number(|s| &mut s.frequency_penalty, -1e4, 1e4)),
    field("penalize_nl", Flag(|s| &mut s.penalize_nl)),
    field("mirostat_tau", Number(|s| &mut s.mirostat_tau, 0.0, 1000.0)),
    field("mirostat_eta", Number(|s| &mut s.mirostat_eta, 0.0, 1000.0)),
    field("adaptive_target", Number(|s| &mut s.adaptive_target, -ANY, 1.0)),
    field("adaptive_decay", Number(|s| &mut s.adaptive_decay, 0.0, 0.99)),
    field("min_keep", Count(|s| &mut s.min_keep, 0, MAX_CANDIDATES)),
    field("n_probs", Count(|s| &mut s.n_probs, 0, MAX_CANDIDATES)),
];

/// The stages with llama.cpp's name, letter and aliases. Case, `-` and `_` are ignored.
const STAGES: [(Stage, &str, char, &[&str]); 11] = [
    (Stage::Penalties, "penalties", 'e', &[]),
    (Stage::Dry, "dry", 'd', &[]),
    (Stage::TopNSigma, "top_n_sigma", 's', &[]),
    (Stage::TopK, "top_k", 'k', &[]),
    (Stage::TfsZ, "tfs_z", 'f', &["tfs"]),
    (Stage::TypicalP, "typ_p", 'y', &["typ", "typical", "typical_p"]),
    (Stage::TopP, "top_p", 'p', &["nucleus"]),
    (Stage::MinP, "min_p", 'm', &[]),
    (Stage::Xtc, "xtc", 'x', &[]),
    (Stage::Temperature, "temperature", 't', &["temp"]),
    (Stage::AdaptiveP, "adaptive_p", 'a', &[]),
];
/// Stages of llama.cpp that are not supported.
const OTHER_STAGES: [&str; 1] = ["infill"];

/// Reads all fields except `seed` and `logit_bias`, which keep their defaults.
pub(super) fn read(fields: &mut Fields) -> Result<SamplingSettings> {
    let mut settings = SamplingSettings::default();
    for SamplerField { key, setting, .. } in &FIELDS {
        match *setting {
            Number(setting, min, max) => set(setting(&mut settings), fields.number(key, min..=max)?),
            Int(setting, min, max) => set(setting(&mut settings), fields.int(key, min..=max)?),
            Count(setting, min, max) => set(setting(&mut settings), fields.int(key, min..=max)?),
            Flag(setting) => set(setting(&mut settings), fields.flag(key)?),
        }
    }
    let mirostat: Option<i64> = fields.int("mirostat", 0..=2)?;
    set(
        &mut settings.mirostat,
        mirostat.map(|version| match version {
            1 => MirostatVersion::V1,
            2 => MirostatVersion::V2,
            _ => MirostatVersion::Off,
        }),
    );
    set(&mut settings.dry.sequence_breakers, breakers(fields)?);
    if let Some(value) = fields.get("samplers") {
        settings.stages = stages(value)?;
    }
    Ok(settings)
}

/// Reads `dry_sequence_breakers`, without duplicates.
fn breakers(fields: &mut Fields) -> Result<Option<Vec<String>>> {
    let key = "dry_sequence_breakers";
    let given = fields.list(key, "an array of strings", |name, value| match c_text_in(name, value)? {
        "" => Err(unexpected(name, "a string that is not empty", value)),
        text => Ok(text),
    })?;
    let Some(mut texts) = given else { return Ok(None) };
    let mut seen = HashSet::new();
    texts.retain(|text| seen.insert(*text));
    if texts.len() > MAX_BREAKERS {
        let (name, n) = (fields.name(key), texts.len());
        return Err(Error::invalid(format!("{name}: expected at most {MAX_BREAKERS} different strings, got {n}")));
    }
    Ok(Some(texts.into_iter().map(str::to_owned).collect()))
}

/// The JSON of the fields that [`read`] reads.
pub(super) fn report(settings: &SamplingSettings) -> Map<String, Value> {
    let mut settings = settings.clone();
    let mut report = Map::new();
    for SamplerField { key, setting, .. } in &FIELDS {
        let value = match *setting {
            Number(setting, ..) => shortest(*setting(&mut settings)),
            Int(setting, ..) => json!(*setting(&mut settings)),
            Count(setting, ..) => json!(*setting(&mut settings)),
            Flag(setting) => json!(*setting(&mut settings)),
        };
        report.insert((*key).to_owned(), value);
    }
    let mirostat = match settings.mirostat {
        MirostatVersion::Off => 0,
        MirostatVersion::V1 => 1,
        MirostatVersion::V2 => 2,
    };
    report.insert("mirostat".to_owned(), json!(mirostat));
    report.insert("dry_sequence_breakers".to_owned(), json!(settings.dry.sequence_breakers));
    let names: Vec<&str> = settings.stages.iter().filter_map(|stage| stage_name(*stage)).collect();
    report.insert("samplers".to_owned(), json!(names));
    report
}

fn stage_name(stage: Stage) -> Option<&'static str> {
    STAGES.iter().find(|(known, ..)| *known == stage).map(|(_, name, ..)| *name)
}

/// Reads `samplers`: an array of names, names separated by `;` (as in `--samplers`), or a string of letters (as in `--sampler-seq`
/// and llama-server).
fn stages(value: &Value) -> Result<Vec<Stage>> {
    let name = "samplers";
    let stages: Vec<Stage> = match value {
        Value::String(text) if text.contains(';') => text
            .split(';')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(|word| stage(name, &Value::from(word)))
            .collect::<Result<_>>()?,
        Value::String(text) => text
            .chars()
            .map(|letter| STAGES.iter().find(|(_, _, known, _)| *known == letter).map(|(stage, ..)| *stage))
            .collect::<Option<_>>()
            .ok_or_else(|| {
                let letters: String = STAGES.iter().map(|(_, _, letter, _)| *letter).collect();
                unexpected(name, &format!("an array of names, or letters of {letters:?}"), value)
            })?,
        Value::Array(items) => {
            items.iter().enumerate().map(|(i, item)| stage(&format!("{name}[{i}]"), item)).collect::<Result<_>>()?
        }
        _ => return Err(unexpected(name, "an array of names", value)),
    };
    if stages.len() > MAX_STAGES {
        return Err(Error::invalid(format!("{name}: expected at most {MAX_STAGES} stages, got {}", stages.len())));
    }
    Ok(stages)
}

fn stage(name: &str, value: &Value) -> Result<Stage> {
    let plain = |word: &str| word.replace(['-', '_'], "").to_lowercase();
    let word = plain(text_in(name, value)?);
    let found = STAGES
        .iter()
        .find(|(_, known, _, others)| plain(known) == word || others.iter().any(|other| plain(other) == word));
    match found {
        Some((stage, ..)) => Ok(*stage),
        None if OTHER_STAGES.iter().any(|other| plain(other) == word) => {
            Err(unavailable(&format!("{name} {}", show(value))))
        }
        None => {
            let known: Vec<(&str, Stage)> = STAGES.iter().map(|(stage, name, ..)| (*name, *stage)).collect();
            word_in(name, value, &known)
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
