"""Schemas of JSONSchemaBench: which ones compile, which instances their grammars accept, and the costs, beside llguidance where Python can import it.

    python3 benches/measure schemas DATA [--model FILE.gguf] [--every 1] [--sets]

DATA is the folder `maskbench/data` of https://github.com/guidance-ai/jsonschemabench, or the repository's. Both sides have the tokens of the model's vocabulary,
the longest ones first, the same texts, and one thread whose processor time is counted. A mask of all tokens is made before each token of a text, and before its
end; a text is refused at the first token that the mask lacks. `foredraft` has the defaults of a request: properties in the schema's order, and no others than
the listed ones where the schema says nothing. `foredraft, open` has `"property_order": "any"` and `"additional_properties": true`. `right` are the schemas of which all instances are judged as the benchmark says. Builds
`benches/schemas`.
"""
import collections
import json
import os
import re
import struct
import subprocess
import tempfile
import time

from engines import ROOT

COLUMNS = "| set | schemas | | compiles | valid accepted | invalid refused | right | compile, ms: median / p99 | mask, us: median / p99 / most |"


def options(parser):
    parser.add_argument("data")
    parser.add_argument("--model", default=os.path.join(ROOT, "target", "models", "qwen2.5-coder-0.5b-q4_k_m.gguf"))
    parser.add_argument("--every", type=int, default=1, help="takes one of so many schemas")
    parser.add_argument("--sets", action="store_true", help="prints each set, too")


def metadata(path):
    """The keys and values of a GGUF file."""
    with open(path, "rb") as file:
        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q"))
            if kind == 9:
                kind, n = number("I"), number("Q")
                return [value(kind) for _ in range(n)]
            return number({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

        file.seek(16)
        return {file.read(number("Q")).decode(): value(number("I")) for _ in range(number("Q"))}


def vocabulary(path):
    """The bytes of each token, none for control tokens."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    spelt = {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}
    known = metadata(path)
    if known["tokenizer.ggml.model"] != b"gpt2":
        raise SystemExit(f"{path}: its tokens are not spelt as GPT-2's")
    tokens = zip(known["tokenizer.ggml.tokens"], known["tokenizer.ggml.token_type"])
    # Others than the normal ones (1) and control tokens (3) are spelt as they are.
    return [b"" if kind == 3 else bytes(map(spelt.get, text.decode())) if kind == 1 else text for text, kind in tokens]


def jobs(folder, every):
    """The schemas with their set and their instances."""
    if not os.path.isfile(os.path.join(folder, "BFCL_java_0.json")):
        folder = os.path.join(folder, "maskbench", "data")
    for name in sorted(os.listdir(folder))[::every]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            job = json.load(file)
        tests = job.get("tests", [])
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in tests]
        yield {"id": name, "set": re.match(r"(.+?)(---|_\d*\.json|_\d+_)", name)[1], "schema": job["schema"], "texts": texts, "valid": [test["valid"] for test in tests]}


def ours(tokens, all_jobs, *more):
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("vocabulary", "jobs")]
        with open(paths[0], "wb") as file:
            file.writelines(struct.pack("<H", len(token)) + token for token in tokens)
        with open(paths[1], "w", encoding="utf-8") as file:
            file.writelines(json.dumps(job) + "\n" for job in all_jobs)
        command = ["cargo", "bench", "--quiet", "-p", "foredraft-schema", "--bench", "schemas", "--", paths[0], *more]
        with open(paths[1], encoding="utf-8") as file:
            program = subprocess.Popen(command, cwd=ROOT, stdin=file, stdout=subprocess.PIPE)
        yield from map(json.loads, program.stdout)
        if program.wait():
            raise SystemExit("benches/schemas failed")


class Longest:
    """A tokenizer as llguidance wants it: the longest tokens first."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.special_token_ids = [token for token, text in enumerate(tokens) if not text]
        self.eos_token_id, self.bos_token_id = self.special_token_ids[0], None
        self.ids = {text: token for token, text in enumerate(tokens)}
        self.longest = max(map(len, tokens))

    def __call__(self, text):
        text, found = text.encode() if isinstance(text, str) else text, []
        while text:
            n = next(n for n in range(min(self.longest, len(text)), 0, -1) if text[:n] in self.ids)
            found.append(self.ids[text[:n]])
            text = text[n:]
        return found


def theirs(tokens, all_jobs):
    try:
        import llguidance
    except ImportError:
        print("(llguidance is not installed: `pip install llguidance`)")
        return
    words = Longest(tokens)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words))

    def follow(matcher, text, times):
        for token in [*words(text), words.eos_token_id]:
            before = time.thread_time_ns()
            mask = matcher.compute_bitmask()
            times.append((time.thread_time_ns() - before) / 1000)
            if matcher.is_error() or not mask[token // 8] >> token % 8 & 1:
                return False
            matcher.consume_token(token)
        return True

    for job in all_jobs:
        before = time.thread_time_ns()
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(job["schema"]))
        times, result = [], {"id": job["id"], "compile_us": (time.thread_time_ns() - before) / 1000}
        if matcher.is_error():
            yield {**result, "error": matcher.get_error()}
        else:
            yield {**result, "accepted": [follow(matcher.deep_copy(), text, times) for text in job["texts"]], "mask_us": times}


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def row(name, program, judged):
    """A row of the table, of (job, result) pairs."""
    compiled = [(job, result) for job, result in judged if "error" not in result]
    tests = [pair for job, result in compiled for pair in zip(job["valid"], result["accepted"])]
    valid = [accepted for is_valid, accepted in tests if is_valid]
    invalid = [not accepted for is_valid, accepted in tests if not is_valid]
    n_right = sum(job["valid"] == result["accepted"] for job, result in compiled)
    times = [result["compile_us"] / 1000 for _, result in judged]
    masks = [time for _, result in compiled for time in result["mask_us"]]

    def share(n, of):
        return f"{n} of {of} ({100 * n / of:.1f} %)" if of else "-"

    cells = [name, len(judged), program, share(len(compiled), len(judged)), share(sum(valid), len(valid)), share(sum(invalid), len(invalid)), share(n_right, len(judged))]
    cells.append(" / ".join(f"{percentile(times, at):.2f}" for at in (.5, .99)))
    cells.append(" / ".join(f"{percentile(masks, at):.0f}" for at in (.5, .99, 1)))
    return f"| {' | '.join(map(str, cells))} |"


def run(args):
    tokens, all_jobs = vocabulary(args.model), list(jobs(args.data, args.every))
    print(f"{len(tokens)} tokens\n\n{COLUMNS}\n| --- | ---: | --- | " + " | ".join(["---:"] * 6) + " |")
    results = {"foredraft": list(ours(tokens, all_jobs)), "foredraft, open": list(ours(tokens, all_jobs, "--open")), "llguidance": list(theirs(tokens, all_jobs))}
    sets = collections.defaultdict(list)
    for index, job in enumerate(all_jobs):
        sets["all"].append(index)
        if args.sets:
            sets[job["set"]].append(index)
    for name, indices in sets.items():
        for program, judged in results.items():
            if judged:
                print(row(name, program, [(all_jobs[index], judged[index]) for index in indices]))
