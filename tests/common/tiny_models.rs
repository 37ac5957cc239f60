//! Writes tiny models of architectures that the shipped models do not have: seeded random weights, the shipped vocabulary.
//! Their output is nonsense, but it depends on every number in their KV cache or recurrent state.

pub mod heads;
pub mod projectors;

use std::cell::Cell;
use std::path::PathBuf;

use super::gguf::Gguf;

const N_EMBD: u64 = 32;
const N_LAYER: u64 = 4;
const N_VOCAB: u64 = 1536;

/// A GGUF file under construction.
struct Writer {
    entries: Vec<u8>,
    n_entries: u64,
    architecture: &'static str,
    tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
    random: u64,
    /// The type of matrices.
    matrices: TensorType,
}

pub(super) fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Writes a file into cargo's temporary folder, in which each test program has its own because several run at a time, and returns its path.
pub fn write_file(name: &str, bytes: Vec<u8>) -> String {
    // Written beside and renamed, because another test may have the file open.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(concat!("models-", env!("CARGO_CRATE_NAME")));
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    let (path, beside) =
        (folder.join(format!("{name}.gguf")), folder.join(format!("{name}-{:p}.tmp", &raw const bytes)));
    std::fs::write(&beside, bytes).expect("target/ is writable");
    std::fs::rename(&beside, &path).expect("target/ is writable");
    path.to_string_lossy().into_owned()
}

thread_local! {
    /// Models with another seed have other random weights, and files of their own.
    static SEED: Cell<u64> = const { Cell::new(1) };
}

/// Makes models with the random weights of this seed.
pub fn with_seed<T>(seed: u64, make: impl FnOnce() -> T) -> T {
    let before = SEED.replace(seed);
    let made = make();
    SEED.set(before);
    made
}

/// The type of a tensor in a file.
#[derive(Clone, Copy, PartialEq)]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q8_0 = 8,
}

impl TensorType {
    /// The bytes of values, whose number is one of whole blocks. Those of `Q8_0` are made from the values in F16.
    fn bytes(self, values: &[f32]) -> Vec<u8> {
        match self {
            TensorType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            TensorType::F16 => values.iter().flat_map(|value| half(*value).to_le_bytes()).collect(),
            TensorType::Q8_0 => values.chunks(32).flat_map(quantized).collect(),
        }
    }
}

/// The nearest F16 number to a number of ordinary size.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff).saturating_sub(112);
    let (cut, rest) = (exponent << 10 | bits >> 13 & 0x3ff, bits & 0x1fff);
    let cut = if exponent == 0 { 0 } else { cut + u32::from(rest > 0x1000 || rest == 0x1000 && cut % 2 == 1) };
    u16::try_from(bits >> 16 & 0x8000 | cut).expect("16 bits")
}

/// A block of `Q8_0`, as ggml makes it.
fn quantized(values: &[f32]) -> Vec<u8> {
    let values = values.iter().map(|value| {
        let half = u32::from(half(*value));
        let exponent = half >> 10 & 0x1f;
        let exponent = if exponent == 0 { 0 } else { exponent + 112 };
        f32::from_bits((half & 0x8000) << 16 | exponent << 23 | (half & 0x3ff) << 13)
    });
    let values: Vec<f32> = values.collect();
    let scale = values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let numbers = values.iter().map(|value| (value * inverse).round() as i8 as u8);
    half(scale).to_le_bytes().into_iter().chain(numbers).collect()
}

impl Writer {
    fn new(architecture: &'static str) -> Writer {
        Writer::without(architecture, "")
    }

    /// A writer that does not copy the vocabulary's entry `key`.
    fn without(architecture: &'static str, key: &str) -> Writer {
        let mut writer = Writer::empty(architecture);
        let vocabulary = Gguf::read(&super::model("draft"));
        for entry in vocabulary.entries.iter().filter(|entry| entry.key.starts_with("tokenizer.") && entry.key != key) {
            put_string(&mut writer.entries, &entry.key);
            // The value's type is stored before it.
            writer.entries.extend(&vocabulary.bytes[entry.value.start - 4..entry.value.end]);
            writer.n_entries += 1;
        }
        writer.entry("general.architecture", 8, |bytes| put_string(bytes, architecture));
        writer.number("context_length", 4096);
        writer.number("embedding_length", N_EMBD);
        writer.number("block_count", N_LAYER);
        writer.float("attention.layer_norm_rms_epsilon", 1e-5);
        let n = N_EMBD;
        writer.random("token_embd.weight", &[n, N_VOCAB], 1.0);
        writer.random("output.weight", &[n, N_VOCAB], 0.8);
        writer
    }

