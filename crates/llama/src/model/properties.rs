//! Sizes, kind and metadata of a loaded model, as llama.cpp says them.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::guard;
use crate::model::Model;
use foredraft_native::{foredraft_metadata, foredraft_n_scores, foredraft_output_weights};

impl Model {
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

    /// The template of native decision models for a state and a question.
    pub fn decision_template(&self) -> Option<String> {
        self.chat_template_named(Some(c"systemone"))
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

    /// Whether the model is an encoder that has scores of decisions for each token, as llama.cpp's type `laya`.
    pub fn scores_decisions(&self) -> bool {
        self.metadata_of_kind("decision.type").is_some_and(|kind| kind == "laya")
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
    pub(crate) fn head_sizes(&self) -> Option<[usize; 2]> {
        let number = |key| self.metadata_of_kind(&format!("attention.{key}"))?.parse::<usize>().ok();
        let default = || Some(self.n_embd() / number("head_count").filter(|heads| *heads > 0)?);
        Some([number("key_length").or_else(default)?, number("value_length").or_else(default)?])
    }
}
