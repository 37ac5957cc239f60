"""Exceptions, one class for each code of the library's failures."""
from __future__ import annotations

import errno
from typing import Any, Mapping


class ForedraftError(Exception):
    """A failure that the library reports. `code` is a word of the library's closed list, `status` an HTTP-style number,
    `answer` the whole error object."""

    code: str = "internal"
    status: int = 500

    def __init__(self, message: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.answer: Mapping[str, Any] = answer or {}
        self.code = str(self.answer.get("code") or type(self).code)
        self.status = int(self.answer.get("status") or type(self).status)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidJsonError(ForedraftError, ValueError):
    """The request is not a JSON object."""

    code, status = "invalid_json", 400


class InvalidRequestError(ForedraftError, ValueError):
    """A key is missing, of the wrong type, out of range or at odds with another."""

    code, status = "invalid_request", 400


class InvalidEngineError(ForedraftError, ValueError):
    """The engine was closed."""

    code, status = "invalid_engine", 400


class ContextFullError(ForedraftError, ValueError):
    """A prompt, a text to embed or a session does not fit into the context."""

    code, status = "context_full", 400


class NotFoundError(ForedraftError, LookupError):
    """There is no such request, file or folder."""

    code, status = "not_found", 404


class TimedOutError(ForedraftError, TimeoutError):
    """`timeout_ms` passed before the call could begin its work."""

    code, status = "timeout", 408


class WouldDeadlockError(ForedraftError):
    """Called from inside a callback of the library, where the call would wait for itself."""

    code, status = "would_deadlock", 409


class QueueFullError(ForedraftError):
    """`max_queue` requests wait already."""

    code, status = "queue_full", 429


class RequestCancelledError(ForedraftError):
    """A later load or unload ended it."""

    code, status = "cancelled", 499


class ModelError(ForedraftError, ValueError, RuntimeError):
    """The model cannot be loaded, or a forward pass failed. (llama-cpp-python raises ValueError for the one, and RuntimeError for the other.)"""

    code, status = "model_error", 500


class InternalError(ForedraftError, RuntimeError):
    """A defect of the library."""

    code, status = "internal", 500


class NotInitializedError(ForedraftError):
    """No model is loaded, or this process was forked from one that has the library's threads."""

    code, status = "not_initialized", 503


class ModelLoadingError(ForedraftError):
    """A model is being loaded."""

    code, status = "loading", 503


class ResourceExhaustedError(ForedraftError, MemoryError):
    """The system has no more threads or memory for this."""

    code, status = "resource_exhausted", 503


class ModelFileNotFoundError(ModelError, FileNotFoundError):
    """The file of a model or of an adapter does not exist; `filename` is its path."""


class DataFileNotFoundError(NotFoundError, FileNotFoundError):
    """A file or folder does not exist: a session, an n-gram cache, a text. `filename` is its path."""


class ModelPermissionError(ModelError, PermissionError):
    """The process may not read the file of a model or of an adapter; `filename` is its path."""


class DataPermissionError(InvalidRequestError, PermissionError):
    """The process may not use a file or folder: a session, an n-gram cache, a text. `filename` is its path."""


_BY_CODE: dict[str, type[ForedraftError]] = {
    error.code: error
    for error in (
        InvalidJsonError, InvalidRequestError, InvalidEngineError, ContextFullError, NotFoundError, TimedOutError,
        WouldDeadlockError, QueueFullError, RequestCancelledError, ModelError, InternalError, NotInitializedError, ModelLoadingError,
        ResourceExhaustedError,
    )
}

#: The keys of an answer for an unusable file: the number of the error, and its class for each of these classes.
_FILES: dict[str, tuple[int, dict[type[ForedraftError], type[ForedraftError]]]] = {
    "missing_file": (errno.ENOENT, {ModelError: ModelFileNotFoundError, NotFoundError: DataFileNotFoundError}),
    "denied_file": (errno.EACCES, {ModelError: ModelPermissionError, InvalidRequestError: DataPermissionError}),
}


def error_from(answer: Mapping[str, Any]) -> ForedraftError:
    """The exception for an error object, or for a status whose load failed."""
    kind = _BY_CODE.get(str(answer.get("code")), ForedraftError)
    message = str(answer.get("error") or "the library gave no reason")
    for key, (number, kinds) in _FILES.items():
        if answer.get(key) and kind in kinds:
            error = kinds[kind](message, answer)
            if isinstance(error, OSError):
                error.errno, error.filename = number, answer[key]
            return error
    return kind(message, answer)
