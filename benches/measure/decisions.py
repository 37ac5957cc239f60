"""Decisions (`choices`) among 2, 10 and 100 texts beside scoring each text alone: milliseconds, and how far the log-probabilities differ.

    python3 benches/measure decisions MODEL [--choices 2,10,100] [--pairs 5]

The prompt is in the slot's cache before each measurement, as it is for a second decision about the same situation. Alone, each text is a request
of its own with the same prompt. Both are interleaved; the figures are medians.
"""
import itertools
import statistics
import time

from engines import Engine, library

PROMPT = "<|im_start|>user\n" + "The shop sells tea, bread, lamps and rope. " * 16 + "What does the traveller buy?<|im_end|>\n<|im_start|>assistant\nHe buys"
FIRST = ["a small", "a large", "an old", "a new", "one blue", "one green", "some fresh", "two round", "three thin", "a cheap"]
SECOND = ["loaf of bread", "oil lamp", "coil of rope", "pot of tea", "bag of leaves", "bundle of wood", "pair of boots", "wool blanket", "iron kettle", "paper map"]


def texts(n):
    return [f" {first} {second}" for second, first in itertools.islice(itertools.product(SECOND, FIRST), n)]


def decide(engine, choices):
    start = time.monotonic()
    answer = engine.complete({"prompt": PROMPT, "choices": choices})
    return (time.monotonic() - start) * 1000, [choice["logprob"] for choice in answer["choices"]]


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--choices", default="2,10,100")
    parser.add_argument("--pairs", type=int, default=5)


def run(args):
    with Engine(library(args.library), model=args.model, n_ctx=2048) as engine:
        for n in map(int, args.choices.split(",")):
            choices = texts(n)
            n_tokens = sum(len(engine.call("tokenize", {"text": text, "add_special": False})["ids"]) for text in choices)
            decide(engine, choices[:1])
            together, alone, difference = [], [], 0.0
            for _ in range(args.pairs):
                spent, all_at_once = decide(engine, choices)
                together.append(spent)
                each = [decide(engine, [choice]) for choice in choices]
                alone.append(sum(spent for spent, _ in each))
                difference = max(difference, *(abs(one - other[0]) for one, (_, other) in zip(all_at_once, each)))
            once, apart = statistics.median(together), statistics.median(alone)
            print(f"{n} choices, {n_tokens} tokens: {once:.1f} ms together, {apart:.1f} ms alone, ratio {apart / once:.1f}, "
                  f"log-probabilities differ by {difference:.1e} at most", flush=True)
