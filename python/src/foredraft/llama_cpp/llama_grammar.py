"""Grammars."""
from ..llama import LlamaGrammar

__all__ = ["LlamaGrammar"]
