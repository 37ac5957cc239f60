//! Small models of any architecture, with random weights. llama.cpp says which metadata it misses, and which tensors the model has.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

use llama_cpp_sys_2 as sys;

use crate::common;

/// A metadata value.
#[derive(Clone, Copy)]
enum Value {
    Number(u32),
    Float(f32),
    Flag(bool),
    /// One for each layer, or for each part.
    Numbers([i32; 4]),
}
use Value::{Flag, Float, Number, Numbers};

const N_EMBD: u32 = 64;

/// The metadata of every model.
const GENERAL: [(&str, Value); 12] = [
    ("context_length", Number(512)),
    ("embedding_length", Number(N_EMBD)),
    ("block_count", Number(4)),
    ("feed_forward_length", Number(96)),
    ("attention.head_count", Number(4)),
    ("attention.head_count_kv", Number(2)),
    ("attention.key_length", Number(16)),
    ("attention.value_length", Number(16)),
    ("rope.dimension_count", Number(16)),
    ("attention.layer_norm_epsilon", Float(1e-5)),
    ("attention.layer_norm_rms_epsilon", Float(1e-5)),
    ("vocab_size", Number(1536)),
];

/// Metadata of models with experts.
const EXPERTS: [(&str, Value); 4] = [
    ("expert_count", Number(4)),
    ("expert_used_count", Number(2)),
    ("expert_feed_forward_length", Number(32)),
    ("expert_shared_feed_forward_length", Number(32)),
];

/// Metadata that an architecture has instead.
fn special(name: &str) -> &'static [(&'static str, Value)] {
    const ALTERNATING: (&str, Value) = ("attention.head_count_kv", Numbers([0, 2, 0, 2]));
    const ALTERNATING_ONE_HEAD: (&str, Value) = ("attention.head_count_kv", Numbers([0, 1, 0, 1]));
    const ALL_HEADS: (&str, Value) = ("attention.head_count_kv", Number(4));
    const ONE_HEAD: (&str, Value) = ("attention.head_count_kv", Number(1));
    const HALF_ROTATED: (&str, Value) = ("rope.dimension_count", Number(8));
    const DENSE: (&str, Value) = ("leading_dense_block_count", Number(1));
    const WINDOWS: (&str, Value) = ("attention.sliding_window_pattern", Numbers([1, 0, 1, 0]));
    // Latent attention: keys are the compressed state, and what is rotated.
    const LATENT: [(&str, Value); 4] = [
        ("attention.key_length", Number(24)),
        ("attention.value_length", Number(16)),
        ("attention.key_length_mla", Number(16)),
        ("attention.value_length_mla", Number(16)),
    ];
    match name {
        "granitehybrid" | "jamba" | "lfm2" => &[ALTERNATING],
        "plamo2" => &[ALTERNATING, ("ssm.group_count", Number(0))],
        "lfm2moe" => &[ALTERNATING, DENSE],
        "kimi-linear" | "kimi-k3" | "bailingmoe3" => {
            &[ALTERNATING_ONE_HEAD, HALF_ROTATED, DENSE, LATENT[0], LATENT[1], LATENT[2], LATENT[3]]
        }
        "nemotron_h" | "nemotron_h_moe" => &[ALTERNATING, ("feed_forward_length", Numbers([0, 0, 96, 0]))],
        "mamba" | "mamba2" => &[("attention.head_count", Number(0)), ("feed_forward_length", Number(0))],
        "qwen35" | "qwen35moe" | "qwen3next" | "minimax-01" => &[("full_attention_interval", Number(2))],
        "rwkv6" => &[ALL_HEADS, ("wkv.head_size", Number(16)), ("token_shift_count", Number(2))],
        "rwkv7" => &[
            ("embedding_length", Number(128)),
            ("wkv.head_size", Number(64)),
            ("token_shift_count", Number(2)),
            ("attention.gate_lora_rank", Number(16)),
        ],
        "arwkv7" => &[
            ("embedding_length", Number(128)),
            ("wkv.head_size", Number(64)),
            ("token_shift_count", Number(1)),
            ("attention.gate_lora_rank", Number(16)),
        ],
        "rwkv6qwen2" => &[("wkv.head_size", Number(16)), ("token_shift_count", Number(1))],
        "afmoe" => &[("attention.sliding_window", Number(64)), DENSE],
        "gptneox" => &[("use_parallel_residual", Flag(true))],
        "gemma4" | "maple" | "granite_swa" | "mimo2" | "step35" | "spark2_5" => &[WINDOWS],
        "olmoe" | "cogvlm" => &[ALL_HEADS],
        "dots1" => &[ALL_HEADS, ("expert_gating_func", Number(2))],
        "paddleocr" => &[("rope.dimension_sections", Numbers([4, 2, 2, 0]))],
        "minicpm3" | "plm" => &[ALL_HEADS, HALF_ROTATED],
        "deepseek2" | "deepseek32" | "glm-dsa" | "mistral4" => {
            &[ONE_HEAD, HALF_ROTATED, DENSE, LATENT[0], LATENT[1], LATENT[2], LATENT[3]]
        }
        "deepseek2-ocr" => &[ALL_HEADS, DENSE],
        "smallthinker" | "minimax-m2" => &[("expert_gating_func", Number(2))],
        "hrm_text" => &[("hrm.layers_per_stack", Number(2)), ("hrm.h_cycles", Number(1)), ("hrm.l_cycles", Number(1))],
        _ => &[],
    }
}

