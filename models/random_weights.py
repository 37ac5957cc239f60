"""Make a GGUF LLaMA model of any size with random weights, with another model's vocabulary.

For speed, memory and load times at the sizes that people run. Its completions are nonsense. Blocks of weights are random
bytes with fixed scales, so a file of 5 GB takes less than a minute, and its logits are finite.

    pip install gguf numpy
    python random_weights.py smollm2-135m-q4_1.gguf random-8b-q4_k_m.gguf --like 8b
"""
import argparse

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

COPIED = ("tokenizer.",)

# Layers, embedding, feed-forward, heads, key-value heads, tokens: those of Llama 3.2 1B and 3B, Llama 3.1 8B and Qwen2.5 1.5B.
LIKE = {
    "1b": (16, 2048, 8192, 32, 8, 128256),
    "1.5b": (28, 1536, 8960, 12, 2, 151936),
    "3b": (28, 3072, 8192, 24, 8, 128256),
    "8b": (32, 4096, 14336, 32, 8, 128256),
}

# Scales of a block, as F16 numbers at these offsets. With them, weights have a mean of 0 and a standard deviation of about 1/64.
SCALES = {
    Type.Q8_0: {0: 2.1e-4},
    Type.Q4_K: {0: 1.0e-4, 2: 7.5e-4},
    Type.Q5_K: {0: 0.5e-4, 2: 7.5e-4},
    Type.Q6_K: {208: 1.5e-5},
}

# Bytes that are made at once.
PIECE = 64 << 20


def blocks(noise, kind, n):
    """`n` blocks of random weights."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    made = np.frombuffer(noise.bytes(n * size), np.uint8).reshape(n, size).copy()
    for offset, scale in SCALES[kind].items():
        made[:, offset:offset + 2] = np.array([scale], np.float16).view(np.uint8)
    return made


def kind_of(name, file_type, layer, n_layers):
    """The type of a matrix. llama.cpp's Q4_K_M has more bits in the output, and in some of the layers for values and down-projections."""
    if file_type != "Q4_K_M":
        return Type[file_type]
    has_more_bits = layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2
    return Type.Q6_K if name == "output" or name in ("attn_v", "ffn_down") and has_more_bits else Type.Q4_K


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
    given = (args.layers, args.embd, args.ff, args.heads, args.kv, args.tokens)
    layers, embd, ff, heads, kv, n_vocab = (own or like for own, like in zip(given, LIKE[args.like]))

    reader, noise = gguf.GGUFReader(args.vocabulary), np.random.default_rng(0)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    n_more = n_vocab - len(tokens)
    if n_more < 0:
        p.error(f"--tokens: at least the vocabulary's {len(tokens)}, got {n_vocab}")
    unused = {
        "tokenizer.ggml.tokens": [f"<|unused_{i}|>" for i in range(n_more)],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * n_more,
        "tokenizer.ggml.scores": [0.0] * n_more,
    }

    w = gguf.GGUFWriter(args.result, "llama")
    w.add_name(f"Random, {embd} x {layers}")
    w.add_description("Random weights, for measurements; made by models/random_weights.py")
    for key, field in reader.fields.items():
        if key.startswith(COPIED):
            value = field.contents() + unused[key] if key in unused else field.contents()
            w.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    w.add_context_length(32768)
    w.add_embedding_length(embd)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(embd // heads)
    w.add_vocab_size(n_vocab)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    matrices, vectors = {}, [f"blk.{layer}.{norm}.weight" for layer in range(layers) for norm in ("attn_norm", "ffn_norm")]
    matrices["token_embd.weight"] = (n_vocab, embd, kind_of("token_embd", args.type, 0, layers))
    matrices["output.weight"] = (n_vocab, embd, kind_of("output", args.type, 0, layers))
    of_kv = kv * (embd // heads)
    for layer in range(layers):
        for name, n_rows, width in (("attn_q", embd, embd), ("attn_k", of_kv, embd), ("attn_v", of_kv, embd), ("attn_output", embd, embd),
                                    ("ffn_gate", ff, embd), ("ffn_up", ff, embd), ("ffn_down", embd, ff)):
            matrices[f"blk.{layer}.{name}.weight"] = (n_rows, width, kind_of(name, args.type, layer, layers))
    ones = np.ones(embd, np.float32)
    for name in ("output_norm.weight", *vectors):
        w.add_tensor_info(name, ones.shape, ones.dtype, ones.nbytes)
    for name, (n_rows, width, kind) in matrices.items():
        of_row = gguf.quant_shape_to_byte_shape((width,), kind)[0]
        w.add_tensor_info(name, (n_rows, of_row), np.dtype(np.uint8), n_rows * of_row, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for _ in range(1 + len(vectors)):
        w.write_tensor_data(ones)
    for n_rows, width, kind in matrices.values():
        n_blocks, size = gguf.GGML_QUANT_SIZES[kind]
        n = n_rows * (width // n_blocks)
        made = np.empty((n, size), np.uint8)
        for at in range(0, n, PIECE // size):
            made[at:at + PIECE // size] = blocks(noise, kind, min(PIECE // size, n - at))
        w.write_tensor_data(made)
    w.close()


if __name__ == "__main__":
    main()
