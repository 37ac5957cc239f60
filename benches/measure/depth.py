"""Prompts of several lengths, and plain decoding after them in one slot or several, beside llama.cpp and ik_llama.cpp, in tokens per second.

    python3 benches/measure depth MODEL [--bench PATH/llama-batched-bench] [--ik PATH/llama-batched-bench] [--depths 512,4096] [--slots 1,4]
                                        [--cache f16,q8_0]

Prompts are random tokens, read in one slot and copied to the others, so every slot has a context of that length. Each program reads a
prompt once for each number of slots and decodes --n-predict tokens in each slot; of its settings (flash attention, -rtr) the fastest counts.
The programs run one after the other, so compare on a machine that does nothing else.
"""
import os
import random
import statistics
import subprocess
import tempfile

from engines import Engine, at_once, library


def ours(lib, args, cache, depth):
    """For each number of slots: tokens per second of the prompt, and of decoding in all slots after it."""
    slots = max(args.slots)
    config = {"cpu_level": args.level, "n_ctx": slots * (depth + 2 * args.n_predict + 64), "n_parallel": slots, "cache_type_k": cache, "cache_type_v": cache}
    with Engine(lib, model=args.model, n_threads=args.n_threads, n_threads_batch=args.n_threads, **config) as engine:
        engine.wait_for_panels()
        prompt = [random.randrange(1000, 40000) for _ in range(depth)]
        body = {"temperature": 0, "ignore_eos": True, "speculative": False, "prompt": prompt}
        read = engine.complete({**body, "n_predict": 1})["timings"]["prompt_per_second"]
        for n in args.slots:
            # The first token of each slot comes from the pass that reads what differs from its context, so it isn't counted.
            bodies = [{**body, "prompt": prompt + [slot], "n_predict": args.n_predict + 1} for slot in range(1000, 1000 + n)]
            at_once(engine.complete, [{**body, "n_predict": 1} for body in bodies])
            answers = at_once(engine.complete, bodies)
            yield read, 1e3 * n * args.n_predict / max(answer["timings"]["predicted_ms"] for answer in answers)


def other(program, args, cache, depth, options):
    """The same of a llama-batched-bench."""
    sizes = ["-c", str(max(args.slots) * (depth + args.n_predict + 64)), "-npp", str(depth), "-ntg", str(args.n_predict)]
    slots = ["-npl", ",".join(map(str, args.slots)), "-pps"]
    command = [os.path.abspath(program), "-m", os.path.abspath(args.model), "-t", str(args.n_threads), "-ctk", cache, "-ctv", cache, *sizes, *slots, *options]
    # ik_llama.cpp's leaves a log in the current folder.
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if line.startswith("|")]
    columns = rows[0].index("S_PP t/s"), rows[0].index("S_TG t/s")
    return [[float(row[column]) for column in columns] for row in rows[2:]]


def numbers(text):
    return [int(n) for n in text.split(",")]


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--bench")
    parser.add_argument("--ik")
    parser.add_argument("--level", help="cpu_level of this library")
    parser.add_argument("--depths", type=numbers, default=[512, 4096])
    parser.add_argument("--slots", type=numbers, default=[1, 4])
    parser.add_argument("--cache", default="f16,q8_0")
    parser.add_argument("--flash", default="off,on", help="flash attention of llama.cpp; caches of other types than F16 need it")
    parser.add_argument("--rtr", type=numbers, default=[0, 1], help="-rtr of ik_llama.cpp")
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--n-predict", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=1)


def run(args):
    random.seed(1)
    lib = library(args.library)
    print("| cache | context | slots | prompt: foredraft, llama.cpp, ik_llama.cpp | decoding: the same |\n| --- | --- | --- | --- | --- |")
    for cache in args.cache.split(","):
        flash = args.flash.split(",") if cache == "f16" else ["on"]
        peers = [(args.bench, [["-fa", value] for value in flash]), (args.ik, [["-rtr"] * n for n in args.rtr])]
        for depth in args.depths:
            rounds = []
            for _ in range(args.rounds):
                speeds = [list(ours(lib, args, cache, depth))]
                for program, settings in peers:
                    if program:
                        tried = [other(program, args, cache, depth, options) for options in settings]
                        speeds.append([[max(of_kind) for of_kind in zip(*of_slots)] for of_slots in zip(*tried)])
                rounds.append(speeds)
            for at, slots in enumerate(args.slots):
                cells = [" / ".join(f"{statistics.median(of[program][at][kind] for of in rounds):.1f}" for program in range(len(rounds[0]))) for kind in (0, 1)]
                print(f"| {cache} | {depth} | {slots} | {' | '.join(cells)} |", flush=True)
