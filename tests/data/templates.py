#!/usr/bin/env python3
"""Renders chat templates with Jinja2, set up as in Hugging Face's transformers, and writes templates.txt.

    templates.py FOLDER                    all *.jinja in FOLDER; prints templates.txt
    templates.py FOLDER TEMPLATE CASE      one prompt in full

tests/requests/templates.rs compares. The conversations are in templates.json. Where templates differ in the form that they
expect of a message, the form is taken in which nothing of the conversation is lost. Where Jinja2 fails in all forms, it renders again
with attributes of undefined values (ChainableUndefined), and generators as lists in JSON.
"""
import copy
import datetime
import functools
import itertools
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
    """The error of a template's own raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training, and prints it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False, default=None):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=default)


def raise_exception(message):
    raise Raised(message)


def as_list(value):
    """Converts a generator to a list, as a lenient Jinja writes it."""
    return list(value) if hasattr(value, "__next__") else str(value)


def environment(lenient):
    # transformers forbids list.append too, by ImmutableSandboxedEnvironment; llama.cpp and some templates do not.
    env = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols],
        undefined=jinja2.ChainableUndefined if lenient else jinja2.Undefined,
    )
    env.filters["tojson"] = functools.partial(tojson, default=as_list) if lenient else tojson
    # Jinja2 would escape what is added to a safe string for HTML, even here where it escapes nothing else.
    env.filters["safe"] = lambda value: value
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def conversation(case, n_times):
    """The messages, with `repeat` so many times."""
    def numbered(message, i):
        text = json.dumps(message).replace("{i}", str(i)).replace("{i:05}", f"{i:05}")
        return json.loads(text)

    repeated = [numbered(message, i) for i in range(n_times) for message in case.get("repeat", [])]
    return copy.deepcopy(case["messages"]) + repeated + copy.deepcopy(case.get("end", []))


def completed(tools):
    """Fills in the keys that OpenAI's API lets hosts leave out, as llama-server does."""
    def function(given):
        if "description" in given and "parameters" in given:
            return given
        return {"name": given["name"], "description": given.get("description", ""), "parameters": given.get("parameters", {})}

    return [{**tool, "function": function(tool["function"])} for tool in tools]


def content_in(content, form):
    if content is None or form == "given":
        return content
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return "\n".join(texts) if form == "text" else [{"type": "text", "text": text} for text in texts]


# The form of developer messages: as given, or by the system, or joined with the system's message, or put in front of the user's message.
ROLES = ("given", "system", "joined", "user")
GROUPS = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def with_roles(messages, roles):
    if roles == "given":
        return messages
    instructs = ("system", "developer")
    while messages[1:2] and messages[0]["role"] in instructs and (
        roles == "joined" and messages[1]["role"] in instructs or roles == "user" and messages[1]["role"] in (*instructs, "user")
    ):
        first, second = messages[0]["content"], messages[1]["content"]
        both = f"{first}\n{second}" if isinstance(first, str) and isinstance(second, str) else [
            part for content in (first, second) for part in content_in(content, "parts")]
        role = messages[0 if roles == "joined" else 1]["role"]
        messages = [{**messages[1], "role": role, "content": both}] + messages[2:]
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]


def forms(messages, roles):
    """Ways to write the conversation: content as given, as text, or in parts, by role; roles; arguments as objects or JSON; content ""
    or null beside calls. In the order in which they are preferred: each with as little changed as can be."""
    groups = sorted({GROUPS[message["role"]] for message in messages})
    contents = itertools.product(("given", "text", "parts"), repeat=len(groups))
    contents = sorted(contents, key=lambda forms: sum(form != "given" for form in forms))
    for role, content, arguments, nothing in itertools.product(roles, contents, ("object", "json"), ("", None)):
        yield dict(zip(groups, content)), role, arguments, nothing


def written(messages, form):
    contents, roles, arguments, nothing = form
    result = []
    for message in with_roles(messages, roles):
        message = copy.deepcopy(message)
        for call in message.get("tool_calls", []):
            if arguments == "json":
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if message.get("tool_calls") and message["content"] == "":
            message["content"] = nothing
        message["content"] = content_in(message["content"], contents.get(GROUPS[message["role"]], "given"))
        result.append(message)
    return result


def rendered(template, case, messages):
    variables = {
        # A key that the request lacks is undefined, as in llama-server; transformers' None fails in some templates.
        **({"tools": completed(case["tools"])} if "tools" in case else {}),
        "bos_token": "<s>", "eos_token": "</s>", "enable_thinking": True,
        "date_string": NOW.strftime("%d %b %Y"), "datetime": NOW.strftime("%b %d %Y"),
        **case.get("kwargs", {}), "messages": messages, "add_generation_prompt": case.get("add", True),
    }
    try:
        return ("ok", template.render(**variables))
    except Raised as error:
        return ("raises", str(error))
    except Exception as error:
        return ("fails", f"{type(error).__name__}: {error}")


def knows_developer(template):
    """Whether developers' messages are anything but those of an unknown role."""
    prompts = [rendered(template, {}, [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hm"}])
               for role in ("developer", "developer0")]
    kind, prompt = prompts[0]
    return kind == "ok" and "Be brief." in prompt and prompts[1][1].replace("developer0", "developer") != prompt


def render(source, case):
    """("ok", prompt) or ("raises", message) or ("fails", message): of the first form in which the least is lost."""
    best = None
    for lenient in (False, True):
        template = environment(lenient).from_string(source)
        # A long conversation has the form of a short one.
        short = conversation(case, 1)
        has_developer = any(message["role"] == "developer" for message in short)
        roles = ROLES if not has_developer or knows_developer(template) else ROLES[1:]
        for form in forms(short, roles):
            kind, prompt = rendered(template, case, written(short, form))
            # Python's way to print an object, and the keys of parts, are signs of the wrong form.
            signs = ["{'"] + (["\"text\":", "'text':"] if has_parts(case) else [])
            n_kept = sum(mark in prompt for mark in case.get("marks", []))
            n_signs = sum(sign in prompt for sign in signs)
            score = (("fails", "raises", "ok").index(kind), *((n_kept, -n_signs) if kind == "ok" else ()))
            if best is None or score > best[0]:
                best = (score, template, form, (kind, prompt))
            if kind == "ok" and n_kept == len(case.get("marks", [])) and not n_signs:
                break
        if best[0][0] == 2:
            break
    _, template, form, result = best
    return rendered(template, case, written(conversation(case, case["n_times"]), form)) if "n_times" in case else result


def has_parts(case):
    return any(isinstance(message["content"], list) for message in case["messages"])


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


if __name__ == "__main__":
    main()
