"""Make a GGUF model with a mixture of experts and random weights, with another model's vocabulary.

For speed and exactness: 64 experts of which 8 are used for each token, as in OLMoE, whose architecture it has. Its completions are nonsense.

    pip install gguf numpy
    python mixture.py smollm2-135m-q4_1.gguf mixture-q8_0.gguf
"""
import argparse

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

COPIED = ("tokenizer.",)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("vocabulary", help="a model whose vocabulary is copied")
    p.add_argument("result")
    p.add_argument("--embd", type=int, default=768)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--ff", type=int, default=512, help="of one expert")
    p.add_argument("--experts", type=int, default=64)
    p.add_argument("--used", type=int, default=8)
    p.add_argument("--type", default="Q8_0", help="a type that gguf-py can quantize to (F16, Q8_0, Q4_0, ...)")
    args = p.parse_args()

    reader = gguf.GGUFReader(args.vocabulary)
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    noise, kind = np.random.default_rng(0), Type[args.type]
    w = gguf.GGUFWriter(args.result, "olmoe")
    w.add_name(f"Random mixture of {args.experts} experts, {args.embd} x {args.layers}")
    w.add_description("Random weights, for measurements; made by models/mixture.py")
    for key, field in reader.fields.items():
        if key.startswith(COPIED):
            w.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    w.add_context_length(4096)
    w.add_embedding_length(args.embd)
    w.add_block_count(args.layers)
    w.add_feed_forward_length(args.ff)
    w.add_head_count(args.heads)
    w.add_head_count_kv(args.heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_expert_count(args.experts)
    w.add_expert_used_count(args.used)
    w.add_vocab_size(n_vocab)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    def vector(name):
        w.add_tensor(name, np.ones(args.embd, np.float32))

    def matrix(name, *shape, kind=kind):
        values = noise.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        w.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd.weight", n_vocab, args.embd)
    for layer in range(args.layers):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"):
            vector(f"{block}{norm}.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}{name}.weight", args.embd, args.embd)
        matrix(f"{block}ffn_gate_inp.weight", args.experts, args.embd, kind=Type.F32)
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            matrix(f"{block}{name}.weight", args.experts, args.ff, args.embd)
        matrix(f"{block}ffn_down_exps.weight", args.experts, args.embd, args.ff)
    vector("output_norm.weight")
    matrix("output.weight", n_vocab, args.embd)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
