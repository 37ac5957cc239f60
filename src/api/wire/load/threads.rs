//! A load's keys for the threads of decodes: number, placement and frame budget.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::api::wire::fields::{Fields, c_text_in, number_in, unexpected};
use crate::error::{Error, Result};
use crate::llama::{CpuSet, FrameBudget, ThreadPriority, ThreadSettings, default_threads_on};

/// `GGML_MAX_N_THREADS`.
const MAX_THREADS: i64 = 512;

/// The names of the keys for one kind of decodes.
struct Keys {
    n_threads: &'static str,
    prio: &'static str,
    cpu_mask: &'static str,
    cpu_range: &'static str,
    cpu_strict: &'static str,
    poll: &'static str,
}

macro_rules! keys {
    ($suffix:literal) => {
        Keys {
            n_threads: concat!("n_threads", $suffix),
            prio: concat!("prio", $suffix),
            cpu_mask: concat!("cpu_mask", $suffix),
            cpu_range: concat!("cpu_range", $suffix),
            cpu_strict: concat!("cpu_strict", $suffix),
            poll: concat!("poll", $suffix),
        }
    };
}

/// Decodes of one token.
const SINGLE: Keys = keys!("");
/// Decodes of several tokens.
const BATCH: Keys = keys!("_batch");
const DRAFT: Keys = keys!("_draft");
const BATCH_DRAFT: Keys = keys!("_batch_draft");

/// The settings for one kind of decodes. Absent ones have the value of another kind.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    n_threads: Option<i32>,
    priority: Option<ThreadPriority>,
    cpus: Option<CpuSet>,
    strict: Option<bool>,
    poll: Option<u32>,
}

impl Given {
    fn read(fields: &mut Fields, keys: &Keys) -> Result<Given> {
        Ok(Given {
            // Absent, 0 and -1 mean the default.
            n_threads: fields.int(keys.n_threads, -1..=MAX_THREADS)?.filter(|threads: &i32| *threads > 0),
            priority: priority(fields, keys.prio)?,
            cpus: cpus(fields, keys)?,
            strict: strict(fields, keys.cpu_strict)?,
            poll: fields.int(keys.poll, 0..=100)?,
        })
    }

    /// These settings, with absent ones from `other`.
    fn or(self, other: Given) -> Given {
        Given {
            n_threads: self.n_threads.or(other.n_threads),
            priority: self.priority.or(other.priority),
            cpus: self.cpus.or(other.cpus),
            strict: self.strict.or(other.strict),
            poll: self.poll.or(other.poll),
        }
    }

    fn settings(&self, poll: u32) -> ThreadSettings {
        ThreadSettings {
            priority: self.priority.unwrap_or_default(),
            cpus: self.cpus.unwrap_or_default(),
            strict: self.strict.unwrap_or(false),
            poll: self.poll.unwrap_or(poll),
        }
    }
}

/// The threads of a context, for one token and for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContextThreads {
    pub(super) n_threads: i32,
    pub(super) n_threads_batch: i32,
    pub(super) settings: ThreadSettings,
    pub(super) settings_batch: ThreadSettings,
}

/// Reads the threads of the target's and the draft's context, and the frame budget.
pub(super) fn read(
    fields: &mut Fields,
    default_threads: i32,
) -> Result<(ContextThreads, ContextThreads, Option<FrameBudget>)> {
    let frame_budget = frame_budget(fields)?;
    // Polling threads would use the host's part of the interval.
    let poll = if frame_budget.is_some() { 0 } else { ThreadSettings::DEFAULT_POLL };
    let single = Given::read(fields, &SINGLE)?;
    let batch = Given::read(fields, &BATCH)?;
    let draft = Given::read(fields, &DRAFT)?;
    let batch_draft = Given::read(fields, &BATCH_DRAFT)?;
    let mut crowded: Vec<(i32, CpuSet)> = Vec::new();
    let mut threads = |given: Given, keys: &Keys| {
        let settings = given.settings(poll);
        let n_cpus = settings.cpus.iter().count();
        let default = if n_cpus > 0 { default_threads_on(&settings.cpus) } else { default_threads };
        let n_threads = given.n_threads.unwrap_or(default);
        let is_crowded = n_cpus > 0 && usize::try_from(n_threads).is_ok_and(|n_threads| n_threads > n_cpus);
        // Once for keys with the same value.
        if is_crowded && !crowded.contains(&(n_threads, settings.cpus)) {
            crowded.push((n_threads, settings.cpus));
            let (name, cpus) = (keys.n_threads, settings.cpus);
            fields.warn(format!("{name}: {n_threads} threads share the CPUs {cpus}, which makes decodes slower"));
        }
        (n_threads, settings)
    };
    let mut context = |(single, single_keys), (batch, batch_keys)| {
        let ((n_threads, settings), (n_threads_batch, settings_batch)) =
            (threads(single, single_keys), threads(batch, batch_keys));
        ContextThreads { n_threads, n_threads_batch, settings, settings_batch }
    };
    let (batch, own_batch) = (batch.or(single), batch);
    let target = context((single, &SINGLE), (batch, &BATCH));
    // The default number of threads for the draft's batches is the target's for batches. The other defaults are the draft's for one token.
    let of_draft = Given { n_threads: None, ..draft };
    let draft = context((draft.or(single), &DRAFT), (batch_draft.or(of_draft).or(own_batch).or(single), &BATCH_DRAFT));
    Ok((target, draft, frame_budget))
}

