//! `session_save`, `session_load` and `session_erase`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::loaded::local_engine::LocalEngine;
use crate::api::loaded::response::{restored_session, saved_session};
use crate::api::wire::answer::success;
use crate::api::wire::fields::{Fields, parse_object};
use crate::api::wire::request::duration;
use crate::error::{Error, Result};

/// A request of `session_save`, `session_load` or `session_erase`.
struct SessionRequest {
    slot: usize,
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
        let (session, path) = self.read_session_file("session_save", request)?;
        let start = Instant::now();
        let report = self.worker()?.save_session(session.slot, &path, session.timeout);
        let report = saved_session(&report.map_err(|error| error.within("session_save"))?);
        let timings = json!({"save_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(session, json!({"filename": path.to_string_lossy()}), report, timings))
    }

    /// `session_load`: restores the cache of slot `id_slot` from `filename`. Waits for the request that runs in the slot, at most
    /// `timeout_ms`.
    ///
    /// # Errors
    /// The request is invalid, or the file is missing, damaged, of another version or of another model. The slot is then unchanged.
    pub fn session_load(&self, request: &[u8]) -> Result<Value> {
        let (session, path) = self.read_session_file("session_load", request)?;
        let start = Instant::now();
        let report = self.worker()?.load_session(session.slot, &path, session.timeout);
        let report = restored_session(&report.map_err(|error| error.within("session_load"))?);
        let timings = json!({"load_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(session, json!({"filename": path.to_string_lossy()}), report, timings))
    }

    /// `session_erase`: empties the cache of slot `id_slot`, of target and draft. Waits for the request that runs in the slot, at most
    /// `timeout_ms`.
    ///
    /// # Errors
    /// The request is invalid, or the slot stays busy.
    pub fn session_erase(&self, request: &[u8]) -> Result<Value> {
        let session = self.read_session_request("session_erase", request, |_| Ok(()))?.0;
        let start = Instant::now();
        let erased = self.worker()?.erase_session(session.slot, session.timeout);
        let erased = erased.map_err(|error| error.within("session_erase"))?;
        let report = json!({"n_erased": erased.n_tokens, "n_erased_draft": erased.n_draft});
        let timings = json!({"erase_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(session, json!({}), report, timings))
    }

    /// Reads a request that names a file.
    fn read_session_file(&self, function: &str, request: &[u8]) -> Result<(SessionRequest, PathBuf)> {
        self.read_session_request(function, request, |fields| {
            let path = fields.c_text("filename")?;
            path.map(PathBuf::from).ok_or_else(|| Error::invalid("filename: expected a path, got nothing"))
        })
    }

    /// Reads a request. `more` reads the function's other fields.
    fn read_session_request<T>(
        &self,
        function: &str,
        request: &[u8],
        more: impl FnOnce(&mut Fields) -> Result<T>,
    ) -> Result<(SessionRequest, T)> {
        if !self.worker()?.generates() {
            return Err(Error::invalid(format!("{function}: the model generates no text")));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let slot: usize = fields.int("id_slot", 0..=i64::from(i32::MAX))?.unwrap_or(0);
        let others = more(&mut fields)?;
        self.validate_slot(slot)?;
        let timeout = duration(&mut fields, "timeout_ms")?;
        Ok((SessionRequest { slot, timeout, warnings: fields.finish() }, others))
    }
}

/// The answer: `id_slot`, and the fields of `file`, `report` and `timings`.
fn answer(session: SessionRequest, file: Value, report: Value, timings: Value) -> Value {
    let mut answer = json!({"id_slot": session.slot});
    if let Value::Object(answer) = &mut answer {
        for fields in [file, report, json!({"timings": timings})] {
            answer.extend(fields.as_object().cloned().unwrap_or_default());
        }
    }
    success(answer, session.warnings)
}
