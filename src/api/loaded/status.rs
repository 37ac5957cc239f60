//! The answer of `poll_system_status` and `foredraft_status`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::devices::{device_fields, level_names};
use crate::api::wire::answer::with_fields;
use crate::api::wire::load::{GivenModels, LoadRequest};
use crate::engine::drafters::{Compatibility, VocabSummary};
use crate::engine::{self, AttentionCost, AttentionReport, FitReport, Models, SelfCheck, SlotStatus};
use crate::error::Error;
use crate::llama::{self, DevicePlacement, DeviceUse, MediaCache, Model, Projector, SMALLER_PANELS, WeightLayout};

/// The state of an engine while no model is loaded.
#[derive(Debug, Clone, Default)]
pub enum LoadPhase {
    /// Nothing is loaded.
    #[default]
    Uninitialized,
    /// A load is running; its progress, 0..=1.
    Loading(f32),
    /// The last load failed.
    Failed(Error),
}

impl LoadPhase {
    /// The name used in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            LoadPhase::Uninitialized => "uninitialized",
            LoadPhase::Loading(_) => "loading",
            LoadPhase::Failed(_) => "failed",
        }
    }
}

/// The answer. `model`, `model_alias` and `model_draft` are those of the newest load; what a model itself reports is null, 0 or
/// empty while none is loaded.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EngineStatus {
    success: bool,
    /// 1: ready, 0: not yet, -1: failed.
    load_state: i8,
    /// The same under the old server's name.
    init_success: i8,
    state: &'static str,
    progress: f64,
    error: Option<String>,
    code: Option<&'static str>,
    /// The number that goes with `code`.
    status: Option<u16>,
    missing_file: Option<String>,
    denied_file: Option<String>,
    model: String,
    model_alias: String,
    model_draft: String,
    n_ctx: usize,
    n_ctx_train: u32,
    /// The tokens by which the target can be rolled back after a batch; `None`: any number.
    n_rollback: Option<usize>,
    n_parallel: usize,
    slots: Vec<Value>,
    queue: usize,
    queue_order: Vec<u64>,
    conversations: Value,
    vocab_only: bool,
    model_description: Option<String>,
    model_size: u64,
    model_n_params: u64,
    draft: Option<Value>,
    attention: Option<Value>,
    /// The purpose of the mmproj file.
    mmproj: Option<Value>,
    self_check: Option<SelfCheck>,
    cpu: Option<Value>,
    n_threads_now: usize,
    /// The bytes of weights that will be in panels, but are in the mapped file yet.
    pending_panel_bytes: u64,
    devices: Vec<Value>,
    fit: Option<FitReport>,
    system_info: Option<String>,
    warnings: Vec<String>,
    llama_cpp: String,
    version: &'static str,
}

impl EngineStatus {
    /// The status while no model is loaded.
    pub fn not_loaded(phase: &LoadPhase, given: &GivenModels) -> EngineStatus {
        EngineStatus { cpu: Some(cpu(None, None)), ..EngineStatus::without_cpu(phase, given) }
    }

    /// The status in a process that is cut off. `cpu` is null, because it is read under a lock.
    pub fn cut_off(error: Error) -> EngineStatus {
        EngineStatus::without_cpu(&LoadPhase::Failed(error), &GivenModels::default())
    }

    fn without_cpu(phase: &LoadPhase, given: &GivenModels) -> EngineStatus {
        let (load_state, progress, error) = match phase {
            LoadPhase::Uninitialized => (0, 0.0, None),
            LoadPhase::Loading(progress) => (0, *progress, None),
            LoadPhase::Failed(error) => (-1, 0.0, Some(error)),
        };
        let GivenModels { model, model_alias, model_draft } = given.clone();
        EngineStatus {
            success: true,
            load_state,
            init_success: load_state,
            state: phase.name(),
            model,
            model_alias,
            model_draft,
            progress: f64::from(progress),
            error: error.map(|error| error.message().to_owned()),
            code: error.map(|error| error.code().as_str()),
            status: error.map(|error| error.code().status()),
            missing_file: error.and_then(Error::missing_file).map(str::to_owned),
            denied_file: error.and_then(Error::denied_file).map(str::to_owned),
            llama_cpp: llama::llama_version(),
            version: env!("CARGO_PKG_VERSION"),
            ..EngineStatus::default()
        }
    }

