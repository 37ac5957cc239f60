"""States of a `Llama` as objects, and caches of them."""
from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, Sequence


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
