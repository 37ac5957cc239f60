"""Speculation with drafts of a chosen quality, on a model that needs no training: its speed with drafts over its speed without.

    python3 benches/measure hybrids MODEL [--draft WRONG] [--rates 0,0.5,0.8,0.95] [--pairs 5]

The model can have random weights (models/random_weights.py). Its completion is sampled once, and a lookup cache is written in which each
pair of neighbouring tokens is followed by the completion's next token, or with a chance of 1 - rate by a wrong one. With --draft, a draft
model whose drafts are wrong is measured, too, and with --mtp the model's own layers. Each run loads the model again. With
--cpu-time, speeds are tokens per second of processor time, on one thread: other programs change them less.
"""
import random
import statistics
import struct
import tempfile
import time

from engines import Engine, library

PROMPT = list(range(300, 340))
N_VOCAB = 1536


def write_lookup(path, tokens, rate):
    """llama.cpp's file of an n-gram cache: n-gram, number of continuations, and each with its count."""
    chance, following = random.Random(1), {}
    for first, second, token in zip(tokens, tokens[1:], tokens[2:]):
        following[first, second] = token if chance.random() < rate else chance.randrange(300, N_VOCAB)
    with open(path, "wb") as file:
        for (first, second), token in following.items():
            file.write(struct.pack("<7i", first, second, -1, -1, 1, token, 100))


def options(parser):
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--mtp", action="store_true")
    parser.add_argument("--rates", default="0,0.5,0.8,0.95")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=1)
    parser.add_argument("--cpu-time", action="store_true")


def run(args):
    lib = library(args.library)
    request = {"prompt": PROMPT, "n_predict": args.n_predict, "temperature": args.temperature, "top_k": 0, "top_p": 1, "seed": 5,
               "repeat_penalty": 1, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}

    threads = {"n_threads": 1, "n_threads_batch": 1} if args.cpu_time else {}

    def complete(speculative, config):
        with Engine(lib, model=args.target, n_ctx=1024, **threads, **config) as engine:
            engine.wait_for_panels()
            start = time.process_time()
            answer = engine.complete({**request, "speculative": speculative})
            seconds = time.process_time() - start
            return answer, answer["tokens_predicted"] / seconds if args.cpu_time else answer["timings"]["predicted_per_second"]

    plain = {"model_draft": None}
    tokens = complete(False, plain)[0]["tokens"]
    ways = {}
    with tempfile.TemporaryDirectory() as folder:
        for rate in filter(None, args.rates.split(",")):
            path = f"{folder}/{rate}.lookup"
            write_lookup(path, [*PROMPT, *tokens], float(rate))
            ways[f"{rate} right"] = ({"type": "ngram-cache", "lookup_cache_static": path}, plain)
        if args.draft:
            ways["a wrong draft model"] = ({"type": "draft"}, {"model_draft": args.draft})
        if args.mtp:
            ways["its MTP layers"] = ({"type": "mtp"}, {**plain, "speculative": {"type": "mtp"}})
        for name, (speculative, config) in ways.items():
            ratios, speeds, report = [], [], {}
            for _ in range(args.pairs):
                (off, speed_off), (on, speed_on) = complete(False, plain), complete(speculative, config)
                assert on["tokens"] == off["tokens"] == tokens, "drafts changed the completion"
                ratios.append(speed_on / speed_off)
                speeds.append(speed_off)
                report = on["speculative"]
            print(f"{name}: {statistics.median(ratios):.3f} of {statistics.median(speeds):.1f} tokens/s ({min(ratios):.3f} to {max(ratios):.3f}); "
                  f"{report['n_accepted']} of {report['n_drafted']} accepted, {report['n_steps']} steps", flush=True)
