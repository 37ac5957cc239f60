//! The request of a load: the models, their contexts, and the defaults for requests.
//!
//! Keys are llama.cpp's parameter names (`n_ctx`, `n_gpu_layers`), with the suffix `_draft` for the draft model. An absent key of
//! the draft model has the target's value where llama.cpp does the same. Values that would fail an assertion in llama.cpp are
//! refused here.

mod command_line;
mod flags;
mod model;
mod projector;
mod threads;

use std::io::Read;
use std::path::{Path, PathBuf};

use foredraft_base::atomic_write;
use serde_json::{Map, Value};

use self::command_line::CommandLine;
pub use self::projector::ProjectorSettings;
use self::threads::ContextThreads;
use super::fields::{Fields, parse_object, show};
use super::request::{RequestDefaults, SpeculativeOptions, read_seed};
use crate::api::wire::old_keys;
use crate::api::wire::template_name;
use crate::engine::drafters::Compatibility;
use crate::engine::session::SelfExtend;
use crate::engine::{Config, FitSettings, MAX_BEAMS, Models};
use crate::error::{Code, Error, Result};
use crate::llama;
use crate::llama::log::Level;
use crate::llama::{
    CacheType, ContextParams, FlashAttn, Model, ModelParams, Numa, Projector, RopeScaling, SplitMode, TextPooling,
    WeightType,
};
use crate::speculative::DrafterKind;

/// `LLAMA_MAX_SEQ`: the maximum number of sequences in a context of llama.cpp.
const MAX_PARALLEL: i64 = 256;
/// The maximum context length. Memory for all cells is allocated at once.
const MAX_CTX: i64 = 1 << 26;
/// The largest `draft_vocab`, which is more than any vocabulary has.
const MAX_DRAFT_VOCAB: i64 = i32::MAX as i64;
/// The memory that `fit` leaves free on each device, in MiB: llama.cpp's default.
const FIT_MARGIN_MB: u64 = 1024;
/// The default of `cache_ram_mb`, and the maximum of it and of `cache_dir_mb`.
const CACHE_RAM_MB: usize = 256;
const MAX_CACHE_RAM_MB: i64 = 1 << 24;
/// The default of `max_queue`.
const MAX_QUEUE: usize = 64;

/// A validated load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRequest {
    /// The engine's configuration.
    pub config: Config,
    /// The model's name in answers. `None`: its path.
    pub model_alias: Option<String>,
    /// A chat template or its name, instead of the model's.
    pub chat_template: Option<String>,
    /// The values of absent fields of requests.
    pub defaults: RequestDefaults,
    /// The log level. `None`: unchanged.
    pub log_level: Option<Level>,
    /// How pictures and sounds are encoded. `None`: the engine takes none.
    pub projector: Option<ProjectorSettings>,
    /// The engine runs in a process of its own.
    pub is_isolated: bool,
    /// The host's file descriptor to write to when a request has an update.
    pub notify_fd: Option<i32>,
    /// Unknown and ignored keys, and keys that have no effect here.
    pub warnings: Vec<String>,
}

/// The models named by a load, which may be invalid otherwise. Absent names are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GivenModels {
    pub model: String,
    /// The model's path if absent, as in the old server.
    pub model_alias: String,
    pub model_draft: String,
}

impl GivenModels {
    /// Reads the names from a load's argument, as far as it can be parsed.
    pub fn read(bytes: &[u8]) -> GivenModels {
        let object = parse_object(bytes).or_else(|error| {
            let line = std::str::from_utf8(bytes).map_err(|_| error)?;
            command_line::parse(line).map(|line| line.object)
        });
        let object = object.unwrap_or_default();
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let model_of = |key: &str| object.get(key).and_then(model::name_of).unwrap_or_default();
        let (model, alias) = (model_of("model"), text("model_alias"));
        let model_alias = if is_default_alias(&alias) { model.clone() } else { alias };
        GivenModels { model, model_alias, model_draft: model_of("model_draft") }
    }
}

/// Whether a command line is one word and no flag, which is meant as a path. (The first word of a longer line is a program's name.)
fn is_lone_path(line: &str) -> bool {
    let line = line.trim();
    !line.starts_with(['-', '{', '[', '\u{FEFF}']) && !line.contains(char::is_whitespace)
}

