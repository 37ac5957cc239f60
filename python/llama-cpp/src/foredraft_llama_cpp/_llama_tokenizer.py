"""A model's tokenizer."""
from __future__ import annotations

from typing import Protocol, Sequence


class Tokenizing(Protocol):
    """The part of a `Llama` that a tokenizer needs."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes: ...


class LlamaTokenizer:
    """The tokenizer of a `Llama`."""

    def __init__(self, llama: Tokenizing) -> None:
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """The ids of a text's tokens."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes:
        """The text of tokens, in UTF-8."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """The same as `tokenize`, of a string."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The same as `detokenize`, as a string."""
        return self.detokenize(tokens).decode("utf-8", "ignore")