/// A value of a key that llama.cpp misses.
fn missing(key: &str) -> Option<Value> {
    Some(match key {
        "ssm.conv_kernel" | "shortconv.l_cache" => Number(4),
        "ssm.inner_size" => Number(2 * N_EMBD),
        "ssm.state_size" => Number(16),
        "ssm.time_step_rank" => Number(8),
        "ssm.group_count" => Number(2),
        "kda.head_dim" | "wkv.head_size" => Number(16),
        "rope.dimension_sections" => Numbers([4, 2, 2, 0]),
        "expert_count" => Number(4),
        "expert_used_count" | "experts_per_group" => Number(2),
        "expert_feed_forward_length" | "expert_shared_feed_forward_length" | "expert_chunk_feed_forward_length" => {
            Number(32)
        }
        "expert_gating_func" => Number(2),
        "attention.key_length_mla" | "attention.value_length_mla" => Number(16),
        "attention.sliding_window" => Number(64),
        "attention.sliding_window_pattern" => Number(2),
        "attention.clamp_kqv" | "attention.scale" => Float(1.0),
        "kda.gate_lower_bound" => Float(-1.0),
        "attention.causal" | "kda.safe_gate" | "expert_weights_norm" => Flag(true),
        _ if key.contains("lora_rank") => Number(16),
        _ if key.ends_with("epsilon") || key.ends_with("eps") => Float(1e-5),
        _ if key.ends_with("scale") || key.ends_with("softcapping") || key.contains("freq_base") => Float(1.0),
        "embedding_length_per_layer_input" | "attention.key_length_swa" | "attention.value_length_swa" => Number(16),
        _ if key.starts_with("xielu") || key.contains("swiglu_clamp") || key.ends_with("beta") => Float(0.5),
        _ if key.ends_with("count") || key.ends_with("step") || key.ends_with("groups") || key.ends_with("blocks") => {
            Number(1)
        }
        _ if key.ends_with("top_k") || key.ends_with("rank") => Number(8),
        _ if key.ends_with("length") || key.ends_with("dim") || key.ends_with("size") => Number(16),
        _ => return None,
    })
}

/// The names that llama.cpp knows, from its sources.
pub fn names() -> Vec<String> {
    let path = std::path::Path::new(env!("LLAMA_CPP_SOURCES")).join("src/llama-arch.cpp");
    let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let table = source.split_once("LLM_ARCH_NAMES").expect("the table").1.split_once("};").expect("its end").0;
    let names = table.lines().filter_map(|line| Some(line.split_once('"')?.1.split_once('"')?.0.to_owned()));
    // Draft heads need a target.
    let others = ["clip", "(unknown)", "eagle3", "dflash", "gemma4-assistant"];
    names.filter(|name| !others.contains(&name.as_str())).collect()
}

/// llama.cpp's log.
static LOG: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" fn log(_: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: llama.cpp passes a text that ends with NUL.
    LOG.lock().unwrap().push_str(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
}

/// Fills a tensor, with zeros if it has no F32 numbers, and notes it in the list at `list`.
unsafe extern "C" fn fill(tensor: *mut sys::ggml_tensor, list: *mut c_void) {
    // SAFETY: `list` is the list in `make`, and the tensor is alive.
    unsafe {
        let name = CStr::from_ptr(sys::ggml_get_name(tensor)).to_string_lossy().into_owned();
        let n = usize::try_from(sys::ggml_nelements(tensor)).unwrap();
        let contents = match (*tensor).type_ {
            sys::GGML_TYPE_F32 => weights(&name, n, (*tensor).ne[0]).iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => vec![0_u8; sys::ggml_nbytes(tensor)],
        };
        sys::ggml_backend_tensor_set(tensor, contents.as_ptr().cast(), 0, contents.len());
        (*list.cast::<Vec<(String, *mut sys::ggml_tensor)>>()).push((name, tensor));
    }
}

