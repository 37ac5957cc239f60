"""Loads of a model until its first token, in memory and from the disk, beside llama.cpp and ik_llama.cpp.

    python3 benches/measure loads MODEL [--bench PATH/llama-bench] [--ik PATH/llama-bench] [--rounds 5] [--cold-rounds 2] [--first SECONDS]

Each load is a process of its own: it loads the model, computes one token and ends. The seconds are those of the whole process, and the
peak is the most memory that it had resident, with the pages of the mapped file. Before a cold load, the system forgets the file's pages.
The programs alternate; the figures are medians.

With --first, instead: how fast requests of 32 tokens are that run one after another from the load on, in the first SECONDS, and in a tenth of
that after them; each round is a load.
"""
import os
import statistics
import subprocess
import sys
import time

from engines import Engine, library

REPACK = {"measured": None, "false": False, "true": True}


def forget(path):
    """Drops a file's pages from memory."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def timed(command):
    """The seconds of a process and the GB that it had in memory at most."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"loads: {' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - start, usage.ru_maxrss / 1e6


def first_requests(args, threads):
    """Prints a row for each load: when the first request ended and how fast it was, when the panels were complete, and the two speeds."""
    print("| load, s | first request, tokens/s | panels complete, s | first seconds, tokens/s | after, tokens/s |\n| --- | --- | --- | --- | --- |")
    for _ in range(args.rounds):
        start, ends = time.monotonic(), []
        with Engine(library(args.library), model=args.model, n_ctx=512, **threads) as engine:
            loaded, complete = time.monotonic() - start, None
            while not ends or ends[-1][0] < 1.1 * args.first:
                answer = engine.complete({"prompt": [1000], "n_predict": 32, "ignore_eos": True, "speculative": False})
                ends.append((time.monotonic() - start, answer["timings"]["predicted_per_second"]))
                if complete is None and engine.status()["pending_panel_bytes"] == 0:
                    complete = ends[-1][0]
        early = statistics.harmonic_mean([speed for end, speed in ends if end < args.first])
        late = statistics.harmonic_mean([speed for end, speed in ends if end >= args.first])
        print(f"| {loaded:.1f} | {ends[0][1]:.1f} | {complete or float("nan"):.1f} | {early:.1f} | {late:.1f} |")


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--bench")
    parser.add_argument("--ik")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-rounds", type=int, default=2)
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--first", type=float, metavar="SECONDS")
    parser.add_argument("--one", choices=REPACK, help="load once in this process, with this `repack`")


def run(args):
    threads = {"n_threads": args.n_threads, "n_threads_batch": args.n_threads}
    if args.one:
        with Engine(library(args.library), model=args.model, n_ctx=512, repack=REPACK[args.one], **threads) as engine:
            engine.complete({"prompt": [1000], "n_predict": 1, "speculative": False})
        return
    if args.first:
        return first_requests(args, threads)
    own = [sys.executable, sys.argv[0], "loads", args.model, "--library", args.library, "--n-threads", str(args.n_threads), "--one"]
    one_token = ["-m", args.model, "-p", "0", "-n", "1", "-r", "1", "-t", str(args.n_threads)]
    programs = {f"foredraft, repack {repack}": [*own, repack] for repack in REPACK}
    if args.bench:
        programs["llama.cpp"] = [args.bench, *one_token, "-fa", "1"]
    if args.ik:
        for rtr in ("0", "1"):
            programs[f"ik_llama.cpp, -rtr {rtr}"] = [args.ik, *one_token, "-w", "0", "-rtr", rtr]
    warm, cold, disk = {name: [] for name in programs}, {name: [] for name in programs}, []
    read(args.model)
    for _ in range(args.rounds):
        for name, command in programs.items():
            warm[name].append(timed(command))
    for _ in range(args.cold_rounds):
        forget(args.model)
        start = time.monotonic()
        read(args.model)
        disk.append(time.monotonic() - start)
        for name, command in programs.items():
            forget(args.model)
            cold[name].append(timed(command))
    print("| | in memory, s | from the disk, s | peak, GB |\n| --- | --- | --- | --- |")
    for name in programs:
        seconds = [f"{statistics.median(took for took, _ in of[name]):.1f}" if of[name] else "" for of in (warm, cold)]
        print(f"| {name} | {' | '.join(seconds)} | {max(peak for _, peak in warm[name] + cold[name]):.1f} |")
    if disk:
        print(f"| reading the file | | {statistics.median(disk):.1f} | |")
