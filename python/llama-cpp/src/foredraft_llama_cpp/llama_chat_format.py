"""Chat formats. The engine renders messages with the model's own template, or llama.cpp's of the name `chat_format`."""
from __future__ import annotations

from typing import Any, NoReturn


class Llava15ChatHandler:
    """A handler for pictures, which the engine does not read. Libraries import the name."""

    def __init__(self, *_: Any, **others: Any) -> None:
        raise NotImplementedError("Llava15ChatHandler is not available: the engine reads no pictures, and renders messages itself")


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"llama_chat_format has no {name!r}: the engine renders messages itself; use Llama(chat_format=...), or the engine's chat_template")
