"""Grammars."""
from __future__ import annotations

from ._llama_grammar import LlamaGrammar

__all__ = ["LlamaGrammar"]
