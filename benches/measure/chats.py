"""The costs of a chat beside the model: finding the format of a template, the grammar of its tools, and polls.

    python3 benches/measure chats [--template FILE] [--tools 1,20,1000] [--n-predict 4000] [--rounds 5]

All figures are processor times, which other programs on the machine hardly change: of the whole process while the engine is paused (`format`,
`request`, in milliseconds), and of the thread that polls (`poll`, in microseconds). `format`: what the first chat under a template takes more
than the next one, which is when the format is found. The formats of a model's own templates are found while it loads. `request`: a chat
under a known template, up to where the engine would begin it: schemas, grammar, prompt and its tokens. `poll`: a chat whose
host asks for news all the time, and one that asks once, at its end.
"""
import ctypes
import json
import os
import statistics
import time

from engines import ROOT, Engine, library

# A template with tools and calls, as Hermes and Qwen have them. It prints the names of tools alone, so that 1000 of them are a short prompt.
TEMPLATE = """{% if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}</tools><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tools(n_tools):
    properties = {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    function = {"description": "The weather of the next days in a city", "parameters": parameters}
    return [{"type": "function", "function": {"name": f"get_weather_{index}", **function}} for index in range(n_tools)]


def options(parser):
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "stories-target.gguf"))
    parser.add_argument("--template")
    parser.add_argument("--tools", default="1,20,1000")
    parser.add_argument("--n-predict", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)


def submitted(engine, body):
    """The milliseconds of the process from a request's submit until its prompt is prepared, while the engine is paused."""
    engine.lib.foredraft_pause(engine.handle)
    before = time.process_time()
    request = engine.call("submit", body)["id"]
    # A long prompt is tokenized on another thread.
    known, same = time.process_time(), 0
    while same < 20:
        time.sleep(0.01)
        now = time.process_time()
        known, same = now, same + 1 if now - known < 0.001 else 0
    engine.call("cancel", {"id": request})
    engine.lib.foredraft_resume(engine.handle)
    while not engine.call("poll", {"id": request, "timeout_ms": 1000})["finished"]:
        pass
    return 1000 * (known - before)


def costs(engine, template, n_tools, rounds):
    """The milliseconds to find a format, and for a chat under a known one."""
    first, known = [], []
    for index in range(rounds):
        # Another source, so another template.
        source = f"{template}{{# {n_tools} {index} #}}"
        body = {"messages": [{"role": "user", "content": "Hello!"}], "tools": tools(n_tools), "chat_template": source, "n_predict": 1}
        first.append(submitted(engine, body))
        known.append(min(submitted(engine, body) for _ in range(2)))
    found = statistics.median(one - other for one, other in zip(first, known))
    return {"n_tools": n_tools, "format_ms": round(found, 2), "request_ms": round(min(known), 2)}


def polls(engine, template, n_predict):
    """The microseconds of each poll of a chat, and those of the only one of another."""
    lib, handle = engine.lib, engine.handle
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "tools": tools(20), "chat_template": template, "n_predict": n_predict,
            "ignore_eos": True, "seed": 1}

    def poll(command):
        before = time.thread_time()
        answer = lib.foredraft_poll(handle, command)
        taken = 1e6 * (time.thread_time() - before)
        text = ctypes.string_at(answer)
        lib.foredraft_string_free(answer)
        return taken, json.loads(text)

    command = json.dumps({"id": engine.call("submit", body)["id"]}).encode()
    every, with_news, finished = [], [], False
    while not finished:
        taken, answer = poll(command)
        finished = answer["finished"]
        every.append(taken)
        if answer["completion_updates"]:
            with_news.append(taken)
    request = engine.call("submit", body)["id"]
    # The slot takes it when the other request has ended.
    engine.complete({"prompt": "Hello", "n_predict": 1})
    at_once, _ = poll(json.dumps({"id": request}).encode())
    last = with_news.pop()
    return {"n_polls": len(every), "median_us": round(statistics.median(every), 1), "with_news_us": round(statistics.median(with_news), 1),
            "most_us": round(max(with_news), 1), "last_us": round(last, 1), "at_once_us": round(at_once, 1)}


def run(args):
    template = TEMPLATE
    if args.template:
        with open(args.template, encoding="utf-8") as file:
            template = file.read()
    lib = library(args.library)
    lib.foredraft_poll.restype, lib.foredraft_poll.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    lib.foredraft_pause.argtypes = lib.foredraft_resume.argtypes = [ctypes.c_void_p]
    with Engine(lib, model=args.model, n_ctx=8192, n_threads=1) as engine:
        for n_tools in map(int, args.tools.split(",")):
            print(json.dumps(costs(engine, template, n_tools, args.rounds)), flush=True)
        print(json.dumps({"poll": polls(engine, template, args.n_predict)}))
