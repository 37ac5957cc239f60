"""Measures the quality of weight formats: how far their distributions diverge from those of F32 weights, here and with llama.cpp.

    python3 benches/measure divergence --llama LLAMA.CPP --build LLAMA.CPP/build [--formats Q8_0,Q4_K_M] [--prompts 64]

For each format, the mean Kullback-Leibler divergence over the whole vocabulary of the token after a prompt, how often the most likely token is
that of F32, and by how much this library's divergence differs from llama.cpp's without flash attention: the mean of the prompts' differences and
its standard error, because the same prompts are measured. The reference is llama.cpp with F32 weights and without flash attention. Prompts are
pieces of 24 to 87 tokens of the guide in docs/.
"""
import os
import subprocess
import tempfile

import numpy as np

from engines import ROOT, Engine, library
from formats import FORMATS, SOURCE, quantized


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def log_probabilities(engine, prompts, n_vocab):
    found = np.empty((len(prompts), n_vocab))
    for row, prompt in zip(found, prompts):
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": n_vocab, "speculative": False, "ignore_eos": False}
        for token in engine.complete(body)["completion_probabilities"][0]["top_logprobs"]:
            row[token["id"]] = token["logprob"]
    return found


def options(parser):
    parser.add_argument("--llama", required=True, help="llama.cpp's sources")
    parser.add_argument("--build", required=True, help="its build, with bin/llama-quantize and bin/libllama.so")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--prompts", type=int, default=64)


def run(args):
    program = os.path.join(ROOT, "target/logits")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "divergence.cpp")
    bins = os.path.join(args.build, "bin")
    subprocess.run(
        ["c++", "-O2", "-std=c++17", source, f"-I{args.llama}/include", f"-I{args.llama}/ggml/include", f"-L{bins}", "-lllama", "-lggml",
         "-lggml-base", "-lggml-cpu", f"-Wl,-rpath,{bins}", "-o", program],
        check=True,
    )
    lib = library(args.library)
    quantize = os.path.join(bins, "llama-quantize")

    tokens = []
    folder = os.path.join(ROOT, "docs")
    with Engine(lib, model=SOURCE, n_ctx=512) as engine:
        for name in sorted(name for name in os.listdir(folder) if name.endswith(".md")):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                tokens += engine.call("tokenize", {"content": file.read()})["ids"]
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
        with Engine(lib, model=model, n_ctx=512) as engine:
            found = [log_probabilities(engine, prompts, exact.shape[1]), theirs(model, 0), theirs(model, 1)]
        divergences = [(np.exp(exact) * (exact - each)).sum(-1) for each in found]
        difference = divergences[0] - divergences[1]
        error = difference.std(ddof=1) / len(prompts) ** 0.5
        same = [(exact.argmax(-1) == each.argmax(-1)).mean() for each in found]
        means = " | ".join(f"{x.mean():.6f}" for x in divergences)
        print(f"| {form} | {means} | {' | '.join(f'{x:.1%}' for x in same)} | {difference.mean():+.6f} ± {error:.6f} |", flush=True)
