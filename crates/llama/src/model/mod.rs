//! A loaded model: owner of the weights, the vocabulary and the LoRA adapters.

pub(super) mod device_use;
pub(super) mod identity;
pub(super) mod pieces;
mod shared;
pub(super) mod special;
pub(super) mod tensor_placement;
pub(super) mod vocab;

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llama_cpp_sys_2 as sys;
use xxhash_rust::xxh3::Xxh3;

use crate::backend::devices;
use crate::backend::levels::{LevelInUse, use_level};
use crate::backend::rpc::UsedServers;
use crate::guard::{self, ErrorBuffer};
use crate::kernels::layouts::{self, LayoutReason, PendingPanels, WeightLayout};
use crate::log::Level;
use crate::model::identity::Files;
use crate::model::tensor_placement::TensorPlacement;
use crate::params::{KvValue, LoraParams, ModelParams, SplitMode};
use crate::platform::{available_memory, give_back_pages};
use crate::sources::gguf_source::{DraftKind, GgufFile, Role, WeightType};
use crate::sources::read_ahead::read_ahead;
use crate::threads::prove_threads;
use crate::{DevicePlacement, Interrupt, PausableLoad, Token, TokenTree, Vocab, VocabKind, Vocabulary, backend, log};
use foredraft_base::error::{Code, Error, Result};
use foredraft_native::{
    foredraft_lora_load, foredraft_metadata, foredraft_model_load, foredraft_n_scores, foredraft_output_weights,
};

/// The names of a load's fields for a model, for error messages.
struct ModelNames {
    model: &'static str,
    devices: &'static str,
    role: Role,
}

const TARGET: ModelNames = ModelNames { model: "model", devices: "devices", role: Role::Target };
const DRAFT: ModelNames = ModelNames { model: "model_draft", devices: "devices_draft", role: Role::Draft };

/// The part of the load of a mapped model that reads its files from the disk, where the weights stay in them, and where they are copied.
const READ_AHEAD: f32 = 0.9;
const READ_AHEAD_OF_COPY: f32 = 0.5;

/// The time for which threads that make panels leave the cores to those that compute. The panels of 1.5 B parameters take 2 s where cores are free, so
/// this is over only on a busy machine: at a load of 40, 477 MB were left after 159 s without an end to it.
const PANEL_PATIENCE: Duration = Duration::from_secs(10);

/// A loaded model. Immutable, so one [`Arc`](std::sync::Arc) of it serves every thread.
#[derive(Debug)]
pub struct Model {
    ptr: NonNull<sys::llama_model>,
    vocab: Vocab,
    adapters: Vec<(NonNull<sys::llama_adapter_lora>, f32)>,
    /// The weights that the adapters have on each device, or would have.
    adapter_placement: DevicePlacement,
    vocab_only: bool,
    files: Files,
    fallback_weights: Vec<(String, u32)>,
    weight_layouts: Vec<WeightLayout>,
    pending_panels: PendingPanels,
    /// Made before the first request with a grammar begins.
    token_tree: OnceLock<TokenTree>,
    /// Lets the thread that makes panels sleep while the host pauses the engine that loaded the model, and wakes it.
    panel_interrupt: Arc<Interrupt>,
    draft_kind: DraftKind,
    weight_type: WeightType,
    /// The RPC servers that have parts of it.
    servers: UsedServers,
    /// No other level is used while the model is loaded.
    _level: LevelInUse,
}