    fn empty(architecture: &'static str) -> Writer {
        Writer {
            entries: Vec::new(),
            n_entries: 0,
            architecture,
            tensors: Vec::new(),
            random: SEED.get(),
            matrices: TensorType::F32,
        }
    }

    fn entry(&mut self, key: &str, kind: u32, value: impl FnOnce(&mut Vec<u8>)) {
        put_string(&mut self.entries, key);
        self.entries.extend(kind.to_le_bytes());
        value(&mut self.entries);
        self.n_entries += 1;
    }

    /// As `number`, but replaces an existing value.
    fn renumber(&mut self, key: &str, value: u64) {
        let mut name = Vec::new();
        put_string(&mut name, &format!("{}.{key}", self.architecture));
        let at = self.entries.windows(name.len()).position(|bytes| bytes == name);
        match at.map(|at| at + name.len() + 4) {
            Some(at) => self.entries[at..at + 4].copy_from_slice(&u32::try_from(value).expect("small").to_le_bytes()),
            None => self.number(key, value),
        }
    }

    /// As `numbers`, but replaces an existing value of the same length.
    fn renumbers(&mut self, key: &str, values: &[i32]) {
        let mut name = Vec::new();
        put_string(&mut name, &format!("{}.{key}", self.architecture));
        let at = self.entries.windows(name.len()).position(|bytes| bytes == name).expect("the key") + name.len() + 16;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.entries[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Gives a key another name of the same length.
    fn rename(&mut self, key: &str, to: &str) {
        let mut name = Vec::new();
        put_string(&mut name, key);
        let at = self.entries.windows(name.len()).position(|bytes| bytes == name).expect("the key");
        assert_eq!(key.len(), to.len());
        self.entries[at + 8..at + name.len()].copy_from_slice(to.as_bytes());
    }

    fn number(&mut self, key: &str, value: u64) {
        let key = format!("{}.{key}", self.architecture);
        self.entry(&key, 4, |bytes| bytes.extend(u32::try_from(value).expect("small").to_le_bytes()));
    }

    fn float(&mut self, key: &str, value: f32) {
        let key = format!("{}.{key}", self.architecture);
        self.entry(&key, 6, |bytes| bytes.extend(value.to_le_bytes()));
    }

    fn numbers(&mut self, key: &str, values: &[i32]) {
        let key = format!("{}.{key}", self.architecture);
        self.entry(&key, 9, |bytes| {
            bytes.extend(5_u32.to_le_bytes());
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        });
    }

    /// Adds a tensor of random weights between `-scale` and `scale`.
    fn random(&mut self, name: &str, shape: &[u64], scale: f32) {
        let count = shape.iter().product::<u64>();
        let values = (0..count)
            .map(|_| {
                self.random =
                    self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((self.random >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
            })
            .collect();
        self.tensors.push((name.into(), shape.to_vec(), values));
    }

    fn filled(&mut self, name: &str, shape: &[u64], value: impl Fn(u64) -> f32) {
        let count = shape.iter().product::<u64>();
        self.tensors.push((name.into(), shape.to_vec(), (0..count).map(value).collect()));
    }

    fn ones(&mut self, name: &str, len: u64) {
        self.filled(name, &[len], |_| 1.0);
    }

    fn feed_forward(&mut self, layer: u64, n_ff: u64) {
        for (name, shape) in [("gate", [N_EMBD, n_ff]), ("up", [N_EMBD, n_ff]), ("down", [n_ff, N_EMBD])] {
            self.random(&format!("blk.{layer}.ffn_{name}.weight"), &shape, 0.4);
        }
        self.ones(&format!("blk.{layer}.ffn_norm.weight"), N_EMBD);
    }

    fn attention(&mut self, layer: u64) {
        for name in ["q", "k", "v", "output"] {
            self.random(&format!("blk.{layer}.attn_{name}.weight"), &[N_EMBD, N_EMBD], 0.5);
        }
        for name in ["q", "k"] {
            self.filled(&format!("blk.{layer}.attn_{name}_norm.weight"), &[N_EMBD / 2], |_| 2.0);
        }
    }

    /// As `filled`, but replaces an existing tensor.
    fn replace(&mut self, name: &str, shape: &[u64], value: impl Fn(u64) -> f32) {
        self.tensors.retain(|(known, ..)| known != name);
        self.filled(name, shape, value);
    }

    /// Kernels of convolutions over sounds have to be in F16.
    fn type_of(&self, name: &str, shape: &[u64]) -> TensorType {
        match (name.ends_with("weight"), shape) {
            (true, _) if name.starts_with("a.conv1d") => TensorType::F16,
            (true, [_, _]) if !name.contains("embd") => self.matrices,
            (true, [width, _, _]) if name.contains("_exps") && width.is_multiple_of(32) => self.matrices,
            _ => TensorType::F32,
        }
    }

    fn write(self, name: &str) -> String {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.n_entries.to_le_bytes());
        bytes.extend(&self.entries);
        let mut offset = 0_u64;
        for (name, shape, values) in &self.tensors {
            put_string(&mut bytes, name);
            bytes.extend(u32::try_from(shape.len()).expect("small").to_le_bytes());
            shape.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            let kind = self.type_of(name, shape);
            bytes.extend((kind as u32).to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += (kind.bytes(values).len() as u64).next_multiple_of(32);
        }
        for (name, shape, values) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(self.type_of(name, shape).bytes(values));
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let name = if SEED.get() == 1 { name.to_owned() } else { format!("{name}-seed-{}", SEED.get()) };
        write_file(&format!("tiny-{name}"), bytes)
    }
}

/// Mamba: recurrent layers only.
pub fn recurrent() -> String {
    let mut model = Writer::new("mamba");
    let (d_conv, d_inner, d_state, dt_rank) = (4, 2 * N_EMBD, 8, 4);
    model.number("ssm.conv_kernel", d_conv);
    model.number("ssm.inner_size", d_inner);
    model.number("ssm.state_size", d_state);
    model.number("ssm.time_step_rank", dt_rank);
    model.number("feed_forward_length", 0);
    model.number("attention.head_count", 0);
    model.ones("output_norm.weight", N_EMBD);
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}");
        model.ones(&name("attn_norm.weight"), N_EMBD);
        model.random(&name("ssm_in.weight"), &[N_EMBD, 2 * d_inner], 0.4);
        model.random(&name("ssm_conv1d.weight"), &[d_conv, d_inner], 0.6);
        model.random(&name("ssm_conv1d.bias"), &[d_inner], 0.1);
        model.random(&name("ssm_x.weight"), &[d_inner, dt_rank + 2 * d_state], 0.3);
        model.random(&name("ssm_dt.weight"), &[dt_rank, d_inner], 0.5);
        model.filled(&name("ssm_dt.bias"), &[d_inner], |_| -2.5);
        model.filled(&name("ssm_a"), &[d_state, d_inner], |index| -(1.0 + (index % 8) as f32) / 8.0);
        model.ones(&name("ssm_d"), d_inner);
        model.random(&name("ssm_out.weight"), &[d_inner, N_EMBD], 0.4);
    }
    model.write("recurrent")
}

/// The same model with `tokenizer.ggml.suppress_tokens`.
pub fn with_suppressed_tokens(tokens: &[i32]) -> String {
    let mut model = Writer::new("gemma3");
    model.entry("tokenizer.ggml.suppress_tokens", 9, |bytes| {
        bytes.extend(5_u32.to_le_bytes());
        bytes.extend((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    });
    window(&mut model);
    model.write("with_suppressed_tokens")
}

/// The same model with a chat template under `key`.
pub fn with_template(key: &str, template: &str) -> String {
    with_texts("template", &[(key, template)])
}

/// The same model with texts under these keys, the first of which the vocabulary may have.
pub fn with_texts(name: &'static str, texts: &[(&str, &str)]) -> String {
    let mut model = Writer::without("gemma3", texts[0].0);
    for (key, text) in texts {
        model.entry(key, 8, |bytes| put_string(bytes, text));
    }
    window(&mut model);
    model.write(name)
}

/// The same model without a chat template.
pub fn without_template() -> String {
    let mut model = Writer::without("gemma3", "tokenizer.chat_template");
    window(&mut model);
    model.write("without-template")
}

/// A file of an architecture with little but the metadata that it needs, all of it 2, except for `zero`, which is 0.
pub fn with_zero(architecture: &'static str, zero: &'static str) -> String {
    let mut model = Writer::new(architecture);
    let keys = [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "feed_forward_length",
        "expert_feed_forward_length",
        "expert_count",
        "expert_used_count",
        "full_attention_interval",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        "ssm.group_count",
        "wkv.head_size",
        "attention.output_group_count",
        "attention.indexer.block_size",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.indexer.local_blocks",
        "expert_gating_func",
    ];
    for key in keys.into_iter().filter(|key| *key != zero) {
        model.number(key, 2);
    }
    model.number(zero, 0);
    model.float("attention.layer_norm_epsilon", 1e-5);
    model.numbers("rope.dimension_sections", &[1, 1, 1, 1]);
    model.write(&format!("zero-{architecture}-{zero}"))
}

/// A file that says what it is, and has little else.
pub fn of_kind(architecture: &'static str, kind: &str, layer: u64) -> String {
    let mut model = Writer::new(architecture);
    model.entry("general.type", 8, |bytes| put_string(bytes, kind));
    model.number("nextn_predict_layers", 1);
    model.ones(&format!("blk.{layer}.attn_norm.weight"), N_EMBD);
    model.write(&format!("kind-{architecture}-{kind}-{layer}"))
}

/// A file of an architecture with one tensor.
pub fn with_tensor(architecture: &'static str, tensor: &str) -> String {
    let mut model = Writer::new(architecture);
    model.number("wkv.head_size", 16);
    model.ones(tensor, N_EMBD);
    model.write(&format!("tensor-{architecture}"))
}

/// The sliding-window model with this many more keys of metadata.
pub fn with_keys(n: u64) -> String {
    let mut model = Writer::new("gemma3");
    window(&mut model);
    for key in 0..n {
        model.entry(&format!("general.note.{key}"), 4, |bytes| bytes.extend(7_u32.to_le_bytes()));
    }
    model.write("with-keys")
}

/// A model that has tokens, but no texts for them.
pub fn without_vocabulary() -> String {
    let mut model = Writer::without("gemma3", "tokenizer.ggml.model");
    model.entry("tokenizer.ggml.model", 8, |bytes| put_string(bytes, "no_vocab"));
    model.number("vocab_size", N_VOCAB);
    window(&mut model);
    model.write("without-vocabulary")
}

/// LFM2: a hybrid of short convolutions, which are recurrent, and attention.
pub fn hybrid() -> String {
    short_convolutions().write("hybrid")
}

/// The same with a sliding window in each of its attention layers, so that llama.cpp's cache of the others has none.
pub fn hybrid_with_windows() -> String {
    let mut model = short_convolutions();
    model.number("attention.sliding_window", 16);
    model.write("hybrid-with-windows")
}

fn short_convolutions() -> Writer {
    let mut model = Writer::new("lfm2");
    model.number("shortconv.l_cache", 3);
    model.number("feed_forward_length", 64);
    model.number("attention.head_count", 2);
    model.numbers("attention.head_count_kv", &[0, 2, 0, 2]);
    model.ones("token_embd_norm.weight", N_EMBD);
    for layer in 0..N_LAYER {
        model.ones(&format!("blk.{layer}.attn_norm.weight"), N_EMBD);
        model.feed_forward(layer, 64);
        if layer % 2 == 1 {
            model.attention(layer);
        } else {
            model.random(&format!("blk.{layer}.shortconv.conv.weight"), &[3, N_EMBD], 0.6);
            model.random(&format!("blk.{layer}.shortconv.in_proj.weight"), &[N_EMBD, 3 * N_EMBD], 0.5);
            model.random(&format!("blk.{layer}.shortconv.out_proj.weight"), &[N_EMBD, N_EMBD], 0.5);
        }
    }
    model
}

/// Qwen 3.5: a hybrid whose layers are alternately gated delta nets, which are recurrent, and attention.
pub fn delta_net() -> String {
    let mut model = Writer::new("qwen35");
    delta_net_layers(&mut model, N_LAYER, 1.0);
    model.write("delta-net")
}

/// The same with an MTP layer after three layers, which mostly predict a walk, as it does.
pub fn delta_net_mtp() -> String {
    let mut model = Writer::new("qwen35");
    model.walk();
    model.number("nextn_predict_layers", 1);
    let last = N_LAYER - 1;
    delta_net_layers(&mut model, last, 0.3);
    delta_net_layer(&mut model, last, true, 0.3);
    model.mtp(last, MtpInput::Token);
    model.write("delta-net-mtp")
}

fn delta_net_layers(model: &mut Writer, n_layer: u64, scale: f32) {
    for (key, value) in [
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 8),
        ("full_attention_interval", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", N_EMBD),
        ("ssm.state_size", N_EMBD / 2),
        ("ssm.time_step_rank", 2),
        ("ssm.group_count", 2),
    ] {
        model.number(key, value);
    }
    model.numbers("rope.dimension_sections", &[2, 1, 1, 0]);
    model.replace("output_norm.weight", &[N_EMBD], |_| 1.0);
    for layer in 0..n_layer {
        delta_net_layer(model, layer, layer % 2 == 1, scale);
    }
}

fn delta_net_layer(model: &mut Writer, layer: u64, is_attention: bool, scale: f32) {
    let name = |part: &str| format!("blk.{layer}.{part}");
    for part in ["attn_norm", "post_attention_norm"] {
        model.ones(&name(&format!("{part}.weight")), N_EMBD);
    }
    if is_attention {
        model.random(&name("attn_q.weight"), &[N_EMBD, 2 * N_EMBD], 0.5);
        model.random(&name("attn_k.weight"), &[N_EMBD, N_EMBD], 0.5);
        model.random(&name("attn_v.weight"), &[N_EMBD, N_EMBD], 0.5);
        model.random(&name("attn_output.weight"), &[N_EMBD, N_EMBD], 0.5 * scale);
        for part in ["attn_q_norm.weight", "attn_k_norm.weight"] {
            model.filled(&name(part), &[N_EMBD / 2], |_| 2.0);
        }
    } else {
        model.random(&name("attn_qkv.weight"), &[N_EMBD, 3 * N_EMBD], 0.5);
        model.random(&name("attn_gate.weight"), &[N_EMBD, N_EMBD], 0.5);
        model.random(&name("ssm_conv1d.weight"), &[4, 3 * N_EMBD], 0.6);
        model.filled(&name("ssm_dt.bias"), &[2], |_| -2.5);
        model.filled(&name("ssm_a"), &[2], |head| -0.5 - head as f32);
        model.random(&name("ssm_alpha.weight"), &[N_EMBD, 2], 0.5);
        model.random(&name("ssm_beta.weight"), &[N_EMBD, 2], 0.5);
        model.ones(&name("ssm_norm.weight"), N_EMBD / 2);
        model.random(&name("ssm_out.weight"), &[N_EMBD, N_EMBD], 0.5 * scale);
    }
    for (part, shape) in [("gate", [N_EMBD, 64]), ("up", [N_EMBD, 64]), ("down", [64, N_EMBD])] {
        model.random(&name(&format!("ffn_{part}.weight")), &shape, 0.4 * scale);
    }
}

/// Qwen 2 VL (`2`) or Qwen 3 VL (`3`), whose first layer also gets the second output of its projector: positions of four numbers.
pub fn qwen_vl(version: &str) -> String {
    let mut model = Writer::new(if version == "3" { "qwen3vl" } else { "qwen2vl" });
    for (key, value) in [("feed_forward_length", 64), ("attention.head_count", 2), ("attention.head_count_kv", 2)] {
        model.number(key, value);
    }
    model.numbers("rope.dimension_sections", &[4, 2, 2, 0]);
    model.ones("output_norm.weight", N_EMBD);
    for layer in 0..N_LAYER {
        model.attention(layer);
        model.feed_forward(layer, 64);
        model.ones(&format!("blk.{layer}.attn_norm.weight"), N_EMBD);
    }
    if version == "3" {
        model.number("n_deepstack_layers", 1);
    } else {
        model.tensors.retain(|(name, ..)| {
            !name.ends_with("_norm.weight") || !name.contains("attn_q") && !name.contains("attn_k")
        });
    }
    model.write(&format!("qwen{version}vl"))
}

/// Gemma 3: every second layer has a sliding window of 16 tokens.
pub fn sliding_window() -> String {
    let mut model = Writer::new("gemma3");
    window(&mut model);
    model.write("sliding-window")
}

/// The same model with these texts in the places of its last tokens, as they stand in a vocabulary.
pub fn with_tokens(texts: &[&str]) -> String {
    const KEY: &str = "tokenizer.ggml.tokens";
    let mut model = Writer::without("gemma3", KEY);
    let shipped = Gguf::read(&super::model("draft"));
    let own = shipped.tokens();
    let kept = own.iter().take(own.len() - texts.len()).map(|range| &shipped.bytes[range.clone()]);
    model.entry(KEY, 9, |bytes| {
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend((own.len() as u64).to_le_bytes());
        for text in kept.chain(texts.iter().map(|text| text.as_bytes())) {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        }
    });
    window(&mut model);
    model.write("with-tokens")
}

/// BERT: an encoder with bidirectional attention and no KV cache, for embeddings only.
pub fn encoder() -> String {
    bert(1).write("encoder")
}

/// The same with another pooling: 2 the first token's, 3 the last token's.
pub fn encoder_with_pooling(pooling: u64) -> String {
    bert(pooling).write(&format!("encoder-{pooling}"))
}

/// The same with a text under a key.
pub fn encoder_with_text(key: &str, text: &str) -> String {
    let mut model = bert(1);
    model.entry(key, 8, |bytes| put_string(bytes, text));
    model.write("encoder-text")
}

/// An encoder of decisions of llama.cpp's type `laya`, whose head is the last layer: three scores for each token. Its prompts begin with
/// `<|endoftext|>`, `<|im_start|>` is the mark of an option, and `<|im_end|>` the separator.
pub fn decision_encoder(template: &str, max_head_tokens: &str) -> String {
    let mut model = Writer::new("modern-bert");
    let texts = [
        ("tokenizer.chat_template.systemone", template),
        ("modern-bert.decision.type", "laya"),
        ("modern-bert.decision.max_head_tokens", max_head_tokens),
    ];
    for (key, text) in texts {
        model.entry(key, 8, |bytes| put_string(bytes, text));
    }
    for (key, token) in [("mask", 1_u32), ("seperator", 2)] {
        model.entry(&format!("tokenizer.ggml.{key}_token_id"), 4, |bytes| bytes.extend(token.to_le_bytes()));
    }
    for (key, value) in [("feed_forward_length", 64), ("attention.head_count", 2), ("decision.block_count", 1)] {
        model.number(key, value);
    }
    model.float("attention.layer_norm_epsilon", 1e-5);
    model.entry("modern-bert.attention.causal", 7, |bytes| bytes.push(0));
    model.entry("tokenizer.ggml.token_type_count", 4, |bytes| bytes.extend(3_u32.to_le_bytes()));
    model.tensors.retain(|(name, ..)| name != "output.weight");
    model.ones("token_embd_norm.weight", N_EMBD);
    model.ones("output_norm.weight", N_EMBD);
    model.random("token_types.weight", &[N_EMBD, 3], 1.0);
    for layer in 0..N_LAYER {
        let is_head = layer == N_LAYER - 1;
        let n_up = if is_head { 64 } else { 128 };
        let matrices = [("attn_qkv", N_EMBD, 3 * N_EMBD), ("attn_output", N_EMBD, N_EMBD), ("ffn_up", N_EMBD, n_up)];
        for (part, n_in, n_out) in matrices.into_iter().chain([("ffn_down", 64, N_EMBD)]) {
            model.random(&format!("blk.{layer}.{part}.weight"), &[n_in, n_out], 0.5);
            if is_head {
                model.random(&format!("blk.{layer}.{part}.bias"), &[n_out], 0.3);
            }
        }
        for part in ["attn_norm", "ffn_norm"] {
            model.ones(&format!("blk.{layer}.{part}.weight"), N_EMBD);
            if is_head {
                model.random(&format!("blk.{layer}.{part}.bias"), &[N_EMBD], 0.3);
            }
        }
    }
    model.random("cls.weight", &[N_EMBD, N_EMBD], 0.3);
    model.random("cls.bias", &[N_EMBD], 0.1);
    model.ones("cls.norm.weight", N_EMBD);
    model.random("cls.norm.bias", &[N_EMBD], 0.1);
    model.random("cls.output.weight", &[N_EMBD, 1], 1.0);
    model.random("cls.output.bias", &[1], 0.1);
    model.write(&format!("decision-encoder-{max_head_tokens}-{}", template.len()))
}

/// The same with a classifier that has one score. BOS is before a pair of texts, and the token [`SEPARATOR`] after each of the two.
pub fn reranker() -> String {
    let mut model = bert(4);
    classifier(&mut model);
    model.write("reranker")
}

/// The same with a template for pairs.
pub fn reranker_with_template(template: &str) -> String {
    let mut model = bert(4);
    classifier(&mut model);
    model.entry("tokenizer.chat_template.rerank", 8, |bytes| put_string(bytes, template));
    model.write("reranker-template")
}

/// The token between the texts of a [`reranker`].
pub const SEPARATOR: u32 = 3;

fn classifier(model: &mut Writer) {
    model.entry("tokenizer.ggml.seperator_token_id", 4, |bytes| bytes.extend(SEPARATOR.to_le_bytes()));
    model.entry("tokenizer.ggml.add_sep_token", 7, |bytes| bytes.push(1));
    model.random("cls.weight", &[N_EMBD, N_EMBD], 0.3);
    model.random("cls.bias", &[N_EMBD], 0.1);
    model.random("cls.output.weight", &[N_EMBD, 1], 1.0);
    model.random("cls.output.bias", &[1], 0.1);
}

fn bert(pooling: u64) -> Writer {
    let mut model = Writer::new("bert");
    for (key, value) in [("feed_forward_length", 64), ("attention.head_count", 2), ("pooling_type", pooling)] {
        model.number(key, value);
    }
    model.float("attention.layer_norm_epsilon", 1e-5);
    model.entry("bert.attention.causal", 7, |bytes| bytes.push(0));
    model.entry("tokenizer.ggml.token_type_count", 4, |bytes| bytes.extend(2_u32.to_le_bytes()));
    model.tensors.retain(|(name, ..)| name != "output.weight");
    model.random("position_embd.weight", &[N_EMBD, 4096], 1.0);
    model.random("token_types.weight", &[N_EMBD, 2], 1.0);
    model.ones("token_embd_norm.weight", N_EMBD);
    model.filled("token_embd_norm.bias", &[N_EMBD], |_| 0.0);
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            model.random(&name(part), &[N_EMBD, N_EMBD], 0.5);
        }
        model.random(&name("ffn_up"), &[N_EMBD, 64], 0.4);
        model.random(&name("ffn_down"), &[64, N_EMBD], 0.4);
        for part in ["attn_output_norm", "layer_output_norm"] {
            model.ones(&name(part), N_EMBD);
            model.filled(&format!("blk.{layer}.{part}.bias"), &[N_EMBD], |_| 0.0);
        }
    }
    model
}

fn window(model: &mut Writer) {
    model.number("attention.sliding_window", 16);
    model.number("attention.sliding_window_pattern", 2);
    model.number("feed_forward_length", 64);
    model.number("attention.head_count", 2);
    model.number("attention.head_count_kv", 2);
    model.ones("output_norm.weight", N_EMBD);
    for layer in 0..N_LAYER {
        model.attention(layer);
        model.feed_forward(layer, 64);
        for name in ["attn_norm", "post_attention_norm", "post_ffw_norm"] {
            model.ones(&format!("blk.{layer}.{name}.weight"), N_EMBD);
        }
    }
}

/// The input of a tiny model's multi-token prediction layers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MtpInput {
    /// The token only, which mostly determines the next one.
    Token,
    /// The hidden state only. It belongs to the token before, which mostly determines the next but one.
    Hidden,
    /// A random projection of both.
    Random,
}

/// A random sign for each number of a token's embedding.
fn sign(token: u64, index: u64) -> f32 {
    let mixed = (token * N_EMBD + index).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    if (mixed >> 40) & 1 == 0 { 1.0 } else { -1.0 }
}

/// The first id after the special tokens.
const FIRST: u64 = 300;

/// The predecessor of `token` in the walk `token -> 5 * token + 7` over the tokens from `FIRST` on.
fn before(token: u64) -> u64 {
    let count = N_VOCAB - FIRST;
    // 5 * 989 = 4 * 1236 + 1
    FIRST + (token - FIRST + count - 7) * 989 % count
}

/// A weight of an output matrix that predicts each token from its `steps`-th predecessor, and never a special token.
fn output(at: u64, steps: u32) -> f32 {
    let token = at / N_EMBD;
    if token < FIRST { 0.0 } else { 0.4 * sign((0..steps).fold(token, |token, _| before(token)), at % N_EMBD) }
}

impl Writer {
    /// Adds embeddings and an output matrix that mostly predict a token's successor in the walk.
    fn walk(&mut self) {
        let shape = [N_EMBD, N_VOCAB];
        self.replace("token_embd.weight", &shape, |at| sign(at / N_EMBD, at % N_EMBD));
        self.replace("output.weight", &shape, |at| output(at, 1));
        self.ones("output_norm.weight", N_EMBD);
    }

