//! Validated parameters of a model and of a context.

use llama_cpp_sys_2 as sys;

use crate::backend::devices;
use crate::{GgufSource, ThreadSettings, WeightType};

foredraft_base::words! {
    /// The distribution of a model over several GPUs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SplitMode {
        /// On one GPU (`main_gpu`).
        None = sys::LLAMA_SPLIT_MODE_NONE as isize => "none",
        /// Whole layers, and their KV cache, on each GPU.
        Layer = sys::LLAMA_SPLIT_MODE_LAYER as isize => "layer",
        /// Rows of the weights on each GPU.
        Row = sys::LLAMA_SPLIT_MODE_ROW as isize => "row",
        /// Tensor parallelism.
        Tensor = sys::LLAMA_SPLIT_MODE_TENSOR as isize => "tensor",
    }
}

/// A value for `override_kv`.
#[derive(Debug, Clone, PartialEq)]
pub enum KvValue {
    /// A signed integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// true or false.
    Bool(bool),
    /// A string of at most 127 bytes.
    Str(String),
}

/// A LoRA adapter to load with the model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraParams {
    /// The adapter's GGUF file.
    pub source: GgufSource,
    /// The factor of its output.
    pub scale: f32,
}

/// The parameters for loading a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelParams {
    /// The GGUF file (the first one of a split model).
    pub source: GgufSource,
    /// The number of layers on the GPU. Negative: all.
    pub n_gpu_layers: i32,
    /// The names of the devices, as listed by `poll_system_status`. `None`: all; empty: only the CPU.
    pub devices: Option<Vec<String>>,
    /// The distribution over GPUs.
    pub split_mode: SplitMode,
    /// The index of the GPU for [`SplitMode::None`].
    pub main_gpu: i32,
    /// The share of each GPU. Empty: by free memory.
    pub tensor_split: Vec<f32>,
    /// The number of layers whose experts stay on the CPU, from the first one on. [`ModelParams::ALL_LAYERS`]: all.
    pub n_cpu_moe: u32,
    /// Patterns of the names of weights, and the device that has them. The first that matches counts.
    pub override_tensor: Vec<(String, String)>,
    /// Map the file instead of reading it. Ignored for a source in memory.
    pub use_mmap: bool,
    /// Copy weights into panels, unless `use_mlock` is set. `None`: for each type of weights what is faster for one token, as measured.
    pub repack: Option<bool>,
    /// Keep the model in RAM.
    pub use_mlock: bool,
    /// Check the weights for NaN and infinity while loading.
    pub check_tensors: bool,
    /// Load only the vocabulary: the model can only tokenize.
    pub vocab_only: bool,
    /// Allocate nothing for weights and contexts, so that [`DevicePlacement`](crate::DevicePlacement) can be asked what they would take. Such a
    /// model cannot be decoded.
    pub only_measures: bool,
    /// Metadata that overrides the file's.
    pub override_kv: Vec<(String, KvValue)>,
    /// LoRA adapters.
    pub lora: Vec<LoraParams>,
    /// The level of instructions that kernels use. `None`: the environment's, or the best one.
    pub cpu_level: Option<String>,
    /// Also load the layers for multi-token prediction, if the file has them.
    pub mtp: bool,
    /// The type of the weights in memory.
    pub weights: WeightType,
}

impl ModelParams {
    /// More layers than a model can have.
    pub const ALL_LAYERS: u32 = 1000;

    /// llama.cpp's defaults for the file at `source`.
    pub fn new(source: impl Into<GgufSource>) -> Self {
        ModelParams {
            source: source.into(),
            n_gpu_layers: -1,
            devices: None,
            split_mode: SplitMode::Layer,
            main_gpu: 0,
            tensor_split: Vec::new(),
            n_cpu_moe: 0,
            override_tensor: Vec::new(),
            use_mmap: true,
            repack: None,
            use_mlock: false,
            check_tensors: false,
            vocab_only: false,
            only_measures: false,
            override_kv: Vec::new(),
            lora: Vec::new(),
            cpu_level: None,
            mtp: false,
            weights: WeightType::AsInFile,
        }
    }
}

/// The use of flash attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttn {
    /// Whichever is faster, if the model and the device support it.
    Auto = sys::LLAMA_FLASH_ATTN_TYPE_AUTO as isize,
    /// Never. On CPUs, this makes verification of drafts faster, and decoding of single tokens slower.
    Off = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED as isize,
    /// Always.
    On = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED as isize,
}

foredraft_base::words! {
    /// The element type of the KV cache.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[expect(missing_docs, reason = "the names are ggml's types")]
    pub enum CacheType {
        F32 = sys::GGML_TYPE_F32 as isize => "f32",
        F16 = sys::GGML_TYPE_F16 as isize => "f16",
        Bf16 = sys::GGML_TYPE_BF16 as isize => "bf16",
        Q8_0 = sys::GGML_TYPE_Q8_0 as isize => "q8_0",
        Q4_0 = sys::GGML_TYPE_Q4_0 as isize => "q4_0",
        Q4_1 = sys::GGML_TYPE_Q4_1 as isize => "q4_1",
        Iq4Nl = sys::GGML_TYPE_IQ4_NL as isize => "iq4_nl",
        Q5_0 = sys::GGML_TYPE_Q5_0 as isize => "q5_0",
        Q5_1 = sys::GGML_TYPE_Q5_1 as isize => "q5_1",
    }
}

