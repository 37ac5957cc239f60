"""Caches of states."""
from __future__ import annotations

from ._llama_state import LlamaDiskCache, LlamaRAMCache, LlamaState

#: llama-cpp-python's older name of the same.
LlamaCache = LlamaRAMCache

__all__ = ["LlamaCache", "LlamaDiskCache", "LlamaRAMCache", "LlamaState"]
