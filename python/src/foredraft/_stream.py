"""A request that runs: its updates by a loop, an async loop, or as one completion."""
from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, AsyncIterator, Iterator, Literal, Mapping, Protocol

from . import _library
from ._errors import ForedraftError, error_from
from ._types import Completion, Update

if TYPE_CHECKING:
    from types import TracebackType

    from ._answers import PromptStatsOfAll
    from ._logits import LogitsHook, LogitsHooks
    from ._notify import Notifier

#: A wait inside the library is no longer than this, so that Ctrl-C is noticed.
_WAIT_MS = 100
#: The keys that a completion joins from its updates: its final response has only what was not sent yet.
_JOINED: tuple[Literal["tokens", "sources", "completion_probabilities"], ...] = ("tokens", "sources", "completion_probabilities")


class RunsRequests(Protocol):
    """The part of an engine that a stream uses."""

    _notifier: Notifier
    _logits: LogitsHooks

    @property
    def closed(self) -> bool:
        """True once the engine was closed."""

    def _call(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a function of the library for the engine."""

    def _submit(self, request: Mapping[str, Any], hook: LogitsHook | None) -> dict[str, Any]:
        """Submits a request."""


class Stream:
    """A running request: `for update in stream`, or `async for`. Leaving the loop cancels the request, and so does
    `close()`, the end of a `with` block and the end of the object. Use it from one thread, or one task, at a time.

    After the loop `completion` is the whole answer; with several texts (`prompts`, `n_cmpl`) `completions` are."""

    def __init__(self, engine: RunsRequests, request: Mapping[str, Any], hook: LogitsHook | None = None) -> None:
        self._engine = engine
        self._hook = hook
        self._finished = True
        self._buffer: deque[Update] = deque()
        self._parts: dict[int, list[Update]] = {}
        self._finals: dict[int, Completion] = {}
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        answer = engine._submit(request, hook)
        #: The request's number.
        self.id: int = int(answer["id"])
        #: The statistics of the prompt.
        self.prompt_stats: PromptStatsOfAll = answer.get("prompt_stats")
        self._finished = False
        for warning in answer.get("warnings") or ():
            _library.logger.warning("%s", warning)

    @property
    def completion(self) -> Completion:
        """The answer, once the request has ended."""
        return self.completions[0]

    @property
    def completions(self) -> list[Completion]:
        """The answers of all texts, once the request has ended."""
        if not self._finished:
            raise RuntimeError("the request has not ended: read its updates first")
        if self._failure is not None:
            raise self._failure
        if not self._finals:
            raise RuntimeError("the stream was closed before its end, and has no completion")
        return [self._finals[index] for index in sorted(self._finals)]

    @property
    def finished(self) -> bool:
        """Whether the request has ended and its last update was taken from the library."""
        return self._finished

    def cancel(self) -> None:
        """Asks the request to end, without waiting. Its loop then ends with the next update."""
        if not self._finished and not self._engine.closed:
            try:
                self._engine._call("cancel", {"id": self.id})
            except ForedraftError:
                pass  # it has ended, and so perhaps has its engine

    def close(self) -> None:
        """Cancels the request, whose updates are not wanted any more."""
        if not self._finished:
            self.cancel()
            self._finish()

    def wait(self) -> Completion:
        """Waits for the end and returns the answer."""
        for _ in self:
            pass
        return self.completion

    async def wait_async(self) -> Completion:
        """The same without blocking the event loop."""
        async for _ in self:
            pass
        return self.completion

    # One step.

    def _poll(self, timeout_ms: int) -> None:
        """Takes what is new into the buffer."""
        try:
            answer = self._engine._call("poll", {"id": self.id, "timeout_ms": timeout_ms})
        except ForedraftError as error:
            self._finish()
            self._failure = error
            return
        for update in answer["completion_updates"]:
            self._take(update)
        if answer["finished"]:
            self._finish()

    def _take(self, update: dict[str, Any]) -> None:
        index = int(update.get("index") or 0)
        parts = self._parts.setdefault(index, [])
        if not update.get("stop"):
            parts.append(Update(update))
            self._buffer.append(parts[-1])
            return
        if not update.get("success", True):
            self._failure = error_from(update)
        # The part that was not sent yet becomes an update of its own.
        if update.get("content"):
            rest = Update({key: update[key] for key in ("id", "index", "tag", "content", *_JOINED) if key in update})
            rest["stop"] = False
            for key in _JOINED:
                update.pop(key, None)
            parts.append(rest)
            self._buffer.append(rest)
        final = Completion(update)
        final["content"] = "".join(part.text for part in parts)
        for key in _JOINED:
            joined = [item for part in parts for item in part.get(key) or ()]
            if joined:
                final[key] = joined
        self._finals[index] = final
        parts.clear()

    def _finish(self) -> None:
        self._finished = True
        if self._hook is not None:
            self._engine._logits.forget(self.id)
            self._failure = self._hook.failure or self._failure
        if self._loop is not None:
            loop, self._loop = self._loop, None
            self._engine._notifier.detach(loop)

    def _next(self) -> Update | None:
        """An update that was taken; `None` when there are none. Raises at the end what ended the request."""
        if self._buffer:
            return self._buffer.popleft()
        if self._finished and self._failure is not None:
            _library.park_if_ending()
            raise self._failure
        return None

    # A loop.

    def __next__(self) -> Update:
        while True:
            update = self._next()
            if update is not None:
                return update
            if self._finished:
                raise StopIteration
            try:
                self._poll(_WAIT_MS)
            except BaseException:  # Ctrl-C, above all
                self.close()
                raise

    def __iter__(self) -> Iterator[Update]:
        return _Loop(self)

    # An async loop.

    async def __anext__(self) -> Update:
        notifier = self._engine._notifier
        while True:
            update = self._next()
            if update is not None:
                return update
            if self._finished:
                raise StopAsyncIteration
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                notifier.attach(self._loop)
            # Made before the poll: news between both ends it.
            waiter = notifier.waiter()
            try:
                self._poll(0)
                if not self._buffer and not self._finished:
                    await waiter
            except BaseException:  # the task was cancelled, above all
                self.close()
                raise
            finally:
                notifier.discard(waiter)

    def __aiter__(self) -> AsyncIterator[Update]:
        return _AsyncLoop(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Loop:
    """One `for` over a stream, whose end cancels it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Update:
        return self._stream.__next__()

    def __del__(self) -> None:
        self._stream.close()


class _AsyncLoop:
    """One `async for` over a stream, whose end cancels it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> _AsyncLoop:
        return self

    async def __anext__(self) -> Update:
        return await self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.close()
