#!/usr/bin/env python3
"""Measures the quality of weight formats: how far their distributions diverge from those of F32 weights, here and with llama.cpp.

    python3 benches/divergence/divergence.py --llama LLAMA.CPP --build LLAMA.CPP/build [--formats Q8_0,Q4_K_M] [--prompts 64]

For each format, the mean Kullback-Leibler divergence over the whole vocabulary of the token after a prompt, how often the most likely token is
that of F32, and by how much this library's divergence differs from llama.cpp's without flash attention: the mean of the prompts' differences and
its standard error, because the same prompts are measured. The reference is llama.cpp with F32 weights and without flash attention. Prompts are
pieces of 24 to 87 tokens of the guide in docs/.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from formats import FORMATS, SOURCE, quantized
from slots import ROOT, Library


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Ours:
    def __init__(self, library, model):
        self.library, self.engine = library, library.lib.foredraft_engine_new()
        load = {"model": model, "n_ctx": 512, "log_level": "error"}
        if library.lib.foredraft_load(self.engine, json.dumps(load).encode()) != 0:
            raise SystemExit(ctypes.string_at(library.lib.foredraft_status(self.engine)).decode())

    def log_probabilities(self, prompts, n_vocab):
        found = np.empty((len(prompts), n_vocab))
        for row, prompt in zip(found, prompts):
            body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": n_vocab, "speculative": False, "ignore_eos": False}
            for token in self.library.complete(self.engine, body)["completion_probabilities"][0]["top_logprobs"]:
                row[token["id"]] = token["logprob"]
        return found

    def close(self):
        self.library.lib.foredraft_engine_free(self.engine)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True, help="llama.cpp's sources")
    parser.add_argument("--build", required=True, help="its build, with bin/llama-quantize and bin/libllama.so")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--library", default=os.path.join(ROOT, "target/release/libforedraft.so"))
    args = parser.parse_args()
    program = os.path.join(ROOT, "target/logits")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "logits.cpp")
    bins = os.path.join(args.build, "bin")
    subprocess.run(
        ["c++", "-O2", "-std=c++17", source, f"-I{args.llama}/include", f"-I{args.llama}/ggml/include", f"-L{bins}", "-lllama", "-lggml",
         "-lggml-base", "-lggml-cpu", f"-Wl,-rpath,{bins}", "-o", program],
        check=True,
    )
    library = Library(args.library)
    quantize = os.path.join(bins, "llama-quantize")

    ours = Ours(library, SOURCE)
    tokens = []
    folder = os.path.join(ROOT, "docs")
    library.lib.foredraft_tokenize.restype = ctypes.c_void_p
    library.lib.foredraft_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".md")):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            answer = library.lib.foredraft_tokenize(ours.engine, json.dumps({"content": file.read()}).encode())
        tokens += json.loads(ctypes.string_at(answer))["ids"]
        library.lib.foredraft_string_free(answer)
    ours.close()
    step = len(tokens) // (args.prompts + 1)
    prompts = [tokens[index * step : index * step + 24 + index % 64] for index in range(args.prompts)]
    lines = "\n".join(" ".join(map(str, prompt)) for prompt in prompts)

    def theirs(model, flash):
        with tempfile.TemporaryFile() as out:
            subprocess.run([program, model, str(flash)], input=lines.encode(), stdout=out, check=True)
            out.seek(0)
            return log_softmax(np.fromfile(out, np.float32).reshape(len(prompts), -1))

    exact = theirs(quantized(quantize, "F32"), 0)
    print("| weights | foredraft | llama.cpp | with flash attention | same token: foredraft | llama.cpp | with flash attention | difference |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for form in args.formats.split(","):
        model = quantized(quantize, form)
        ours = Ours(library, model)
        found = [ours.log_probabilities(prompts, exact.shape[1]), theirs(model, 0), theirs(model, 1)]
        ours.close()
        divergences = [(np.exp(exact) * (exact - each)).sum(-1) for each in found]
        difference = divergences[0] - divergences[1]
        error = difference.std(ddof=1) / len(prompts) ** 0.5
        same = [(exact.argmax(-1) == each.argmax(-1)).mean() for each in found]
        means = " | ".join(f"{x.mean():.6f}" for x in divergences)
        print(f"| {form} | {means} | {' | '.join(f'{x:.1%}' for x in same)} | {difference.mean():+.6f} ± {error:.6f} |", flush=True)


if __name__ == "__main__":
    main()