    /// The part of a loaded engine's status that does not change. Querying the devices can be slow, so this is done once.
    pub fn loaded(models: &Models, load: &LoadRequest, media: Option<&MediaCache>) -> EngineStatus {
        let config = &load.config;
        let draft_path = config.draft.as_ref().map(|(model, _)| model.source.to_string());
        EngineStatus {
            success: true,
            load_state: 1,
            init_success: 1,
            state: "ready",
            progress: 1.0,
            model: config.model.source.to_string(),
            model_alias: load.alias(),
            model_draft: draft_path.unwrap_or_default(),
            n_ctx: models.n_ctx,
            n_ctx_train: models.target.n_ctx_train(),
            n_rollback: Some(models.rollback.max_tokens()).filter(|_| !models.rollback.is_unlimited()),
            n_parallel: config.n_parallel,
            vocab_only: models.target.vocab_only(),
            model_description: Some(models.target.description()),
            model_size: models.target.size(),
            model_n_params: models.target.n_params(),
            draft: models.compatibility.as_ref().map(|report| draft(report, models.draft.as_deref())),
            attention: models.attention.as_ref().map(
                |target| json!({"target": attention(target), "draft": models.attention_draft.as_ref().map(attention)}),
            ),
            mmproj: media.map(|media| mmproj(load, media.projector())),
            self_check: Some(models.self_check),
            cpu: Some(cpu(Some(&models.target), models.draft.as_deref())),
            devices: llama::devices().iter().map(|on| device(on, models)).collect(),
            fit: models.fit.clone(),
            system_info: Some(llama::system_info()),
            warnings: load.warnings.clone(),
            llama_cpp: llama::llama_version(),
            version: env!("CARGO_PKG_VERSION"),
            ..EngineStatus::default()
        }
    }

