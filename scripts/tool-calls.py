#!/usr/bin/env python3
"""Forces calls of tools with 50 schemas, greedy and at temperature 1.5, with and without speculation: every call must be valid, and the same
both ways. Then counts the target's forward passes for each token, with the grammar as the only drafter: calls, JSON schemas, free text.

    tool-calls.py MODEL      needs the packages jsonschema and rfc3339-validator; scripts/tool-calls.sh installs them
"""
import json
import logging
import pathlib
import sys

from jsonschema import Draft202012Validator

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python/src"))
from foredraft import Engine  # noqa: E402

TEXT, INT, NUMBER, BOOL = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
SHORT = {"type": "string", "maxLength": 20}
WHEN = {"type": "string", "format": "date-time"}


def enum(*values):
    return {"enum": list(values)}


def array(items, **more):
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 3, **more}


def record(optional=(), **properties):
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def pattern(regex):
    return {"type": "string", "pattern": regex}


def form(name):
    return {"type": "string", "format": name}


UNIT = enum("celsius", "fahrenheit")
PERSON = record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120})
SCHEMAS = [
    record(city=SHORT), record(city=SHORT, unit=UNIT), record(("unit",), city=SHORT, unit=UNIT), record(),
    record(a=INT), record(a={"type": "integer", "minimum": 1, "maximum": 12}), record(a={"type": "integer", "minimum": -5, "maximum": 5}),
    record(a={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100}), record(a=NUMBER), record(a=BOOL, b=BOOL),
    record(a={"type": "null"}), record(a={"type": ["string", "null"], "maxLength": 10}), record(a={"const": "yes"}), record(a={"const": 42}),
    record(a=enum(1, 2, 3)), record(a=enum("x", 1, None, True)), record(a=array(INT)), record(a=array(SHORT)), record(a=array(UNIT)),
    record(a={"type": "array", "items": INT, "minItems": 2, "maxItems": 2}), record(a=array(PERSON)), record(person=PERSON),
    record(one=PERSON, other=PERSON), record(("b", "c"), a=SHORT, b=INT, c=BOOL), record(("a", "b", "c"), a=SHORT, b=INT, c=BOOL),
    record(a={"type": "string", "minLength": 3, "maxLength": 8}), record(a=pattern("^[A-Z]{3}-[0-9]{4}$")), record(a=pattern("^(red|green|blue)$")),
    record(a=pattern("^[a-z]{1,9}@[a-z]{1,9}\\.(com|org)$")), record(a=pattern("^\\d{3}$")), record(a=form("date")), record(a=form("time")), record(a=WHEN),
    record(a=form("uuid")), record(start=WHEN, end=WHEN), record(a={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, UNIT]}),
    record(a={"oneOf": [enum("a", "b"), {"type": "integer", "minimum": 0, "maximum": 9}]}),
    record(a={"allOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 50}]}),
    {**record(a={"$ref": "#/$defs/unit"}), "$defs": {"unit": UNIT}},
    {**record(a={"$ref": "#/$defs/person"}, b=array({"$ref": "#/$defs/person"})), "$defs": {"person": PERSON}},
    {"type": "object", "properties": {"a": SHORT}, "required": ["a"], "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}},
    record(a={"type": "array", "prefixItems": [INT, UNIT], "items": False, "minItems": 2}), record(a={"type": "array", "items": BOOL, "maxItems": 4}),
    record(point=record(x=INT, y=INT)),
    record(kind=enum("circle"), radius={"type": "integer", "minimum": 1, "maximum": 9}),
    {"anyOf": [record(kind={"const": "circle"}, radius={"type": "integer", "minimum": 1, "maximum": 9}), record(kind={"const": "box"}, side={"type": "integer", "minimum": 1, "maximum": 9})]},
    record(**{"a name": SHORT, "it's": INT, "quo\"te": BOOL}), record(**{"größe": {"type": "integer", "minimum": 1, "maximum": 99}}),
    record(a=record(b=record(c=record(d=enum("deep"))))), record(title={"type": "string", "maxLength": 30}, tags=array(SHORT), done=BOOL, priority=enum("low", "high")),
]


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "n_predict": 600, "cache_prompt": False, **more}


def answer_of(engine, request):
    return engine.complete(**request)


def check_calls(engine):
    n_calls, invalid, different, cut = 0, [], [], []
    passes = {"off": [0, 0], "grammar": [0, 0]}
    for index, schema in enumerate(SCHEMAS):
        # jsonschema's general FormatChecker has draft 3's `time`, without offsets.
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        tool = {"type": "function", "function": {"name": "use", "description": "Use it", "parameters": schema}}
        for temperature in (0, 1.5):
            texts = []
            for name, speculative in (("off", False), ("grammar", {"type": "grammar"})):
                request = chat("Use the tool.", tools=[tool], tool_choice="required", parallel_tool_calls=False,
                               temperature=temperature, seed=index, speculative=speculative)
                answer = answer_of(engine, request)
                texts.append(answer["content"])
                count(passes[name], answer)
                n_calls += 1
                if answer["finish_reason"] == "length":
                    cut.append(index)
                    continue
                arguments = json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"])
                errors = [error.message for error in validator.iter_errors(arguments)]
                if errors:
                    invalid.append((index, temperature, arguments, errors))
            if texts[0] != texts[1]:
                different.append((index, temperature, texts))
    print(f"{len(SCHEMAS)} schemas, {n_calls} calls: {len(invalid)} invalid, {len(different)} pairs differ, {len(cut)} cut at 600 tokens {sorted(set(cut))}")
    for problem in [*invalid, *different]:
        print("  ", problem)
    report("calls", passes)
    return not invalid and not different


def count(sums, answer):
    stats = answer.get("speculative") or {}
    n_tokens = answer["tokens_predicted"]
    # Without speculation each token after the prompt's takes a pass.
    sums[0] += stats.get("n_steps") or n_tokens
    sums[1] += n_tokens


def report(what, passes):
    per_token = {name: steps / max(tokens, 1) for name, (steps, tokens) in passes.items()}
    print(f"{what}: passes per token {per_token['off']:.3f} without, {per_token['grammar']:.3f} with the grammar as drafter ({passes['off'][1]} tokens)")


def count_others(engine):
    same = True
    texts = ["Describe a person.", "Plan a day.", "Name three towns."]
    # The share depends on the text that is drawn (0.73 to 0.93 for one text of a schema), so each prompt has several.
    texts = [(index, text, seed) for seed in range(7) for index, text in enumerate(texts)]
    for what, more in (("JSON schemas", lambda i: {"json_schema": SCHEMAS[(20, 39, 49)[i]]}), ("free text", lambda i: {"n_predict": 100})):
        passes = {"off": [0, 0], "grammar": [0, 0]}
        for index, text, seed in texts:
            contents = []
            for name, speculative in (("off", False), ("grammar", {"type": "grammar"})):
                answer = answer_of(engine, {**chat(text, temperature=0.7, seed=seed, speculative=speculative), **more(index)})
                contents.append(answer["content"])
                count(passes[name], answer)
            same = same and contents[0] == contents[1]
        report(what, passes)
    return same


def main():
    logging.disable(logging.WARNING)
    with Engine(sys.argv[1], n_ctx=4096, n_parallel=1) as engine:
        return 0 if check_calls(engine) & count_others(engine) else 1


sys.exit(main())
