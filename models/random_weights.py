"""Make a GGUF model of any size with random weights, with another model's vocabulary: a LLaMA, a BitNet, or a hybrid (LFM2, Qwen3.5).

For speed, memory and load times at the sizes that people run. Its completions are nonsense. Blocks of weights are random
bytes with fixed scales, so a file of 5 GB takes less than a minute, and its logits are finite.

    pip install gguf numpy
    python random_weights.py smollm2-135m-q4_1.gguf random-8b-q4_k_m.gguf --like 8b
    python random_weights.py stories-target.gguf random-qwen35-q8_0.gguf --like qwen3.5-0.8b --type Q8_0
"""
import argparse

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

COPIED = ("tokenizer.",)

# Architecture, layers, embedding, feed-forward, heads, key-value heads, tokens: those of Llama 3.2 1B and 3B, Llama 3.1 8B, Qwen2.5 1.5B, BitNet
# 2B4T (whose feed-forward has another activation, which takes as long), and, with few tokens, LFM2 700M and Qwen3.5 0.8B.
LIKE = {
    "1b": ("llama", 16, 2048, 8192, 32, 8, 128256),
    "1.5b": ("llama", 28, 1536, 8960, 12, 2, 151936),
    "3b": ("llama", 28, 3072, 8192, 24, 8, 128256),
    "8b": ("llama", 32, 4096, 14336, 32, 8, 128256),
    "bitnet-2b": ("bitnet", 30, 2560, 6912, 20, 5, 128256),
    "lfm2-700m": ("lfm2", 16, 1536, 6912, 24, 8, 8192),
    "qwen3.5-0.8b": ("qwen35", 24, 1024, 3584, 8, 2, 8192),
}

# LFM2: the layers with attention, of 16; the others have short convolutions of this many tokens.
LFM2_ATTENTION, LFM2_CACHE = (2, 5, 8, 10, 12, 14), 3
# Qwen3.5: the size of a head; every fourth layer has attention, the others a gated delta net with so many groups and heads of this state.
QWEN35_HEAD, QWEN35_EVERY, QWEN35_GROUPS, QWEN35_HEADS, QWEN35_STATE, QWEN35_CONV = 256, 4, 16, 16, 128, 4

# Scales of a block, as F16 numbers at these offsets. With them, weights have a mean of 0 and a standard deviation of about 1/64.
SCALES = {
    Type.Q8_0: {0: 2.1e-4},
    Type.Q4_K: {0: 1.0e-4, 2: 7.5e-4},
    Type.Q5_K: {0: 0.5e-4, 2: 7.5e-4},
    Type.Q6_K: {208: 1.5e-5},
    Type.Q1_0: {0: 0.0156},
    Type.TQ1_0: {52: 0.019},
    Type.TQ2_0: {64: 0.019},
}

# Bytes that are made at once.
PIECE = 64 << 20


def blocks(noise, kind, n):
    """`n` blocks of random weights."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    made = np.frombuffer(noise.bytes(n * size), np.uint8).reshape(n, size).copy()
    for offset, scale in SCALES[kind].items():
        made[:, offset:offset + 2] = np.array([scale], np.float16).view(np.uint8)
    if kind == Type.TQ2_0:
        # Numbers of 2 bits are 0 to 2.
        made[:, :64] &= ~((made[:, :64] & made[:, :64] >> 1 & 0x55) << 1)
    return made


def kind_of(name, file_type, layer, n_layers):
    """The type of a matrix. llama.cpp's Q4_K_M has more bits in the output, and in some of the layers for values and down-projections."""
    if file_type != "Q4_K_M":
        return Type.Q6_K if file_type.startswith(("TQ", "Q1")) and name in ("token_embd", "output") else Type[file_type]
    has_more_bits = layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2
    return Type.Q6_K if name == "output" or name in ("attn_v", "ffn_down") and has_more_bits else Type.Q4_K


