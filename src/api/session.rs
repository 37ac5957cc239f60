//! `session_save` and `session_load`, and what answers say about sessions.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::fields::{Fields, parse_object};
use super::response::success;
use super::{CompletionRequest, Server};
use crate::engine::{Restored, Saved};
use crate::error::{Error, Result};
use crate::host;

impl Server {
    /// `session_save`: writes what slot `id_slot` holds of target and draft to `filename`. Waits for the request that runs in
    /// the slot.
    ///
    /// # Errors
    /// The request is wrong, the slot is empty, or the file cannot be written.
    pub fn session_save(&self, request: &[u8]) -> Result<Value> {
        let (slot, path, warnings) = self.read_session_request("session_save", request)?;
        let start = Instant::now();
        let report = self.engine()?.save_session(slot, &path).map_err(|error| error.within("session_save"))?;
        let timings = json!({"save_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(slot, &path, saved(&report), timings, warnings))
    }

    /// `session_load`: puts what `filename` holds into slot `id_slot`. Waits for the request that runs in the slot.
    ///
    /// # Errors
    /// The request is wrong, or the file missing, damaged, of another version or another model: the slot is as it was.
    pub fn session_load(&self, request: &[u8]) -> Result<Value> {
        let (slot, path, warnings) = self.read_session_request("session_load", request)?;
        let start = Instant::now();
        let report = self.engine()?.load_session(slot, &path).map_err(|error| error.within("session_load"))?;
        let timings = json!({"load_ms": start.elapsed().as_secs_f64() * 1e3});
        Ok(answer(slot, &path, restored(&report), timings, warnings))
    }

    fn read_session_request(&self, function: &str, request: &[u8]) -> Result<(usize, PathBuf, Vec<String>)> {
        if host::inside() {
            return Err(Error::would_deadlock(function));
        }
        if !self.engine()?.generates() {
            return Err(Error::invalid(format!("{function}: the model generates no text")));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let slot: usize = fields.int("id_slot", 0..=i64::from(i32::MAX))?.unwrap_or(0);
        let path = fields.c_text("filename")?.ok_or_else(|| Error::invalid("filename: is missing"))?;
        self.check_slot(slot)?;
        Ok((slot, PathBuf::from(path), fields.finish()))
    }
}

/// Whether a completion's sessions can be served.
pub(super) fn check(request: &CompletionRequest) -> Result<()> {
    let texts = request.inputs.all.len().saturating_mul(request.n_cmpl);
    let asked = [("session_load", &request.options.session_load), ("session_save", &request.options.session_save)];
    for (name, _) in asked.into_iter().filter(|(_, path)| path.is_some()) {
        if request.speculative.draft_only {
            return Err(Error::invalid(format!(
                "{name}: the draft model that answers alone has slots that are no sessions"
            )));
        }
        if request.options.n_beams > 1 {
            return Err(Error::invalid(format!("{name}: beams have a context of their own, which is no session")));
        }
        if name == "session_save" && texts > 1 {
            return Err(Error::invalid(format!("session_save: {texts} texts would be saved to one file")));
        }
    }
    Ok(())
}

fn answer(slot: usize, path: &std::path::Path, report: Value, timings: Value, warnings: Vec<String>) -> Value {
    let mut answer = json!({"id_slot": slot, "filename": path.to_string_lossy()});
    if let (Value::Object(answer), Value::Object(report)) = (&mut answer, report) {
        answer.extend(report);
        answer.insert("timings".into(), timings);
    }
    success(answer, warnings)
}

/// What was saved: llama-server's names, and the draft's share.
pub(super) fn saved(saved: &Saved) -> Value {
    json!({"success": true, "n_saved": saved.n_tokens, "n_saved_draft": saved.n_draft, "n_written": saved.n_bytes})
}

/// What was loaded. `seed_position` is the one of a request whose prompt is just the session's tokens.
pub(super) fn restored(restored: &Restored) -> Value {
    json!({
        "success": true,
        "n_restored": restored.n_tokens,
        "n_restored_draft": restored.n_draft,
        "seed": restored.seed.map(|seed| seed.seed),
        "seed_position": restored.seed.map(|seed| seed.position(restored.n_tokens)),
    })
}
