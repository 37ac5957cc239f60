"""Several requests on several slots: this library and llama-server, interleaved, in tokens per second.

    python3 benches/measure slots TARGET [--draft DRAFT] [--server PATH/TO/llama-server] [--slots 4,8] [--pairs 5]

Each run loads the model again, so that n-gram and prompt caches are empty, then sends 8 requests at
once and waits for all. llama-server is optional: build it from llama.cpp's sources with the same compiler flags.
"""
import statistics
import time

from engines import Engine, at_once, library, serve

TOPICS = ["why the sky is blue", "how bread is made", "what a compiler does", "how to learn the piano",
          "why leaves turn red", "how a bicycle stays upright", "what a budget is for", "how to write a letter"]


def prompts():
    return [f"<|im_start|>user\nExplain {topic} in a few sentences.<|im_end|>\n<|im_start|>assistant\n" for topic in TOPICS]


def request(prompt, n_predict):
    return {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "repeat_penalty": 1, "ignore_eos": True, "cache_prompt": False}


def speed(complete, bodies):
    """Tokens per second of requests that are sent at the same time."""
    start = time.monotonic()
    tokens = sum(answer["tokens_predicted"] for answer in at_once(complete, bodies))
    return tokens / (time.monotonic() - start)


def of_library(lib, bodies, **config):
    with Engine(lib, **config) as engine:
        return speed(engine.complete, bodies)


def of_server(program, arguments, bodies):
    with serve(program, arguments) as complete:
        return speed(complete, bodies)


def options(parser):
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--server")
    parser.add_argument("--slots", default="4,8")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-predict", type=int, default=48)


def run(args):
    lib, bodies = library(args.library), [request(prompt, args.n_predict) for prompt in prompts()]
    for slots in map(int, args.slots.split(",")):
        ours = {"model": args.target, "n_parallel": slots, "n_ctx": 512}
        ways = {"plain": lambda: of_library(lib, [{**body, "speculative": False} for body in bodies], **ours)}
        if args.draft:
            ways["with draft"] = lambda: of_library(lib, bodies, **ours, model_draft=args.draft)
        if args.server:
            theirs = ["-m", args.target, "-np", str(slots), "-c", str(512 * slots)]
            ways["llama-server"] = lambda: of_server(args.server, theirs, bodies)
            if args.draft:
                drafting = theirs + ["-md", args.draft, "--spec-type", "draft-simple"]
                ways["llama-server with draft"] = lambda: of_server(args.server, drafting, bodies)
        speeds = {way: [] for way in ways}
        for _ in range(args.pairs):
            for way, run in ways.items():
                speeds[way].append(run())
        for way, values in speeds.items():
            ratios = [value / other for value, other in zip(values, speeds["llama-server" if args.server else "plain"])]
            print(f"{slots} slots, {way}: {statistics.median(values):.1f} tokens/s, ratio {statistics.median(ratios):.2f}", flush=True)
