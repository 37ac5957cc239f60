"""Loads a model and completes while the process may have so many KiB of data more than now, and again without the limit: limited.py MODEL KIB.

Prints a line for each step, with `ok` or the code of the error.
"""
import resource
import sys

import foredraft
from foredraft import _library


def data():
    """The data of this process in bytes, as RLIMIT_DATA counts it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))


def attempt(name, step):
    try:
        result = step()
        print(name, "ok", flush=True)
        return result
    except foredraft.ForedraftError as error:
        print(name, error.code, flush=True)
    except MemoryError:
        print(name, "resource_exhausted", flush=True)
    except RuntimeError as error:
        # A thread of Python's own.
        print(name, "resource_exhausted" if "start new thread" in str(error) else f"failed: {error}", flush=True)


model, kibibytes = sys.argv[1], int(sys.argv[2])
CONFIG = {"n_ctx": 256, "n_threads": 2, "n_threads_batch": 2, "warmup": False, "log_level": "none"}
_library.library()
before = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (data() + (kibibytes << 10), before[1]))
engine = attempt("load", lambda: foredraft.Engine(model, **CONFIG))
if engine is not None:
    attempt("complete", lambda: engine.complete("Once upon a time", n_predict=8))
    attempt("stream", lambda: list(engine.stream("Once upon a time", n_predict=8)))
resource.setrlimit(resource.RLIMIT_DATA, before)
if engine is not None:
    attempt("close", engine.close)
with foredraft.Engine(model, **CONFIG) as engine:
    attempt("again", lambda: engine.complete("Once upon a time", n_predict=8))
