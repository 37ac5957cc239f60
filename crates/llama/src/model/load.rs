//! The load of a model and of its adapters.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use llama_cpp_sys_2 as sys;

use crate::backend::devices;
use crate::backend::levels::use_level;
use crate::backend::rpc::UsedServers;
use crate::guard::ErrorBuffer;
use crate::kernels::layouts::{self, LayoutReason, WeightLayout, WeightsOfType};
use crate::log::Level;
use crate::model::Model;
use crate::model::identity::Files;
use crate::model::tensor_placement::TensorPlacement;
use crate::params::{KvValue, LoraParams, ModelParams};
use crate::platform::{available_memory, give_back_pages};
use crate::sources::gguf_source::{DraftKind, GgufFile, Role, WeightType};
use crate::sources::read_ahead::read_ahead;
use crate::threads::prove_threads;
use crate::{DevicePlacement, Interrupt, Vocab, backend, log};
use foredraft_base::error::{Code, Error, Result};
use foredraft_native::{foredraft_lora_load, foredraft_model_load};

/// The names of a load's fields for a model, for error messages.
struct ModelNames {
    model: &'static str,
    devices: &'static str,
    override_tensor: &'static str,
    role: Role,
}

const TARGET: ModelNames =
    ModelNames { model: "model", devices: "devices", override_tensor: "override_tensor", role: Role::Target };
const DRAFT: ModelNames = ModelNames {
    model: "model_draft",
    devices: "devices_draft",
    override_tensor: "override_tensor_draft",
    role: Role::Draft,
};

/// The part of the load of a mapped model that reads its files from the disk, where the weights stay in them, and where they are copied.
const READ_AHEAD: f32 = 0.9;
const READ_AHEAD_OF_COPY: f32 = 0.5;

impl Model {
    /// Loads a GGUF file. `progress` is called repeatedly with 0..=1 and aborts the load by returning false.
    ///
    /// # Errors
    /// The file does not exist ([`Code::NotFound`]) or cannot be loaded, or another file in `params` cannot be loaded;
    /// [`Code::Cancelled`]: the load was aborted.
    pub fn load(params: &ModelParams, progress: impl FnMut(f32) -> bool) -> Result<Model> {
        Model::load_as(&TARGET, params, progress)
    }

    /// As [`Model::load`], for a draft model. Errors name the load's fields for the draft model.
    ///
    /// # Errors
    /// Those of [`Model::load`].
    pub fn load_draft(params: &ModelParams, progress: impl FnMut(f32) -> bool) -> Result<Model> {
        Model::load_as(&DRAFT, params, progress)
    }

