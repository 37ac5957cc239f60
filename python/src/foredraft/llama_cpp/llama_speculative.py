"""Draft models. The engine drafts by itself, also from the text so far; this says how many tokens at once."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LlamaPromptLookupDecoding:
    """A value for `Llama(draft_model=...)`: it drafts at most `num_pred_tokens` tokens. The engine chooses the length of n-grams."""

    max_ngram_size: int = 2
    num_pred_tokens: int = 10


__all__ = ["LlamaPromptLookupDecoding"]
