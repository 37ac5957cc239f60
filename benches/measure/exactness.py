"""Counts the outputs that depend on speculation, on other requests or on the level of instructions, for each format of weights.

    python3 benches/measure exactness --quantize PATH/llama-quantize [--prompts 200] [--formats Q4_K_M,BF16] [--model MODEL]

Every prompt is completed plainly and alone, with speculation, and beside three others with speculation, at each level of this processor.
Half are greedy, half at temperature 1. Tokens and probabilities are compared, so a bit of a logit counts. 0 differences are expected; the exit
status is 1 if there are some. `--quantize` makes the formats of SmolLM2 (scripts/models.sh) in target/models/formats.
"""
import concurrent.futures
import json
import os

from engines import ROOT, Engine, library
from formats import quantized

FORMATS = "Q4_K_M,Q6_K,Q5_1,BF16,IQ4_XS,Q2_K,Q2_0"
PLACES = ["a harbour", "the moon", "a school", "an old library", "a train", "a small kitchen", "the desert", "a museum"]
ORDERS = ["Write a story about", "Explain what one does in", "List five things in", "Describe", "Write Python code that models"]


def request(index, n_predict):
    prompt = f"<|im_start|>user\n{ORDERS[index % 5]} {PLACES[index // 5 % 8]}, number {index}.<|im_end|>\n<|im_start|>assistant\n"
    return {
        "prompt": prompt,
        "n_predict": n_predict,
        "temperature": index % 2,
        "seed": index,
        "n_probs": 2,
        "cache_prompt": False,
        "ignore_eos": True,
    }


def outputs(engine, args, speculate, at_once):
    def output(index):
        body = {**request(index, args.n_predict), "speculative": speculate}
        return json.dumps(engine.complete(body)["completion_probabilities"])

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(output, range(args.prompts)))


def options(parser):
    parser.add_argument("--quantize")
    parser.add_argument("--model")
    parser.add_argument("--draft", default=os.path.join(ROOT, "target/models/smollm2-far-q4_1.gguf"))
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--levels", help="default: all of this processor")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--n-predict", type=int, default=24)


def run(args):
    if not args.model and not args.quantize:
        raise SystemExit("exactness: expected --quantize or --model")
    lib = library(args.library)
    with Engine(lib) as engine:
        levels = args.levels.split(",") if args.levels else engine.status()["cpu"]["levels"]
    n_different = 0
    for form in [os.path.basename(args.model)] if args.model else args.formats.split(","):
        model = args.model or quantized(args.quantize, form)
        expected = None
        for level in levels:
            with Engine(lib, model=model, model_draft=args.draft, n_ctx=256, n_parallel=4, cpu_level=level) as engine:
                alone = outputs(engine, args, False, 1)
                expected = expected or alone
                counts = {
                    "from the first level": alone,
                    "with speculation": outputs(engine, args, True, 1),
                    "in four slots with speculation": outputs(engine, args, True, 4),
                }
            for what, found in counts.items():
                n = sum(a != b for a, b in zip(expected, found))
                n_different += n
                print(f"{form} at {level}: {n} of {args.prompts} differ {what}", flush=True)
    return n_different != 0
