"""Tokenizers."""
from .._llama_tokenizer import LlamaTokenizer

__all__ = ["LlamaTokenizer"]
