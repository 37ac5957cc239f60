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
