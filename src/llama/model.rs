//! A loaded model: owner of the weights, the vocabulary and the LoRA adapters.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::gguf_source::GgufFile;
use super::guard::{Why, foredraft_lora_load, foredraft_model_load};
use super::identity::Files;
use super::params::{KvValue, LoraParams, ModelParams, SplitMode};
use super::{Vocab, backend, cpu, log};
use crate::error::{Code, Error, Result};

/// What `init` calls a model and its devices.
struct Names {
    model: &'static str,
    devices: &'static str,
}

const TARGET: Names = Names { model: "model", devices: "devices" };
const DRAFT: Names = Names { model: "model_draft", devices: "devices_draft" };

/// A loaded model. Immutable, so one [`Arc`](std::sync::Arc) of it serves every thread.
#[derive(Debug)]
pub struct Model {
    ptr: NonNull<sys::llama_model>,
    vocab: Vocab,
    adapters: Vec<(NonNull<sys::llama_adapter_lora>, f32)>,
    vocab_only: bool,
    files: Files,
}

// SAFETY: after loading, llama.cpp only reads a model; contexts keep their own state.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    /// Loads a GGUF file. `progress` is called now and then with 0..=1 and aborts the load by returning false.
    ///
    /// # Errors
    /// The file is not there ([`Code::NotFound`]) or cannot be loaded, nor can what `params` name beside it; the load was
    /// aborted ([`Code::Cancelled`]).
    pub fn load(params: &ModelParams, progress: impl FnMut(f32) -> bool) -> Result<Model> {
        Model::load_as(&TARGET, params, progress)
    }

    /// The same for a draft model: errors name the fields that `init` has for it.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_draft(params: &ModelParams, progress: impl FnMut(f32) -> bool) -> Result<Model> {
        Model::load_as(&DRAFT, params, progress)
    }

    fn load_as(names: &Names, params: &ModelParams, mut progress: impl FnMut(f32) -> bool) -> Result<Model> {
        backend::start();
        let opened = GgufFile::open(names.model, &params.source, params.use_mmap)?;
        let adapters: Vec<GgufFile> =
            params.lora.iter().map(|lora| GgufFile::open("lora", &lora.source, false)).collect::<Result<_>>()?;
        // llama.cpp keeps so many shares of the split, and does not look whether there are more devices.
        // SAFETY: returns a number.
        let most = unsafe { sys::llama_max_devices() };
        let named = params.devices.as_deref().unwrap_or_default();
        if named.len() > most {
            let (name, n) = (names.devices, named.len());
            return Err(Error::invalid(format!("{name}: expected at most {most} names, got {n}")));
        }
        let handle = |name: &String| {
            let none = || Error::invalid(format!("{}: there is no device {name:?}", names.devices));
            backend::device_by_name(name).ok_or_else(none)
        };
        let mut devices = match &params.devices {
            Some(named) => Some(named.iter().map(handle).collect::<Result<Vec<_>>>()?),
            None => backend::default_devices(),
        };
        let overrides = kv_overrides(&params.override_kv)?;
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
        raw.load_mode = match (params.use_mmap && opened.can_map, params.use_mlock) {
            (true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            (true, false) => sys::LLAMA_LOAD_MODE_MMAP,
            (false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
            (false, false) => sys::LLAMA_LOAD_MODE_NONE,
        };
        raw.main_gpu = params.main_gpu;
        if !params.tensor_split.is_empty() {
            raw.tensor_split = split.as_ptr();
        }
        if !params.override_kv.is_empty() {
            raw.kv_overrides = overrides.as_ptr();
        }
        raw.use_extra_bufts = !cpu::multiplies_all(opened.formats);
        raw.vocab_only = params.vocab_only;
        raw.check_tensors = params.check_tensors;
        raw.load_mtp = params.mtp;

        struct Progress<'a> {
            callback: &'a mut dyn FnMut(f32) -> bool,
            aborted: bool,
        }
        unsafe extern "C" fn on_progress(value: f32, user: *mut c_void) -> bool {
            // SAFETY: `user` is the `Progress` below, used by nobody else while the load runs on its thread.
            let progress = unsafe { &mut *user.cast::<Progress>() };
            progress.aborted |= !(progress.callback)(value);
            !progress.aborted
        }
        let mut state = Progress { callback: &mut progress, aborted: false };
        raw.progress_callback = Some(on_progress);
        raw.progress_callback_user_data = (&raw mut state).cast();

        let mut why = Why::new();
        // SAFETY: every pointer in `raw` outlives the call (they are locals of this function), lists end as
        // llama.cpp wants (NULL device, empty key), and exceptions end in the guard.
        let (ptr, errors) = log::collecting(|| unsafe {
            foredraft_model_load(opened.path(), opened.stream(), opened.start(), raw, why.ptr(), why.size())
        });
        let Some(ptr) = NonNull::new(ptr) else {
            if state.aborted {
                return Err(Error::new(Code::Cancelled, format!("the load of {} was aborted", params.source)));
            }
            return Err(Error::model(format!(
                "{}: {} cannot be loaded: {}",
                names.model,
                params.source,
                reason(&errors, &why.message())
            )));
        };
        // SAFETY: the model is loaded; its vocabulary lives as long as it and is dropped with it (`Vocab` frees nothing).
        let vocab = unsafe { Vocab::new(sys::llama_model_get_vocab(ptr.as_ptr())) };
        let vocab = match vocab {
            Ok(vocab) => vocab,
            Err(error) => {
                // SAFETY: nothing refers to the model yet.
                unsafe { sys::llama_model_free(ptr.as_ptr()) };
                return Err(error);
            }
        };
        let files = Files::of(params);
        let mut model = Model { ptr, vocab, adapters: Vec::new(), vocab_only: params.vocab_only, files };
        for (lora, opened) in params.lora.iter().zip(&adapters) {
            model.add_adapter(lora, opened)?;
        }
        Ok(model)
    }

    fn add_adapter(&mut self, lora: &LoraParams, opened: &GgufFile) -> Result<()> {
        let LoraParams { source, scale } = lora;
        let mut why = Why::new();
        // SAFETY: the model is alive and nobody else uses it yet; exceptions end in the guard. llama.cpp frees
        // the adapter with the model.
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

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Whether only the vocabulary was loaded, so that nothing can be evaluated.
    pub fn vocab_only(&self) -> bool {
        self.vocab_only
    }

    /// The context it was trained on, in tokens.
    pub fn n_ctx_train(&self) -> u32 {
        // SAFETY: the model is alive; so in all getters below.
        match unsafe { sys::llama_model_n_ctx_train(self.ptr.as_ptr()) } {
            // Not read with the vocabulary alone.
            ..=0 => self.metadata_of_kind("context_length").and_then(|number| number.parse().ok()).unwrap_or(0),
            n_ctx => n_ctx.unsigned_abs(),
        }
    }

    /// Numbers in an embedding.
    pub fn n_embd(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_embd_out(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// Parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: see `n_ctx_train`.
        unsafe { sys::llama_model_n_params(self.ptr.as_ptr()) }
    }

    /// Size of the weights in bytes.
    pub fn size(&self) -> u64 {
        // SAFETY: see `n_ctx_train`.
        unsafe { sys::llama_model_size(self.ptr.as_ptr()) }
    }

    /// Architecture, size and type in one line, such as `llama 1B Q8_0`.
    pub fn description(&self) -> String {
        let mut buffer = [0_u8; 256];
        // SAFETY: the buffer is as long as said, and what is written ends in NUL within it.
        unsafe {
            sys::llama_model_desc(self.ptr.as_ptr(), buffer.as_mut_ptr().cast::<c_char>(), buffer.len());
            backend::text(buffer.as_ptr().cast())
        }
    }

    /// A metadata value of the file, as text.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = vec![0_u8; 256];
        loop {
            // SAFETY: `key` is NUL-terminated and the buffer as long as said.
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

    /// The chat template of the model file.
    pub fn chat_template(&self) -> Option<String> {
        self.chat_template_named(None)
    }

    /// The one that some files have beside it for requests with tools.
    pub fn tool_template(&self) -> Option<String> {
        self.chat_template_named(Some(c"tool_use"))
    }

    fn chat_template_named(&self, name: Option<&CStr>) -> Option<String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: NULL asks for the default template, a name is NUL-terminated; the string lives as long as the model.
        let template = unsafe { sys::llama_model_chat_template(self.ptr.as_ptr(), name) };
        // SAFETY: NULL or NUL-terminated.
        (!template.is_null()).then(|| unsafe { backend::text(template) })
    }

    /// Whether it writes text from left to right; encoders and diffusion models do not.
    pub fn can_generate(&self) -> bool {
        // SAFETY: see `n_ctx_train`.
        unsafe {
            sys::llama_model_has_decoder(self.ptr.as_ptr())
                && !sys::llama_model_has_encoder(self.ptr.as_ptr())
                && !sys::llama_model_is_diffusion(self.ptr.as_ptr())
        }
    }

    /// Whether its memory is a KV cache that can be cut anywhere: not so for recurrent and hybrid models.
    pub fn can_roll_back(&self) -> bool {
        // SAFETY: see `n_ctx_train`.
        unsafe { !sys::llama_model_is_recurrent(self.ptr.as_ptr()) && !sys::llama_model_is_hybrid(self.ptr.as_ptr()) }
    }

    /// Tokens that a layer with a sliding window sees; 0 without such layers.
    pub fn n_swa(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_swa(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// Layers.
    pub fn n_layer(&self) -> usize {
        // SAFETY: see `n_ctx_train`.
        usize::try_from(unsafe { sys::llama_model_n_layer(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    /// [`Model::metadata`] under a key that begins with the model's architecture.
    pub(super) fn metadata_of_kind(&self, key: &str) -> Option<String> {
        self.metadata(&format!("{}.{key}", self.metadata("general.architecture")?))
    }

    /// Numbers in a head's key and in its value, where all layers have the same.
    pub(super) fn head_sizes(&self) -> Option<[usize; 2]> {
        let number = |key| self.metadata_of_kind(&format!("attention.{key}"))?.parse::<usize>().ok();
        let usual = || Some(self.n_embd() / number("head_count").filter(|heads| *heads > 0)?);
        Some([number("key_length").or_else(usual)?, number("value_length").or_else(usual)?])
    }

    /// What tells this model from all others, and the adapters that were loaded with it: name and value of each.
    pub fn identity(&self) -> &[(&'static str, String)] {
        self.files.identity(self)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.ptr.as_ptr()
    }

    /// The scale that each LoRA adapter was loaded with, by its number.
    pub fn lora_scales(&self) -> Vec<f32> {
        self.adapters.iter().map(|(_, scale)| *scale).collect()
    }

    pub(super) fn adapters(&self) -> &[(NonNull<sys::llama_adapter_lora>, f32)] {
        &self.adapters
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: this is the only owner; contexts hold an `Arc` of it, so none is left.
        unsafe { sys::llama_model_free(self.ptr.as_ptr()) }
    }
}

/// llama.cpp's own words on a failure.
fn reason(errors: &[String], thrown: &str) -> String {
    let said: Vec<&str> = errors.iter().map(String::as_str).chain((!thrown.is_empty()).then_some(thrown)).collect();
    if said.is_empty() { "llama.cpp does not say why".into() } else { said.join("; ") }
}

/// llama.cpp's list of overrides, which ends with an empty key.
fn kv_overrides(overrides: &[(String, KvValue)]) -> Result<Vec<sys::llama_model_kv_override>> {
    // SAFETY: the struct is plain data, for which zeros are valid.
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

/// Copies `text` and a NUL; `None` when it does not fit or contains NUL.
fn copy_c_string(text: &str, buffer: &mut [c_char]) -> Option<()> {
    if text.len() >= buffer.len() || text.contains('\0') {
        return None;
    }
    for (to, from) in buffer.iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    Some(())
}
