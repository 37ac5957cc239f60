"""Formats of weights: plain decoding and prompts of this library beside llama.cpp and ik_llama.cpp, in tokens per second.

    python3 benches/measure formats --quantize PATH/llama-quantize --bench PATH/llama-bench [--ik PATH/llama-bench]

Quantizes target/models/smollm2-135m-q4_1.gguf (scripts/models.sh) to each format, into target/models/formats. In each of --pairs rounds every
program measures, one after the other: prompts of 512 random tokens, and plain decoding of 8 tokens, --repeats times each. The figures are
medians, and the ratios medians of the rounds' ratios. Others' settings are the best of flash attention on and off; of ik_llama.cpp also of
-rtr 0 and 1. `--model` measures a model as it is, instead. `--slots 4,8` adds plain decoding of so many requests at once, beside the
llama-batched-bench that lies in the folder of each llama-bench.

`--fastest` compares each program's fastest sample of all rounds: a machine that is shared takes cores away for milliseconds, which costs
programs whose threads wait for each other in loops many times what it costs this library.
"""
import json
import os
import random
import statistics
import subprocess

from engines import ROOT, Engine, at_once, library

FORMATS = "Q8_0,Q4_0,Q4_1,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS,Q2_0"
# Tokens of each request when several are decoded at once.
IN_SLOTS = 32
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

    def __init__(self, lib, model, args):
        self.args, slots = args, max([1, *args.slots])
        n_ctx = slots * (args.n_prompt + args.n_predict + 64)
        threads = {"n_threads": args.n_threads, "n_threads_batch": args.n_threads}
        self.engine = Engine(lib, model=model, n_ctx=n_ctx, n_parallel=slots, cpu_level=args.level, **threads)
        self.engine.wait_for_panels()

    def measure(self):
        """Samples of tokens per second: of prompts, of decoding, and of each number of slots."""
        body = {"temperature": 0, "ignore_eos": True, "speculative": False, "cache_prompt": False}
        prompts, decodings, slots = [], [], [[] for _ in self.args.slots]
        for _ in range(self.args.repeats):
            prompt = [random.randrange(1000, 40000) for _ in range(self.args.n_prompt)]
            timings = self.engine.complete({**body, "prompt": prompt, "n_predict": 1})["timings"]
            prompts.append(timings["prompt_per_second"])
            # The first token comes from the prompt's pass.
            timings = self.engine.complete({**body, "prompt": prompt[:1], "n_predict": self.args.n_predict + 1})["timings"]
            decodings.append(1e3 * self.args.n_predict / timings["predicted_ms"])
            for n, samples in zip(self.args.slots, slots):
                bodies = [{**body, "prompt": [token], "n_predict": IN_SLOTS + 1} for token in prompt[:n]]
                answers = at_once(self.engine.complete, bodies)
                samples.append(1e3 * n * IN_SLOTS / max(answer["timings"]["predicted_ms"] for answer in answers))
        return [prompts, decodings, *slots]

    def close(self):
        self.engine.__exit__()


class Other:
    """A llama-bench."""

    def __init__(self, program, model, args, options):
        self.statistic = max if args.fastest else statistics.median
        sizes = ["-p", str(args.n_prompt), "-n", str(args.n_predict), "-r", str(args.repeats), "-fa", "0,1", "-t", str(args.n_threads)]
        self.commands = [[program, "-m", model, *sizes, "-o", "json", *more] for more in options]
        self.slots = args.slots
        self.batched = None
        if args.slots:
            sizes = ["-c", str(64 * max(args.slots)), "-npp", "2", "-ntg", str(IN_SLOTS), "-npl", ",".join(map(str, args.slots))]
            program = os.path.join(os.path.dirname(program), "llama-batched-bench")
            # A key without a value is a switch.
            more = [option for option in options[-1] if option not in ("0", "1")]
            self.batched = [program, "-m", model, *sizes, "-t", str(args.n_threads), *more]

    def measure(self):
        best = [[0], [0], *([0] for _ in self.slots)]
        for command in self.commands:
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
            for test in json.loads(out[out.index("[") :]):
                which = 1 if test["n_gen"] else 0
                best[which] = max(best[which], test["samples_ts"], key=self.statistic)
        if self.batched:
            out = subprocess.run(self.batched, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()
            rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if line.startswith("|")]
            column = rows[0].index("S_TG t/s")
            for which, row in enumerate(rows[2:], 2):
                best[which] = [float(row[column])]
        return best

    def close(self):
        pass


def options(parser):
    parser.add_argument("--quantize")
    parser.add_argument("--bench")
    parser.add_argument("--ik")
    parser.add_argument("--model", action="append")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--level", help="cpu_level of this library")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--n-prompt", type=int, default=512)
    parser.add_argument("--n-predict", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slots", type=lambda text: [int(n) for n in text.split(",")], default=[])
    parser.add_argument("--fastest", action="store_true")


def run(args):
    if not args.model and not args.quantize:
        raise SystemExit("formats: expected --quantize or --model")
    random.seed(1)
    lib = library(args.library)
    others = [("llama.cpp", args.bench, [[]]), ("ik_llama.cpp", args.ik, [["-rtr", "0"], ["-rtr", "1"]])]
    others = [(name, program, options) for name, program, options in others if program]
    peers = [name for name, _, _ in others]
    print(f"| weights | | foredraft | {' | '.join([*peers, *(f'ratio to {name}' for name in peers)])} |")
    print("| --- | --- |" + " --- |" * (1 + 2 * len(others)))
    for form in args.model or args.formats.split(","):
        model = form if args.model else quantized(args.quantize, form)
        form = os.path.basename(form)
        programs = [Ours(lib, model, args), *(Other(program, model, args, options) for _, program, options in others)]
        rounds = [[program.measure() for program in programs] for _ in range(args.pairs)]
        for program in programs:
            program.close()
        names = [(1, "decoding"), (0, f"prompt of {args.n_prompt}"), *((at, f"{n} slots") for at, n in enumerate(args.slots, 2))]
        for which, name in names:
            if args.fastest:
                speeds = [max(max(measured[at][which]) for measured in rounds) for at in range(len(programs))]
                ratios = [speeds[0] / speed for speed in speeds[1:]]
            else:
                medians = [[statistics.median(measured[at][which]) for at in range(len(programs))] for measured in rounds]
                speeds = [statistics.median(of_program) for of_program in zip(*medians)]
                ratios = [statistics.median(of_round[0] / of_round[at] for of_round in medians) for at in range(1, len(programs))]
            cells = [f"{speed:.{0 if speed >= 100 else 1}f}" for speed in speeds] + [f"{ratio:.2f}" for ratio in ratios]
            print(f"| {form} | {name} | {' | '.join(cells)} |", flush=True)
