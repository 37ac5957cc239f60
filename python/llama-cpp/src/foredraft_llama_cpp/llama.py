"""The class `Llama`, and the lists of processors. The engine's thread calls them, with speculation on."""
from __future__ import annotations

from typing import Any, Callable, List

from ._llama import Llama
from ._llama_grammar import LlamaGrammar
from .llama_cache import LlamaCache, LlamaDiskCache, LlamaRAMCache, LlamaState
from .llama_tokenizer import LlamaTokenizer

#: Takes the tokens so far and a row of logits, and gives another row.
LogitsProcessor = Callable[[Any, Any], Any]
#: Takes the same, and says whether the completion ends.
StoppingCriteria = Callable[[Any, Any], bool]


class LogitsProcessorList(List[LogitsProcessor]):
    """Processors, one after the other."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(List[StoppingCriteria]):
    """Criteria, of which one is enough."""

    def __call__(self, input_ids: Any, logits: Any) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


__all__ = [
    "Llama", "LlamaCache", "LlamaDiskCache", "LlamaGrammar", "LlamaRAMCache", "LlamaState", "LlamaTokenizer", "LogitsProcessor", "LogitsProcessorList",
    "StoppingCriteria", "StoppingCriteriaList",
]
