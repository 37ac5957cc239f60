"""Plain decoding after contexts of several lengths, and prompts: this library beside llama-bench, in tokens per second.

    python3 benches/measure depth MODEL [--bench PATH/TO/llama-bench] [--depths 0,512,1024] [--prompts 512] [--n-threads 2]

Contexts are random tokens. Each figure of this library is the median of three completions; llama-bench's are the better of flash
attention on and off. Both run one after the other, so compare on a machine that does nothing else.
"""
import json
import random
import statistics
import subprocess

from engines import Engine, library


def ours(lib, model, lengths):
    """Tokens per second of decoding after, and of reading, a prompt of each length."""
    speeds = {}
    with Engine(lib, model=model, n_ctx=max(lengths) + 200) as engine:
        for length in lengths:
            prompt = [random.randrange(1000, 40000) for _ in range(max(length, 1))]
            request = {"prompt": prompt, "n_predict": 24, "temperature": 0, "ignore_eos": True, "speculative": False}
            timings = [engine.complete({**request, "cache_prompt": n > 0})["timings"] for n in range(3)]
            speeds[length] = statistics.median(it["predicted_per_second"] for it in timings), timings[0]["prompt_per_second"]
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


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--bench")
    parser.add_argument("--depths", default="0,512,1024")
    parser.add_argument("--prompts", default="512")
    parser.add_argument("--n-threads", type=int, default=2)


def run(args):
    random.seed(1)
    depths, prompts = ([int(n) for n in text.split(",")] for text in (args.depths, args.prompts))
    speeds = ours(library(args.library), args.model, sorted({*depths, *prompts}))
    theirs = {"decoding": {}, "prompt": {}}
    if args.bench:
        theirs["decoding"] = llama_bench(args.bench, args.model, args.n_threads, ["-p", "0", "-n", "24", "-d", args.depths])
        theirs["prompt"] = llama_bench(args.bench, args.model, args.n_threads, ["-p", args.prompts, "-n", "0"])
    for name, lengths, which in (("decoding", depths, 0), ("prompt", prompts, 1)):
        for length in lengths:
            speed, other = speeds[length][which], theirs[name].get(length)
            beside = f", llama-bench {other:.0f}, ratio {speed / other:.2f}" if other else ""
            print(f"{name}, {length} tokens: {speed:.0f} tokens/s{beside}")
