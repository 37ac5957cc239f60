"""A host of the old server with ctypes, as its documents describe it: see old_life.rs for what it prints. Arguments: target, draft."""
import ctypes
import json
import os
import sys
import time

server = ctypes.CDLL(os.environ["FOREDRAFT_LIB"])
server.free_string.argtypes = [ctypes.c_void_p]
NAMES = ["tokenize", "poll_system_status", "get_completion", "async_completion_init", "async_completion_poll", "async_completion_cancel",
         "speculative_completion", "lookup_cache"]
for name in NAMES:
    getattr(server, name).restype = ctypes.c_void_p


def call(name, argument=None):
    arguments = [] if name == "poll_system_status" else [None if argument is None else json.dumps(argument).encode()]
    pointer = getattr(server, name)(*arguments)
    answer = json.loads(ctypes.string_at(pointer))
    server.free_string(pointer)
    assert answer.get("success", True), answer
    return answer


def drain():
    """Polls as the old host did: without an id, until it is finished."""
    text, last = "", None
    while True:
        answer = call("async_completion_poll")
        for update in answer["completion_updates"]:
            if update["stop"]:
                last = update
            else:
                text += update["content"]
        if answer["finished"]:
            return text, last
        time.sleep(0.001)


target, draft = sys.argv[1:3]
server.init_async(json.dumps({"model": target, "model_draft": draft, "n_ctx": 512, "n_threads": 1, "seed": 42, "n_keep": 3,
                              "log_level": "debug"}).encode())
while call("poll_system_status")["init_success"] == 0:
    time.sleep(0.001)
status = call("poll_system_status")
print("loaded", status["init_success"], status["model_alias"] == target, len(status["warnings"]))

prompt = "Once upon a time"
stats = call("async_completion_init", {"prompt": "Tom had a hat. " * 200, "n_predict": 1})["prompt_stats"]
print("prompt", stats["total_prompt_tokens"] > 700, stats["n_past"], stats["truncated"])
drain()
greedy = {"prompt": prompt, "n_predict": 12, "temperature": 0, "n_keep": 1000, "logit_bias": [[9, False]]}
call("async_completion_init", greedy)
text, last = drain()
settings = last["generation_settings"]
print("streamed", json.dumps(text, ensure_ascii=False), json.dumps(last["content"]))
print("settings", settings["seed"] != 42, settings["n_keep"], settings["logit_bias"] == [[9, None]], settings["stream"])
whole = call("get_completion", greedy)
print("waited", whole["content"] == text, whole["generation_settings"]["stream"], whole["tokens_predicted"])
begun = text[-3:]
print("begun", json.dumps(call("get_completion", {**greedy, "stop": [begun + "!!!"]})["content"], ensure_ascii=False))
endless = {"prompt": prompt, "n_predict": -1, "ignore_eos": True}
for _ in range(3):
    call("async_completion_init", endless)
print("cancelled", call("async_completion_cancel")["cancelled"], drain()[1]["stop_type"])
speculated = call("speculative_completion", {**greedy, "speculative": {"type": "draft", "adaptive": False, "n_max": 4}})
print("speculated", speculated["content"] == text, speculated["speculative"]["n_accepted"] > 0)
call("lookup_cache", {"action": "update", "cache": "dynamic", "tokens": [300, 301, 302] * 4, "n_new": 12})
print("drafted", call("lookup_cache", {"action": "draft", "tokens": [300, 301], "n_draft": 2})["draft"])
call("async_completion_init", endless)
# Until the request has some text.
while not (call("poll_system_status")["slots"][0]["state"] == "generating" and call("poll_system_status")["slots"][0]["n_past"] > 30):
    time.sleep(0.001)
server.deinit()
text, last = drain()
print("unloaded", text != "", last["stop_type"], call("async_completion_poll")["finished"])
