//! Validated parameters of a model and of a context: what `init` asks for, in Rust's types.

use super::GgufSource;

use super::ThreadSettings;

/// How a model is spread over several GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMode {
    /// On one GPU (`main_gpu`).
    None,
    /// Whole layers, and their KV cache, on each GPU.
    Layer,
    /// Rows of the weights on each GPU.
    Row,
    /// Tensor parallelism.
    Tensor,
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
    /// The factor its output is multiplied by.
    pub scale: f32,
}

/// How to load a model file.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelParams {
    /// The GGUF file (the first part, when it is split).
    pub source: GgufSource,
    /// Layers to put on the GPU; negative: all of them.
    pub n_gpu_layers: i32,
    /// Names of the devices to use (as `poll_system_status` lists them); `None`: all, empty: none but the CPU.
    pub devices: Option<Vec<String>>,
    /// How to spread the model over GPUs.
    pub split_mode: SplitMode,
    /// Index of the GPU that [`SplitMode::None`] uses.
    pub main_gpu: i32,
    /// Share of each GPU; empty: by free memory.
    pub tensor_split: Vec<f32>,
    /// Map the file instead of reading it; ignored where it is in memory.
    pub use_mmap: bool,
    /// Keep the model in RAM.
    pub use_mlock: bool,
    /// Check the weights for NaN and infinity while loading.
    pub check_tensors: bool,
    /// Load the vocabulary alone: the model tokenizes and nothing else.
    pub vocab_only: bool,
    /// Metadata that overrides the file's.
    pub override_kv: Vec<(String, KvValue)>,
    /// Adapters applied to every evaluation.
    pub lora: Vec<LoraParams>,
    /// Load the layers for multi-token prediction, too, if the file has them.
    pub mtp: bool,
}

impl ModelParams {
    /// llama.cpp's defaults for the file at `source`.
    pub fn new(source: impl Into<GgufSource>) -> Self {
        ModelParams {
            source: source.into(),
            n_gpu_layers: -1,
            devices: None,
            split_mode: SplitMode::Layer,
            main_gpu: 0,
            tensor_split: Vec::new(),
            use_mmap: true,
            use_mlock: false,
            check_tensors: false,
            vocab_only: false,
            override_kv: Vec::new(),
            lora: Vec::new(),
            mtp: false,
        }
    }
}

/// When to use flash attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashAttn {
    /// Where the model and the device support it.
    Auto,
    /// Never. On CPUs drafts are checked faster then, and a token alone is evaluated more slowly.
    Off,
    /// Always.
    On,
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it: ggml's types
pub enum CacheType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Iq4Nl,
    Q5_0,
    Q5_1,
}

/// How RoPE is scaled beyond the trained context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    /// As the model file says.
    FromModel,
    /// Not at all.
    None,
    /// Linearly.
    Linear,
    /// YaRN.
    Yarn,
    /// LongRoPE.
    LongRope,
}

/// How the embeddings of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// As the model file says; where it says nothing, the last token's.
    FromModel,
    /// The last token's, as the old server did.
    None,
    /// The mean.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
}

/// How to make a context of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextParams {
    /// Tokens of context of one sequence, or cells that all share with `kv_unified`; `Some(0)`: as many as the model
    /// was trained on; `None`: those, but at most [`DEFAULT_N_CTX`](super::DEFAULT_N_CTX).
    pub n_ctx: Option<u32>,
    /// Most tokens in one batch.
    pub n_batch: u32,
    /// Most tokens in one physical batch.
    pub n_ubatch: u32,
    /// Most sequences.
    pub n_seq_max: u32,
    /// Whether sequences share one buffer of `n_ctx` cells, or each has its own. Its own makes a sequence's logits
    /// independent of its neighbours to the last bit; cells in a shared buffer are summed up in an order that depends on
    /// who was there before.
    pub kv_unified: bool,
    /// Threads for one token.
    pub n_threads: i32,
    /// Threads for several tokens.
    pub n_threads_batch: i32,
    /// How the threads for one token run.
    pub thread_settings: ThreadSettings,
    /// How the threads for several tokens run.
    pub thread_settings_batch: ThreadSettings,
    /// Flash attention.
    pub flash_attn: FlashAttn,
    /// What [`FlashAttn::Auto`] stands for, where that has been measured.
    pub measured_flash_attn: Option<bool>,
    /// Type of the K cache.
    pub type_k: CacheType,
    /// Type of the V cache.
    pub type_v: CacheType,
    /// Keep the KV cache on the GPU.
    pub offload_kqv: bool,
    /// Full-size cache for sliding-window attention.
    pub swa_full: bool,
    /// RoPE's base frequency; 0: the model's.
    pub rope_freq_base: f32,
    /// RoPE's frequency scale; 0: the model's.
    pub rope_freq_scale: f32,
    /// RoPE scaling.
    pub rope_scaling: RopeScaling,
    /// YaRN's extrapolation mix; negative: the model's.
    pub yarn_ext_factor: f32,
    /// YaRN's attention factor.
    pub yarn_attn_factor: f32,
    /// YaRN's low correction dimension.
    pub yarn_beta_fast: f32,
    /// YaRN's high correction dimension.
    pub yarn_beta_slow: f32,
    /// YaRN's original context; 0: the model's.
    pub yarn_orig_ctx: u32,
    /// Extract embeddings instead of logits.
    pub embeddings: bool,
    /// Whether it only guesses what another context says, so that the last bits of its logits do not matter.
    pub drafts: bool,
    /// How to pool them.
    pub pooling: Pooling,
}

impl ContextParams {
    /// Whether there is to be flash attention; `None`: neither asked for nor measured.
    pub(super) fn uses_flash_attn(&self) -> Option<bool> {
        match self.flash_attn {
            FlashAttn::On => Some(true),
            FlashAttn::Off => Some(false),
            FlashAttn::Auto => self.measured_flash_attn,
        }
    }

    /// Buffers of the KV cache.
    pub(super) fn n_buffers(&self) -> u32 {
        if self.kv_unified { 1 } else { self.n_seq_max.max(1) }
    }
}

impl Default for ContextParams {
    /// llama.cpp's defaults with as many threads as suit this machine (see `llama::cores`), and smaller physical batches where only CPUs compute: llama.cpp
    /// looks at a cancel between operations, and an operation takes the longer the larger its batch is.
    fn default() -> Self {
        let threads = super::cores::default_threads();
        ContextParams {
            n_ctx: None,
            n_batch: 2048,
            n_ubatch: if super::backend::supports_offload() { 512 } else { 256 },
            n_seq_max: 1,
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
            pooling: Pooling::FromModel,
        }
    }
}
