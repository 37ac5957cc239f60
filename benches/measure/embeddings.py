"""The processor time of embeddings for each token, on one thread: texts one by one, together in one call, and one long text.

    make build
    python3 benches/measure embeddings [MODEL] [--texts 40] [--words 4,12] [--rounds 7]

MODEL: target/models/minilm-l6-v2-f16.gguf unless it is given. A figure is the least of the rounds, in milliseconds per token; the
rounds of all ways take turns. `batches` has calls with 1, 2, 4, ... of the texts.
"""
import json
import os
import sys
import time

from engines import ROOT

sys.path.insert(0, os.path.join(ROOT, "python", "src"))

WORDS = "a fox runs through the old forest near the river while the crow watches from a tall tree".split()


def text(first, length):
    """A text of so many words, which begins with another word for each `first`."""
    return " ".join(WORDS[(first + i) % len(WORDS)] for i in range(length))


def options(parser):
    parser.add_argument("model", nargs="?", default=os.path.join(ROOT, "target/models/minilm-l6-v2-f16.gguf"))
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--words", default="4,12")
    parser.add_argument("--rounds", type=int, default=7)


def run(args):
    os.environ["FOREDRAFT_LIB"] = args.library
    from foredraft import Engine

    with Engine(args.model, embedding=True, n_threads=1, log_level="error") as engine:
        long_text = text(0, 400)
        for length in map(int, args.words.split(",")):
            texts = [text(first, length) for first in range(args.texts)]
            sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < len(texts)]
            ways = {
                "one_by_one": (texts, lambda texts=texts: [engine.embed(one) for one in texts]),
                "one_call": (texts, lambda texts=texts: engine.embed_many(texts)),
                "long_text": ([long_text], lambda: engine.embed(long_text)),
                **{size: (texts[:size], lambda part=texts[:size]: engine.embed_many(part)) for size in sizes},
            }
            tokens = {way: sum(len(engine.tokenize(one)) for one in given) for way, (given, _) in ways.items()}
            least = dict.fromkeys(ways, float("inf"))
            for _ in range(args.rounds):
                for way, (_, call) in ways.items():
                    before = time.process_time()
                    call()
                    least[way] = min(least[way], time.process_time() - before)
            per_token = {way: round(1000 * seconds / tokens[way], 3) for way, seconds in least.items()}
            print(json.dumps({
                "texts": len(texts), "tokens": tokens["one_call"], "long_text_tokens": tokens["long_text"],
                "ratio": round(least["one_call"] / least["one_by_one"], 2),
                "ms_per_token": {way: per_token[way] for way in ("one_by_one", "one_call", "long_text")},
                "batches": {size: per_token[size] for size in sizes},
            }), flush=True)
