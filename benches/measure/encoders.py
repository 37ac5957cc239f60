"""Encoders of pictures with random weights: seconds of processor time for a picture in F16 and with `mmproj_weights`, beside llama.cpp.

    python3 benches/measure encoders --model MODEL [--shape smolvlm|qwen2.5vl] [--side 512] [--pairs 5] [--threads 1] [--pictures 4]
        [--llama LLAMA.CPP --libraries FOLDER] [--write FILE] [--beside]

The shapes are those of SmolVLM-256M's and Qwen2.5-VL's layers. The projection to the model's embeddings is that of Gemma 3 for the first, which
needs no tags in the vocabulary; the second needs a MODEL with M-RoPE. With --llama and a FOLDER
with its static libraries, llama.cpp's mtmd encodes a picture of the same size with the same file in F16. Also compares the distributions of the first token of the answers: the mean divergence of `q8_0` from F16 over the
pictures, in nats, over the 1000 most probable tokens. The weights are random, so this is an upper bound of its kind: real ones have pictures that
differ in fewer directions.
"""
import base64
import concurrent.futures
import math
import os
import random
import statistics
import struct
import subprocess
import tempfile
import time

from engines import ROOT, Engine, library

#: Width, inner width, layers, heads, side of a patch, and by how many patches a side of a row.
SHAPES = {"smolvlm": (768, 3072, 12, 12, 16, 4), "qwen2.5vl": (1280, 3420, 32, 16, 14, 2)}
F32, F16 = 0, 1


