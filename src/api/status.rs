//! The answer of `poll_system_status`.

use serde_json::{Map, Value, json};

use super::Server;
use super::system::State;
use crate::llama::{self, Model};
use crate::speculative::{Compatibility, VocabSummary};

/// The status while nothing is loaded.
pub(super) fn without_server(state: &State) -> Value {
    let (name, success, progress, error) = match state {
        State::Uninitialized => ("uninitialized", 0, 0.0, None),
        State::Loading(progress) => ("loading", 0, *progress, None),
        State::Failed(error) => ("failed", -1, 0.0, Some(error)),
        State::Ready(_) => ("ready", 1, 1.0, None),
    };
    json!({
        "success": true,
        "init_success": success,
        "state": name,
        "progress": f64::from(progress),
        "error": error.map(|error| error.message()),
        "code": error.map(|error| error.code().as_str()),
        "model": null,
        "model_alias": null,
        "model_draft": null,
        "n_ctx": 0,
        "n_ctx_train": 0,
        "n_parallel": 0,
        "slots": [],
        "queue": 0,
        "vocab_only": false,
        "model_description": null,
        "model_size": 0,
        "model_n_params": 0,
        "draft": null,
        // Asked once, by who loads a model: that may take a while.
        "devices": [],
        "system_info": null,
        "warnings": [],
        "llama_cpp": crate::llama::llama_version(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The status of a loaded server.
pub(super) fn of_server(server: &Server) -> Value {
    let mut status = server.fixed_status().clone();
    let now = server.engine_status();
    let slots: Vec<Value> = (0..)
        .zip(&now.slots)
        .map(|(id, slot): (usize, _)| {
            json!({
                "id": id,
                "state": slot.phase.map_or("idle", |phase| phase.as_str()),
                "request_id": slot.request,
                "n_past": slot.n_past,
            })
        })
        .collect();
    status.insert("slots".into(), slots.into());
    status.insert("queue".into(), now.queue.into());
    Value::Object(status)
}

/// The part of the status that a server's life does not change; asking devices may take a while, so it is asked once.
pub(super) fn fixed(server: &Server) -> Map<String, Value> {
    let models = server.models();
    let devices: Vec<Value> = llama::devices()
        .into_iter()
        .map(|device| {
            json!({
                "name": device.name,
                "description": device.description,
                "type": device.kind,
                "memory_free": device.memory_free,
                "memory_total": device.memory_total,
            })
        })
        .collect();
    let config = server.config();
    let draft_path = config.draft.as_ref().map(|(model, _)| model.path.to_string_lossy().into_owned());
    let status = json!({
        "success": true,
        "init_success": 1,
        "state": "ready",
        "progress": 1.0,
        "error": null,
        "code": null,
        "model": config.model.path.to_string_lossy(),
        "model_alias": server.alias(),
        "model_draft": draft_path,
        "n_ctx": models.n_ctx,
        "n_ctx_train": models.target.n_ctx_train(),
        "n_parallel": config.n_parallel,
        "vocab_only": models.target.vocab_only(),
        "model_description": models.target.description(),
        "model_size": models.target.size(),
        "model_n_params": models.target.n_params(),
        "draft": models.compatibility.as_ref().map(|report| draft(report, models.draft.as_deref())),
        "devices": devices,
        "system_info": llama::system_info(),
        "llama_cpp": llama::llama_version(),
        "version": env!("CARGO_PKG_VERSION"),
        "warnings": server.warnings(),
    });
    match status {
        Value::Object(status) => status,
        _ => Map::new(),
    }
}

/// Whether and how the draft model serves the target.
fn draft(report: &Compatibility, model: Option<&Model>) -> Value {
    let vocab = |vocab: &VocabSummary| {
        json!({
            "vocab_type": vocab.kind.as_str(),
            "n_vocab": vocab.n_tokens,
            "bos": vocab.bos.0,
            "add_bos": vocab.bos.1,
            "eos": vocab.eos.0,
            "add_eos": vocab.eos.1,
        })
    };
    let difference = report.first_difference.as_ref();
    json!({
        "compatible": report.reason.is_none(),
        "reason": report.reason,
        "target": vocab(&report.target),
        "draft": vocab(&report.draft),
        "bos_matches": report.target.bos == report.draft.bos,
        "eos_matches": report.target.eos == report.draft.eos,
        "first_difference": difference.map(|(token, target, draft)| json!({"token": token, "target": target, "draft": draft})),
        "translates_tokens": report.translates,
        "n_ctx": report.n_ctx,
        "target_rolls_back": report.target_rolls_back,
        "draft_rolls_back": report.draft_rolls_back,
        "description": model.map(Model::description),
        "size": model.map(Model::size),
        "n_params": model.map(Model::n_params),
    })
}
