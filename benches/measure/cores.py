"""Threads: plain decoding, prompts and a pair of models on the CPU with 1, 2, 4, ... threads, and where more of them stop helping, and why.

    python3 benches/measure cores [TARGET [DRAFT]] [--threads 1,2,4,8,16] [--seconds 500]

Runs in less than ten minutes, with the built library alone. Each number of threads loads the models anew. For each it prints tokens per second (the fastest
of the samples), the bytes of weights that decoding reads per second, how much of the threads' time the process was on a core, and
the waits in which a thread slept for each token: the threads of a step wait for each other some hundred times, and sleep when
another one is late. `serial` is the part of a decode that more threads do not shorten, by the times of this number of threads and
of the one before.
"""
import os
import resource
import time

from engines import ROOT, Engine, library

MODELS = os.path.join(ROOT, "target/models")
# The first that are there: a pair that memory limits, SmolLM2, and the shipped one, which has no need of many cores.
PAIRS = (
    (f"{MODELS}/qwen2.5-coder-1.5b-q4_k_m.gguf", f"{MODELS}/qwen2.5-coder-0.5b-q4_k_m.gguf"),
    (f"{MODELS}/smollm2-135m-q4_1.gguf", f"{MODELS}/smollm2-far-q4_1.gguf"),
    (f"{ROOT}/models/stories-target.gguf", f"{ROOT}/models/stories-draft.gguf"),
)
# A step that gains less than this from twice the threads has stopped scaling.
GAIN = 1.2
CODE = "def median(values):\n    values = sorted(values)\n    middle = len(values) // 2\n    return values[middle]\n\n\ndef mode(values):\n"


class Sample:
    """Work between two moments: tokens, seconds, seconds of CPU time, and sleeps."""

    def __init__(self, run):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        self.timings = run()["timings"]
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.seconds = time.monotonic() - start
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.sleeps = after.ru_nvcsw - before.ru_nvcsw


def measure(lib, target, draft, threads, until):
    """The best samples of each kind with a number of threads, in tokens per second."""
    on_cpu = {"devices": "none", "devices_draft": "none" if draft else None}
    with Engine(lib, model=target, model_draft=draft, n_ctx=1024, n_threads=threads, n_threads_batch=threads, **on_cpu) as engine:
        return samples(engine, draft, until), engine.status()


def samples(engine, draft, until):
    """The best sample of each kind."""
    most = {"plain": {"n_predict": 32, "speculative": False}, "prompt": {"n_predict": 1, "speculative": False}}
    if draft is not None:
        most["pair"] = {"n_predict": 64}
    best, rounds = {}, 0
    while rounds < 1 or (time.monotonic() < until and rounds < 5):
        for kind, settings in most.items():
            # Words that no earlier prompt had, so that no cache helps.
            prompt = " ".join(f"{rounds * 7919 + i * 31}" for i in range(90)) if kind == "prompt" else f"# {rounds}\n{CODE}"
            body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "cache_prompt": False, **settings}
            sample = Sample(lambda: engine.complete(body))
            part = "prompt" if kind == "prompt" else "predicted"
            sample.speed = sample.timings[f"{part}_per_second"]
            sample.tokens = sample.timings[f"{part}_n"]
            if kind not in best or sample.speed > best[kind].speed:
                best[kind] = sample
        rounds += 1
    return best


def reason(now, threads):
    """Why a number of threads does not gain what it could."""
    busy = now.cpu / now.seconds / threads
    if busy < 0.75:
        sleeps = now.sleeps / now.tokens
        return f"the threads are on a core for {busy:.0%} of the time: fewer cores are free, or they sleep ({sleeps:.0f} times a token)"
    return "all threads are busy: memory is the limit (compare GB/s), or they wait for each other in loops"


def options(parser):
    parser.add_argument("target", nargs="?")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--threads", help="1, 2, 4, ... up to the cores of the process, at most 16, if absent")
    parser.add_argument("--seconds", type=float, default=500, help="the time for all")


def run(args):
    target, draft = (args.target, args.draft) if args.target else next(pair for pair in PAIRS if os.path.exists(pair[0]))
    cores = len(os.sched_getaffinity(0))
    numbers = [int(n) for n in args.threads.split(",")] if args.threads else [n for n in (1, 2, 4, 6, 8, 12, 16) if n <= max(cores, 1)]
    lib, start = library(args.library), time.monotonic()
    print(f"{os.path.basename(target)}, {os.path.basename(draft or 'no draft')}; {cores} cores")
    print("| threads | plain, tokens/s | GB/s | on a core | sleeps a token | serial, ms | prompt, tokens/s | pair, tokens/s |")
    print("|---|---|---|---|---|---|---|---|")
    before, stops = None, {}
    for at, threads in enumerate(numbers):
        until = start + args.seconds * (at + 1) / len(numbers)
        best, status = measure(lib, target, draft, threads, until)
        plain = best["plain"]
        serial = "-"
        if before is not None:
            # t(n) = serial + parallel / n
            n, t, m, u = threads, 1 / plain.speed, before[0], 1 / before[1]["plain"].speed
            serial = f"{max(0.0, (n * t - m * u) / (n - m)) * 1e3:.2f}"
            for kind, sample in best.items():
                if kind not in stops and sample.speed < before[1][kind].speed * (1 + (GAIN - 1) * (threads / before[0] - 1)):
                    stops[kind] = (before[0], reason(sample, threads))
        pair = f"{best['pair'].speed:.1f}" if "pair" in best else "-"
        bandwidth = plain.speed * status["model_size"] / 1e9
        print(f"| {threads} | {plain.speed:.1f} | {bandwidth:.1f} | {plain.cpu / plain.seconds / threads:.0%} | "
              f"{plain.sleeps / plain.tokens:.0f} | {serial} | {best['prompt'].speed:.0f} | {pair} |", flush=True)
        before = threads, best
    for kind, (threads, why) in stops.items():
        print(f"{kind}: stops scaling at {threads} threads; {why}")
    if not stops:
        print("nothing stops scaling up to the last number of threads")
