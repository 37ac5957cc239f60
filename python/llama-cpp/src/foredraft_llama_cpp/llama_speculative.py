"""Draft models. The engine drafts by itself, also from the text so far; this says how many tokens at once."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence


@dataclass
class LlamaPromptLookupDecoding:
    """A value for `Llama(draft_model=...)`: it drafts at most `num_pred_tokens` tokens. The engine chooses the length of n-grams."""

    max_ngram_size: int = 2
    num_pred_tokens: int = 10

    @staticmethod
    def find_candidate_pred_tokens(input_ids: Sequence[int], max_ngram_size: int, num_pred_tokens: int) -> List[int]:
        """The tokens after the first earlier place of the last n-gram, of the longest that has one. (The engine does not call this.)"""
        tokens = [int(token) for token in input_ids]
        for size in range(min(max_ngram_size, len(tokens) - 1), 0, -1):
            for start in range(len(tokens) - size):
                if tokens[start:start + size] == tokens[-size:]:
                    return tokens[start + size:start + size + num_pred_tokens]
        return []


__all__ = ["LlamaPromptLookupDecoding"]
