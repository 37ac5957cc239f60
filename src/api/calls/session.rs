//! `session_save` and `session_load`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::LocalEngine;
use crate::api::fields::{Fields, parse_object};
use crate::api::request::duration;
use crate::api::response::{restored_session, saved_session, success};
use crate::error::{Error, Result};
use crate::host;

/// A request of `session_save` or `session_load`.
struct SessionRequest {
    slot: usize,
    path: PathBuf,
    /// How long to wait for the slot. `None`: without limit.
    timeout: Option<Duration>,
    warnings: Vec<String>,
}

impl LocalEngine {
    /// `session_save`: writes the cache of slot `id_slot`, of target and draft, to `filename`. Waits for the request that runs in the
    /// slot, at most `timeout_ms`.
    ///
    /// # Errors
    /// The request is invalid, the slot is empty, or the file cannot be written.
    pub fn session_save(&self, request: &[u8]) -> Result<Value> {
        let SessionRequest { slot, path, timeout, warnings } = self.read_session_request("session_save", request)?;
        let start = Instant::now();
        let report = self.worker()?.save_session(slot, &path, timeout).map_err(|error| error.within("session_save"))?;
        let timings = json!({"save_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(slot, &path, saved_session(&report), timings, warnings))
    }

    /// `session_load`: restores the cache of slot `id_slot` from `filename`. Waits for the request that runs in the slot, at most
    /// `timeout_ms`.
    ///
    /// # Errors
    /// The request is invalid, or the file is missing, damaged, of another version or of another model. The slot is then unchanged.
    pub fn session_load(&self, request: &[u8]) -> Result<Value> {
        let SessionRequest { slot, path, timeout, warnings } = self.read_session_request("session_load", request)?;
        let start = Instant::now();
        let report = self.worker()?.load_session(slot, &path, timeout).map_err(|error| error.within("session_load"))?;
        let timings = json!({"load_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(slot, &path, restored_session(&report), timings, warnings))
    }

    fn read_session_request(&self, function: &str, request: &[u8]) -> Result<SessionRequest> {
        if host::inside() {
            return Err(Error::would_deadlock(function));
        }
        if !self.worker()?.generates() {
            return Err(Error::invalid(format!("{function}: the model generates no text")));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let slot: usize = fields.int("id_slot", 0..=i64::from(i32::MAX))?.unwrap_or(0);
        let path =
            fields.c_text("filename")?.ok_or_else(|| Error::invalid("filename: expected a path, got nothing"))?;
        self.validate_slot(slot)?;
        let timeout = duration(&mut fields, "timeout_ms")?;
        Ok(SessionRequest { slot, path: PathBuf::from(path), timeout, warnings: fields.finish() })
    }
}

fn answer(slot: usize, path: &Path, report: Value, timings: Value, warnings: Vec<String>) -> Value {
    let mut answer = json!({"id_slot": slot, "filename": path.to_string_lossy()});
    if let (Value::Object(answer), Value::Object(report)) = (&mut answer, report) {
        answer.extend(report);
        answer.insert("timings".into(), timings);
    }
    success(answer, warnings)
}
