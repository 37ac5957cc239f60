"""The shared library by ctypes: finds and loads it, calls it with JSON, and makes the ends of the process clean.

No thread of the library ever calls into Python except for log lines and for the logits of requests that have processors. These
callbacks are removed before the interpreter ends: a thread that enters a finalizing interpreter is ended by it, which would abort the process.
"""
from __future__ import annotations

import _thread
import atexit
import ctypes
import json
import logging
import os
import queue
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Protocol, TypeVar, cast

from ._errors import NotInitializedError, ResourceExhaustedError, error_from

if TYPE_CHECKING:
    from ._answers import Devices

logger = logging.getLogger("foredraft")

_NAME = {"darwin": "libforedraft.dylib", "win32": "foredraft.dll"}.get(sys.platform, "libforedraft.so")
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)
LOGITS_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
)
_JSON_FUNCTIONS = (
    "complete", "decide", "prepare", "submit", "poll", "cancel", "tokenize", "detokenize", "model_info", "apply_template", "embed", "rerank", "session_save",
    "session_load", "session_erase", "conversation", "lookup_cache", "lookup_create", "lookup_merge", "lookup_stats",
)

T = TypeVar("T")


class Closable(Protocol):
    """An object to close before the interpreter ends."""

    def close(self) -> None: ...


class _Open(NamedTuple):
    """An engine that is not freed yet."""

    owner: weakref.ref[Closable]
    #: The objects that the engine's threads use. The collector must not end them together with the owner.
    used: object


_lock = threading.Lock()
_library: ctypes.CDLL | None = None
#: The process whose threads the library's are, once an engine was made.
_owner: int | None = None
#: The engines by their handles.
_open: dict[int, _Open] = {}
#: The engines whose owners were collected; `None` ends the thread that frees them. The collector runs on any thread, an engine's too, and
#: under any lock, also one for which the engine's thread waits. So a destructor does not wait for an engine.
_dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
_freeing: weakref.ref[_Running] | None = None
#: Set once the interpreter ends and closes the engines.
_ending = False


def path() -> Path:
    """The library: FOREDRAFT_LIB, else the one that the package carries, else that of the repository around it."""
    if named := os.environ.get("FOREDRAFT_LIB"):
        return Path(named)
    here = Path(__file__).resolve().parent
    carried = here / "lib" / _NAME
    built = here.parents[2] / "target" / "release" / _NAME
    if not carried.is_file() and built.is_file():
        return built
    return carried


def library() -> ctypes.CDLL:
    """The library, loaded when it is first needed. Later calls take no lock, because destructors make them."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            loaded = ctypes.CDLL(str(path()))
            _declare(loaded)
            loaded.foredraft_set_log_callback(_on_log, None)
            # Runs after all threads but daemons have ended, and before the interpreter begins to finalize.
            atexit.register(_end)
            _library = loaded
        return _library


def _declare(lib: ctypes.CDLL) -> None:
    engine, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    for name in _JSON_FUNCTIONS:
        function = getattr(lib, f"foredraft_{name}")
        # A c_char_p would be copied and its pointer lost.
        function.argtypes, function.restype = [engine, text], ctypes.c_void_p
    lib.foredraft_engine_new.argtypes, lib.foredraft_engine_new.restype = [], engine
    lib.foredraft_engine_free.argtypes, lib.foredraft_engine_free.restype = [engine], None
    lib.foredraft_load.argtypes, lib.foredraft_load.restype = [engine, text], number
    lib.foredraft_load_async.argtypes, lib.foredraft_load_async.restype = [engine, text], None
    lib.foredraft_unload.argtypes, lib.foredraft_unload.restype = [engine], None
    for function in (lib.foredraft_pause, lib.foredraft_resume):
        function.argtypes, function.restype = [engine], number
    lib.foredraft_status.argtypes, lib.foredraft_status.restype = [engine], ctypes.c_void_p
    lib.foredraft_devices.argtypes, lib.foredraft_devices.restype = [], ctypes.c_void_p
    lib.foredraft_set_log_callback.argtypes = [_LOG_CALLBACK, ctypes.c_void_p]
    lib.foredraft_set_log_callback.restype = None
    lib.foredraft_set_logits_callback.argtypes = [engine, LOGITS_CALLBACK, ctypes.c_void_p]
    lib.foredraft_set_logits_callback.restype = None
    lib.foredraft_string_free.argtypes, lib.foredraft_string_free.restype = [ctypes.c_void_p], None
    lib.foredraft_version.argtypes, lib.foredraft_version.restype = [], text


def _log(level: int, text: bytes, _user: int | None) -> None:
    try:
        logger.log(_LEVELS.get(level, logging.INFO), "%s", text.decode("utf-8", "replace"))
    except KeyboardInterrupt:
        # ctypes would print it and go on: hand it to the code that called the library.
        _thread.interrupt_main()


# Kept for as long as the library may call it.
_on_log = _LOG_CALLBACK(_log)


def _end() -> None:
    """Stops all engines and the calls into Python. In a fork neither is there."""
    global _ending
    if _library is None or is_foreign():
        return
    _ending = True
    for engine in list(_open.values()):
        if (owner := engine.owner()) is not None:
            owner.close()
    if _freeing is not None:
        _dropped.put(None)
        while _freeing() is not None:
            time.sleep(0.001)
    # When this returns, no thread is inside the callback any more.
    _library.foredraft_set_log_callback(_LOG_CALLBACK(), None)


def park_if_ending() -> None:
    """Called when an engine is found to be closed. A daemon thread that was waiting for it when the interpreter started to exit
    stops here, as in any other blocking call, instead of printing the traceback of an error that cannot be handled."""
    while _ending and threading.current_thread().daemon:
        time.sleep(1)


def is_foreign() -> bool:
    """Whether this process is a fork of the one that has the library's threads."""
    return _owner is not None and _owner != os.getpid()