    fn load_as(names: &ModelNames, params: &ModelParams, mut progress: impl FnMut(f32) -> bool) -> Result<Model> {
        let level = use_level(params.cpu_level.as_deref())?;
        backend::start();
        // Elsewhere llama.cpp starts no threads for a load.
        if cfg!(target_arch = "x86_64") && !params.vocab_only && !params.only_measures {
            prove_threads()?;
        }
        let overrides = kv_overrides(&params.override_kv)?;
        let opened = GgufFile::open(names.model, &params.source, params.use_mmap, names.role, &overrides)?;
        let weights = if params.vocab_only { WeightType::AsInFile } else { params.weights };
        let opened = opened.with_weights(weights, names.model, &params.source, &overrides)?;
        let adapter = |lora: &LoraParams| GgufFile::open("lora", &lora.source, false, Role::Adapter, &[]);
        let adapters: Vec<GgufFile> = params.lora.iter().map(adapter).collect::<Result<_>>()?;
        let devices = usable_devices(names, params)?;
        let servers = UsedServers::of(devices.as_deref());
        let mut lists = Lists::of(names, params, devices, overrides)?;

        let maps = params.use_mmap && opened.can_map && !params.only_measures;
        let repack = if params.use_mlock { Some(false) } else { params.repack };
        let weights = opened.formats.all();
        // Where the host asks for panels, the load has made them when it ends.
        let makes_later = repack.is_none();
        let may_shrink = params.weights == WeightType::Measured && maps && makes_later && !opened.kind.is_head();
        let weight_layouts = choose_layouts(names, params, &weights, repack, maps, may_shrink);
        let copies = !makes_later && weight_layouts.iter().any(|layout| layout.in_panels);
        let ahead = match (maps && !params.vocab_only && !backend::uses_numa(), copies) {
            (false, _) => 0.0,
            (true, false) => READ_AHEAD,
            (true, true) => READ_AHEAD_OF_COPY,
        };
        if ahead > 0.0 && !read_ahead(&params.source.mapped_files(), |part| progress(part * ahead)) {
            return Err(aborted(params));
        }

        let mut raw = raw_params(params, &mut lists, maps);
        // Panels, or with ggml's kernels ggml's own layouts.
        raw.use_extra_bufts = repack != Some(false);
        raw.load_mtp = params.mtp || opened.kind == DraftKind::Mtp;
        let mut progress = |part: f32| progress(ahead + part * (1.0 - ahead));
        let mut state = ProgressCallback { callback: &mut progress, aborted: false };
        raw.progress_callback = Some(on_progress);
        raw.progress_callback_user_data = (&raw mut state).cast();

        let mut why = ErrorBuffer::new();
        // SAFETY: all pointers in `raw` are to `state` and `lists`, which outlive the call. Lists have llama.cpp's terminators (NULL
        // device, empty key). The guard catches exceptions.
        let mut load = || unsafe {
            foredraft_model_load(opened.path(), opened.stream(), opened.start(), raw, why.ptr(), why.size())
        };
        let ((ptr, pending_panels), errors) =
            log::collecting(|| layouts::with_layouts(&weights, &weight_layouts, maps, makes_later, &mut load));
        let Some(ptr) = NonNull::new(ptr) else {
            if state.aborted {
                return Err(aborted(params));
            }
            if let Some(loss) = servers.loss() {
                return Err(Error::model(loss));
            }
            return Err(Error::model(format!(
                "{}: {} cannot be loaded: {}{}",
                names.model,
                params.source,
                devices::shortage(&errors, &why.message()),
                reason(&errors, &why.message())
            )));
        };
        // SAFETY: the model is loaded. Its vocabulary lives as long as the model (`Vocab` frees nothing).
        let vocab = unsafe { Vocab::new(sys::llama_model_get_vocab(ptr.as_ptr()), &opened.control_tokens) };
        let vocab = match vocab {
            Ok(vocab) => vocab,
            Err(error) => {
                // SAFETY: nothing refers to the model yet.
                unsafe { sys::llama_model_free(ptr.as_ptr()) };
                return Err(error);
            }
        };
        if raw.use_extra_bufts && params.use_mmap {
            give_back_pages(&params.source.mapped_files(), |address| pending_panels.reads(address));
        }
        let mut model = Model {
            ptr,
            vocab,
            adapters: Vec::new(),
            adapter_placement: DevicePlacement::default(),
            vocab_only: params.vocab_only,
            files: Files::of(params),
            fallback_weights: opened.formats.fallback(),
            weight_layouts,
            pending_panels,
            token_tree: OnceLock::new(),
            panel_interrupt: Arc::new(Interrupt::after_load()),
            draft_kind: opened.kind,
            weight_type: opened.weights,
            servers,
            _level: level,
        };
        for (lora, opened) in params.lora.iter().zip(&adapters) {
            if !params.only_measures {
                model.add_adapter(lora, opened)?;
            }
        }
        // SAFETY: the model is alive.
        model.adapter_placement = unsafe { DevicePlacement::of_adapters(model.as_ptr(), &adapters) };
        if let Some(loss) = model.servers.loss() {
            return Err(Error::model(loss));
        }
        Ok(model)
    }

    fn add_adapter(&mut self, lora: &LoraParams, opened: &GgufFile) -> Result<()> {
        let LoraParams { source, scale } = lora;
        let mut why = ErrorBuffer::new();
        // SAFETY: the model is alive and not used elsewhere yet. The guard catches exceptions. llama.cpp frees the adapter with the model.
        let (adapter, errors) = log::collecting(|| unsafe {
            foredraft_lora_load(self.ptr.as_ptr(), opened.path(), opened.stream(), why.ptr(), why.size())
        });
        let adapter = NonNull::new(adapter).ok_or_else(|| {
            Error::model(format!("lora: {source} cannot be loaded: {}", reason(&errors, &why.message())))
        })?;
        // SAFETY: the adapter is alive.
        if unsafe { sys::llama_adapter_get_alora_n_invocation_tokens(adapter.as_ptr()) } > 0 {
            let message = format!("lora: {source} is an activated LoRA, which is not available in this version");
            return Err(Error::model(message));
        }
        self.adapters.push((adapter, *scale));
        Ok(())
    }
}

/// The devices that the load names, or else the default ones. `None`: llama.cpp chooses.
fn usable_devices(names: &ModelNames, params: &ModelParams) -> Result<Option<Vec<sys::ggml_backend_dev_t>>> {
    let Some(named) = &params.devices else { return Ok(devices::default_devices()) };
    // llama.cpp has a fixed number of shares of the split, and does not check the number of devices.
    // SAFETY: returns a number.
    let most = unsafe { sys::llama_max_devices() };
    if named.len() > most {
        let (name, n) = (names.devices, named.len());
        return Err(Error::invalid(format!("{name}: expected at most {most} names, got {n}")));
    }
    let handle = |name: &String| {
        let none = || Error::invalid(format!("{}: there is no device {name:?}", names.devices));
        devices::device_by_name(name).ok_or_else(none)
    };
    Ok(Some(named.iter().map(handle).collect::<Result<Vec<_>>>()?))
}

fn choose_layouts(
    names: &ModelNames,
    params: &ModelParams,
    weights: &[WeightsOfType],
    repack: Option<bool>,
    maps: bool,
    may_shrink: bool,
) -> Vec<WeightLayout> {
    if params.vocab_only {
        return Vec::new();
    }
    let available = available_memory().map(|available| available.saturating_sub(layouts::pending_bytes()));
    // Weights that are not mapped are copied in any case.
    let chosen = layouts::choose(weights, repack, available.filter(|_| maps), may_shrink);
    if chosen.iter().any(|layout| layout.chosen_by == LayoutReason::Memory) {
        let why = "its weights stay in the file, because copies would not fit into the available memory";
        log::write(Level::Warn, &format!("{}: {why}", names.model));
    }
    chosen
}

