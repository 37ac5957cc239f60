"""The cost of a logits callback for each token, by size of the vocabulary and language of the callback.

    make build && pip install gguf numpy
    python3 benches/measure logits [--tokens 49152,151936] [--n-predict 200] [--rounds 5]

Makes models of one small layer with random weights and these vocabularies (models/random_weights.py). For each callback, a completion with it
and one without it take turns. A figure is the difference of the least processor times of the whole process, in microseconds per token.
`copy`: a callback in C that does nothing, so the cost is the library's. `C`: adds a number to each logit. `ctypes`: a function in Python that does
nothing. `numpy`, `memoryview`: processors of the package, which add a number to each logit, and change one of them. `Node`: processors of Node's
package (node/scripts/logits.mjs), where `make setup` has installed koffi: one that does nothing, and one that adds a number to each logit.
"""
import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from engines import ROOT

sys.path.insert(0, os.path.join(ROOT, "python", "src"))

CALLBACKS = """
#include <stdint.h>
void nothing(uint64_t id, float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n_tokens, void *user) {}
void add(uint64_t id, float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n_tokens, void *user) {
    for (int32_t i = 0; i < n_vocab; i++) logits[i] += 0.5f;
}
"""


def add_to_all(tokens, scores):
    scores += 0.5
    return scores


def change_one(tokens, scores):
    scores[7] = 0.5
    return scores


def model(folder, n_tokens):
    """A model of one small layer with this vocabulary."""
    path = os.path.join(folder, f"random-{n_tokens}.gguf")
    shape = "--layers 1 --embd 256 --ff 512 --heads 4 --kv 4 --type Q8_0".split()
    script = os.path.join(ROOT, "models", "random_weights.py")
    vocabulary = os.path.join(ROOT, "models", "stories-target.gguf")
    subprocess.run([sys.executable, script, vocabulary, path, *shape, "--tokens", str(n_tokens)], check=True, stdout=subprocess.DEVNULL)
    return path


def node_costs(path, args):
    """The figures of Node's package with a model; none where koffi is not installed."""
    packages = os.path.join(ROOT, "examples", "node_modules")
    if shutil.which("node") is None or not os.path.isdir(os.path.join(packages, "koffi")):
        return {}
    script = os.path.join(ROOT, "node", "scripts", "logits.mjs")
    command = ["node", script, path, str(args.n_predict), str(args.rounds)]
    run = subprocess.run(command, env={**os.environ, "NODE_PATH": packages}, check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout)


def options(parser):
    parser.add_argument("--tokens", default="49152,151936")
    parser.add_argument("--n-predict", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)


def run(args):
    os.environ["FOREDRAFT_LIB"] = args.library
    import foredraft
    from foredraft import _library, _logits

    library = _library.library()
    with tempfile.TemporaryDirectory() as folder:
        source, built = os.path.join(folder, "callbacks.c"), os.path.join(folder, "callbacks.so")
        with open(source, "w") as file:
            file.write(CALLBACKS)
        subprocess.run(["cc", "-O2", "-march=native", "-shared", "-fPIC", "-o", built, source], check=True)
        in_c = ctypes.CDLL(built)
        in_python = _library.LOGITS_CALLBACK(lambda *_: None)
        functions = {name: ctypes.cast(function, _library.LOGITS_CALLBACK)
                     for name, function in [("copy", in_c.nothing), ("C", in_c.add), ("ctypes", in_python)]}
        has_numpy = importlib.util.find_spec("numpy") is not None
        for n_tokens in map(int, args.tokens.split(",")):
            path = model(folder, n_tokens)
            with foredraft.Engine(path, n_ctx=1024, n_threads=1, speculative=False) as engine:
                request = {"n_predict": args.n_predict, "ignore_eos": True, "temperature": 0, "speculative": False}

                def per_token(**more):
                    """Milliseconds of processor time: other programs on the machine hardly change them."""
                    before = time.process_time()
                    engine.complete("Once upon a time", **request, **more)
                    return 1000 * (time.process_time() - before) / args.n_predict

                def cost(**more):
                    per_token(**more)
                    pairs = [(per_token(**more), per_token()) for _ in range(args.rounds)]
                    with_it, without = map(min, zip(*pairs))
                    return round(1000 * (with_it - without), 1)

                costs = {}
                for name, function in functions.items():
                    library.foredraft_set_logits_callback(engine._open_handle(), function, None)
                    costs[name] = cost(logits_callback=True)
                if has_numpy:
                    costs["numpy"] = cost(logits_processor=add_to_all)
                numpy, _logits._numpy = _logits._numpy, lambda: None
                costs["memoryview"] = cost(logits_processor=change_one)
                _logits._numpy = numpy
                plain = round(per_token(), 3)
            costs.update(node_costs(path, args))
            print(json.dumps({"n_vocab": n_tokens, "us_per_token": costs, "plain_ms": plain}), flush=True)
