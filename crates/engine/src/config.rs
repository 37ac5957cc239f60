//! The configuration of an engine, and the models that it then has.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::attention::AttentionReport;
use super::self_check::SelfCheck;
use crate::drafters::Compatibility;
use crate::session::SelfExtend;
use foredraft_llama::{
    ContextParams, DevicePlacement, FrameBudget, Model, ModelParams, Numa, Rollback, ThreadPriority, ThreadSettings,
};
use serde::Serialize;

/// A validated load.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The target model.
    pub model: ModelParams,
    /// The target's context. `n_seq_max` is set by the engine from `n_parallel`.
    pub context: ContextParams,
    /// The draft model and its context, if there is one.
    pub draft: Option<(ModelParams, ContextParams)>,
    /// The most frequent tokens that drafts of the draft model can have, beside those of the context. 0: all; `None`: as many as pay.
    pub draft_vocab: Option<usize>,
    /// Whether requests may draft with the target's layers for multi-token prediction, which [`ModelParams::mtp`] then loads.
    pub mtp: bool,
    /// The file of the static n-gram cache.
    pub lookup_static: Option<PathBuf>,
    /// The initial dynamic n-gram cache, if the file exists.
    pub lookup_dynamic: Option<PathBuf>,
    /// Whether layers and context are reduced to what fits into the devices' memory, and how.
    pub fit: Option<FitSettings>,
    /// The number of slots.
    pub n_parallel: usize,
    /// Whether a full context drops its middle and goes on (otherwise the request ends).
    pub ctx_shift: bool,
    /// Grouping of positions in target and draft (then contexts do not shift).
    pub self_extend: Option<SelfExtend>,
    /// Whether `foredraft_embed` is served (by a context of its own).
    pub embedding: bool,
    /// Requests that may wait for a slot; one more is refused.
    pub max_queue: usize,
    /// The most bytes of conversations in memory.
    pub cache_ram: usize,
    /// The folder of conversations that memory does not hold. `None`: they are dropped.
    pub cache_dir: Option<PathBuf>,
    /// The most bytes of the files there. `None`: no limit.
    pub cache_dir_limit: Option<u64>,
    /// Whether both models decode before the first request, so that it is not slower than others, and batches of all sizes are measured.
    pub warmup: bool,
    /// NUMA strategy, if any; takes effect once a process.
    pub numa: Option<Numa>,
    /// The time that decodes may take of each interval, if the host wants the rest.
    pub frame_budget: Option<FrameBudget>,
    /// `host:port` of ggml RPC servers whose devices are used.
    pub rpc: Vec<String>,
    /// How long an RPC server may be silent before it counts as lost. `None`: without limit.
    pub rpc_timeout: Option<Duration>,
}

impl Config {
    /// The contexts of the target and of the draft model.
    pub(super) fn contexts(&self) -> impl Iterator<Item = &ContextParams> {
        std::iter::once(&self.context).chain(self.draft.as_ref().map(|(_, context)| context))
    }

    /// The settings of the threads of all decodes.
    pub(super) fn thread_settings(&self) -> impl Iterator<Item = ThreadSettings> {
        self.contexts().flat_map(|context| [context.thread_settings, context.thread_settings_batch])
    }

    /// Whether all decodes have the idle priority. Then the load has it, too.
    pub(super) fn is_idle(&self) -> bool {
        self.thread_settings().all(|settings| settings.priority == ThreadPriority::Idle)
    }
}

/// The limits of `fit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitSettings {
    /// The bytes that stay free on each device.
    pub margin: u64,
    /// The shortest context. `None`: `n_ctx` if it is given, else [`DEFAULT_N_CTX`](foredraft_llama::DEFAULT_N_CTX).
    pub least_n_ctx: Option<u32>,
}

/// The bytes of a device that `fit` counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceFit {
    /// Its name.
    pub name: String,
    /// The most that may be used.
    pub limit: u64,
    /// The estimate of what was asked for. `None`: llama.cpp refuses a context of it.
    pub asked: Option<u64>,
    /// The estimate of the choice.
    pub needed: Option<u64>,
}

/// The choice of `fit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FitReport {
    /// Why.
    pub devices: Vec<DeviceFit>,
    /// The target's layers whose experts are on the CPU.
    pub n_cpu_moe: u32,
    /// Layers of the target on GPUs, with the output as one.
    pub n_gpu_layers: u32,
    /// Layers of the draft model on GPUs, if there is one.
    pub n_gpu_layers_draft: Option<u32>,
    /// The context length, as `n_ctx`.
    pub n_ctx: u32,
    /// Whether the choice is less than requested.
    #[serde(rename = "reduced")]
    pub is_reduced: bool,
    /// Whether everything fits, by the estimate. False: even without layers, the rest does not.
    pub fits: bool,
}

/// The models of a running engine.
#[derive(Debug, Clone)]
pub struct Models {
    /// The target.
    pub target: Arc<Model>,
    /// The draft.
    pub draft: Option<Arc<Model>>,
    /// Whether the draft can serve the target.
    pub compatibility: Option<Compatibility>,
    /// Tokens that one request's context may hold.
    pub n_ctx: usize,
    /// How far the target's context can be rolled back.
    pub rollback: Rollback,
    /// The attention of the target's context, if there is one.
    pub attention: Option<AttentionReport>,
    /// The attention of the draft's.
    pub attention_draft: Option<AttentionReport>,
    /// The target's use of each device, with the contexts that the load makes.
    pub placement: DevicePlacement,
    /// The draft's use of each device.
    pub placement_draft: DevicePlacement,
    /// The choice of `fit`, if it was used.
    pub fit: Option<FitReport>,
    /// The result of the check of the target's architecture.
    pub self_check: SelfCheck,
}
