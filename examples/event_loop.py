"""The library in asyncio, with nothing but Python's standard library: the loop waits for updates of requests.

    python3 examples/event_loop.py ["a prompt" [target.gguf [draft.gguf]]]

The library writes to a pipe, which the loop watches (`notify_fd`). A callback (`foredraft_set_update_callback`) would run on the
library's thread and need the interpreter's lock for every token. (The package `foredraft`, in python/, does all of this.)
"""
import asyncio
import ctypes
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
lib = ctypes.CDLL(os.environ.get("FOREDRAFT_LIB", str(ROOT / "target/release/libforedraft.so")))
lib.foredraft_engine_new.restype = ctypes.c_void_p
lib.foredraft_engine_free.argtypes = [ctypes.c_void_p]
lib.foredraft_load_async.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
lib.foredraft_status.argtypes, lib.foredraft_status.restype = [ctypes.c_void_p], ctypes.c_void_p
lib.foredraft_string_free.argtypes = [ctypes.c_void_p]


def call(name, engine, *request):
    """Calls `foredraft_NAME(engine, request)` and returns the answer."""
    function = getattr(lib, f"foredraft_{name}")
    function.argtypes, function.restype = [ctypes.c_void_p] + [ctypes.c_char_p] * len(request), ctypes.c_void_p
    pointer = function(engine, *(json.dumps(value).encode() for value in request))
    answer = json.loads(ctypes.string_at(pointer))
    lib.foredraft_string_free(pointer)
    if answer.get("error"):
        raise RuntimeError(answer["error"])
    return answer


async def tick(ticks):
    """The program's other work."""
    while True:
        await asyncio.sleep(0.01)
        ticks.append(None)


async def main(prompt="Once upon a time", model=None, draft=""):
    if model is None:
        model, draft = (str(ROOT / "models" / name) for name in ("stories-target.gguf", "stories-draft.gguf"))
    ticks = []
    ticking = asyncio.create_task(tick(ticks))
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    news = asyncio.Event()

    def on_readable():
        os.read(reader, 4096)  # the bytes mean nothing but that there is news
        news.set()

    asyncio.get_running_loop().add_reader(reader, on_readable)
    engine = lib.foredraft_engine_new()
    try:
        config = {"model": model, "model_draft": draft, "notify_fd": writer}
        lib.foredraft_load_async(engine, json.dumps(config).encode())
        while call("status", engine)["state"] != "ready":  # raises the reason of a load that failed
            await asyncio.sleep(0.01)
        id = call("submit", engine, {"prompt": prompt, "temperature": 0, "n_predict": 64})["id"]
        finished = False
        while not finished:
            await news.wait()
            news.clear()
            reply = call("poll", engine, {"id": id})  # without timeout_ms it never waits
            for update in reply["completion_updates"]:
                print(update["content"], end="", flush=True)
            finished = reply["finished"]
        print()
        print(f"[{len(ticks)} ticks]", file=sys.stderr)
    finally:
        lib.foredraft_engine_free(engine)
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)
        ticking.cancel()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except RuntimeError as error:
        sys.exit(f"event_loop: {error}")
