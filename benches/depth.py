#!/usr/bin/env python3
"""Plain decoding after contexts of several lengths, and prompts: this library beside llama-bench, in tokens per second.

    python3 benches/depth.py MODEL [--bench PATH/TO/llama-bench] [--depths 0,512,1024] [--prompts 512] [--n-threads 2]

Contexts are random tokens. Each figure of this library is the median of three completions; llama-bench's are the better of flash
attention on and off. Both run one after the other, so compare on a machine that does nothing else.
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess

from slots import ROOT, Library


def ours(library, model, lengths):
    """Tokens per second of decoding after, and of reading, a prompt of each length."""
    engine = library.lib.foredraft_engine_new()
    load = {"log_level": "error", "model": model, "n_ctx": max(lengths) + 200}
    if library.lib.foredraft_load(engine, json.dumps(load).encode()) != 0:
        raise SystemExit(ctypes.string_at(library.lib.foredraft_status(engine)).decode())
    speeds = {}
    for length in lengths:
        prompt = [random.randrange(1000, 40000) for _ in range(max(length, 1))]
        request = {"prompt": prompt, "n_predict": 24, "temperature": 0, "ignore_eos": True, "speculative": False}
        timings = [library.complete(engine, {**request, "cache_prompt": n > 0})["timings"] for n in range(3)]
        speeds[length] = statistics.median(it["predicted_per_second"] for it in timings), timings[0]["prompt_per_second"]
    library.lib.foredraft_engine_free(engine)
    return speeds


def llama_bench(program, model, n_threads, arguments):
    """The tests of llama-bench with flash attention on and off: the better speed of each."""
    command = [program, "-m", model, "-t", str(n_threads), "-r", "2", "-fa", "0,1", "-o", "json", *arguments]
    tests = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    best = {}
    for test in tests:
        key = test["n_depth"] if test["n_gen"] else test["n_prompt"]
        best[key] = max(best.get(key, 0), test["avg_ts"])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bench")
    parser.add_argument("--library", default=os.path.join(ROOT, "target/release/libforedraft.so"))
    parser.add_argument("--depths", default="0,512,1024")
    parser.add_argument("--prompts", default="512")
    parser.add_argument("--n-threads", type=int, default=2)
    args = parser.parse_args()
    random.seed(1)
    depths, prompts = ([int(n) for n in text.split(",")] for text in (args.depths, args.prompts))
    speeds = ours(Library(args.library), args.model, sorted({*depths, *prompts}))
    theirs = {"decoding": {}, "prompt": {}}
    if args.bench:
        theirs["decoding"] = llama_bench(args.bench, args.model, args.n_threads, ["-p", "0", "-n", "24", "-d", args.depths])
        theirs["prompt"] = llama_bench(args.bench, args.model, args.n_threads, ["-p", args.prompts, "-n", "0"])
    for name, lengths, which in (("decoding", depths, 0), ("prompt", prompts, 1)):
        for length in lengths:
            speed, other = speeds[length][which], theirs[name].get(length)
            beside = f", llama-bench {other:.0f}, ratio {speed / other:.2f}" if other else ""
            print(f"{name}, {length} tokens: {speed:.0f} tokens/s{beside}")


if __name__ == "__main__":
    main()