// SAFETY: after loading, llama.cpp only reads a model. Contexts have their own state.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

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
        // llama.cpp has a fixed number of shares of the split, and does not check the number of devices.
        // SAFETY: returns a number.
        let most = unsafe { sys::llama_max_devices() };
        let named = params.devices.as_deref().unwrap_or_default();
        if named.len() > most {
            let (name, n) = (names.devices, named.len());
            return Err(Error::invalid(format!("{name}: expected at most {most} names, got {n}")));
        }
        let handle = |name: &String| {
            let none = || Error::invalid(format!("{}: there is no device {name:?}", names.devices));
            devices::device_by_name(name).ok_or_else(none)
        };
        let mut devices = match &params.devices {
            Some(named) => Some(named.iter().map(handle).collect::<Result<Vec<_>>>()?),
            None => devices::default_devices(),
        };
        let servers = UsedServers::of(devices.as_deref());
        // SAFETY: reads llama.cpp's constants.
        let (mut raw, max_devices) = unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        let mut split = params.tensor_split.clone();
        split.resize(max_devices.max(split.len()), 0.0);
        if let Some(devices) = &mut devices {
            devices.push(std::ptr::null_mut());
            raw.devices = devices.as_mut_ptr();
        }
        raw.n_gpu_layers = params.n_gpu_layers;
        raw.split_mode = match params.split_mode {
            SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
            SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
            SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
            SplitMode::Tensor => sys::LLAMA_SPLIT_MODE_TENSOR,
        };
        let maps = params.use_mmap && opened.can_map && !params.only_measures;
        raw.load_mode = match (maps, params.use_mlock && !params.only_measures) {
            (true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            (true, false) => sys::LLAMA_LOAD_MODE_MMAP,
            (false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
            (false, false) => sys::LLAMA_LOAD_MODE_NONE,
        };
        raw.main_gpu = params.main_gpu;
        let tensor_placement = TensorPlacement::of(params)?;
        raw.tensor_buft_overrides = tensor_placement.as_ptr();
        if !params.tensor_split.is_empty() {
            raw.tensor_split = split.as_ptr();
        }
        if !params.override_kv.is_empty() {
            raw.kv_overrides = overrides.as_ptr();
        }
        let repack = if params.use_mlock { Some(false) } else { params.repack };
        let weights = opened.formats.all();
        let available = available_memory().map(|available| available.saturating_sub(layouts::pending_bytes()));
        let weight_layouts = match params.vocab_only {
            true => Vec::new(),
            // Weights that are not mapped are copied in any case.
            false => layouts::choose(&weights, repack, available.filter(|_| maps)),
        };
        if weight_layouts.iter().any(|layout| layout.chosen_by == LayoutReason::Memory) {
            let why = "its weights stay in the file, because copies would not fit into the available memory";
            log::write(Level::Warn, &format!("{}: {why}", names.model));
        }
        // Panels, or with ggml's kernels ggml's own layouts.
        raw.use_extra_bufts = repack != Some(false);
        raw.vocab_only = params.vocab_only;
        raw.no_alloc = params.only_measures;
        raw.check_tensors = params.check_tensors;
        raw.load_mtp = params.mtp || opened.kind == DraftKind::Mtp;

        let reads_ahead = maps && !params.vocab_only && !backend::uses_numa();
        // Where the host asks for panels, the load has made them when it ends.
        let makes_later = repack.is_none();
        let copies = !makes_later && weight_layouts.iter().any(|layout| layout.in_panels);
        let ahead = match (reads_ahead, copies) {
            (false, _) => 0.0,
            (true, false) => READ_AHEAD,
            (true, true) => READ_AHEAD_OF_COPY,
        };
        if reads_ahead && !read_ahead(&params.source.mapped_files(), |part| progress(part * ahead)) {
            return Err(aborted(params));
        }
        let mut progress = |part: f32| progress(ahead + part * (1.0 - ahead));

        struct ProgressCallback<'a> {
            callback: &'a mut dyn FnMut(f32) -> bool,
            aborted: bool,
        }
        unsafe extern "C" fn on_progress(value: f32, user: *mut c_void) -> bool {
            // SAFETY: `user` is the `ProgressCallback` below, which only this callback uses while the load runs.
            let progress = unsafe { &mut *user.cast::<ProgressCallback>() };
            progress.aborted |= !(progress.callback)(value);
            !progress.aborted
        }
        let mut state = ProgressCallback { callback: &mut progress, aborted: false };
        raw.progress_callback = Some(on_progress);
        raw.progress_callback_user_data = (&raw mut state).cast();

        let mut why = ErrorBuffer::new();
        // SAFETY: all pointers in `raw` are to locals of this function, which outlive the call. Lists have llama.cpp's terminators (NULL
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
        let files = Files::of(params);
        let fallback_weights = opened.formats.fallback();
        let mut model = Model {
            ptr,
            vocab,
            adapters: Vec::new(),
            adapter_placement: DevicePlacement::default(),
            vocab_only: params.vocab_only,
            files,
            fallback_weights,
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

    /// Begins to make panels of the weights that are still as in the file, on a thread of its own. Engines call it when their load has measured.
    pub fn make_panels(&self) {
        let interrupt = Arc::clone(&self.panel_interrupt);
        self.pending_panels.begin(PANEL_PATIENCE, move |make| {
            let _pausable = PausableLoad::begin(&interrupt);
            make();
        });
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

    /// The types of weights that ggml multiplies, because no kernel of this library does, and the number of such tensors.
    pub fn fallback_weights(&self) -> &[(String, u32)] {
        &self.fallback_weights
    }

    /// The layout of each type of weights that can be in panels.
    pub fn weight_layouts(&self) -> &[WeightLayout] {
        &self.weight_layouts
    }

    /// The bytes of weights that are still as in the file, while panels are made of them.
    pub fn pending_panel_bytes(&self) -> u64 {
        self.pending_panels.bytes_left()
    }

    /// Whether a thread makes panels of its weights now.
    pub fn is_making_panels(&self) -> bool {
        self.pending_panels.is_making()
    }

    /// How it drafts, as its file says.
    pub fn draft_kind(&self) -> DraftKind {
        self.draft_kind
    }

    /// The type that the load gave to its weights.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// The RPC servers that have parts of it.
    pub(crate) fn servers(&self) -> &UsedServers {
        &self.servers
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Whether the tree of its tokens is made.
    pub fn has_token_tree(&self) -> bool {
        self.token_tree.get().is_some()
    }

    /// Whether only the vocabulary was loaded, so the model cannot be decoded.
    pub fn vocab_only(&self) -> bool {
        self.vocab_only
    }

    /// The training context, in tokens.
    pub fn n_ctx_train(&self) -> u32 {
        // SAFETY: the model is alive, also in all getters below.
        match unsafe { sys::llama_model_n_ctx_train(self.ptr.as_ptr()) } {
            // llama.cpp does not read it with `vocab_only`.
            ..=0 => self.metadata_of_kind("context_length").and_then(|number| number.parse().ok()).unwrap_or(0),
            n_ctx => n_ctx.unsigned_abs(),
        }
    }

    /// The length of an embedding.
    pub fn n_embd(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_embd_out(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// The numbers of a row that is decoded in place of a token.
    pub(crate) fn n_embd_input(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_embd_inp(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// Whether positions are four numbers (M-RoPE): those of a text are equal, those of a picture say where each row is in it.
    pub fn uses_mrope(&self) -> bool {
        // SAFETY: see `n_ctx_train`.
        let kind = unsafe { sys::llama_model_rope_type(self.ptr.as_ptr()) };
        [sys::LLAMA_ROPE_TYPE_MROPE, sys::LLAMA_ROPE_TYPE_IMROPE].contains(&kind)
    }

    /// The number of parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: see `n_ctx_train`.
        unsafe { sys::llama_model_n_params(self.ptr.as_ptr()) }
    }

    /// The size of the weights in bytes.
    pub fn size(&self) -> u64 {
        // SAFETY: see `n_ctx_train`.
        unsafe { sys::llama_model_size(self.ptr.as_ptr()) }
    }

    /// Architecture, size and type in one line, such as `llama 1B Q8_0`.
    pub fn description(&self) -> String {
        let mut buffer = [0_u8; 256];
        // SAFETY: the buffer has the given length, and the written text ends with NUL inside it.
        unsafe {
            sys::llama_model_desc(self.ptr.as_ptr(), buffer.as_mut_ptr().cast::<c_char>(), buffer.len());
            guard::text(buffer.as_ptr().cast())
        }
    }

    /// A metadata value of the file, as text.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = vec![0_u8; 256];
        loop {
            // SAFETY: `key` is NUL-terminated, and the buffer has the given length.
            let len = unsafe {
                sys::llama_model_meta_val_str(
                    self.ptr.as_ptr(),
                    key.as_ptr(),
                    buffer.as_mut_ptr().cast::<c_char>(),
                    buffer.len(),
                )
            };
            let len = usize::try_from(len).ok()?;
            if let Some(value) = buffer.get(..len).filter(|_| len < buffer.len()) {
                return Some(String::from_utf8_lossy(value).into_owned());
            }
            buffer.resize(len + 1, 0);
        }
    }

    /// Whether the file names experts: its layers may have fewer weights on a GPU than they have (`n_cpu_moe`).
    pub fn has_experts(&self) -> bool {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        self.metadata(&format!("{architecture}.expert_count")).is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n > 0))
    }

    /// All metadata of the file that is text, a number or a truth value, as text; arrays are left out.
    pub fn all_metadata(&self) -> Vec<(String, String)> {
        unsafe extern "C" fn collect(to: *mut c_void, key: *const c_char, value: *const c_char) {
            // SAFETY: `to` is the vector below, which only this function uses during the call. The texts end with NUL.
            unsafe { &mut *to.cast::<Vec<(String, String)>>() }.push(unsafe { (guard::text(key), guard::text(value)) });
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        // SAFETY: the model is alive, and the vector outlives the call.
        unsafe { foredraft_metadata(self.ptr.as_ptr(), Some(collect), (&raw mut pairs).cast()) };
        pairs
    }

    /// The chat template of the model file.
    pub fn chat_template(&self) -> Option<String> {
        self.chat_template_named(None)
    }

    /// The separate chat template that some files have for requests with tools.
    pub fn tool_template(&self) -> Option<String> {
        self.chat_template_named(Some(c"tool_use"))
    }

    /// The template that some files have for a query and a document, as text with `{query}` and `{document}`.
    pub fn rerank_template(&self) -> Option<String> {
        self.chat_template_named(Some(c"rerank"))
    }

    fn chat_template_named(&self, name: Option<&CStr>) -> Option<String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: NULL means the default template, and a name is NUL-terminated. The string lives as long as the model.
        let template = unsafe { sys::llama_model_chat_template(self.ptr.as_ptr(), name) };
        // SAFETY: NULL or NUL-terminated.
        (!template.is_null()).then(|| unsafe { guard::text(template) })
    }

    /// Whether the model generates text from left to right. Encoders and diffusion models do not.
    pub fn can_generate(&self) -> bool {
        // SAFETY: see `n_ctx_train`.
        unsafe {
            sys::llama_model_has_decoder(self.ptr.as_ptr())
                && !sys::llama_model_has_encoder(self.ptr.as_ptr())
                && !sys::llama_model_is_diffusion(self.ptr.as_ptr())
        }
    }

    /// Whether the model's memory has recurrent states, which represent all tokens before them: recurrent and hybrid models.
    pub fn has_recurrent_states(&self) -> bool {
        // SAFETY: see `n_ctx_train`.
        unsafe { sys::llama_model_is_recurrent(self.ptr.as_ptr()) || sys::llama_model_is_hybrid(self.ptr.as_ptr()) }
    }

    /// Whether a batch can have tokens of several sequences. With some architectures, llama.cpp then writes wrong states: for PLaMo 2,
    /// their place is multiplied by the number of sequences; for RWKV6-Qwen2 and ARWKV7, it copies the last tokens of sequences as
    /// if they were side by side.
    pub fn decodes_sequences_together(&self) -> bool {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        !matches!(architecture.as_str(), "plamo2" | "rwkv6qwen2" | "arwkv7")
    }

    /// The number of scores that the model's classifier gives a text. 0: it has none.
    pub fn n_scores(&self) -> usize {
        // SAFETY: the model is alive.
        unsafe { foredraft_n_scores(self.ptr.as_ptr()) }
    }

    /// The output weights in graphs of this model, and their size in bytes. `None`: their rows are not those of tokens.
    pub(crate) fn output_weights(&self) -> Option<(NonNull<sys::ggml_tensor>, u64)> {
        let mut size = 0;
        // SAFETY: the model is alive, and so is `size`.
        let weights = unsafe { foredraft_output_weights(self.ptr.as_ptr(), &raw mut size) };
        NonNull::new(weights.cast_mut()).map(|weights| (weights, size))
    }

    /// The size of the output weights in bytes. Models with tied embeddings have them there once more.
    pub fn output_size(&self) -> u64 {
        self.output_weights().map_or(0, |(_, size)| size)
    }

    /// Whether the classifier scores the mean of a text's tokens instead of one of them.
    pub fn classifies_mean(&self) -> bool {
        let default = || self.metadata("general.architecture").is_some_and(|kind| kind == "modern-bert");
        self.metadata_of_kind("classifier.pooling_type").map_or_else(default, |kind| kind == "1")
    }

    /// The size of the sliding window in tokens. 0 if no layer has one.
    pub fn n_swa(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_swa(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// The number of layers.
    pub fn n_layer(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_layer(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// [`Model::metadata`] of a key with the model's architecture as prefix.
    pub fn metadata_of_kind(&self, key: &str) -> Option<String> {
        self.metadata(&format!("{}.{key}", self.metadata("general.architecture")?))
    }

    /// The head sizes of keys and of values, if all layers have the same.
    pub(super) fn head_sizes(&self) -> Option<[usize; 2]> {
        let number = |key| self.metadata_of_kind(&format!("attention.{key}"))?.parse::<usize>().ok();
        let default = || Some(self.n_embd() / number("head_count").filter(|heads| *heads > 0)?);
        Some([number("key_length").or_else(default)?, number("value_length").or_else(default)?])
    }

    /// The properties, with names, that identify this model and its adapters.
    pub fn identity(&self) -> &[(&'static str, String)] {
        self.files.identity(|| {
            let vocab = self.vocab();
            let mut tokens = Xxh3::new();
            for token in 0..Token::try_from(vocab.n_tokens()).unwrap_or(Token::MAX) {
                tokens.update(vocab.raw_text(token).as_bytes());
                tokens.update(&[0]);
            }
            vec![
                ("architecture", self.metadata("general.architecture").unwrap_or_default()),
                ("model", self.description()),
                ("parameters", self.n_params().to_string()),
                ("bytes", self.size().to_string()),
                ("layers", self.n_layer().to_string()),
                ("embedding", self.n_embd().to_string()),
                ("vocabulary", format!("{} tokens, {:016x}", vocab.n_tokens(), tokens.digest())),
            ]
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.ptr.as_ptr()
    }

    /// The scales of the LoRA adapters in a load.
    pub fn lora_scales(&self) -> Vec<f32> {
        self.adapters.iter().map(|(_, scale)| *scale).collect()
    }

    /// The weights that the LoRA adapters have on each device, or would have if the model only measures.
    pub(super) fn adapter_placement(&self) -> &DevicePlacement {
        &self.adapter_placement
    }

    pub(super) fn adapters(&self) -> &[(NonNull<sys::llama_adapter_lora>, f32)] {
        &self.adapters
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.pending_panels.stop(|| self.panel_interrupt.raise());
        // SAFETY: this is the only owner, and no thread makes panels. Contexts hold an `Arc` of it, so there are none.
        unsafe { sys::llama_model_free(self.ptr.as_ptr()) }
    }
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

impl Vocabulary for Model {
    fn n_tokens(&self) -> usize {
        self.vocab().n_tokens()
    }

    fn has_text(&self) -> bool {
        self.vocab().kind() != VocabKind::None
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.vocab().piece(token)
    }

    fn text(&self, token: Token) -> &[u8] {
        self.vocab().text(token)
    }

    fn is_eog(&self, token: Token) -> bool {
        self.vocab().is_eog(token)
    }

    fn token_tree(&self) -> Option<&TokenTree> {
        Some(self.token_tree.get_or_init(|| self.make_token_tree()))
    }

    fn newline(&self) -> Option<Token> {
        self.vocab().newline()
    }

    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>> {
        self.vocab().tokenize(text, false, parse_special)
    }
}

#[cfg(all(own_kernels, target_os = "linux"))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_that_yielding_threads_leave_are_made_without_yielding() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-target.gguf");
        for patience in [Duration::ZERO, Duration::from_millis(1), PANEL_PATIENCE] {
            let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
            assert!(model.pending_panel_bytes() > 0);
            model.pending_panels.begin(patience, |make| make());
            while model.is_making_panels() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(model.pending_panel_bytes(), 0, "{patience:?}");
        }
        // Stopped in either part.
        for patience in [Duration::ZERO, PANEL_PATIENCE].repeat(20) {
            let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
            model.pending_panels.begin(patience, |make| make());
        }
    }
}
