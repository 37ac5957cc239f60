#!/usr/bin/env python3
"""Several requests on several slots: this library and llama-server, interleaved, in tokens per second.

    python3 benches/slots.py TARGET [--draft DRAFT] [--server PATH/TO/llama-server] [--slots 4,8] [--pairs 5]

Each run loads the model again, so that n-gram and prompt caches are empty, then sends 8 requests at
once and waits for all. llama-server is optional: build it from llama.cpp's sources with the same compiler flags.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import os
import socket
import statistics
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOPICS = ["why the sky is blue", "how bread is made", "what a compiler does", "how to learn the piano",
          "why leaves turn red", "how a bicycle stays upright", "what a budget is for", "how to write a letter"]


def prompts():
    return [f"<|im_start|>user\nExplain {topic} in a few sentences.<|im_end|>\n<|im_start|>assistant\n" for topic in TOPICS]


def request(prompt, n_predict):
    return {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "repeat_penalty": 1, "ignore_eos": True, "cache_prompt": False}


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("engine_new", "complete", "status"):
            getattr(self.lib, f"foredraft_{name}").restype = ctypes.c_void_p
        for name in ("load", "complete", "status"):
            getattr(self.lib, f"foredraft_{name}").argtypes = [ctypes.c_void_p, ctypes.c_char_p][:1 if name == "status" else 2]
        self.lib.foredraft_engine_free.argtypes = self.lib.foredraft_string_free.argtypes = [ctypes.c_void_p]

    def complete(self, engine, body):
        answer = self.lib.foredraft_complete(engine, json.dumps(body).encode())
        text = ctypes.string_at(answer)
        self.lib.foredraft_string_free(answer)
        answer = json.loads(text)
        if not answer["success"]:
            raise SystemExit(answer["error"])
        return answer

    def run(self, init, bodies):
        engine = self.lib.foredraft_engine_new()
        if self.lib.foredraft_load(engine, json.dumps({"log_level": "error", **init}).encode()) != 0:
            raise SystemExit(ctypes.string_at(self.lib.foredraft_status(engine)).decode())
        try:
            return timed(lambda body: self.complete(engine, body)["tokens_predicted"], bodies)
        finally:
            self.lib.foredraft_engine_free(engine)


def timed(complete, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        start = time.monotonic()
        tokens = sum(pool.map(complete, bodies))
        return tokens / (time.monotonic() - start)


@contextlib.contextmanager
def serve(program, arguments):
    """A running llama-server: a function that sends it a completion's body and returns the answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([program, "--port", str(port), "--no-webui", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def complete(body):
        post = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(post))

    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health")
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("llama-server ended while loading")
                time.sleep(0.1)
        yield complete
    finally:
        server.terminate()
        server.wait()


def server_run(program, arguments, bodies):
    with serve(program, arguments) as complete:
        return timed(lambda body: complete(body)["tokens_predicted"], bodies)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--server")
    parser.add_argument("--library", default=os.path.join(ROOT, "target/release/libforedraft.so"))
    parser.add_argument("--slots", default="4,8")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-predict", type=int, default=48)
    args = parser.parse_args()
    library, bodies = Library(args.library), [request(prompt, args.n_predict) for prompt in prompts()]
    for slots in map(int, args.slots.split(",")):
        ours = {"model": args.target, "n_parallel": slots, "n_ctx": 512}
        ways = {"plain": lambda: library.run(ours, [{**body, "speculative": False} for body in bodies])}
        if args.draft:
            ways["with draft"] = lambda: library.run({**ours, "model_draft": args.draft}, bodies)
        if args.server:
            theirs = ["-m", args.target, "-np", str(slots), "-c", str(512 * slots)]
            ways["llama-server"] = lambda: server_run(args.server, theirs, bodies)
            if args.draft:
                drafting = theirs + ["-md", args.draft, "--spec-type", "draft-simple"]
                ways["llama-server with draft"] = lambda: server_run(args.server, drafting, bodies)
        speeds = {way: [] for way in ways}
        for _ in range(args.pairs):
            for way, run in ways.items():
                speeds[way].append(run())
        for way, values in speeds.items():
            ratios = [value / other for value, other in zip(values, speeds["llama-server" if args.server else "plain"])]
            print(f"{slots} slots, {way}: {statistics.median(values):.1f} tokens/s, ratio {statistics.median(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