/// Reads a priority, as llama.cpp's number or `"idle"`.
fn priority(fields: &mut Fields, key: &'static str) -> Result<Option<ThreadPriority>> {
    const IDLE: i64 = -2;
    let number = fields.int_or_word(key, -1..=3, &[("idle", IDLE)])?;
    Ok(number.map(|number| match number {
        ..=IDLE => ThreadPriority::Idle,
        -1 => ThreadPriority::Low,
        0 => ThreadPriority::Normal,
        1 => ThreadPriority::Medium,
        2 => ThreadPriority::High,
        3.. => ThreadPriority::Realtime,
    }))
}

/// Reads mask and range, and returns the union.
fn cpus(fields: &mut Fields, keys: &Keys) -> Result<Option<CpuSet>> {
    let mut read = |key, expected: &str, parse: fn(&str) -> Option<CpuSet>| -> Result<Option<CpuSet>> {
        let Some(value) = fields.get(key) else { return Ok(None) };
        match c_text_in(key, value)? {
            "" => Ok(None),
            text => parse(text).ok_or_else(|| unexpected(key, expected, value)).map(Some),
        }
    };
    let mask = read(keys.cpu_mask, "at most 128 hexadecimal digits, such as \"0x3\"", CpuSet::from_mask)?;
    let range = read(keys.cpu_range, "first-last, such as \"0-3\", of CPUs from 0 to 511", CpuSet::from_range)?;
    Ok(match (mask, range) {
        (Some(mask), Some(range)) => Some(mask.union(range)),
        (mask, range) => mask.or(range),
    })
}

/// Reads true or false, or 1 or 0 as in llama.cpp's flag.
fn strict(fields: &mut Fields, key: &'static str) -> Result<Option<bool>> {
    match fields.get(key) {
        Some(Value::Number(_)) => Ok(fields.int(key, 0..=1)?.map(|strict: u8| strict == 1)),
        _ => fields.flag(key),
    }
}

