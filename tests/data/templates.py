#!/usr/bin/env python3
"""What Jinja2, set up as in Hugging Face's transformers, makes of chat templates: writes templates.txt.

    templates.py FOLDER                    all *.jinja in FOLDER; prints templates.txt
    templates.py FOLDER TEMPLATE CASE      one prompt in full

tests/requests/templates.rs compares. The conversations are in templates.json. Where templates differ in the form that they
expect of a message, the form is taken in which nothing of the conversation is lost.
"""
import copy
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import SandboxedEnvironment

HERE = pathlib.Path(__file__).parent
DATA = json.loads((HERE / "templates.json").read_text())
NOW = datetime.datetime.fromtimestamp(DATA["now"], datetime.timezone.utc)


class Raised(Exception):
    """By the template's own raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training, and prints it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise Raised(message)


def environment():
    # transformers forbids list.append too, by ImmutableSandboxedEnvironment; llama.cpp and some templates do not.
    env = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    # Jinja2 would escape what is added to a safe string for HTML, even here where it escapes nothing else.
    env.filters["safe"] = lambda value: value
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def forms(case):
    """The conversation with arguments as objects or JSON, content "" or null beside calls, content as text or parts."""
    for parts in (False, True):
        for arguments in (lambda value: value, lambda value: json.dumps(value, ensure_ascii=False)):
            for nothing in ("", None):
                messages = copy.deepcopy(case["messages"])
                for message in messages:
                    for call in message.get("tool_calls", []):
                        call["function"]["arguments"] = arguments(call["function"]["arguments"])
                    if message.get("tool_calls") and message["content"] == "":
                        message["content"] = nothing
                    if parts and message["content"] is not None:
                        message["content"] = [{"type": "text", "text": message["content"]}]
                yield messages


def render(source, case):
    """("ok", prompt) or ("raises", message) or ("fails", message)."""
    template = environment().from_string(source)
    first = None
    for messages in forms(case):
        variables = {
            # What a request has not is not defined, as in llama-server; transformers' None fails in some templates.
            **({"tools": case["tools"]} if "tools" in case else {}),
            "bos_token": "<s>", "eos_token": "</s>", "enable_thinking": True,
            "date_string": NOW.strftime("%d %b %Y"), "datetime": NOW.strftime("%b %d %Y"),
            **case.get("kwargs", {}), "messages": messages, "add_generation_prompt": case.get("add", True),
        }
        try:
            prompt = template.render(**variables)
        except Raised as error:
            result = ("raises", str(error))
        except Exception as error:
            result = ("fails", f"{type(error).__name__}: {error}")
        else:
            result = ("ok", prompt)
            # Python's way to print an object is a sign of the wrong form.
            kept = all(mark in prompt for mark in case.get("marks", [])) and "{'" not in prompt
            if kept:
                return result
        if first is None or (first[0] == "fails" and result[0] != "fails"):
            first = result
    return first


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def main():
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) == 4:
        case = next(case for case in DATA["cases"] if case["name"] == sys.argv[3])
        kind, text = render((folder / sys.argv[2]).read_text(), case)
        sys.stdout.write(text if kind == "ok" else f"{kind}: {text}\n")
        return
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        print(path.name, fnv(source))
        for case in DATA["cases"]:
            kind, text = render(source, case)
            print("", case["name"], fnv(text) if kind == "ok" else f"{kind} {json.dumps(text, ensure_ascii=False)}")


main()
