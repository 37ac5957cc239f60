"""Tokenizers."""
from __future__ import annotations

from typing import Any, NoReturn

from ._llama_tokenizer import LlamaTokenizer


class LlamaHFTokenizer:
    """A tokenizer of Hugging Face's, which the engine does not use. Libraries import the name."""

    def __init__(self, hf_tokenizer: Any) -> None:
        raise NotImplementedError("LlamaHFTokenizer is not available: the engine tokenizes by the model's own vocabulary")

    @classmethod
    def from_pretrained(cls, path: str) -> NoReturn:
        """Is not there."""
        raise NotImplementedError("LlamaHFTokenizer is not available: the engine tokenizes by the model's own vocabulary")


__all__ = ["LlamaHFTokenizer", "LlamaTokenizer"]