fn weights(name: &str, n: usize, width: i64) -> Vec<f32> {
    let mut state = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
        | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let mut of = |value: &dyn Fn(f32) -> f32| -> Vec<f32> { (0..n).map(|_| value(random())).collect() };
    match name {
        _ if name.contains("norm") && name.ends_with("weight") => of(&|x| 1.0 + 0.1 * x),
        _ if name.contains("ssm_a") => of(&|x| -0.6 + 0.5 * x),
        _ if name.contains("ssm_dt") && name.ends_with("bias") => of(&|x| x - 2.0),
        _ if name.ends_with("bias") => of(&|x| 0.1 * x),
        _ if name.starts_with("token_embd") => of(&|x| x),
        _ => {
            let scale = 1.5 / (width.max(1) as f32).sqrt();
            of(&|x| scale * x)
        }
    }
}

fn set(metadata: *mut sys::gguf_context, key: &str, value: Value) {
    let key = CString::new(key).unwrap();
    // SAFETY: the metadata is alive, and the key ends with NUL.
    unsafe {
        match value {
            Number(number) => sys::gguf_set_val_u32(metadata, key.as_ptr(), number),
            Float(number) => sys::gguf_set_val_f32(metadata, key.as_ptr(), number),
            Flag(flag) => sys::gguf_set_val_bool(metadata, key.as_ptr(), flag),
            Numbers(numbers) => {
                let data = numbers.as_ptr().cast();
                sys::gguf_set_arr_data(metadata, key.as_ptr(), sys::GGUF_TYPE_INT32, data, numbers.len());
            }
        }
    }
}

/// Writes a small model of an architecture, with or without experts and with the tokens of the shipped models, to `path`.
///
/// # Errors
/// llama.cpp misses metadata that is not known here, or refuses it.
pub fn make(name: &str, experts: bool, path: &str) -> Result<(), String> {
    const MOST_TRIES: usize = 60;
    // SAFETY: the function is valid as long as the process.
    unsafe { sys::llama_log_set(Some(log), std::ptr::null_mut()) };
    let (draft, path) = (CString::new(common::model("draft")).unwrap(), CString::new(path).unwrap());
    // SAFETY: the path ends with NUL, and the file is not opened for its tensors.
    let of_draft = unsafe {
        let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
        sys::gguf_init_from_file(draft.as_ptr(), params)
    };
    // SAFETY: all objects are alive until they are freed at the end.
    unsafe {
        let metadata = sys::gguf_init_empty();
        sys::gguf_set_kv(metadata, of_draft);
        sys::gguf_free(of_draft);
        let architecture = CString::new(name).unwrap();
        sys::gguf_set_val_str(metadata, c"general.architecture".as_ptr(), architecture.as_ptr());
        let given = if experts { &EXPERTS[..] } else { &[] };
        for (key, value) in GENERAL.iter().chain(given).chain(special(name)) {
            set(metadata, &format!("{name}.{key}"), *value);
        }
        let mut result = Err("llama.cpp misses too much metadata".to_owned());
        for _ in 0..MOST_TRIES {
            LOG.lock().unwrap().clear();
            let mut tensors: Vec<(String, *mut sys::ggml_tensor)> = Vec::new();
            let mut params = sys::llama_model_default_params();
            params.n_gpu_layers = 0;
            params.load_mtp = false;
            let list = (&raw mut tensors).cast();
            let model = sys::llama_model_init_from_user(metadata, Some(fill), list, params);
            if !model.is_null() {
                let mut known = BTreeSet::new();
                for (tensor_name, tensor) in tensors.iter().filter(|(name, _)| known.insert(name.clone())) {
                    assert!(!tensor_name.is_empty());
                    // llama.cpp names it as optional, and cannot run such models.
                    if name == "rwkv6qwen2" && tensor_name.contains("time_mix_first") {
                        continue;
                    }
                    sys::gguf_add_tensor(metadata, *tensor);
                }
                result = match sys::gguf_write_to_file(metadata, path.as_ptr(), false) {
                    true => Ok(()),
                    false => Err("the file cannot be written".to_owned()),
                };
                sys::llama_model_free(model);
                break;
            }
            let log = LOG.lock().unwrap().clone();
            let key = log.rsplit_once("key not found in model: ").and_then(|(_, rest)| rest.split_whitespace().next());
            let prefix = format!("{name}.");
            let value = key.and_then(|key| missing(key.strip_prefix(&prefix).unwrap_or(key)));
            let Some((key, value)) = key.zip(value) else {
                let line = log.lines().rev().find(|line| line.contains("error")).unwrap_or("no reason is given");
                result = Err(line.trim().to_owned());
                break;
            };
            set(metadata, key, value);
        }
        sys::gguf_free(metadata);
        result
    }
}
