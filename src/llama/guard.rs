//! The functions of `guard.cpp` and `placement.cpp`, which catch C++ exceptions and return their messages.

use std::ffi::{CStr, c_char, c_void};

use llama_cpp_sys_2 as sys;

use crate::error::{Code, Error};

/// `foredraft_attention` in `guard.cpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionShape {
    pub(super) n_head: i32,
    pub(super) n_head_kv: i32,
    pub(super) n_key: i32,
    pub(super) n_value: i32,
    pub(super) n_cells: i32,
    pub(super) n_tokens: i32,
    pub(super) flash: bool,
}

/// `foredraft_buffers` in `placement.cpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    pub(super) device: sys::ggml_backend_dev_t,
    pub(super) weights: u64,
    pub(super) kv_cache: u64,
    pub(super) compute: u64,
}

/// `weights_of_format` in head.cpp: how many weights a file has of a `ggml_type`, and their bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightsOfFormat {
    pub(super) n: u32,
    pub(super) bytes: u64,
}

unsafe extern "C" {
    pub(super) fn foredraft_check_head(
        path: *const c_char,
        stream: *mut c_void,
        start: u64,
        length: u64,
        role: i32,
        overrides: *const sys::llama_model_kv_override,
        formats: *mut WeightsOfFormat,
        kind: *mut i32,
        why: *mut c_char,
        why_size: usize,
    ) -> bool;
    pub(super) fn foredraft_model_load(
        path: *const c_char,
        stream: *mut c_void,
        start: u64,
        params: sys::llama_model_params,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut sys::llama_model;
    pub(super) fn foredraft_context_new(
        model: *mut sys::llama_model,
        params: sys::llama_context_params,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut sys::llama_context;
    pub(super) fn foredraft_decode(
        ctx: *mut sys::llama_context,
        batch: sys::llama_batch,
        encoder: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> i32;
    pub(super) fn foredraft_guarded_tokenize(
        vocab: *const sys::llama_vocab,
        text: *const c_char,
        text_len: i32,
        tokens: *mut sys::llama_token,
        n_tokens_max: i32,
        add_special: bool,
        parse_special: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> i32;
    pub(super) fn foredraft_guarded_detokenize(
        vocab: *const sys::llama_vocab,
        tokens: *const sys::llama_token,
        n_tokens: i32,
        text: *mut c_char,
        text_len_max: i32,
        unparse_special: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> i32;
    pub(super) fn foredraft_lora_load(
        model: *mut sys::llama_model,
        path: *const c_char,
        stream: *mut c_void,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut sys::llama_adapter_lora;
    pub(super) fn foredraft_state_size(
        ctx: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        partial: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> usize;
    pub(super) fn foredraft_state_get(
        ctx: *mut sys::llama_context,
        to: *mut u8,
        size: usize,
        seq: sys::llama_seq_id,
        partial: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> usize;
    pub(super) fn foredraft_state_set(
        ctx: *mut sys::llama_context,
        from: *const u8,
        size: usize,
        seq: sys::llama_seq_id,
        partial: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> usize;
    pub(super) fn foredraft_seq_move(
        memory: sys::llama_memory_t,
        seq: sys::llama_seq_id,
        from: sys::llama_pos,
        to: sys::llama_pos,
        by: sys::llama_pos,
        why: *mut c_char,
        why_size: usize,
    ) -> bool;
    pub(super) fn foredraft_rpc_add(
        add: unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t,
        endpoint: *const c_char,
        why: *mut c_char,
        why_size: usize,
    ) -> sys::ggml_backend_reg_t;
    pub(super) fn foredraft_device_memory(
        device: sys::ggml_backend_dev_t,
        free: *mut usize,
        total: *mut usize,
        why: *mut c_char,
        why_size: usize,
    ) -> bool;
    pub(super) fn foredraft_threadpool_new(
        create: unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool,
        params: *mut sys::ggml_threadpool_params,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut sys::ggml_threadpool;
    pub(super) fn foredraft_attention_cost(
        of: AttentionShape,
        n_threads: i32,
        threads: *mut sys::ggml_threadpool,
        why: *mut c_char,
        why_size: usize,
    ) -> f64;
    pub(super) fn foredraft_n_scores(model: *const sys::llama_model) -> usize;
    pub(super) fn foredraft_layer_device(model: *const sys::llama_model, layer: i32) -> sys::ggml_backend_dev_t;
    pub(super) fn foredraft_buffers_of(
        model: *const sys::llama_model,
        ctx: *const sys::llama_context,
        to: *mut Buffers,
        most: usize,
        why: *mut c_char,
        why_size: usize,
    ) -> usize;
    pub(super) fn foredraft_metadata(
        model: *const sys::llama_model,
        visit: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char),
        to: *mut c_void,
    );
    pub(super) fn foredraft_adapter_buffers(
        model: *const sys::llama_model,
        path: *const c_char,
        stream: *mut c_void,
        to: *mut Buffers,
        most: usize,
        why: *mut c_char,
        why_size: usize,
    ) -> usize;
    pub(super) fn foredraft_set_reference(ctx: *mut sys::llama_context, reference: bool) -> bool;
    pub(super) fn foredraft_keep_hidden(ctx: *mut sys::llama_context, keep: bool, with_logits_alone: bool);
    pub(super) fn foredraft_set_mtp_layer(ctx: *mut sys::llama_context, layer: i32);
    pub(super) fn foredraft_hidden(
        ctx: *mut sys::llama_context,
        index: i32,
        why: *mut c_char,
        why_size: usize,
    ) -> *const f32;
    pub(super) fn foredraft_keep_layer_input(
        ctx: *mut sys::llama_context,
        layer: u32,
        keep: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> bool;
    pub(super) fn foredraft_layer_inputs(
        ctx: *mut sys::llama_context,
        layer: u32,
        why: *mut c_char,
        why_size: usize,
    ) -> *const f32;
    pub(super) fn foredraft_target_layers(model: *const sys::llama_model, layers: *mut *const i32) -> usize;
}

/// The buffer for the message of a caught exception.
pub(super) struct ErrorBuffer([c_char; 256]);

impl ErrorBuffer {
    pub(super) fn new() -> Self {
        ErrorBuffer([0; 256])
    }

    pub(super) fn ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }

    pub(super) fn size(&self) -> usize {
        self.0.len()
    }

    /// The error of a caught exception: [`Code::ResourceExhausted`] if memory was lacking, else [`Code::ModelError`].
    pub(super) fn error(&self, what: &str) -> Error {
        let message = self.message();
        let code = if message == "std::bad_alloc" { Code::ResourceExhausted } else { Code::ModelError };
        Error::new(code, format!("{what}: {message}"))
    }

    /// The message. Empty if there was no exception.
    pub(super) fn message(&self) -> String {
        // SAFETY: the buffer is zeroed at first, and `snprintf` always writes a NUL, so there is a NUL within its 256 bytes.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }.to_string_lossy().into_owned()
    }
}