/// The scaling of RoPE beyond the training context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    /// As in the model file.
    FromModel = sys::LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED as isize,
    /// None.
    None = sys::LLAMA_ROPE_SCALING_TYPE_NONE as isize,
    /// Linearly.
    Linear = sys::LLAMA_ROPE_SCALING_TYPE_LINEAR as isize,
    /// YaRN.
    Yarn = sys::LLAMA_ROPE_SCALING_TYPE_YARN as isize,
    /// LongRoPE.
    LongRope = sys::LLAMA_ROPE_SCALING_TYPE_LONGROPE as isize,
}

foredraft_base::words! {
    /// How a text's embedding, or scores, come from those of its tokens.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TextPooling {
        /// Their mean is the text's.
        Mean => "mean",
        /// The first one is the text's.
        First => "cls",
        /// The last one is the text's.
        Last => "last",
        /// The model's classifier makes scores of them.
        Rank => "rank",
    }
}

/// The parameters of a context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextParams {
    /// The context length of one sequence in tokens or, with `kv_unified`, the number of cells that all sequences share. `Some(0)`: the
    /// training context. `None`: the same, but at most [`DEFAULT_N_CTX`](crate::DEFAULT_N_CTX).
    pub n_ctx: Option<u32>,
    /// The maximum number of tokens in a batch.
    pub n_batch: u32,
    /// The maximum number of tokens in a physical batch.
    pub n_ubatch: u32,
    /// The maximum number of sequences.
    pub n_seq_max: u32,
    /// The number of tokens by which a sequence of a model with recurrent states can be rolled back after a batch
    /// ([`Rollback::Recent`](crate::Rollback::Recent)). Each takes a further state's memory. Architectures without this ignore it, and so do models
    /// without recurrent states.
    pub n_rollback: u32,
    /// All sequences share one KV buffer of `n_ctx` cells. If false, each has its own buffer, and a sequence's logits do not depend on
    /// other sequences, bit for bit. In a shared buffer, the order of summation depends on the placement of the cells.
    pub kv_unified: bool,
    /// The number of threads for one token.
    pub n_threads: i32,
    /// The number of threads for several tokens.
    pub n_threads_batch: i32,
    /// The settings of the threads for one token.
    pub thread_settings: ThreadSettings,
    /// The settings of the threads for several tokens.
    pub thread_settings_batch: ThreadSettings,
    /// Flash attention.
    pub flash_attn: FlashAttn,
    /// The measured choice for [`FlashAttn::Auto`]. `None`: not measured.
    pub measured_flash_attn: Option<bool>,
    /// The type of the K cache.
    pub type_k: CacheType,
    /// The type of the V cache.
    pub type_v: CacheType,
    /// Keep the KV cache on the GPU.
    pub offload_kqv: bool,
    /// Full-size cache for sliding-window attention.
    pub swa_full: bool,
    /// RoPE's base frequency. 0: the model's.
    pub rope_freq_base: f32,
    /// RoPE's frequency scale. 0: the model's.
    pub rope_freq_scale: f32,
    /// RoPE scaling.
    pub rope_scaling: RopeScaling,
    /// YaRN's extrapolation mix. Negative: the model's.
    pub yarn_ext_factor: f32,
    /// YaRN's attention factor.
    pub yarn_attn_factor: f32,
    /// YaRN's low correction dimension.
    pub yarn_beta_fast: f32,
    /// YaRN's high correction dimension.
    pub yarn_beta_slow: f32,
    /// YaRN's original context. 0: the model's.
    pub yarn_orig_ctx: u32,
    /// Extract embeddings instead of logits.
    pub embeddings: bool,
    /// The context only drafts, so its logits need not be batch-invariant.
    pub drafts: bool,
    /// The pooling of embeddings. `None`: as in the model file. If it has none, the last token's embedding.
    pub pooling: Option<TextPooling>,
}

impl ContextParams {
    /// Whether flash attention is used. `None`: neither set nor measured.
    pub(super) fn uses_flash_attn(&self) -> Option<bool> {
        match self.flash_attn {
            FlashAttn::On => Some(true),
            FlashAttn::Off => Some(false),
            FlashAttn::Auto => self.measured_flash_attn,
        }
    }

    /// The number of KV buffers.
    pub(super) fn n_buffers(&self) -> u32 {
        if self.kv_unified { 1 } else { self.n_seq_max.max(1) }
    }
}

impl Default for ContextParams {
    /// llama.cpp's defaults, except for the number of threads (see `llama::cores`) and, if there are only CPUs, smaller physical batches:
    /// llama.cpp checks for a cancel between operations, and an operation takes longer for a larger batch.
    fn default() -> Self {
        let threads = crate::threads::cores::default_threads();
        ContextParams {
            n_ctx: None,
            n_batch: 2048,
            n_ubatch: if devices::supports_offload() { 512 } else { 256 },
            n_seq_max: 1,
            n_rollback: 0,
            kv_unified: false,
            n_threads: threads,
            n_threads_batch: threads,
            thread_settings: ThreadSettings::default(),
            thread_settings_batch: ThreadSettings::default(),
            flash_attn: FlashAttn::Auto,
            measured_flash_attn: None,
            type_k: CacheType::F16,
            type_v: CacheType::F16,
            offload_kqv: true,
            swa_full: true,
            rope_freq_base: 0.0,
            rope_freq_scale: 0.0,
            rope_scaling: RopeScaling::FromModel,
            yarn_ext_factor: -1.0,
            yarn_attn_factor: -1.0,
            yarn_beta_fast: -1.0,
            yarn_beta_slow: -1.0,
            yarn_orig_ctx: 0,
            embeddings: false,
            drafts: false,
            pooling: None,
        }
    }
}
