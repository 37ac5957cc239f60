"""Chat formats. The engine renders messages with the model's own template, or llama.cpp's of the name `chat_format`."""
from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"llama_chat_format has no {name!r}: the engine renders messages itself; use Llama(chat_format=...), or the engine's chat_template")