/// The lists that llama.cpp's parameters of a load point to.
struct Lists {
    devices: Option<Vec<sys::ggml_backend_dev_t>>,
    split: Vec<f32>,
    overrides: Vec<sys::llama_model_kv_override>,
    tensor_placement: TensorPlacement,
}

impl Lists {
    fn of(
        names: &ModelNames,
        params: &ModelParams,
        mut devices: Option<Vec<sys::ggml_backend_dev_t>>,
        overrides: Vec<sys::llama_model_kv_override>,
    ) -> Result<Lists> {
        if let Some(devices) = &mut devices {
            devices.push(std::ptr::null_mut());
        }
        let mut split = params.tensor_split.clone();
        // SAFETY: returns a number.
        split.resize(unsafe { sys::llama_max_devices() }.max(split.len()), 0.0);
        let tensor_placement = TensorPlacement::of(names.override_tensor, params)?;
        Ok(Lists { devices, split, overrides, tensor_placement })
    }
}

/// llama.cpp's parameters for a load. They point to `lists`.
fn raw_params(params: &ModelParams, lists: &mut Lists, maps: bool) -> sys::llama_model_params {
    // SAFETY: reads llama.cpp's constants.
    let mut raw = unsafe { sys::llama_model_default_params() };
    if let Some(devices) = &mut lists.devices {
        raw.devices = devices.as_mut_ptr();
    }
    raw.n_gpu_layers = params.n_gpu_layers;
    raw.split_mode = params.split_mode as sys::llama_split_mode;
    raw.load_mode = match (maps, params.use_mlock && !params.only_measures) {
        (true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        (true, false) => sys::LLAMA_LOAD_MODE_MMAP,
        (false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
        (false, false) => sys::LLAMA_LOAD_MODE_NONE,
    };
    raw.main_gpu = params.main_gpu;
    raw.tensor_buft_overrides = lists.tensor_placement.as_ptr();
    if !params.tensor_split.is_empty() {
        raw.tensor_split = lists.split.as_ptr();
    }
    if !params.override_kv.is_empty() {
        raw.kv_overrides = lists.overrides.as_ptr();
    }
    raw.vocab_only = params.vocab_only;
    raw.no_alloc = params.only_measures;
    raw.check_tensors = params.check_tensors;
    raw
}

struct ProgressCallback<'a> {
    callback: &'a mut dyn FnMut(f32) -> bool,
    aborted: bool,
}

unsafe extern "C" fn on_progress(value: f32, user: *mut c_void) -> bool {
    // SAFETY: `user` is the `ProgressCallback` of the load, which only this callback uses while the load runs.
    let progress = unsafe { &mut *user.cast::<ProgressCallback>() };
    progress.aborted |= !(progress.callback)(value);
    !progress.aborted
}

fn aborted(params: &ModelParams) -> Error {
    Error::new(Code::Cancelled, format!("the load of {} was aborted", params.source))
}

/// llama.cpp's messages about a failure.
fn reason(errors: &[String], thrown: &str) -> String {
    let messages: Vec<&str> = errors.iter().map(String::as_str).chain((!thrown.is_empty()).then_some(thrown)).collect();
    if messages.is_empty() { "llama.cpp gives no reason".into() } else { messages.join("; ") }
}

/// llama.cpp's list of overrides, terminated by an empty key.
fn kv_overrides(overrides: &[(String, KvValue)]) -> Result<Vec<sys::llama_model_kv_override>> {
    // SAFETY: the struct is plain data, and zeros are valid.
    let empty = || unsafe { std::mem::zeroed::<sys::llama_model_kv_override>() };
    let mut list = Vec::with_capacity(overrides.len() + 1);
    for (key, value) in overrides {
        let mut entry = empty();
        copy_c_string(key, &mut entry.key)
            .ok_or_else(|| Error::invalid(format!("override_kv: the key {key:?} is too long")))?;
        match value {
            KvValue::Int(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_INT;
                entry.__bindgen_anon_1.val_i64 = *value;
            }
            KvValue::Float(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_FLOAT;
                entry.__bindgen_anon_1.val_f64 = *value;
            }
            KvValue::Bool(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_BOOL;
                entry.__bindgen_anon_1.val_bool = *value;
            }
            KvValue::Str(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_STR;
                let mut text = [0; 128];
                copy_c_string(value, &mut text)
                    .ok_or_else(|| Error::invalid(format!("override_kv: the value of {key:?} is too long")))?;
                entry.__bindgen_anon_1.val_str = text;
            }
        }
        list.push(entry);
    }
    list.push(empty());
    Ok(list)
}

/// Copies `text` and a NUL. `None`: it does not fit, or contains NUL.
fn copy_c_string(text: &str, buffer: &mut [c_char]) -> Option<()> {
    if text.len() >= buffer.len() || text.contains('\0') {
        return None;
    }
    for (to, from) in buffer.iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    Some(())
}
