"""llama-cpp-python's objects around llama.cpp's structures, which are not there. Programs import the module without using it."""
from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"_internals has no {name!r}: the engine's models and contexts are not llama.cpp's structures")
