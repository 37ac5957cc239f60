"""Engines that answer completions: this library's, through ctypes, and llama-server's. For measurements, so calls wait and nothing is between."""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def library(path):
    """The built library."""
    lib = ctypes.CDLL(path)
    lib.foredraft_engine_new.restype = ctypes.c_void_p
    lib.foredraft_engine_free.argtypes = lib.foredraft_string_free.argtypes = [ctypes.c_void_p]
    lib.foredraft_load.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.foredraft_status.restype, lib.foredraft_status.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return lib


class Engine:
    """An engine of the library with a configuration, freed at the end of a `with` block. Without a configuration nothing is loaded."""

    def __init__(self, lib, **config):
        self.lib = lib
        self.handle = lib.foredraft_engine_new()
        config = {key: value for key, value in config.items() if value is not None}
        if config and lib.foredraft_load(self.handle, json.dumps({"log_level": "error", **config}).encode()) != 0:
            raise SystemExit(self.status()["error"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.foredraft_engine_free(self.handle)

    def taken(self, answer):
        text = ctypes.string_at(answer)
        self.lib.foredraft_string_free(answer)
        return json.loads(text)

    def status(self):
        return self.taken(self.lib.foredraft_status(self.handle))

    def call(self, function, body):
        """The answer of a `foredraft_*` function, which must succeed."""
        function = getattr(self.lib, f"foredraft_{function}")
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        answer = self.taken(function(self.handle, json.dumps(body).encode()))
        if not answer["success"]:
            raise SystemExit(answer["error"])
        return answer

    def complete(self, body):
        return self.call("complete", body)

    def wait_for_panels(self):
        """Waits until all weights have the layout that they keep, which the load leaves to a thread in the background."""
        while self.status()["pending_panel_bytes"]:
            time.sleep(0.1)


@contextlib.contextmanager
def serve(program, arguments):
    """A running llama-server: a function that sends it a completion's body and returns the answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([program, "--port", str(port), "--no-webui", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def complete(body):
        post = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(post))

    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health")
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("llama-server ended while loading")
                time.sleep(0.1)
        yield complete
    finally:
        server.terminate()
        server.wait()


def at_once(complete, bodies):
    """The answers to requests that are sent at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(complete, bodies))