/// `unknown` is the old server's default. It means the path.
fn is_default_alias(alias: &str) -> bool {
    alias.is_empty() || alias == "unknown"
}

const ROPE_SCALING: [(&str, RopeScaling); 4] = [
    ("none", RopeScaling::None),
    ("linear", RopeScaling::Linear),
    ("yarn", RopeScaling::Yarn),
    ("longrope", RopeScaling::LongRope),
];
const POOLING: [(&str, TextPooling); 5] = [
    ("none", TextPooling::Last),
    ("mean", TextPooling::Mean),
    ("cls", TextPooling::First),
    ("last", TextPooling::Last),
    ("rank", TextPooling::Rank),
];

impl LoadRequest {
    /// The model's name in answers.
    pub fn alias(&self) -> String {
        self.model_alias.clone().unwrap_or_else(|| self.config.model.source.to_string())
    }

    /// Reads a load's argument: a JSON object, or a command line in llama.cpp's flags.
    ///
    /// # Errors
    /// Neither form, or a field that has the wrong type, is out of range, or is not available in this version.
    pub fn parse(bytes: &[u8]) -> Result<LoadRequest> {
        // Text that begins like JSON gets the error of the JSON parser; other text is a command line.
        match std::str::from_utf8(bytes) {
            Ok(line) if line.trim().is_empty() => {
                Err(Error::new(Code::InvalidJson, "load: expected a JSON object or a command line, got nothing"))
            }
            Ok(line) if is_lone_path(line) => Err(Error::invalid(format!(
                "load: expected a JSON object or a command line, got the path {}: write {{\"model\": ...}} or -m before it",
                show(&line.trim().into())
            ))),
            Ok(line) if !line.trim_start().starts_with(['{', '[', '\u{FEFF}']) => {
                let CommandLine { object, mut warnings } = command_line::parse(line)?;
                let mut request = LoadRequest::from_object(&object)?;
                warnings.append(&mut request.warnings);
                Ok(LoadRequest { warnings, ..request })
            }
            _ => LoadRequest::from_object(&parse_object(bytes)?),
        }
    }

    /// Adds warnings about modules that are not used, and about layers that were to be computed by a GPU, if there is none.
    pub fn warn_about_missing_devices(&mut self) {
        let failure = |module: &llama::BackendModule| module.use_or_error.clone()?.err();
        self.warnings.extend(llama::modules().iter().filter_map(failure).map(|why| format!("backend {why}")));
        let devices = llama::devices();
        let has_gpu = |model: &ModelParams| {
            let mut gpus = devices.iter().filter(|device| matches!(device.kind, "gpu" | "igpu"));
            gpus.any(|gpu| model.devices.as_ref().is_none_or(|named| named.contains(&gpu.name)))
        };
        let target = &self.config.model;
        let asks = |model: &ModelParams| model.n_gpu_layers > 0 || model.n_gpu_layers < -1;
        let draft = self.config.draft.as_ref().map(|(draft, _)| draft).filter(|draft| asks(draft));
        let asked = [
            ("n_gpu_layers", asks(target).then_some(target)),
            ("tensor_split", (!target.tensor_split.is_empty()).then_some(target)),
            ("n_gpu_layers_draft", draft),
            ("fit", self.config.fit.is_some().then_some(target)),
        ];
        for (key, model) in asked {
            if model.is_some_and(|model| !has_gpu(model)) {
                self.warnings
                    .push(format!("{key}: not used, because there is no GPU to use: the CPU computes everything"));
            }
        }
    }

    /// Adds a warning if the projector's weights are not those that were asked for.
    pub fn warn_about_projector(&mut self, projector: Option<&Projector>) {
        let asked = self.projector.as_ref().map(|settings| settings.weights);
        if projector.is_some_and(|projector| Some(projector.weight_type()) != asked) {
            let why = no_smaller_weights("the mmproj file");
            self.warnings.push(format!("mmproj_weights: not used, because {why}"));
        }
    }

