"""Wakes event loops when requests have news.

The library writes to a pipe (`notify_fd`) and never calls Python. A pipe wakes every loop that watches it, but its bytes are
read once: the loop that reads them wakes the waiters of all loops.
"""
from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

#: Where pipes cannot be watched, waiters look again after so many seconds.
INTERVAL = 0.01
HAS_PIPES = sys.platform != "win32"


class Notifier:
    """The pipe of one engine, and the coroutines that wait for news of its requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[asyncio.Future[None]] = set()
        self._streams: dict[asyncio.AbstractEventLoop, int] = {}
        self._fds: tuple[int, int] | None = None
        self._closing = False
        if HAS_PIPES:
            self._fds = os.pipe()
            for fd in self._fds:
                os.set_blocking(fd, False)

    @property
    def config(self) -> dict[str, Any]:
        """The option that tells the library to write to the pipe."""
        return {} if self._fds is None else {"notify_fd": self._fds[1]}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """A stream is read in that loop, until `detach`. To be called on the loop's thread."""
        with self._lock:
            count = self._streams.get(loop, 0)
            if count == 0 and self._fds is not None:
                try:
                    loop.add_reader(self._fds[0], self._read)
                except NotImplementedError:  # a loop that watches no pipes
                    return
            self._streams[loop] = count + 1

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The stream is not read any more. From any thread."""
        if loop is _running_loop() or loop.is_closed():
            return self._detach(loop)
        try:
            loop.call_soon_threadsafe(self._detach, loop)
        except RuntimeError:  # closed meanwhile
            self._detach(loop)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            count = self._streams.pop(loop, 0)
            if count > 1:
                self._streams[loop] = count - 1
            elif count == 1 and self._fds is not None and not loop.is_closed():
                loop.remove_reader(self._fds[0])
            self._close_unwatched()

    def waiter(self) -> asyncio.Future[None]:
        """A future that ends with the next news of any request, to be made before the request is polled."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            if loop in self._streams and self._fds is not None:
                self._waiters.add(future)
                return future
        loop.call_later(INTERVAL, _finish, future)
        return future

    def discard(self, future: asyncio.Future[None]) -> None:
        """The future is not waited for any more."""
        with self._lock:
            self._waiters.discard(future)
        future.cancel()

    def wake_all(self) -> None:
        """Ends all waits, as if all requests had news. From any thread."""
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for future in waiters:
            try:
                future.get_loop().call_soon_threadsafe(_finish, future)
            except RuntimeError:
                pass  # its loop is closed, so there is no waiting task

    def _read(self) -> None:
        fds = self._fds
        if fds is not None:
            try:
                os.read(fds[0], 65536)  # more than a pipe holds
            except BlockingIOError:
                pass  # another loop was faster
        self.wake_all()

    def close(self) -> None:
        """To be called after the engine's end. The pipe is closed when no loop watches it any more."""
        with self._lock:
            self._closing = True
            self._close_unwatched()
        self.wake_all()

    def _close_unwatched(self) -> None:
        watched = any(not loop.is_closed() for loop in self._streams)
        if self._closing and self._fds is not None and not watched:
            fds, self._fds = self._fds, None
            for fd in fds:
                os.close(fd)

    def __del__(self) -> None:
        self._closing = True
        self._streams.clear()
        self._close_unwatched()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
