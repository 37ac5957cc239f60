"""A chat that prints each answer while it is being generated, in Python, with nothing but its standard library.

    python3 examples/chat.py ["a message" [target.gguf [draft.gguf]]]

Without a message, it reads messages from stdin, one per line, and keeps the conversation. FOREDRAFT_LIB names the library
if it is not target/release/libforedraft.so.
"""
import ctypes
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
lib = ctypes.CDLL(os.environ.get("FOREDRAFT_LIB", str(ROOT / "target/release/libforedraft.so")))
lib.init.argtypes, lib.init.restype = [ctypes.c_char_p], ctypes.c_int32
lib.free_string.argtypes, lib.free_string.restype = [ctypes.c_void_p], None
lib.deinit.argtypes, lib.deinit.restype = [], None


def function(name, *argtypes):
    """Wraps a function of the library with JSON in and out as a function on Python values. Releases the returned string."""
    call = getattr(lib, name)
    call.argtypes, call.restype = argtypes, ctypes.c_void_p  # a c_char_p would be copied and its pointer lost

    def wrapper(*args):
        pointer = call(*(json.dumps(arg).encode() for arg in args))
        try:
            answer = json.loads(ctypes.string_at(pointer))
        finally:
            lib.free_string(pointer)
        return checked(answer)

    return wrapper


def checked(answer):
    """Returns the answer, or raises its error."""
    if answer.get("error"):
        raise RuntimeError(answer["error"])
    return answer


poll_system_status = function("poll_system_status")
speculative_completion_init = function("speculative_completion_init", ctypes.c_char_p)
speculative_completion_poll = function("speculative_completion_poll", ctypes.c_char_p)


def stream(messages):
    """Yields the updates of the answer to a conversation as they arrive. The last one is the final response."""
    request = speculative_completion_init({"messages": messages, "temperature": 0, "n_predict": 200})
    finished = False
    while not finished:
        # ctypes releases the interpreter's lock while it waits.
        reply = speculative_completion_poll({"id": request["id"], "timeout_ms": 1000})
        yield from map(checked, reply["completion_updates"])
        finished = reply["finished"]


def turn(messages, message):
    """Sends a message, prints the answer while it arrives, and adds both to the conversation."""
    messages.append({"role": "user", "content": message})
    text, final = "", {}
    for update in stream(messages):
        print(update["content"], end="", flush=True)
        text += update["content"]
        final = update
    print(flush=True)
    print("[{} tokens, {:.1f} tokens/s, accept_rate {:.2f}]".format(
        final["tokens_predicted"], final["timings"]["predicted_per_second"],
        final["speculative"]["accept_rate"]), file=sys.stderr)
    messages.append({"role": "assistant", "content": text})


def main(message=None, model=None, draft=""):
    sys.stdout.reconfigure(encoding="utf-8")
    if model is None:
        model, draft = (str(ROOT / "models" / name) for name in ("stories-target.gguf", "stories-draft.gguf"))
    if lib.init(json.dumps({"model": model, "model_draft": draft}).encode()) != 0:
        poll_system_status()  # raises the reason
        raise RuntimeError("init failed")
    messages = []
    try:
        for line in [message] if message is not None else sys.stdin:
            turn(messages, line.rstrip("\n"))
    finally:
        lib.deinit()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:
        sys.exit(f"chat: {error}")