    /// Adds warnings about models that cannot do what was requested.
    pub fn warn_about_models(&mut self, models: &Models) {
        let (target, draft) = (&models.target, models.draft.as_deref());
        self.warnings.extend(models.self_check.warnings());
        if self.config.draft.as_ref().is_some_and(|(draft, _)| draft.source == self.config.model.source) {
            self.warnings.push(
                "model_draft: is the target itself, so drafting with it takes longer than it saves: give a smaller model of its family"
                    .to_owned(),
            );
        }
        let has_layers = |draft: &&Model| !draft.draft_kind().is_head();
        if let Some(draft) = draft.filter(has_layers).filter(|draft| draft.n_params() > target.n_params()) {
            self.warnings.push(format!(
                "model_draft: has {} parameters, more than the target's {}: drafting with it takes longer than it saves",
                draft.n_params(),
                target.n_params()
            ));
        }
        let all = |report: &&Compatibility| report.reason.is_none() && report.n_scored.is_none();
        if self.config.draft_vocab.is_some_and(|n| n > 0)
            && models.compatibility.as_ref().is_some_and(|report| all(&report))
        {
            self.warnings
                .push("draft_vocab: not used, because the draft model's output cannot be restricted".to_owned());
        }
        let asks =
            |model: &ModelParams| matches!(model.weights, WeightType::Q8_0 | WeightType::Q4_0) && !model.vocab_only;
        let is_asked = self.config.draft.as_ref().is_some_and(|(model, _)| asks(model));
        if let Some(draft) = draft.filter(|draft| is_asked && draft.weight_type() == WeightType::AsInFile) {
            let why = match draft.draft_kind() {
                kind if kind.is_head() => "a draft head has its weights as in the file".to_owned(),
                _ => no_smaller_weights("the draft model"),
            };
            self.warnings.push(format!("draft_weights: not used, because {why}"));
        }
        let Config { context, n_parallel, .. } = &self.config;
        if context.kv_unified && *n_parallel > 1 && models.attention.as_ref().is_some_and(|it| !it.own_kernel) {
            self.warnings.push(
                "kv_unified: the last bits of a slot's log-probabilities depend on the other slots, because ggml computes attention"
                    .to_owned(),
            );
        }
        let is_in_draft = draft.is_some_and(|draft| draft.draft_kind().reads_hidden());
        if self.config.mtp && target.n_mtp_layers() == 0 && !is_in_draft {
            self.warnings.push(
                "speculative.type: mtp is not used, because the model has no layers for multi-token prediction"
                    .to_owned(),
            );
        }
    }

    /// Reads a load's object.
    ///
    /// # Errors
    /// A field has the wrong type, is out of range, or is not available in this version.
    pub fn from_object(object: &Map<String, Value>) -> Result<LoadRequest> {
        let (object, mut warnings) = old_keys::renamed(object)?;
        let mut fields = Fields::new(&object);
        let request = LoadRequest::read(&mut fields)?;
        warnings.extend(fields.finish());
        Ok(LoadRequest { warnings, ..request })
    }

