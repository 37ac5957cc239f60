//! Tiny draft heads, and a target for them.

use super::{FIRST, MtpInput, N_EMBD, N_LAYER, N_VOCAB, Writer, mtp_with, output, sign};

/// A token that no text has, for the tokens that a head predicts.
const MASK: u64 = 5;

/// Llama: four layers. Its output is mostly a walk through the vocabulary; `noise` says how much it depends on the rest of the text.
pub fn head_target(noise: f32) -> String {
    let mut model = Writer::new("llama");
    model.walk();
    llama_layers(&mut model, noise);
    model.write(&format!("head-target-{noise}"))
}

/// The same, but its output mostly is one of eight tokens, whatever came before, so that chance decides which.
pub fn chance_target() -> String {
    let mut model = Writer::new("llama");
    model.chance();
    llama_layers(&mut model, 1.0);
    model.write("chance-target")
}

fn llama_layers(model: &mut Writer, noise: f32) {
    for (key, value) in [
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", N_EMBD / 2),
    ] {
        model.number(key, value);
    }
    for layer in 0..N_LAYER {
        model.ones(&format!("blk.{layer}.attn_norm.weight"), N_EMBD);
        for (part, scale) in [("q", 0.5), ("k", 0.5), ("v", 0.5), ("output", 0.2 * noise)] {
            model.random(&format!("blk.{layer}.attn_{part}.weight"), &[N_EMBD, N_EMBD], scale);
        }
        for (part, shape) in [("gate", [N_EMBD, 64]), ("up", [N_EMBD, 64]), ("down", [64, N_EMBD])] {
            model.random(&format!("blk.{layer}.ffn_{part}.weight"), &shape, 0.15 * noise);
        }
        model.ones(&format!("blk.{layer}.ffn_norm.weight"), N_EMBD);
    }
}

impl Writer {
    /// A layer of Gemma 4 without keys and values, which adds as much to a state as `scale` says.
    fn gemma4_layer(&mut self, layer: u64, width: u64, scale: f32) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for (part, shape) in [
            ("attn_q", [width, N_EMBD]),
            ("attn_output", [N_EMBD, width]),
            ("ffn_gate", [width, 64]),
            ("ffn_up", [width, 64]),
            ("ffn_down", [64, width]),
        ] {
            self.random(&name(part), &shape, 0.4);
        }
        for part in ["attn_norm", "ffn_norm"] {
            self.ones(&name(part), width);
        }
        for part in ["post_attention_norm", "post_ffw_norm"] {
            self.filled(&name(part), &[width], |_| scale);
        }
        self.filled(&name("attn_q_norm"), &[N_EMBD / 2], |_| 1.0);
        if !self.tensors.iter().any(|(name, ..)| name == "rope_freqs.weight") {
            self.ones("rope_freqs.weight", N_EMBD / 4);
        }
    }

    /// Embeddings that have one number in common, from which the output matrix predicts eight tokens.
    fn chance(&mut self) {
        let shape = [N_EMBD, N_VOCAB];
        self.replace("token_embd.weight", &shape, |at| match at % N_EMBD {
            0 => 6.0,
            index => sign(at / N_EMBD, index),
        });
        self.replace("output.weight", &shape, |at| match (at / N_EMBD, at % N_EMBD) {
            (token, 0) if (FIRST..FIRST + 8).contains(&token) => 3.0,
            (_, 0) => 0.0,
            (token, index) => 0.02 * sign(token, index),
        });
        self.ones("output_norm.weight", N_EMBD);
    }
}

/// An EAGLE-3 head for [`head_target`]. It predicts mostly from the state of the token before the last, as the walk goes on two steps later, so its
/// first drafted token is right and the others are wrong. `change` changes it before it is written.
pub fn eagle3(name: &str, change: impl FnOnce(&mut HeadWriter)) -> String {
    let mut model = Writer::new("eagle3");
    model.walk();
    model.replace("output.weight", &[N_EMBD, N_VOCAB], |at| output(at, 2));
    model.renumber("block_count", 1);
    for (key, value) in [
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", N_EMBD / 2),
        ("target_hidden_size", N_EMBD),
    ] {
        model.number(key, value);
    }
    model.numbers("target_layers", &[0, 2, 3]);
    // The input of the first layer is the embedding.
    model.filled("fc.weight", &[3 * N_EMBD, N_EMBD], |at| f32::from(u8::from(at % (3 * N_EMBD) == at / (3 * N_EMBD))));
    for part in ["attn_norm", "attn_norm_2", "ffn_norm"] {
        model.ones(&format!("blk.0.{part}.weight"), N_EMBD);
    }
    for part in ["q", "k", "v"] {
        model.random(&format!("blk.0.attn_{part}.weight"), &[2 * N_EMBD, N_EMBD], 0.3);
    }
    model.random("blk.0.attn_output.weight", &[N_EMBD, N_EMBD], 0.02);
    for (part, shape) in [("gate", [N_EMBD, 64]), ("up", [N_EMBD, 64]), ("down", [64, N_EMBD])] {
        model.random(&format!("blk.0.ffn_{part}.weight"), &shape, 0.05);
    }
    let mut head = HeadWriter { model };
    change(&mut head);
    head.model.write(&format!("eagle3-{name}"))
}

