"""Conversations, prepared turns and questions in bulk, in milliseconds.

    python3 benches/measure minds MODEL [--parts switches,first,questions] [--tokens 50,700,4000] [--questions 1,20,100,800] [--rounds 5] [--threads N]

`switches`: a request whose conversation comes back from memory, while another one goes there, beside the same request when its conversation is in the
slot; with states that are whole, and with states in chunks (a `cache_ram_mb` that is nearly used up).
`first`: the time from a submit to the first token, with prompts that are not prepared, prepared, and prepared with a begun answer.
`questions`: questions about a state of about 700 tokens that is in the cache, in one call, their forward passes, and whether each has the same bits
alone (of 20 of them).

The least and the median of all rounds.
"""
import json
import statistics
import time

from engines import Engine, library

SENTENCE = "The village of Elm lies by a river, and its mill has stood still since spring. "


def spread(times):
    return f"{min(times) * 1000:.1f} / {statistics.median(times) * 1000:.1f}"


def timed(work, clock=time.perf_counter):
    begin = clock()
    result = work()
    return clock() - begin, result


def text_of(engine, n_tokens):
    """A text of about so many tokens."""
    each = len(engine.call("tokenize", {"text": SENTENCE})["ids"])
    return SENTENCE * max(1, round(n_tokens / each))


def switches(args, name, n_conversations, **memory):
    with Engine(library(args.library), model=args.model, n_ctx=1024, n_parallel=1, n_threads=args.threads, **memory) as engine:
        world = text_of(engine, 700)

        def ask(number):
            request = {"prompt": f"{world} {number} speaks.", "n_predict": 1, "temperature": 0, "conversation": f"c{number}", "speculative": False}
            return engine.complete({**request, "ignore_eos": True})

        n_tokens = [ask(number)["timings"]["prompt_n"] for number in range(n_conversations)][0]
        time.sleep(2)
        switched, stayed = [], []
        for turn in range(args.rounds * n_conversations):
            # The engine cuts states while it has nothing to do.
            for times in switched, stayed:
                time.sleep(0.05)
                spent, answer = timed(lambda: ask(turn % n_conversations), time.process_time)
                assert answer["timings"]["cache_n"] > 600, answer["timings"]
                times.append(spent)
        least, middle = ((of(switched) - of(stayed)) * 1000 for of in (min, statistics.median))
        memory = engine.status()["conversations"]
        print(f"{name}: {n_tokens} tokens, {memory['n']} states in {memory['bytes'] >> 20} MiB: switched {spread(switched)} ms of the processor, "
              f"stayed {spread(stayed)} ms, {least:.1f} / {middle:.1f} ms more", flush=True)


def wait(engine, request):
    """Waits until a request or a preparation has ended."""
    while not engine.call("poll", {"id": request, "timeout_ms": 1000})["finished"]:
        pass


def first_tokens(args):
    sizes = [int(size) for size in args.tokens.split(",")]
    with Engine(library(args.library), model=args.model, n_ctx=max(sizes) + 256, n_parallel=2, n_threads=args.threads) as engine:
        for size in sizes:
            times = {"not prepared": [], "prepared": [], "begun": []}
            for number in range(args.rounds):
                for kind, found in times.items():
                    prompt = f"{number} {kind}: {text_of(engine, size)}"
                    request = {"prompt": prompt, "n_predict": 16, "seed": 1, "conversation": f"{kind} {number}", "ignore_eos": True}
                    if kind != "not prepared":
                        wait(engine, engine.call("prepare", {**request, "begin": kind == "begun"})["id"])
                    begin = time.perf_counter()
                    answer = engine.call("submit", request)
                    while not any(update.get("content") for update in engine.call("poll", {"id": answer["id"], "timeout_ms": 1000})["completion_updates"]):
                        pass
                    found.append(time.perf_counter() - begin)
                    wait(engine, answer["id"])
                    engine.call("conversation", {"action": "drop", "conversation": f"{kind} {number}"})
            shown = ", ".join(f"{kind} {spread(found)} ms" for kind, found in times.items())
            print(f"first token after {size} tokens: {shown}", flush=True)


def questions(args):
    with Engine(library(args.library), model=args.model, n_ctx=2048, n_parallel=1, n_threads=args.threads) as engine:
        state = text_of(engine, 700)
        asked = {f"q{n}": {"type": "noul", "instructions": f"The mill has stood still for {n} days."} for n in range(max(map(int, args.questions.split(","))))}

        def decide(ids):
            return engine.call("decide", {"state": state, "questions": {name: asked[name] for name in ids}})

        decide(["q0"])
        alone = {name: json.dumps(decide([name])["answers"][name]) for name in list(asked)[:20]}
        for n in map(int, args.questions.split(",")):
            ids = list(asked)[:n]
            rounds = args.rounds if n < 400 else 1
            times, answers = zip(*(timed(lambda: decide(ids)) for _ in range(rounds)))
            same = all(json.dumps(answers[-1]["answers"][name]) == alone[name] for name in ids[:20])
            tokens = answers[-1]["usage"]["input_tokens"]
            print(f"{n} questions, {tokens} tokens with the state: {spread(times)} ms, {'the same' if same else 'OTHER'} bits as alone; "
                  f"timings {answers[-1]['timings']}", flush=True)


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--parts", default="switches,first,questions")
    parser.add_argument("--tokens", default="50,700,4000")
    parser.add_argument("--questions", default="1,20,100,800")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)


def run(args):
    parts = args.parts.split(",")
    if "switches" in parts:
        switches(args, "whole states", 4, cache_ram_mb=512)
        switches(args, "states in chunks", 12, cache_ram_mb=60)
    if "first" in parts:
        first_tokens(args)
    if "questions" in parts:
        questions(args)
