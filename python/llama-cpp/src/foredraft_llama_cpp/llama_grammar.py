"""Grammars."""
from __future__ import annotations

from ._llama import LlamaGrammar

__all__ = ["LlamaGrammar"]