    fn read(fields: &mut Fields) -> Result<LoadRequest> {
        let model = model::target(fields)?;
        let (threads, threads_draft, frame_budget) = threads::read(fields, ContextParams::default().n_threads)?;
        let context = target_context(fields, &threads)?;
        validate_combination(&model, &context, "cache_type_v")?;
        let draft = draft(fields, &model, &context, &threads_draft)?;
        if let Some((model, context)) = &draft {
            validate_combination(model, context, "cache_type_v_draft")?;
        }
        let speculative = SpeculativeOptions::read_defaults(fields)?;
        let embedding = fields.flag("embedding")?.unwrap_or(false) || context.pooling == Some(TextPooling::Rank);
        let config = Config {
            draft_vocab: fields.int("draft_vocab", 0..=MAX_DRAFT_VOCAB)?,
            mtp: speculative.includes(DrafterKind::Mtp),
            lookup_static: fields.c_text("lookup_cache_static")?.map(PathBuf::from),
            lookup_dynamic: fields.c_text("lookup_cache_dynamic")?.map(PathBuf::from),
            fit: fit(fields)?,
            n_parallel: fields.int("n_parallel", 1..=MAX_PARALLEL)?.unwrap_or(1),
            // The old server's default. llama.cpp's has changed since.
            ctx_shift: fields.flag("ctx_shift")?.unwrap_or(true),
            self_extend: self_extend(fields)?,
            embedding,
            max_queue: fields.int("max_queue", 0..=1_000_000)?.unwrap_or(MAX_QUEUE),
            cache_ram: fields.int("cache_ram_mb", 0..=MAX_CACHE_RAM_MB)?.unwrap_or(CACHE_RAM_MB) << 20,
            cache_dir: fields.c_text("cache_dir")?.map(PathBuf::from),
            cache_dir_limit: fields.int("cache_dir_mb", 0..=MAX_CACHE_RAM_MB)?.map(|n_mb: u64| n_mb << 20),
            warmup: fields.flag("warmup")?.unwrap_or(true),
            numa: numa(fields)?,
            frame_budget,
            rpc: model::rpc(fields)?,
            rpc_timeout: model::rpc_timeout(fields)?,
            model,
            context,
            draft,
        };
        let defaults = RequestDefaults {
            n_keep: fields.int("n_keep", -1..=MAX_CTX)?.map_or(Some(0), |n: i64| usize::try_from(n).ok()),
            n_cache_reuse: fields.int("n_cache_reuse", 0..=i64::from(i32::MAX))?.unwrap_or(0),
            seed: read_seed(fields)?.flatten(),
            speculative,
            spm_infill: fields.flag("spm_infill")?.unwrap_or(false),
            n_beams: old_keys::n_beams(fields, MAX_BEAMS)?,
        };
        let model_alias = fields.c_text("model_alias")?.filter(|alias| !is_default_alias(alias));
        let chat_template = chat_template(fields)?;
        let log_level = log_level(fields)?;
        let notify_fd = fields.int("notify_fd", 0..=i64::from(i32::MAX))?;
        let is_isolated = isolated(fields)?;
        let projector = ProjectorSettings::read(fields)?;
        ignore_http_keys(fields);
        Ok(LoadRequest {
            config,
            model_alias,
            chat_template,
            defaults,
            log_level,
            projector,
            is_isolated,
            notify_fd,
            warnings: Vec::new(),
        })
    }
}

fn target_context(fields: &mut Fields, threads: &ContextThreads) -> Result<ContextParams> {
    let default = ContextParams::default();
    let n_batch = fields.int("n_batch", 1..=MAX_CTX)?.unwrap_or(default.n_batch);
    // As in llama.cpp: 0 means n_batch, and larger values are reduced to n_batch.
    let n_ubatch = match fields.int("n_ubatch", 0..=MAX_CTX)?.unwrap_or(default.n_ubatch) {
        0 => n_batch,
        n_ubatch => n_ubatch.min(n_batch),
    };
    let flash_attn = match fields.get("flash_attn") {
        Some(Value::Bool(on)) => Some(if *on { FlashAttn::On } else { FlashAttn::Off }),
        _ => fields.word("flash_attn", &[("on", FlashAttn::On), ("off", FlashAttn::Off), ("auto", FlashAttn::Auto)])?,
    };
    Ok(ContextParams {
        n_ctx: fields.int("n_ctx", 0..=MAX_CTX)?,
        n_batch,
        n_ubatch,
        kv_unified: fields.flag("kv_unified")?.unwrap_or(default.kv_unified),
        n_threads: threads.n_threads,
        n_threads_batch: threads.n_threads_batch,
        thread_settings: threads.settings,
        thread_settings_batch: threads.settings_batch,
        flash_attn: flash_attn.unwrap_or(default.flash_attn),
        type_k: fields.word("cache_type_k", &CacheType::WORDS)?.unwrap_or(default.type_k),
        type_v: fields.word("cache_type_v", &CacheType::WORDS)?.unwrap_or(default.type_v),
        offload_kqv: fields.flag("offload_kqv")?.unwrap_or(default.offload_kqv),
        swa_full: fields.flag("swa_full")?.unwrap_or(default.swa_full),
        rope_freq_base: fields.number("rope_freq_base", 0.0..=1e12)?.unwrap_or(default.rope_freq_base),
        rope_freq_scale: rope_freq_scale(fields)?.unwrap_or(default.rope_freq_scale),
        rope_scaling: fields.word("rope_scaling", &ROPE_SCALING)?.unwrap_or(default.rope_scaling),
        yarn_ext_factor: fields.number("yarn_ext_factor", -1.0..=1e6)?.unwrap_or(default.yarn_ext_factor),
        yarn_attn_factor: fields.number("yarn_attn_factor", -1.0..=1e6)?.unwrap_or(default.yarn_attn_factor),
        yarn_beta_fast: fields.number("yarn_beta_fast", -1.0..=1e6)?.unwrap_or(default.yarn_beta_fast),
        yarn_beta_slow: fields.number("yarn_beta_slow", -1.0..=1e6)?.unwrap_or(default.yarn_beta_slow),
        yarn_orig_ctx: fields.int("yarn_orig_ctx", 0..=MAX_CTX)?.unwrap_or(default.yarn_orig_ctx),
        pooling: pooling(fields)?,
        ..default
    })
}