/// Reads `{"busy_ms": 6, "per_ms": 16}`, or false for no budget.
fn frame_budget(fields: &mut Fields) -> Result<Option<FrameBudget>> {
    const KEY: &str = "frame_budget";
    let expected = "an object {\"busy_ms\", \"per_ms\"} or false";
    let object: &Map<String, Value> = match fields.get(KEY) {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Object(object)) => object,
        Some(other) => return Err(unexpected(KEY, expected, other)),
    };
    let mut nested = Fields::nested("frame_budget.", object);
    let mut ms = |key: &'static str| -> Result<f32> {
        let name = nested.name(key);
        let value = nested.get(key).ok_or_else(|| Error::invalid(format!("{name}: expected a number, got nothing")))?;
        number_in(&name, value, 0.5..=1e6)
    };
    let (busy, per) = (ms("busy_ms")?, ms("per_ms")?);
    if busy > per {
        let why = format!("frame_budget.busy_ms: expected at most per_ms, which is {per}, got {busy}");
        return Err(Error::invalid(why));
    }
    fields.absorb(nested);
    let time = |ms: f32| Duration::from_secs_f64(f64::from(ms) / 1e3);
    // A budget of the whole interval is no limit.
    Ok((busy < per).then(|| FrameBudget { busy: time(busy), per: time(per) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_all(object: Value) -> Result<(ContextThreads, ContextThreads, Option<FrameBudget>, Vec<String>)> {
        let object = object.as_object().expect("an object").clone();
        let mut fields = Fields::new(&object);
        let (target, draft, budget) = read(&mut fields, 2)?;
        Ok((target, draft, budget, fields.finish()))
    }

    fn set(range: &str) -> CpuSet {
        CpuSet::from_range(range).expect("a range")
    }

    #[test]
    fn absent_keys_are_those_of_another_kind_of_decodes() {
        let plain = ThreadSettings::default();
        let of = |n_threads, n_threads_batch, settings, settings_batch| ContextThreads {
            n_threads,
            n_threads_batch,
            settings,
            settings_batch,
        };
        let check = |object: Value, target: ContextThreads, draft: ContextThreads| {
            let read = read_all(object.clone()).expect("valid");
            assert_eq!((read.0, read.1), (target, draft), "{object}");
        };
        check(json!({}), of(2, 2, plain, plain), of(2, 2, plain, plain));
        let low = ThreadSettings { priority: ThreadPriority::Low, ..plain };
        let polls = |settings: ThreadSettings, poll| ThreadSettings { poll, ..settings };
        check(
            json!({"prio": -1, "n_threads": 3, "poll_batch": 50}),
            of(3, 3, low, polls(low, 50)),
            of(3, 3, low, polls(low, 50)),
        );
        let idle = ThreadSettings { priority: ThreadPriority::Idle, ..plain };
        check(json!({"prio_draft": "idle"}), of(2, 2, plain, plain), of(2, 2, idle, idle));
        let high = ThreadSettings { priority: ThreadPriority::High, ..plain };
        check(json!({"prio_draft": 2}), of(2, 2, plain, plain), of(2, 2, high, high));
        check(json!({"prio_batch": 2}), of(2, 2, plain, high), of(2, 2, plain, high));
        check(
            json!({"prio_batch_draft": 2, "n_threads_batch": 5, "n_threads_draft": 1}),
            of(2, 5, plain, plain),
            of(1, 5, plain, high),
        );
    }

    #[test]
    fn mask_and_range_name_cpus_together() {
        let cpus =
            |object: Value| read_all(object).map(|(target, draft, ..)| (target.settings.cpus, draft.settings.cpus));
        let both = set("0-1").union(set("4-4"));
        assert_eq!(cpus(json!({"cpu_mask": "0x10", "cpu_range": "0-1"})), Ok((both, both)));
        assert_eq!(cpus(json!({"cpu_mask": "", "cpu_range_draft": "1-1"})), Ok((CpuSet::default(), set("1-1"))));
        for strict in [json!(true), json!(1)] {
            let read = read_all(json!({"cpu_strict": strict, "cpu_range": "0-0", "n_threads": 1})).expect("valid");
            assert!(read.0.settings.strict && read.1.settings_batch.strict && read.3.is_empty(), "{:?}", read.3);
        }
        let read = read_all(json!({"cpu_range": "0-0", "n_threads": 2})).expect("valid");
        let warning = "n_threads: 2 threads share the CPUs 0, which makes decodes slower";
        assert_eq!(read.3, [warning], "once for all kinds of decodes");
        assert_eq!(read_all(json!({"cpu_range": "0-0"})).map(|read| read.0.n_threads), Ok(1), "one thread for one CPU");
    }

    #[test]
    fn wrong_values_are_errors_that_name_the_key() {
        for (object, message) in [
            (json!({"prio": 4}), "prio: expected a whole number from -1 to 3, or \"idle\", got 4"),
            (
                json!({"prio_batch": "high"}),
                "prio_batch: expected a whole number from -1 to 3, or \"idle\", got \"high\"",
            ),
            (json!({"cpu_mask": "0xzz"}), "cpu_mask: expected at most 128 hexadecimal digits, such as \"0x3\", got"),
            (json!({"cpu_mask": 3}), "cpu_mask: expected a string, got 3"),
            (json!({"cpu_range_draft": "3-1"}), "cpu_range_draft: expected first-last"),
            (json!({"cpu_strict": 2}), "cpu_strict: expected a whole number from 0 to 1, got 2"),
            (json!({"poll_draft": 101}), "poll_draft: expected a whole number from 0 to 100, got 101"),
            (json!({"frame_budget": 6}), "frame_budget: expected an object"),
            (json!({"frame_budget": {"busy_ms": 6}}), "frame_budget.per_ms: expected a number, got nothing"),
            (json!({"frame_budget": {"busy_ms": 0, "per_ms": 16}}), "frame_budget.busy_ms: expected a number from 0.5"),
            (json!({"frame_budget": {"busy_ms": 17, "per_ms": 16}}), "frame_budget.busy_ms: expected at most per_ms"),
        ] {
            let error = read_all(object.clone()).expect_err("it is wrong");
            assert!(error.message().starts_with(message), "{object}: {error}");
        }
    }

    #[test]
    fn frame_budget_paces_and_stops_polling() {
        let ms = Duration::from_millis;
        let read = read_all(json!({"frame_budget": {"busy_ms": 6, "per_ms": 16, "per": 1}})).expect("valid");
        assert_eq!(read.2, Some(FrameBudget { busy: ms(6), per: ms(16) }));
        assert_eq!((read.0.settings.poll, read.1.settings_batch.poll), (0, 0));
        assert_eq!(read.3.len(), 1, "an unknown key: {:?}", read.3);
        let polls = read_all(json!({"frame_budget": {"busy_ms": 6, "per_ms": 16}, "poll": 5})).expect("valid");
        assert_eq!(polls.0.settings.poll, 5);
        for none in [json!(null), json!(false), json!({"busy_ms": 16, "per_ms": 16})] {
            assert_eq!(read_all(json!({"frame_budget": none})).map(|read| read.2), Ok(None), "{none}");
        }
    }
}
