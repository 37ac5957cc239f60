#!/usr/bin/env python3
"""Formats of weights: plain decoding and prompts of this library beside llama.cpp and ik_llama.cpp, in tokens per second.

    make bench-formats ARGS="--quantize PATH/llama-quantize --bench PATH/llama-bench [--ik PATH/llama-bench]"

Quantizes target/models/smollm2-135m-q4_1.gguf (scripts/models.sh) to each format, into target/models/formats. In each of --pairs rounds every
program measures, one after the other: prompts of 512 random tokens, and plain decoding of 8 tokens, --repeats times each. The figures are
medians, and the ratios medians of the rounds' ratios. Others' settings are the best of flash attention on and off; of ik_llama.cpp also of
-rtr 0 and 1. `--model` measures a model as it is, instead.

`--fastest` compares each program's fastest sample of all rounds: a machine that is shared takes cores away for milliseconds, which costs
programs whose threads wait for each other in loops many times what it costs this library.
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess

from slots import ROOT, Library

FORMATS = "Q8_0,Q4_0,Q4_1,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS"
SOURCE = os.path.join(ROOT, "target/models/smollm2-135m-q4_1.gguf")


def quantized(program, form):
    """The model in a format; made once."""
    path = os.path.join(ROOT, f"target/models/formats/smollm2-135m-{form.lower()}.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        command = [program, "--allow-requantize", SOURCE, path + ".part", form]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.rename(path + ".part", path)
    return path


class Ours:
    """An engine of this library."""

    def __init__(self, library, model, args):
        self.library, self.args = library, args
        self.engine = library.lib.foredraft_engine_new()
        load = {
            "log_level": "error",
            "model": model,
            "n_ctx": args.n_prompt + args.n_predict + 64,
            "n_threads": args.n_threads,
            "n_threads_batch": args.n_threads,
        }
        if args.level:
            load["cpu_level"] = args.level
        if library.lib.foredraft_load(self.engine, json.dumps(load).encode()) != 0:
            raise SystemExit(ctypes.string_at(library.lib.foredraft_status(self.engine)).decode())

    def measure(self):
        """Samples of tokens per second: of prompts, and of decoding."""
        body = {"temperature": 0, "ignore_eos": True, "speculative": False, "cache_prompt": False}
        prompts, decodings = [], []
        for _ in range(self.args.repeats):
            prompt = [random.randrange(1000, 40000) for _ in range(self.args.n_prompt)]
            timings = self.library.complete(self.engine, {**body, "prompt": prompt, "n_predict": 1})["timings"]
            prompts.append(timings["prompt_per_second"])
            # The first token comes from the prompt's pass.
            timings = self.library.complete(self.engine, {**body, "prompt": prompt[:1], "n_predict": self.args.n_predict + 1})["timings"]
            decodings.append(1e3 * self.args.n_predict / timings["predicted_ms"])
        return prompts, decodings

    def close(self):
        self.library.lib.foredraft_engine_free(self.engine)


class Other:
    """A llama-bench."""

    def __init__(self, program, model, args, options):
        self.statistic = max if args.fastest else statistics.median
        sizes = ["-p", str(args.n_prompt), "-n", str(args.n_predict), "-r", str(args.repeats), "-fa", "0,1", "-t", str(args.n_threads)]
        self.commands = [[program, "-m", model, *sizes, "-o", "json", *more] for more in options]

    def measure(self):
        best = [[0], [0]]
        for command in self.commands:
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
            for test in json.loads(out[out.index("[") :]):
                which = 1 if test["n_gen"] else 0
                best[which] = max(best[which], test["samples_ts"], key=self.statistic)
        return best

    def close(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantize")
    parser.add_argument("--bench")
    parser.add_argument("--ik")
    parser.add_argument("--model", action="append")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--level", help="cpu_level of this library")
    parser.add_argument("--library", default=os.path.join(ROOT, "target/release/libforedraft.so"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--n-prompt", type=int, default=512)
    parser.add_argument("--n-predict", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fastest", action="store_true")
    args = parser.parse_args()
    if not args.model and not args.quantize:
        parser.error("expected --quantize or --model")
    random.seed(1)
    library = Library(args.library)
    others = [("llama.cpp", args.bench, [[]]), ("ik_llama.cpp", args.ik, [["-rtr", "0"], ["-rtr", "1"]])]
    others = [(name, program, options) for name, program, options in others if program]
    names = [name for name, _, _ in others]
    print(f"| weights | | foredraft | {' | '.join([*names, *(f'ratio to {name}' for name in names)])} |")
    print("| --- | --- |" + " --- |" * (1 + 2 * len(others)))
    for form in args.model or args.formats.split(","):
        model = form if args.model else quantized(args.quantize, form)
        form = os.path.basename(form)
        programs = [Ours(library, model, args), *(Other(program, model, args, options) for _, program, options in others)]
        rounds = [[program.measure() for program in programs] for _ in range(args.pairs)]
        for program in programs:
            program.close()
        for which, name in ((1, "decoding"), (0, f"prompt of {args.n_prompt}")):
            if args.fastest:
                speeds = [max(max(measured[at][which]) for measured in rounds) for at in range(len(programs))]
                ratios = [speeds[0] / speed for speed in speeds[1:]]
            else:
                medians = [[statistics.median(measured[at][which]) for at in range(len(programs))] for measured in rounds]
                speeds = [statistics.median(of_program) for of_program in zip(*medians)]
                ratios = [statistics.median(of_round[0] / of_round[at] for of_round in medians) for at in range(1, len(programs))]
            cells = [f"{speed:.0f}" for speed in speeds] + [f"{ratio:.2f}" for ratio in ratios]
            print(f"| {form} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
