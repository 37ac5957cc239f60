"""The two of llama.cpp's functions by which libraries read a vocabulary, over the engine's own."""
from __future__ import annotations

from typing import Any

from ._llama import Llama


def llama_model_get_vocab(model: Llama) -> Llama:
    """The vocabulary of a `Llama.model`, which is the `Llama` itself."""
    return model


def llama_token_to_piece(vocab: Llama, token: int, buf: Any, length: int, lstrip: int, special: bool) -> int:
    """Writes the text of a token into a buffer of ctypes. Returns its bytes; if there are more than `length`, the negative of their number,
    and the buffer stays as it is. `lstrip` is how many spaces are left out before it, at most."""
    text = vocab.detokenize([token], special=special)
    spaces = len(text) - len(text.lstrip(b" "))
    text = text[min(lstrip, spaces):]
    if len(text) > length:
        return -len(text)
    buf[:len(text)] = text
    return len(text)
