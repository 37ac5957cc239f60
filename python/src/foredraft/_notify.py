"""Wakes event loops when requests have news.

The library writes to a pipe (`notify_fd`) and never calls Python. A pipe wakes every loop that watches it, but its bytes are
read once: the loop that reads them wakes the waiters of all loops.
"""
from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

#: Where pipes cannot be watched, waiters look again after so many seconds.
INTERVAL = 0.01
HAS_PIPES = sys.platform != "win32"


class Pipe:
    """Both ends of a pipe, which are closed when nothing refers to it any more."""

    _fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._fds = self.read, self.write = os.pipe()
        for fd in self._fds:
            os.set_blocking(fd, False)

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)


class Notifier:
    """The pipe of one engine, and the coroutines that wait for news of its requests.

    The garbage collector can run inside any of these methods and end a stream, which detaches it. So there is no lock: sets and
    dictionaries change in single operations, and what belongs to a loop changes on that loop's thread, by a callback of its own."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        #: The streams that are read in each loop, and the pipe that the loop watches.
        self._watched: dict[asyncio.AbstractEventLoop, tuple[int, Pipe]] = {}
        #: The library writes to it until the engine has ended.
        self.pipe = Pipe() if HAS_PIPES else None

    @property
    def config(self) -> dict[str, Any]:
        """The option that tells the library to write to the pipe."""
        return {} if self.pipe is None else {"notify_fd": self.pipe.write}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """A stream is read in that loop, until `detach`. To be called on the loop's thread."""
        for other in list(self._watched):
            if other.is_closed():
                self._watched.pop(other, None)
        count, pipe = self._watched.get(loop, (0, self.pipe))
        if pipe is None:
            return
        if count == 0:
            try:
                loop.add_reader(pipe.read, self._read, pipe)
            except NotImplementedError:  # a loop that watches no pipes
                return
        self._watched[loop] = (count + 1, pipe)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The stream is not read any more. From any thread, and inside any other method."""
        try:
            loop.call_soon_threadsafe(self._detach, loop)
        except RuntimeError:  # it is closed, and watches nothing any more
            self._watched.pop(loop, None)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        count, pipe = self._watched.pop(loop, (0, None))
        if pipe is not None and count > 1:
            self._watched[loop] = (count - 1, pipe)
        elif pipe is not None:
            loop.remove_reader(pipe.read)

    def waiter(self) -> asyncio.Future[None]:
        """A future that ends with the next news of any request, to be made before the request is polled."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if loop in self._watched:
            self._waiters.add(future)
        else:
            loop.call_later(INTERVAL, _finish, future)
        return future

    def discard(self, future: asyncio.Future[None]) -> None:
        """The future is not waited for any more."""
        self._waiters.discard(future)
        future.cancel()

    def wake_all(self) -> None:
        """Ends all waits, as if all requests had news. From any thread."""
        for future in list(self._waiters):
            self._waiters.discard(future)
            try:
                future.get_loop().call_soon_threadsafe(_finish, future)
            except RuntimeError:
                pass  # its loop is closed, so there is no waiting task

    def _read(self, pipe: Pipe) -> None:
        try:
            os.read(pipe.read, 65536)  # more than a pipe holds
        except BlockingIOError:
            pass  # another loop was faster
        self.wake_all()

    def close(self) -> None:
        """To be called after the engine's end. The pipe is closed when no loop watches it any more."""
        self.pipe = None
        self.wake_all()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