/// A DFlash head for [`head_target`] that predicts nonsense, or for [`chance_target`] with its distribution.
pub fn dflash(name: &str, of_chance: bool, change: impl FnOnce(&mut HeadWriter)) -> String {
    let mut model = Writer::new("dflash");
    if of_chance {
        model.chance();
    } else {
        model.walk();
    }
    model.renumber("block_count", 2);
    for (key, value) in [
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("attention.key_length", N_EMBD / 2),
        ("attention.value_length", N_EMBD / 2),
        ("rope.dimension_count", N_EMBD / 2),
        ("block_size", 6),
    ] {
        model.number(key, value);
    }
    model.entry("tokenizer.ggml.mask_token_id", 4, |bytes| {
        bytes.extend(u32::try_from(MASK).expect("small").to_le_bytes())
    });
    model.numbers("target_layers", &[1, 3]);
    model.random("fc.weight", &[2 * N_EMBD, N_EMBD], 0.3);
    model.ones("enc.output_norm.weight", N_EMBD);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        model.ones(&name("attn_norm"), N_EMBD);
        model.ones(&name("ffn_norm"), N_EMBD);
        for part in ["q", "k"] {
            model.filled(&name(&format!("attn_{part}_norm")), &[N_EMBD / 2], |_| 1.0);
        }
        for (part, scale) in [("q", 0.5), ("k", 0.5), ("v", 0.5), ("output", 0.1)] {
            model.random(&name(&format!("attn_{part}")), &[N_EMBD, N_EMBD], scale);
        }
        for (part, shape) in [("gate", [N_EMBD, 64]), ("up", [N_EMBD, 64]), ("down", [64, N_EMBD])] {
            model.random(&name(&format!("ffn_{part}")), &shape, 0.1);
        }
    }
    let mut head = HeadWriter { model };
    change(&mut head);
    head.model.write(&format!("dflash-{name}"))
}

/// The heads of [`gemma4_target`] and its assistants, and the size of the window of every other layer.
const GEMMA_HEADS: [(&str, u64); 9] = [
    ("feed_forward_length", 64),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 2),
    ("attention.key_length", N_EMBD / 2),
    ("attention.value_length", N_EMBD / 2),
    ("attention.key_length_swa", N_EMBD / 2),
    ("attention.value_length_swa", N_EMBD / 2),
    ("rope.dimension_count", N_EMBD / 2),
    ("attention.sliding_window", 48),
];

/// Gemma 4: four layers, of which the last has no sliding window. `shared`: this many of them use the KV cache of those before. Its output
/// is mostly a walk through the vocabulary; `noise` says how much it depends on the rest of the text.
pub fn gemma4_target(noise: f32, shared: u64) -> String {
    gemma4_with("target", noise, shared, |_| ())
}

/// The same, changed before it is written.
pub fn gemma4_with(name: &str, noise: f32, shared: u64, change: impl FnOnce(&mut HeadWriter)) -> String {
    let mut model = Writer::new("gemma4");
    model.walk();
    GEMMA_HEADS.into_iter().for_each(|(key, value)| model.number(key, value));
    model.number("attention.shared_kv_layers", shared);
    model.number("embedding_length_per_layer_input", 0);
    model.numbers("attention.sliding_window_pattern", &[1, 0, 1, 0]);
    for layer in 0..N_LAYER {
        model.gemma4_layer(layer, N_EMBD, 0.2 * noise);
        if layer < N_LAYER - shared {
            for part in ["k", "v"] {
                model.random(&format!("blk.{layer}.attn_{part}.weight"), &[N_EMBD, N_EMBD], 0.5);
            }
            model.filled(&format!("blk.{layer}.attn_k_norm.weight"), &[N_EMBD / 2], |_| 1.0);
        }
    }
    let mut target = HeadWriter { model };
    change(&mut target);
    target.model.write(&format!("gemma4-{name}-{noise}-{shared}"))
}

