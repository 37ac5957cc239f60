"""States of a `Llama` as objects, and caches of them."""
from __future__ import annotations

import hashlib
import importlib
import json
import os
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol, Sequence


class LlamaState:
    """The tokens that a model has read, with its memory of them, and the seed from which those of later requests follow."""

    def __init__(self, input_ids: Sequence[int], llama_state: bytes, seed: int | None = None) -> None:
        self.input_ids = tuple(input_ids)
        self.llama_state = llama_state
        self.seed = seed

    @property
    def n_tokens(self) -> int:
        """How many tokens were read."""
        return len(self.input_ids)

    @property
    def llama_state_size(self) -> int:
        """The size of the memory in bytes."""
        return len(self.llama_state)


class LlamaCache(Protocol):
    """The argument of `Llama.set_cache`: states by the tokens that they have read."""

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common beginning; KeyError if there is none."""

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Keeps a state."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    n = 0
    for one, other in zip(a, b):
        if one != other:
            break
        n += 1
    return n


def array_of(tokens: Sequence[int]) -> Any:
    """An array of tokens: numpy's where that is installed, else Python's."""
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        return array("i", tokens)
    return numpy.array(tokens, dtype=numpy.intc)


class LlamaRAMCache:
    """States in memory, of at most `capacity_bytes` together: those that were used longest ago are dropped."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes that the states take."""
        return sum(state.llama_state_size for state in self._states.values())

    def _find(self, key: Sequence[int]) -> tuple[int, ...] | None:
        best = max(self._states, key=lambda known: common_prefix(known, key), default=None)
        return best if best is not None and common_prefix(best, key) > 0 else None

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = self._find(key)
        if found is None:
            raise KeyError("no state has read a beginning of these tokens")
        self._states.move_to_end(found)
        return self._states[found]

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self._states.pop(tuple(key), None)
        self._states[tuple(key)] = value
        while self._states and self.cache_size > self.capacity_bytes:
            self._states.popitem(last=False)


class LlamaDiskCache:
    """States in files of a folder, of at most `capacity_bytes` together: those that were used longest ago are deleted. A file has a line
    of JSON, with the tokens and the seed, before the state."""

    def __init__(self, cache_dir: str | os.PathLike[str] = ".cache/llama_cache", capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The files, those that were used longest ago first. (Another process may delete one meanwhile.)"""
        found = []
        for path in self._folder.glob("*.state"):
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda file: file[1].st_mtime_ns)

    @property
    def cache_size(self) -> int:
        """Bytes of the files."""
        return sum(stat.st_size for _, stat in self._files())

    def _find(self, key: Sequence[int]) -> tuple[int, Path] | None:
        """The file with the longest common beginning, and its length."""
        best = None
        for path, _ in self._files():
            try:
                with open(path, "rb") as file:
                    length = common_prefix(json.loads(file.readline())["tokens"], key)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if length > (best[0] if best else 0):
                best = (length, path)
        return best

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = self._find(key)
        if found is None:
            raise KeyError("no state has read a beginning of these tokens")
        with open(found[1], "rb") as file:
            head = json.loads(file.readline())
            state = LlamaState(head["tokens"], file.read(), head["seed"])
        os.utime(found[1])
        return state

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        tokens = [int(token) for token in key]
        path = self._folder / f"{hashlib.sha256(json.dumps(tokens).encode()).hexdigest()}.state"
        head = json.dumps({"tokens": [int(token) for token in value.input_ids], "seed": value.seed}).encode()
        # Renamed when it is whole, so that a reader never sees a part.
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(head + b"\n" + value.llama_state)
        os.replace(part, path)
        files = self._files()
        excess = sum(stat.st_size for _, stat in files) - self.capacity_bytes
        for oldest, stat in files:
            if excess <= 0:
                break
            oldest.unlink(missing_ok=True)
            excess -= stat.st_size