class Model:
    """The metadata, matrices (rows and columns) and vectors of a model; `vectors` may have two dimensions, and stay F32."""

    def __init__(self, shape, noise):
        self.architecture, self.layers, self.embd, self.ff, self.heads, self.kv, self.n_vocab = shape
        self.noise, self.numbers, self.matrices, self.vectors = noise, {}, {}, {}
        self.matrix("token_embd", self.n_vocab, self.embd)
        if self.architecture != "bitnet":
            self.matrix("output", self.n_vocab, self.embd)
        self.vector("token_embd_norm" if self.architecture == "lfm2" else "output_norm", self.embd)
        {"llama": self.llama, "bitnet": self.llama, "lfm2": self.lfm2, "qwen35": self.qwen35}[self.architecture]()

    def matrix(self, name, n_rows, width):
        self.matrices[f"{name}.weight"] = (n_rows, width)

    def vector(self, name, *shape, mean=1.0, deviation=0.0, suffix=".weight"):
        self.vectors[name + suffix] = (mean + deviation * self.noise.standard_normal(shape)).astype(np.float32)

    def feed_forward(self, layer, norm):
        self.vector(f"blk.{layer}.{norm}", self.embd)
        for name, n_rows, width in (("gate", self.ff, self.embd), ("up", self.ff, self.embd), ("down", self.embd, self.ff)):
            self.matrix(f"blk.{layer}.ffn_{name}", n_rows, width)

    def attention(self, layer, head, has_norms=False, has_gate=False):
        for name, n_rows, width in (("q", self.heads * head * (1 + has_gate), self.embd), ("k", self.kv * head, self.embd),
                                    ("v", self.kv * head, self.embd), ("output", self.embd, self.heads * head)):
            self.matrix(f"blk.{layer}.attn_{name}", n_rows, width)
        for name in ("attn_q_norm", "attn_k_norm") if has_norms else ():
            self.vector(f"blk.{layer}.{name}", head)

    def llama(self):
        self.numbers |= {"rope.freq_base": 500000.0, "rope.dimension_count": self.embd // self.heads, "attention.head_count_kv": self.kv}
        for layer in range(self.layers):
            self.vector(f"blk.{layer}.attn_norm", self.embd)
            self.attention(layer, self.embd // self.heads)
            self.feed_forward(layer, "ffn_norm")
            if self.architecture == "bitnet":
                self.vector(f"blk.{layer}.attn_sub_norm", self.embd)
                self.vector(f"blk.{layer}.ffn_sub_norm", self.ff)

    def lfm2(self):
        has_attention = lambda layer: layer % 16 in LFM2_ATTENTION
        self.numbers |= {"rope.freq_base": 1000000.0, "shortconv.l_cache": LFM2_CACHE,
                         "attention.head_count_kv": [self.kv if has_attention(layer) else 0 for layer in range(self.layers)]}
        for layer in range(self.layers):
            self.vector(f"blk.{layer}.attn_norm", self.embd)
            if has_attention(layer):
                self.attention(layer, self.embd // self.heads, has_norms=True)
            else:
                self.vector(f"blk.{layer}.shortconv.conv", self.embd, LFM2_CACHE, mean=0.0, deviation=0.5)
                self.matrix(f"blk.{layer}.shortconv.in_proj", 3 * self.embd, self.embd)
                self.matrix(f"blk.{layer}.shortconv.out_proj", self.embd, self.embd)
            self.feed_forward(layer, "ffn_norm")

    def qwen35(self):
        inner, keys = QWEN35_HEADS * QWEN35_STATE, QWEN35_GROUPS * QWEN35_STATE
        self.numbers |= {"rope.freq_base": 10000000.0, "rope.dimension_count": QWEN35_HEAD // 4, "rope.dimension_sections": [11, 11, 10, 0],
                         "attention.head_count_kv": self.kv, "attention.key_length": QWEN35_HEAD, "attention.value_length": QWEN35_HEAD,
                         "full_attention_interval": QWEN35_EVERY, "ssm.conv_kernel": QWEN35_CONV, "ssm.inner_size": inner,
                         "ssm.state_size": QWEN35_STATE, "ssm.time_step_rank": QWEN35_HEADS, "ssm.group_count": QWEN35_GROUPS,
                         "nextn_predict_layers": 1}
        # The last layer is one for multi-token prediction.
        for layer in range(self.layers + 1):
            name = f"blk.{layer}"
            self.vector(f"{name}.attn_norm", self.embd)
            if (layer + 1) % QWEN35_EVERY == 0 or layer == self.layers:
                self.attention(layer, QWEN35_HEAD, has_norms=True, has_gate=True)
            else:
                self.matrix(f"{name}.attn_qkv", 2 * keys + inner, self.embd)
                self.matrix(f"{name}.attn_gate", inner, self.embd)
                self.matrix(f"{name}.ssm_beta", QWEN35_HEADS, self.embd)
                self.matrix(f"{name}.ssm_alpha", QWEN35_HEADS, self.embd)
                self.matrix(f"{name}.ssm_out", self.embd, inner)
                self.vector(f"{name}.ssm_conv1d", 2 * keys + inner, QWEN35_CONV, mean=0.0, deviation=0.5)
                self.vector(f"{name}.ssm_norm", QWEN35_STATE)
                self.vector(f"{name}.ssm_a", QWEN35_HEADS, mean=-0.6, deviation=0.2, suffix="")
                self.vector(f"{name}.ssm_dt", QWEN35_HEADS, mean=-2.0, deviation=0.5, suffix=".bias")
            self.feed_forward(layer, "post_attention_norm")
        self.matrix(f"blk.{self.layers}.nextn.eh_proj", self.embd, 2 * self.embd)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            self.vector(f"blk.{self.layers}.nextn.{norm}", self.embd)
        self.layers += 1

    def kind(self, name, file_type):
        _, *rest = name.split(".")
        layer, part = (int(rest[0]), rest[1]) if name.startswith("blk.") else (0, name.removesuffix(".weight"))
        return kind_of(part, file_type, layer, self.layers)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("vocabulary", help="a model whose vocabulary is copied, and filled up with unused tokens")
    p.add_argument("result")
    p.add_argument("--like", choices=LIKE, default="8b")
    p.add_argument("--layers", type=int, help="instead of the model's that it is like, as all below")
    p.add_argument("--embd", type=int, help="a multiple of 256")
    p.add_argument("--ff", type=int, help="a multiple of 256")
    p.add_argument("--heads", type=int)
    p.add_argument("--kv", type=int, help="key-value heads")
    p.add_argument("--tokens", type=int)
    p.add_argument("--type", default="Q4_K_M", choices=["Q4_K_M", *(kind.name for kind in SCALES)])
    args = p.parse_args()
    given = (None, args.layers, args.embd, args.ff, args.heads, args.kv, args.tokens)
    model = Model([own or like for own, like in zip(given, LIKE[args.like])], np.random.default_rng(0))

    reader, noise = gguf.GGUFReader(args.vocabulary), model.noise
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    n_more = model.n_vocab - len(tokens)
    if n_more < 0:
        p.error(f"--tokens: at least the vocabulary's {len(tokens)}, got {model.n_vocab}")
    unused = {
        "tokenizer.ggml.tokens": [f"<|unused_{i}|>" for i in range(n_more)],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * n_more,
        "tokenizer.ggml.scores": [0.0] * n_more,
    }

    w = gguf.GGUFWriter(args.result, model.architecture)
    w.add_name(f"Random {model.architecture}, {model.embd} x {model.layers}")
    w.add_description("Random weights, for measurements; made by models/random_weights.py")
    for key, field in reader.fields.items():
        if key.startswith(COPIED):
            value = field.contents() + unused[key] if key in unused else field.contents()
            w.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    w.add_context_length(32768)
    w.add_embedding_length(model.embd)
    w.add_block_count(model.layers)
    w.add_feed_forward_length(model.ff)
    w.add_head_count(model.heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(model.n_vocab)
    for key, value in model.numbers.items():
        add = {int: w.add_uint32, float: w.add_float32, list: w.add_array}[type(value)]
        add(f"{model.architecture}.{key}", value)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    for name, values in model.vectors.items():
        w.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for name, (n_rows, width) in model.matrices.items():
        kind = model.kind(name, args.type)
        of_row = gguf.quant_shape_to_byte_shape((width,), kind)[0]
        w.add_tensor_info(name, (n_rows, of_row), np.dtype(np.uint8), n_rows * of_row, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for values in model.vectors.values():
        w.write_tensor_data(values)
    for name, (n_rows, width) in model.matrices.items():
        kind = model.kind(name, args.type)
        n_blocks, size = gguf.GGML_QUANT_SIZES[kind]
        n = n_rows * (width // n_blocks)
        made = np.empty((n, size), np.uint8)
        for at in range(0, n, PIECE // size):
            made[at:at + PIECE // size] = blocks(noise, kind, min(PIECE // size, n - at))
        w.write_tensor_data(made)
    w.close()


if __name__ == "__main__":
    main()