/// An assistant for [`gemma4_target`], wider than it. It predicts mostly from the state of the token before the last, as the walk goes on
/// `steps` steps later, so its draft is right with 2. `noise` says how much it depends on the target's KV cache.
pub fn assistant(name: &str, steps: u32, noise: f32, change: impl FnOnce(&mut HeadWriter)) -> String {
    const WIDTH: u64 = 2 * N_EMBD;
    let mut model = Writer::new("gemma4-assistant");
    model.renumber("embedding_length", WIDTH);
    model.number("embedding_length_out", N_EMBD);
    model.renumber("block_count", 2);
    model.number("nextn_predict_layers", 2);
    GEMMA_HEADS.into_iter().for_each(|(key, value)| model.number(key, value));
    model.numbers("attention.sliding_window_pattern", &[1, 0]);
    // The first half is the embedding of the token, the second half the state of the token before.
    model.tensors.retain(|(name, ..)| name != "output.weight");
    model.replace("token_embd.weight", &[WIDTH, N_VOCAB], |at| match (at / WIDTH, at % WIDTH) {
        (_, index) if index < N_EMBD => 0.0,
        (token, index) => output(token * N_EMBD + index - N_EMBD, steps),
    });
    model.ones("output_norm.weight", WIDTH);
    let embedding = 1.0 / (N_EMBD as f32).sqrt();
    model.filled("nextn.pre_projection.weight", &[WIDTH, WIDTH], |at| match (at / WIDTH, at % WIDTH) {
        (row, column) if row != column => 0.0,
        (row, _) if row < N_EMBD => embedding,
        _ => 1.0,
    });
    model.filled("nextn.post_projection.weight", &[WIDTH, N_EMBD], |at| f32::from(u8::from(at / WIDTH == at % WIDTH)));
    for layer in 0..2 {
        model.gemma4_layer(layer, WIDTH, noise);
        model.ones(&format!("blk.{layer}.layer_output_scale.weight"), 1);
    }
    let mut head = HeadWriter { model };
    change(&mut head);
    head.model.write(&format!("assistant-{name}"))
}

/// Changes a head before it is written.
pub struct HeadWriter {
    model: Writer,
}

impl HeadWriter {
    /// The head has no tensors whose names begin so.
    pub fn without(&mut self, name: &str) {
        self.model.tensors.retain(|(known, ..)| !known.starts_with(name));
    }

    pub fn number(&mut self, key: &str, value: u64) {
        self.model.renumber(key, value);
    }

    /// Replaces the layers of the target, of which there are as many as before.
    pub fn layers(&mut self, layers: &[i32]) {
        self.model.renumbers("target_layers", layers);
    }

    /// Replaces which layers have a sliding window.
    pub fn windows(&mut self, pattern: &[i32]) {
        self.model.renumbers("attention.sliding_window_pattern", pattern);
    }

    /// The head does not say which layers it reads.
    pub fn without_layers(&mut self) {
        let architecture = self.model.architecture;
        self.model.rename(&format!("{architecture}.target_layers"), &format!("{architecture}.absent_layers"));
    }

    pub fn without_mask(&mut self) {
        self.model.rename("tokenizer.ggml.mask_token_id", "tokenizer.ggml.none_token_id");
    }

    /// Adds the tensors of DSpark.
    pub fn markov(&mut self) {
        self.model.random("markov_w1.weight", &[8, N_VOCAB], 0.3);
        self.model.random("markov_w2.weight", &[8, N_VOCAB], 0.3);
    }

    /// Adds a tensor of DFlash 2.
    pub fn selector(&mut self) {
        self.model.random("selector_hidden.weight", &[N_EMBD, 8], 0.3);
    }
}

/// A [`mtp`](super::mtp) model in two files: its main layers, and its layer for multi-token prediction.
pub fn mtp_in_two_files(noise: f32) -> [String; 2] {
    let last = format!("blk.{}.", N_LAYER - 1);
    let main = mtp_with(MtpInput::Token, noise, &format!("mtp-main-{noise}"), |model| {
        model.tensors.retain(|(name, ..)| !name.starts_with(&last));
    });
    let head = mtp_with(MtpInput::Token, noise, &format!("mtp-head-{noise}"), |model| {
        model.tensors.retain(|(name, ..)| !name.starts_with("blk.") || name.starts_with(&last));
    });
    [main, head]
}