def check_process() -> None:
    """Raises in a fork of the process that has an engine."""
    if is_foreign():
        raise NotInitializedError(
            f"this process ({os.getpid()}) was forked from one that has an engine ({_owner}), whose threads it does not have: "
            'make the engine after the fork, or use multiprocessing.get_context("spawn")'
        )


def new_engine(owner: Closable, used: object) -> int:
    """A new engine's handle. `owner` is closed before the interpreter ends. Its threads use the objects in `used`."""
    global _freeing, _owner
    check_process()
    with _lock:
        if _freeing is None:
            _freeing = start_thread(_free_dropped)
            _owner = os.getpid()
    handle = library().foredraft_engine_new()
    if not handle:
        raise MemoryError("foredraft_engine_new returned NULL")
    _open[handle] = _Open(weakref.ref(owner), used)
    return int(handle)


def free_engine(handle: int) -> None:
    """Ends an engine; waits for its threads. Does nothing in a fork."""
    if not is_foreign() and _library is not None:
        _library.foredraft_engine_free(handle)
    _open.pop(handle, None)


def drop_engine(handle: int) -> None:
    """The same for destructors: does not wait."""
    _dropped.put(handle)


def _free_dropped() -> None:
    while (handle := _dropped.get()) is not None:
        free_engine(handle)


def encode(request: Mapping[str, Any]) -> bytes:
    """A request as the library reads it."""
    return json.dumps(request, allow_nan=False, default=_plain).encode()


def _plain(value: object) -> object:
    """Values that are not JSON's: paths, pydantic's models, what counts as a list."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json", exclude_none=True)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def take(pointer: int | None) -> dict[str, Any]:
    """The object in a returned string, which is released."""
    if not pointer:
        raise MemoryError("the library has no memory for an answer")
    lib = library()
    try:
        answer: dict[str, Any] = json.loads(ctypes.string_at(pointer))
    finally:
        lib.foredraft_string_free(pointer)
    return answer


def call(name: str, handle: int | None, request: Mapping[str, Any]) -> dict[str, Any]:
    """Calls `foredraft_NAME(engine, request)`; raises what it reports. ctypes releases the interpreter's lock meanwhile."""
    check_process()
    return checked(take(getattr(library(), f"foredraft_{name}")(handle, encode(request))))


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """A successful answer; raises the error that it is."""
    if not answer.get("success"):
        park_if_ending()
        raise error_from(answer)
    return answer


def status(handle: int | None) -> dict[str, Any]:
    """The answer of `foredraft_status`."""
    check_process()
    return take(library().foredraft_status(handle))


class _Running:
    """What a thread has while it runs. Where a thread has no memory to begin, CPython drops its arguments and tells nobody: `Thread.start`
    would wait for ever. (A destructor would need memory, too.)"""


def start_thread(work: Callable[[], None]) -> weakref.ref[_Running]:
    """Starts a thread for which the interpreter does not wait. The reference is dead once it has ended, or could not begin."""
    running = _Running()
    try:
        _thread.start_new_thread(lambda _: work(), (running,))
    except (RuntimeError, MemoryError) as error:
        raise ResourceExhaustedError(f"cannot start a thread: {error}") from error
    return weakref.ref(running)


def interruptible(work: Callable[[], T]) -> T:
    """Runs what waits inside the library. On the main thread, which alone gets signals, another thread does so: Ctrl-C then
    ends the wait at once, and the work goes on unheard."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    result: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    running = start_thread(run)
    while not done.wait(0.1) and running() is not None:
        pass
    if failure:
        raise failure[0]
    if not result:
        raise ResourceExhaustedError("a thread had no memory to begin")
    return result[0]


def devices() -> Devices:
    """What a load can use: `devices`, `modules` of GPUs (and why one is not used), and the `cpu`. Can be called before any load.

    The first call starts the backends, which takes as long as a GPU's driver needs.
    """
    check_process()
    return cast("Devices", checked(take(library().foredraft_devices())))


def version() -> str:
    """The library's version."""
    text: bytes = library().foredraft_version()
    return text.decode()
