"""Logits processors and stopping criteria: Python functions that the library's logits callback calls, on the engine's thread.

The library has one callback for an engine, and tells requests apart by their ids. A processor gets views of the library's memory,
which are valid during its call.
"""
from __future__ import annotations

import ctypes
import importlib
import threading
import weakref
from array import array
from typing import Any, Callable, Dict, Iterable, Sequence, Union

from . import _library

#: Takes the tokens so far and a row of logits, and returns the row, changed in place or another one.
LogitsProcessor = Callable[[Any, Any], Any]
#: Takes the same after the processors, and says whether the completion ends before the next token.
StoppingCriterion = Callable[[Any, Any], bool]
Processors = Union[LogitsProcessor, Sequence[LogitsProcessor]]
Criteria = Union[StoppingCriterion, Sequence[StoppingCriterion]]


def _each(functions: Any) -> list[Callable[[Any, Any], Any]]:
    """The functions of a list, or one function. (llama-cpp-python's lists can be called; their functions are called one by one.)"""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, Iterable) else [functions]


class LogitsHook:
    """The functions that a request calls before each token."""

    def __init__(self, processors: list[LogitsProcessor], criteria: list[StoppingCriterion]) -> None:
        self._processors = processors
        self._criteria = criteria
        #: The exception of a function, which ends the request.
        self.failure: BaseException | None = None
        self._has_stopped = False

    @classmethod
    def of(cls, processors: Processors | None, criteria: Criteria | None) -> LogitsHook | None:
        """The hook of a request with these functions; `None` if there are none."""
        found = _each(processors), _each(criteria)
        return cls(*found) if any(found) else None

    @property
    def has_criteria(self) -> bool:
        """Whether the hook may end the completion."""
        return bool(self._criteria)

    def goes_on(self, tokens: Any, scores: Any) -> bool:
        """Changes the scores. Returns whether a token may be chosen of them."""
        if self._has_stopped or self.failure is not None:
            return False
        try:
            for processor in self._processors:
                changed = processor(tokens, scores)
                if changed is not None and changed is not scores:
                    scores[:] = array("f", changed) if isinstance(scores, memoryview) else changed
            self._has_stopped = any(criterion(tokens, scores) for criterion in self._criteria)
        except BaseException as error:  # it is raised where the request is read
            self.failure = error
        return not self._has_stopped and self.failure is None


class LogitsHooks:
    """The hooks of an engine's requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: Dict[int, LogitsHook] = {}
        self._handle: int | None = None
        hooks = weakref.ref(self)

        def on_logits(*call: Any) -> None:
            if (found := hooks()) is not None:
                found._on_logits(*call)

        #: The engine's thread calls it until the engine has ended. It does not keep the hooks, whose functions may keep the engine.
        self.callback = _library.LOGITS_CALLBACK(on_logits)

    def submit(self, handle: int, hook: LogitsHook, request: bytes) -> Dict[str, Any]:
        """Submits the request of a hook."""
        # The engine's thread waits here until the id is known, so nothing else may wait or fail under the lock.
        with self._lock:
            if self._handle is None:
                _library.library().foredraft_set_logits_callback(handle, self.callback, None)
                self._handle = handle
            answer = _library.take(_library.library().foredraft_submit(handle, request))
            if answer.get("success"):
                self._hooks[int(answer["id"])] = hook
        return _library.checked(answer)

    def forget(self, request: int) -> None:
        """Forgets the hook of a request."""
        self._hooks.pop(request, None)

    def _on_logits(self, request: int, logits: int, n_vocab: int, tokens: int, n_tokens: int, _user: int | None) -> None:
        with self._lock:
            hook = self._hooks.get(request)
        if hook is not None and not hook.goes_on(_ids(tokens, n_tokens), _row(logits, n_vocab)):
            # No token is chosen then. An engine that is being closed ends its requests anyway.
            _library.take(_library.library().foredraft_cancel(self._handle, _library.encode({"id": request})))


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def _row(address: int, n: int) -> Any:
    """A row of logits: an array of numpy's where that is installed, else a memoryview."""
    floats = (ctypes.c_float * n).from_address(address)
    numpy = _numpy()
    return memoryview(floats).cast("B").cast("f") if numpy is None else numpy.ctypeslib.as_array(floats)


def _ids(address: int, n: int) -> Any:
    """A copy of tokens: an array of numpy's where that is installed, else a list."""
    ids = (ctypes.c_int32 * n).from_address(address)
    numpy = _numpy()
    return list(ids) if numpy is None else numpy.array(ids, dtype=numpy.intc)