    /// Adds the tensors that a multi-token prediction layer has besides those of an ordinary layer.
    fn mtp(&mut self, layer: u64, input: MtpInput) {
        let name = |part: &str| format!("blk.{layer}.nextn.{part}.weight");
        self.ones(&name("enorm"), N_EMBD);
        self.ones(&name("hnorm"), N_EMBD);
        let first = match input {
            MtpInput::Token => 0,
            MtpInput::Hidden => N_EMBD,
            MtpInput::Random => return self.random(&name("eh_proj"), &[2 * N_EMBD, N_EMBD], 0.5),
        };
        let is_one = |at: u64| at % (2 * N_EMBD) == first + at / (2 * N_EMBD);
        self.filled(&name("eh_proj"), &[2 * N_EMBD, N_EMBD], |at| f32::from(u8::from(is_one(at))));
        if input == MtpInput::Hidden {
            self.filled(&name("shared_head_head"), &[N_EMBD, N_VOCAB], |at| output(at, 2));
        }
    }
}

/// GLM 4 MoE: three dense layers, and one multi-token prediction layer with two experts. `noise` says how much the output
/// depends on the preceding text; at 1 about as much as on the last token.
pub fn mtp(input: MtpInput, noise: f32) -> String {
    mtp_with(input, noise, &format!("mtp-{input:?}-{noise}"), |_| ())
}

/// A [`mtp`] model with inconsistent metadata: `numbers` replace or add values, and tensors whose names contain `missing`
/// are left out.
pub fn mtp_with_metadata(name: &str, numbers: &[(&'static str, u64)], missing: &str) -> String {
    mtp_with(MtpInput::Token, 0.3, &format!("mtp-inconsistent-{name}"), |model| {
        for (key, value) in numbers {
            model.renumber(key, *value);
        }
        model.tensors.retain(|(name, ..)| missing.is_empty() || !name.contains(missing));
    })
}

/// A [`mtp`] model, changed by `change` before it is written.
fn mtp_with(input: MtpInput, noise: f32, name: &str, change: impl FnOnce(&mut Writer)) -> String {
    let mut model = Writer::new("glm4moe");
    let (n_ff, last) = (32, N_LAYER - 1);
    model.walk();
    for (key, value) in [
        ("nextn_predict_layers", 1),
        ("leading_dense_block_count", last),
        ("feed_forward_length", n_ff),
        ("expert_feed_forward_length", n_ff),
        ("expert_count", 2),
        ("expert_used_count", 1),
        ("expert_shared_count", 1),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
    ] {
        model.number(key, value);
    }
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}");
        model.ones(&name("attn_norm.weight"), N_EMBD);
        model.ones(&name("post_attention_norm.weight"), N_EMBD);
        for part in ["q", "k", "v", "output"] {
            let scale = if part == "output" { 0.5 * noise } else { 0.5 };
            model.random(&name(&format!("attn_{part}.weight")), &[N_EMBD, N_EMBD], scale);
        }
        let experts: &[u64] = if layer == last { &[2] } else { &[] };
        let suffixes: &[_] = if layer == last { &[("_exps", experts), ("_shexp", &[])] } else { &[("", experts)] };
        for (suffix, experts) in suffixes {
            for (part, shape) in [("gate", [N_EMBD, n_ff]), ("up", [N_EMBD, n_ff]), ("down", [n_ff, N_EMBD])] {
                model.random(
                    &name(&format!("ffn_{part}{suffix}.weight")),
                    &[&shape[..], experts].concat(),
                    0.3 * noise,
                );
            }
        }
    }
    model.random(&format!("blk.{last}.ffn_gate_inp.weight"), &[N_EMBD, 2], 0.5);
    model.filled(&format!("blk.{last}.exp_probs_b.bias"), &[2], |_| 0.0);
    model.mtp(last, input);
    change(&mut model);
    model.write(name)
}

/// Qwen3 MoE: four experts with `n_ff` rows, of which two compute a token. Matrices whose rows are whole blocks are in Q8_0.
pub fn mixture(n_ff: u64) -> String {
    const EXPERTS: u64 = 4;
    let mut model = Writer::new("qwen3moe");
    model.matrices = TensorType::Q8_0;
    for (key, value) in [
        ("feed_forward_length", n_ff),
        ("expert_feed_forward_length", n_ff),
        ("expert_count", EXPERTS),
        ("expert_used_count", 2),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
    ] {
        model.number(key, value);
    }
    model.ones("output_norm.weight", N_EMBD);
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        model.ones(&name("attn_norm"), N_EMBD);
        model.ones(&name("ffn_norm"), N_EMBD);
        model.attention(layer);
        model.random(&name("ffn_gate_inp"), &[N_EMBD, EXPERTS], 0.5);
        for (part, [width, n_rows]) in [("gate", [N_EMBD, n_ff]), ("up", [N_EMBD, n_ff]), ("down", [n_ff, N_EMBD])] {
            model.random(&name(&format!("ffn_{part}_exps")), &[width, n_rows, EXPERTS], 0.4);
        }
    }
    model.write(&format!("mixture-{n_ff}"))
}

/// MiMo 2: two ordinary layers and two multi-token prediction layers, each predicting one token further. All layers but the
/// first have a sliding window.
pub fn mtp_layers() -> String {
    let mut model = Writer::new("mimo2");
    model.walk();
    for (key, value) in [
        ("nextn_predict_layers", 2),
        ("feed_forward_length", 32),
        ("expert_feed_forward_length", 32),
        ("attention.sliding_window", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
    ] {
        model.number(key, value);
    }
    model.numbers("attention.sliding_window_pattern", &[0, 1, 1, 1]);
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        model.ones(&name("attn_norm"), N_EMBD);
        model.ones(&name("ffn_norm"), N_EMBD);
        model.random(&name("attn_qkv"), &[N_EMBD, 3 * N_EMBD], 0.5);
        model.random(&name("attn_output"), &[N_EMBD, N_EMBD], 0.3);
        for (part, shape) in [("gate", [N_EMBD, 32]), ("up", [N_EMBD, 32]), ("down", [32, N_EMBD])] {
            model.random(&name(&format!("ffn_{part}")), &shape, 0.2);
        }
        if layer >= 2 {
            model.mtp(layer, MtpInput::Token);
        }
    }
    model.write("mtp-layers")
}