def options(parser):
    parser.add_argument("--model", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm")
    parser.add_argument("--side", type=int, default=512, help="of the pictures, in pixels")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama", help="llama.cpp's sources")
    parser.add_argument("--libraries", help="the folder of its static libraries")
    parser.add_argument("--pictures", type=int, default=4, help="for the divergence")
    parser.add_argument("--write", help="only write the projector to this file")
    parser.add_argument("--beside", action="store_true", help="instead, the delays of another request's tokens")


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def values(chance, count, kind):
    """Random numbers of F16 of about 0.05, or ones."""
    if kind == F32:
        return struct.pack("<f", 1) * count
    mask, rest = int.from_bytes(b"\xff\x83" * count, "little"), int.from_bytes(b"\x00\x28" * count, "little")
    return (int.from_bytes(chance.randbytes(2 * count), "little") & mask | rest).to_bytes(2 * count, "little")


def write_projector(path, shape, side, n_embd):
    width, inner, n_layer, n_head, patch, merge = SHAPES[shape]
    is_qwen = shape == "qwen2.5vl"
    strings = {"general.architecture": "clip", "clip.projector_type": "qwen2.5vl_merger" if is_qwen else "gemma3"}
    numbers = {"embedding_length": width, "feed_forward_length": inner, "block_count": n_layer, "attention.head_count": n_head,
               "projection_dim": n_embd, "image_size": side, "patch_size": patch, "projector.scale_factor": merge}
    numbers |= {"n_wa_pattern": 8, "spatial_merge_size": merge} if is_qwen else {}
    entries = [text(key) + struct.pack("<I", 8) + text(value) for key, value in strings.items()]
    entries += [text(f"clip.{key}") + struct.pack("<IB", 7, 1) for key in ("has_vision_encoder", "use_silu" if is_qwen else "use_gelu")]
    entries += [text("clip.vision.attention.layer_norm_epsilon") + struct.pack("<If", 6, 1e-6)]
    entries += [text(f"clip.vision.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    entries += [text(f"clip.vision.image_{key}") + struct.pack("<IIQ3f", 9, 6, 3, 0.5, 0.5, 0.5) for key in ("mean", "std")]
    shapes = {"v.patch_embd.weight": [patch, patch, 3, width], "v.post_ln.weight": [width]}
    matrices = {f"attn_{name}": [width, width] for name in ("q", "k", "v", "out")}
    matrices |= {"ffn_up": [width, inner], "ffn_down": [inner, width]} | ({"ffn_gate": [width, inner]} if is_qwen else {})
    for layer in range(n_layer):
        shapes |= {f"v.blk.{layer}.{name}.weight": of for name, of in matrices.items()}
        shapes |= {f"v.blk.{layer}.{name}.weight": [width] for name in ("ln1", "ln2")}
    if is_qwen:
        merged = width * merge * merge
        shapes |= {"v.patch_embd.weight.1": [patch, patch, 3, width], "mm.0.weight": [merged, merged], "mm.2.weight": [merged, n_embd]}
        shapes |= {"mm.0.bias": [merged], "mm.2.bias": [n_embd]}
    else:
        shapes |= {"v.position_embd.weight": [width, (side // patch) ** 2], "mm.input_projection.weight": [n_embd, width]}
        shapes |= {"mm.soft_emb_norm.weight": [width], "v.patch_embd.bias": [width], "v.post_ln.bias": [width]}
        shapes |= {f"v.blk.{layer}.{name}.bias": [width] for layer in range(n_layer) for name in ("ln1", "ln2")}
    shapes |= {f"v.blk.{layer}.{name}.bias": of[1:] for layer in range(n_layer) for name, of in matrices.items()}
    infos, offset, kinds = b"", 0, {}
    for name, of in shapes.items():
        kinds[name] = F16 if len(of) > 1 and "position" not in name else F32
        infos += text(name) + struct.pack(f"<I{len(of)}QIQ", len(of), *of, kinds[name], offset)
        offset += -(-math.prod(of) * (2 if kinds[name] == F16 else 4) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(entries)) + b"".join(entries) + infos
    chance = random.Random(1)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for name, of in shapes.items():
            data = values(chance, math.prod(of), kinds[name])
            file.write(data + bytes(-len(data) % 32))


def ask(engine, seed, side, **more):
    pixels = base64.b64encode(random.Random(seed).randbytes(side * side * 3)).decode()
    picture = {"type": "image", "width": side, "height": side, "format": "rgb8", "base64": pixels}
    content = [picture, {"type": "text", "text": "What is in the picture?"}]
    return engine.complete({"messages": [{"role": "user", "content": content}], "n_predict": 1, "temperature": 0, "cache_prompt": False, **more})


def seconds(engine, side):
    """The processor time of a picture, without that of the same question about the encoded picture."""
    def took():
        before = time.process_time()
        ask(engine, 1, side)
        return time.process_time() - before

    first = took()
    return first - took()


def divergence(large, small):
    """The divergence of two answers' first tokens, of which the first lists all that matter."""
    def of(answer):
        return {top["id"]: top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]}

    large, small = of(large), of(small)
    shared = [token for token in large if token in small]
    return sum(math.exp(large[token]) * (large[token] - small[token]) for token in shared)


def delays(engine, side, seconds, is_seen):
    """The milliseconds between the tokens of a completion, and how many new pictures were encoded meanwhile."""
    text = {"prompt": "Once upon a time", "n_predict": 4000, "temperature": 0, "ignore_eos": True, "speculative": False, "return_tokens": True}
    request, found, pictures, seen = engine.call("submit", text)["id"], [], iter(range(10**6)), []
    end, last = time.monotonic() + seconds, None

    def look():
        while time.monotonic() < end:
            ask(engine, next(pictures), side)
            seen.append(time.monotonic())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look) if is_seen else None
        while time.monotonic() < end:
            updates = engine.call("poll", {"id": request, "timeout_ms": 1000})["completion_updates"]
            now = time.monotonic()
            if last is not None and any(update.get("tokens") for update in updates):
                found.append(1000 * (now - last))
            last = now
        if looking:
            looking.result()
    engine.call("cancel", {"id": request})
    return found, len(seen)


def measure_delays(lib, args, path):
    """Prints the delays of a completion's tokens without and beside pictures, one after the other."""
    found = {False: [], True: []}
    for _ in range(args.pairs):
        for is_seen in found:
            with Engine(lib, model=args.model, mmproj=path, mmproj_weights="q8_0", n_ctx=8192, n_parallel=2, n_batch=512, n_ubatch=512, n_threads=args.threads,
                        n_threads_batch=args.threads) as engine:
                ask(engine, 10**6, args.side)
                engine.wait_for_panels()
                times, n = delays(engine, args.side, 10, is_seen)
                times.sort()
                found[is_seen].append((statistics.median(times), times[len(times) * 99 // 100], times[-1], n))
    for is_seen, all in found.items():
        median, late, worst, n = (statistics.median(values) for values in zip(*all))
        print(f"{'beside pictures' if is_seen else 'alone'}: median {median:.1f} ms, p99 {late:.1f} ms, worst {worst:.1f} ms, {n:.0f} pictures in 10 s")


def built(args, folder):
    """The program that measures llama.cpp's mtmd."""
    program, source = os.path.join(folder, "encoder"), os.path.join(ROOT, "benches/measure/encoder.cpp")
    folders = [f"-I{os.path.join(args.llama, part)}" for part in ("include", "ggml/include", "tools/mtmd")]
    names = [f"-l{name}" for name in ("mtmd", "llama", "ggml", "ggml-cpu", "ggml-rpc", "ggml-base", "vendor-hash")]
    names = [name for name in names if os.path.exists(os.path.join(args.libraries, f"lib{name[2:]}.a"))]
    group = ["-Wl,--start-group", *names, "-Wl,--end-group", "-lpthread", "-lm", "-ldl", "-fopenmp"]
    subprocess.run(["g++", "-O2", source, *folders, f"-L{args.libraries}", *group, "-o", program], check=True)
    return program


def run(args):
    lib = library(args.library)
    with Engine(lib, model=args.model, n_ctx=256) as engine:
        n_embd = engine.call("model_info", {})["n_embd"]
    if args.write:
        return write_projector(args.write, args.shape, args.side, n_embd)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mmproj.gguf")
        write_projector(path, args.shape, args.side, n_embd)
        print(f"{args.shape}, {os.path.getsize(path) >> 20} MiB in F16, {args.side} x {args.side} pixels, {args.threads} thread(s)", flush=True)

        if args.beside:
            return measure_delays(lib, args, path)

        def engine(**more):
            return Engine(lib, model=args.model, mmproj=path, n_ctx=2048, n_batch=512, n_ubatch=512, n_threads=args.threads,
                          n_threads_batch=args.threads, warmup=False, speculative=False, **more)

        ways = {"llama.cpp, F16": None} if args.llama else {}
        ways |= {"F16": {}, "q8_0": {"mmproj_weights": "q8_0"}}
        program = built(args, folder) if args.llama else None
        times = {way: [] for way in ways}
        for pair in range(args.pairs):
            for way, more in list(ways.items())[:: -1 if pair % 2 else 1]:
                if more is None:
                    command = [program, args.model, path, str(args.side), str(args.threads)]
                    times[way].append(float(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
                    continue
                with engine(**more) as loaded:
                    times[way].append(seconds(loaded, args.side))
        first = statistics.median(times[next(iter(ways))])
        for way, all in times.items():
            median = statistics.median(all)
            print(f"{way:14} {median:7.2f} s ({min(all):.2f} to {max(all):.2f}), {median / first:.2f} of the first", flush=True)
        found = []
        with engine() as large, engine(mmproj_weights="q8_0") as small:
            for seed in range(args.pictures):
                both = [ask(loaded, seed, args.side, n_probs=1000) for loaded in (large, small)]
                found.append((divergence(*both), both[0]["content"] == both[1]["content"]))
        mean = statistics.mean(nats for nats, _ in found)
        print(f"divergence of the first token: {mean:.6f} nats, the same token for {sum(same for _, same in found)} of {len(found)} pictures")