    /// The same status with the engine's current slots and queue, and what the models' panels lack.
    pub fn now(&self, models: &Models, engine: &engine::WorkerStatus) -> EngineStatus {
        let pending = |model: &Arc<Model>| model.pending_panel_bytes();
        let slots = engine.slots.iter().enumerate().map(|(id, status)| slot(id, status)).collect();
        EngineStatus {
            slots,
            queue: engine.queue,
            queue_order: engine.queue_order.clone(),
            conversations: json!({"n": engine.conversations.n, "bytes": engine.conversations.n_bytes}),
            n_threads_now: engine.n_threads_now,
            pending_panel_bytes: pending(&models.target) + models.draft.as_ref().map_or(0, pending),
            ..self.clone()
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        // Serialization fails only for maps with keys that are not strings, and there are none.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The purpose of the mmproj file.
fn mmproj(load: &LoadRequest, projector: &Projector) -> Value {
    json!({
        "path": load.projector.as_ref().map(|settings| settings.source.to_string()),
        "weights": projector.weight_type().as_str(),
        "vision": projector.has_vision(),
        "audio": projector.has_audio(),
        "n_embd": projector.n_embd(),
        "non_causal": projector.is_non_causal(),
    })
}

/// The attention kernel of a context, and how it was chosen.
fn attention(report: &AttentionReport) -> Value {
    let ms = |ms: f64| (ms * 1e3).round() / 1e3;
    let cost = |cost: &AttentionCost| json!({"depth": cost.depth, "n_tokens": cost.n_tokens, "on_ms": ms(cost.on_ms), "off_ms": ms(cost.off_ms)});
    json!({
        "flash_attn": report.flash_attn,
        "kernel": if report.own_kernel { "foredraft" } else { "ggml" },
        "cache_type_k": report.type_k.as_str(),
        "cache_type_v": report.type_v.as_str(),
        "chosen_by": report.chosen_by.as_str(),
        "measured": report.measured.iter().map(cost).collect::<Vec<_>>(),
    })
}

/// The level of instructions, the kernels in use, the layouts of weights, and the weights that ggml multiplies.
fn cpu(target: Option<&Model>, draft: Option<&Model>) -> Value {
    let ours_or = |is_ours: bool, other: &'static str| if is_ours { "foredraft" } else { other };
    let kernel = ours_or(llama::kernels_are_used(), "ggml");
    let replaced = llama::replacements();
    let mut fallback = serde_json::Map::new();
    for (format, n) in target.into_iter().chain(draft).flat_map(|model| model.fallback_weights()) {
        let before = fallback.get(format).and_then(Value::as_u64).unwrap_or(0);
        fallback.insert(format.clone(), json!(before + u64::from(*n)));
    }
    json!({
        "level": llama::level().map(llama::CpuLevel::as_str),
        "levels": level_names(),
        "kernels": {
            "matmul": kernel,
            "attention": kernel,
            "barrier": ours_or(replaced.barrier, "ggml"),
            "cell_order": ours_or(replaced.cell_order, "llama.cpp"),
            "math": ours_or(replaced.math, "system"),
        },
        "fallback_tensors": fallback,
        "layout": {"target": target.map(layouts), "draft": draft.map(layouts)},
    })
}

/// The layout of each type of weights that can be in panels.
fn layouts(model: &Model) -> Value {
    let us = |us: f64| (us * 10.0).round() / 10.0;
    let layout = |of: &WeightLayout| {
        let measured = of.cost.map(|cost| {
            let (panels, file) = (us(cost.panels()), us(cost.file));
            json!({"panels_us": panels, "file_us": file, "prefetched_us": us(cost.prefetched), "foreseen_us": us(cost.foreseen)})
        });
        let name = if of.in_panels { "panels" } else { "file" };
        let kind = of.becomes_smaller.then_some(SMALLER_PANELS);
        let layout = json!({"layout": name, "type": kind, "chosen_by": of.chosen_by.as_str(), "measured": measured});
        (of.format.clone(), layout)
    };
    model.weight_layouts().iter().map(layout).collect::<serde_json::Map<_, _>>().into()
}

fn slot(id: usize, slot: &SlotStatus) -> Value {
    json!({
        "id": id,
        "state": slot.phase.map_or("idle", |phase| phase.as_str()),
        "request_id": slot.request,
        "n_past": slot.n_past,
    })
}

fn device(device: &llama::Device, models: &Models) -> Value {
    let uses = |placement: &DevicePlacement| placement.on(&device.name).map(device_use);
    let uses = [("target", json!(uses(&models.placement))), ("draft", json!(uses(&models.placement_draft)))];
    with_fields(device_fields(device), uses)
}

/// The use of a device by a model and its contexts.
fn device_use(of: &DeviceUse) -> Value {
    json!({
        "n_layers": of.n_layers,
        "output": of.has_output,
        "weights": of.weights,
        "kv_cache": of.kv_cache,
        "compute": of.compute,
    })
}

/// Whether the draft model is compatible with the target, and how it drafts.
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
        "kind": model.map(|model| model.draft_kind().as_str()),
        "compatible": report.reason.is_none(),
        "reason": report.reason,
        "target": vocab(&report.target),
        "draft": vocab(&report.draft),
        "bos_matches": report.target.bos == report.draft.bos,
        "eos_matches": report.target.eos == report.draft.eos,
        "first_difference": difference.map(|(token, target, draft)| json!({"token": token, "target": target, "draft": draft})),
        "translates_tokens": report.is_cross_vocabulary,
        "n_ctx": report.n_ctx,
        "target_rolls_back": report.target_rolls_back,
        "draft_rolls_back": report.draft_rolls_back,
        "draft_vocab": report.n_scored,
        "weights": model.map(|model| model.weight_type().as_str()),
        "description": model.map(Model::description),
        "size": model.map(Model::size),
        "n_params": model.map(Model::n_params),
    })
}