/// Reads the draft model and its context. The keys are validated even if there is no draft model.
fn draft(
    fields: &mut Fields,
    target: &ModelParams,
    context: &ContextParams,
    threads: &ContextThreads,
) -> Result<Option<(ModelParams, ContextParams)>> {
    let model = model::draft(fields, target)?;
    let default = ContextParams::default();
    let n_ctx = fields.int("n_ctx_draft", 0..=MAX_CTX)?;
    let context = ContextParams {
        n_ctx: n_ctx.or(context.n_ctx),
        n_threads: threads.n_threads,
        n_threads_batch: threads.n_threads_batch,
        thread_settings: threads.settings,
        thread_settings_batch: threads.settings_batch,
        type_k: fields.word("cache_type_k_draft", &CacheType::WORDS)?.unwrap_or(default.type_k),
        type_v: fields.word("cache_type_v_draft", &CacheType::WORDS)?.unwrap_or(default.type_v),
        ..context.clone()
    };
    Ok(model.map(|model| (model, context)))
}

/// Reads `chat_template`, or the file of `chat_template_file`.
fn chat_template(fields: &mut Fields) -> Result<Option<String>> {
    // Longer than any template may be.
    const LONGEST: u64 = 1 << 20;
    let name = "chat_template_file";
    let (given, Some(path)) = (fields.c_text("chat_template")?, fields.c_text(name)?) else {
        let given = fields.c_text("chat_template")?;
        given.as_deref().filter(|text| !text.is_empty()).map(template_name::is_name).transpose()?;
        return Ok(given);
    };
    if given.is_some() {
        return Err(Error::invalid(format!("{name}: expected either chat_template or {name}, got both")));
    }
    let file = atomic_write::open(Path::new(&path)).map_err(|error| error.within(name))?;
    let mut text = Vec::new();
    let read = file.take(LONGEST).read_to_end(&mut text);
    read.map_err(|error| Error::invalid(format!("{name}: {path}: {error}")))?;
    let text = String::from_utf8(text).map_err(|error| {
        Error::invalid(format!("{name}: {path}: not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Reads `rope_freq_scale`. 0 means the model's own. llama.cpp divides by it, so other values must not be close to 0.
fn rope_freq_scale(fields: &mut Fields) -> Result<Option<f32>> {
    match fields.get("rope_freq_scale").and_then(Value::as_f64) {
        Some(0.0) => Ok(Some(0.0)),
        _ => fields.number("rope_freq_scale", 1e-6..=1e6),
    }
}

/// Reads `pooling`. `reranking` is llama-server's name for `rank`.
fn pooling(fields: &mut Fields) -> Result<Option<TextPooling>> {
    let pooling = fields.word("pooling", &POOLING)?;
    match (fields.flag("reranking")?.unwrap_or(false), pooling) {
        (true, Some(pooling)) if pooling != TextPooling::Rank => {
            Err(Error::invalid("reranking: expected the pooling rank or none beside it, got another"))
        }
        (true, _) => Ok(Some(TextPooling::Rank)),
        (false, pooling) => Ok(pooling),
    }
}

fn numa(fields: &mut Fields) -> Result<Option<Numa>> {
    let words = [
        ("distribute", Some(Numa::Distribute)),
        ("isolate", Some(Numa::Isolate)),
        ("numactl", Some(Numa::Numactl)),
        ("disabled", None),
    ];
    match fields.get("numa") {
        // The old server's numa was a boolean.
        Some(Value::Bool(on)) => Ok(on.then_some(Numa::Distribute)),
        _ => Ok(fields.word("numa", &words)?.flatten()),
    }
}

/// Reads `fit`, and `fit_margin_mb` and `fit_ctx`, which do nothing without it.
fn fit(fields: &mut Fields) -> Result<Option<FitSettings>> {
    let is_on = match fields.get("fit") {
        // llama.cpp's words.
        Some(Value::String(_)) => fields.word("fit", &[("on", true), ("off", false)])?,
        _ => fields.flag("fit")?,
    };
    let margin: u64 = fields.int("fit_margin_mb", 0..=1 << 30)?.unwrap_or(FIT_MARGIN_MB);
    let least_n_ctx = fields.int("fit_ctx", 1..=MAX_CTX)?;
    for key in ["fit_margin_mb", "fit_ctx"] {
        if fields.get(key).is_some() && is_on != Some(true) {
            fields.warn(format!("{key}: ignored without fit"));
        }
    }
    Ok((is_on == Some(true)).then_some(FitSettings { margin: margin << 20, least_n_ctx }))
}

/// Reads `grp_attn_n` and `grp_attn_w`, with llama.cpp's defaults. `grp_attn_n` of 0 or 1 disables self-extend.
fn self_extend(fields: &mut Fields) -> Result<Option<SelfExtend>> {
    let n: usize = fields.int("grp_attn_n", 0..=MAX_CTX)?.unwrap_or(1);
    let w: usize = fields.int("grp_attn_w", 0..=MAX_CTX)?.unwrap_or(512);
    if n <= 1 {
        return Ok(None);
    }
    let extend = SelfExtend::new(n, w);
    let refused = || Error::invalid(format!("grp_attn_w: expected a multiple of grp_attn_n, which is {n}, got {w}"));
    extend.ok_or_else(refused).map(Some)
}

/// Reads `log_level`: a word, or llama.cpp's numeric verbosity (`-lv`).
fn log_level(fields: &mut Fields) -> Result<Option<Level>> {
    const NUMBERS: [Level; 6] = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Debug];
    let words = [
        ("none", Level::Off),
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];
    match fields.get("log_level") {
        Some(value @ Value::Number(_)) => Ok(NUMBERS.get(old_keys::verbosity(value)?).copied()),
        _ => fields.word("log_level", &words),
    }
}

/// Refuses combinations that llama.cpp refuses without a reason.
fn validate_combination(model: &ModelParams, context: &ContextParams, type_v: &str) -> Result<()> {
    let plain = matches!(context.type_v, CacheType::F32 | CacheType::F16 | CacheType::Bf16);
    if context.flash_attn != FlashAttn::Off {
        Ok(())
    } else if !plain {
        Err(Error::invalid(format!("{type_v}: a quantized V cache needs flash_attn, which is off")))
    } else if model.split_mode == SplitMode::Tensor {
        Err(Error::invalid("split_mode: \"tensor\" needs flash_attn, which is off"))
    } else {
        Ok(())
    }
}

/// A load's argument as an object with the keys of this library; `None`: it is neither an object nor a command line.
#[cfg(target_os = "linux")]
pub fn as_object(bytes: &[u8]) -> Option<Map<String, Value>> {
    let object = parse_object(bytes).ok().or_else(|| {
        let line = std::str::from_utf8(bytes).ok()?;
        command_line::parse(line).ok().map(|line| line.object)
    });
    Some(old_keys::renamed(&object?).ok()?.0)
}

/// Reads `isolate`. The other keys of isolation are read where the process is started, and do nothing without it.
fn isolated(fields: &mut Fields) -> Result<bool> {
    let is_isolated = fields.flag("isolate")?.unwrap_or(false);
    for key in ["isolate_path", "isolate_cpus", "isolate_nice", "memory_mb", "fallback"] {
        if fields.get(key).is_some() && !is_isolated {
            fields.warn(format!("{key}: ignored without isolate"));
        }
    }
    Ok(is_isolated)
}

/// Warns about the old server's HTTP keys.
fn ignore_http_keys(fields: &mut Fields) {
    for key in ["hostname", "port", "public_path", "read_timeout", "write_timeout"] {
        if fields.get(key).is_some() {
            fields.warn(format!("{key}: ignored, there is no HTTP server"));
        }
    }
}

#[cfg(test)]
pub mod tests;

/// The reason why a load could not make weights smaller.
fn no_smaller_weights(of: &str) -> String {
    match cfg!(all(target_os = "linux", target_env = "gnu")) {
        true => format!("{of} has no weights that would be smaller"),
        false => "it is not available on this platform".to_owned(),
    }
}
