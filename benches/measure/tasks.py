"""One request at a time, five tasks: this library with and without drafts, and llama-server, in tokens per second of decoding.

    python3 benches/measure tasks TARGET [--draft NEAR] [--far FAR] [--smaller q4_0] [--lengths 1,4,8] [--verify rejection,block]
        [--history auto,suffix,ngram-cache] [--server PATH/TO/llama-server] [--pairs 5] [--tasks code,story]

The library runs with default settings: plain, with the near draft model, with --smaller also with that one's weights made smaller
(`draft_weights`), and with the far one. With --lengths the near one alone also drafts so many tokens in each step, with --verify other rules
accept its drafts, and with --history these drafters of the text draft, without a model. Each run loads the models again, so that n-gram and
prompt caches are empty and no draft comes from an earlier answer, and begins when panels are complete. All completions of a task are asserted to
be the same, but for those rules above temperature 0. llama-server stays loaded and decodes without a draft model; with --server-drafts it also
runs once with each draft model, and with each drafter of --server-history. Ratios are to llama-server, and without one to plain decoding:
medians of the rounds'.
"""
import statistics

from engines import Engine, library, serve

FILE = '''import json


class Inventory:
    """Keeps how many pieces of each product are in the store."""

    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        with open(self.path) as file:
            self.items = json.load(file)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.items, file, indent=2)

    def add(self, name, count):
        if count < 0:
            raise ValueError("count must not be negative")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if self.items.get(name, 0) < count:
            raise ValueError("not enough pieces of " + name)
        self.items[name] -= count
        if self.items[name] == 0:
            del self.items[name]

    def total(self):
        return sum(self.items.values())

    def report(self):
        for name in sorted(self.items):
            print(name, self.items[name])
        print("total", self.total())


def read(path):
    inventory = Inventory(path)
    inventory.load()
    return inventory


def change(inventory, action, name, count):
    if action == "add":
        inventory.add(name, count)
    elif action == "remove":
        inventory.remove(name, count)
    else:
        raise ValueError("the action must be add or remove, not " + action)
    inventory.save()
'''
LETTER = ("Dear neighbour, your dog has been in my garden again and has dug up the roses. It is the third time this month. Please keep it on "
          "your side of the fence, or at least repair the hole in it. I do not want to complain, but new roses cost money. Yours, Peter")
TASKS = {
    "question": "How does a vaccine protect people who have not been vaccinated themselves?",
    "story": "Write a short story about a girl who finds an old radio that receives messages from the future.",
    "code": "Write a Python function that merges two sorted lists, with a docstring and an example.",
    "rewriting": f"Rewrite this letter so that it is friendlier:\n\n{LETTER}",
    "editing": f"Rename the class Inventory to Stock in this file and print the whole file again.\n\n```python\n{FILE}```",
}


def body(task, temperature, n_predict):
    prompt = f"<|im_start|>user\n{TASKS[task]}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": prompt, "n_predict": n_predict, "temperature": temperature, "seed": 5, "repeat_penalty": 1, "ignore_eos": True, "cache_prompt": False}


def ours(lib, request, **config):
    """The answer of an engine that has done nothing before."""
    with Engine(lib, **config) as engine:
        engine.wait_for_panels()
        return engine.complete({**request, "return_tokens": True})


def figures(answers):
    """Medians of what drafts did: steps, drafted and accepted tokens, and milliseconds of a drafted token and of a step."""
    of_drafts = [answer["speculative"] for answer in answers if answer.get("speculative", {}).get("n_drafted")]
    if not of_drafts:
        return ""
    median = lambda value: statistics.median(map(value, of_drafts))
    counts = ", ".join(f"{median(lambda own: own[key]):.0f} {name}" for key, name in (("n_steps", "steps"), ("n_drafted", "drafted"), ("n_accepted", "accepted")))
    draft, step = median(lambda own: own["t_draft_ms"] / own["n_drafted"]), median(lambda own: own["t_verify_ms"] / own["n_steps"])
    return f"; {counts}, {draft:.1f} ms a drafted token, {step:.1f} a step"


def names(text):
    return text.split(",")


def options(parser):
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--far")
    parser.add_argument("--smaller", metavar="TYPE")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=[])
    parser.add_argument("--verify", metavar="RULES", type=names, default=[])
    parser.add_argument("--history", metavar="DRAFTERS", type=names, default=[])
    parser.add_argument("--server")
    parser.add_argument("--server-drafts", action="store_true")
    parser.add_argument("--server-history", metavar="DRAFTERS", type=names, default=[])
    parser.add_argument("--tasks", type=names, default=list(TASKS))
    parser.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[0, 0.7])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-predict", type=int, default=96)


def ways_of(args):
    """How the library decodes: by name what a load gets, and what a request has as `speculative` if it is not the default."""
    ways = {"plain": ({}, False)}
    if args.draft:
        near = {"model_draft": args.draft}
        ways["near"] = (near, None)
        ways.update({f"near, {n} tokens": (near, {"type": "draft", "adaptive": False, "n_max": n}) for n in args.lengths})
        ways.update({f"near, {rule}": (near, {"type": "draft", "verify": rule}) for rule in args.verify})
        if args.smaller:
            ways[f"near in {args.smaller}"] = ({**near, "draft_weights": args.smaller}, None)
    if args.far:
        ways["far"] = ({"model_draft": args.far}, None)
    ways.update({drafter: ({}, {"type": drafter}) for drafter in args.history})
    return ways


def run(args):
    lib = library(args.library)
    ways = ways_of(args)
    theirs = ["-m", args.target, "-np", "1", "-c", "2048"]
    requests = [(f"{task}, temperature {temperature:g}", temperature, body(task, temperature, args.n_predict))
                for temperature in args.temperatures for task in args.tasks]

    def measure(plain):
        for title, temperature, request in requests:
            answers = {name: [] for name in [*ways, *(["llama-server"] if plain else [])]}
            for _ in range(args.pairs):
                for name, (config, speculative) in ways.items():
                    changed = request if speculative is None else {**request, "speculative": speculative}
                    answers[name].append(ours(lib, changed, model=args.target, n_ctx=2048, **config))
                if plain:
                    answers["llama-server"].append(plain(request))
            exact = [name for name in ways if not temperature or name not in {f"near, {rule}" for rule in args.verify}]
            tokens = [answer["tokens"] for name in exact for answer in answers[name]]
            assert all(each == tokens[0] for each in tokens), "drafts changed the completion"
            speeds = {name: [answer["timings"]["predicted_per_second"] for answer in own] for name, own in answers.items()}
            for name, values in speeds.items():
                ratio = statistics.median(value / other for value, other in zip(values, speeds["llama-server" if plain else "plain"]))
                print(f"{title}, {name}: {statistics.median(values):.1f} tokens/s, ratio {ratio:.2f}{figures(answers[name])}", flush=True)

    if not args.server:
        return measure(None)
    with serve(args.server, theirs) as plain:
        measure(plain)
    models = {"near": args.draft, "far": args.far} if args.server_drafts else {}
    drafts = {f"the {name} draft": ["-md", path, "--spec-type", "draft-simple"] for name, path in models.items() if path}
    drafts.update({drafter: ["--spec-type", drafter] for drafter in args.server_history})
    for name, options in drafts.items():
        with serve(args.server, [*theirs, *options]) as drafting:
            for title, _, request in requests:
                print(f"{title}, llama-server with {name}: {drafting(request)['timings']['predicted_per_second']:.1f} tokens/s", flush=True)
