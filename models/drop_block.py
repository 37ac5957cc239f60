"""Remove a transformer block from a GGUF LLaMA model, to get a draft that agrees with its source less often.

    pip install gguf
    python drop_block.py smollm2-135m-q4_1.gguf smollm2-far-q4_1.gguf --block 12

The tensors of the other blocks are copied as they are.
"""
import argparse
import re

import gguf


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("result")
    p.add_argument("--block", type=int, action="append", required=True, help="counted from 0; may be given several times")
    args = p.parse_args()

    r = gguf.GGUFReader(args.source)
    get = lambda key: r.fields[key].contents()
    layers = get("llama.block_count")
    if not all(0 <= block < layers for block in args.block):
        p.error(f"--block: expected 0 to {layers - 1}, got {args.block}")
    kept = [block for block in range(layers) if block not in args.block]

    w = gguf.GGUFWriter(args.result, "llama")
    w.add_name(f"{get('general.name')} without block {', '.join(map(str, args.block))}")
    w.add_block_count(len(kept))
    for key, field in r.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.name", "llama.block_count"):
            w.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in r.tensors:
        name = tensor.name
        if block := re.match(r"blk\.(\d+)\.(.*)", name):
            number = int(block[1])
            if number not in kept:
                continue
            name = f"blk.{kept.index(number)}.{block[2]}"
        w.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
