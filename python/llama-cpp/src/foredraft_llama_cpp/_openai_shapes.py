"""Parts of answers in OpenAI's shapes."""
from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Mapping, Sequence

from foredraft import Completion, Update

Chunk = Dict[str, Any]
Response = Dict[str, Any]


def usage_of(answers: Sequence[Completion]) -> Dict[str, int]:
    """The tokens of all choices together, as llama-cpp-python counts them; their prompt counts once."""
    n_prompt = answers[0].usage["prompt_tokens"]
    n_completion = sum(answer.usage["completion_tokens"] for answer in answers)
    return {"prompt_tokens": n_prompt, "completion_tokens": n_completion, "total_tokens": n_prompt + n_completion}


def head_of(prefix: str, kind: str, model: str) -> Response:
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}


def chat_logprobs_of(answer: Update | Completion) -> list[Any]:
    keys = ("token", "logprob", "bytes", "top_logprobs")
    return [{key: one.get(key) for key in keys} for one in answer.get("completion_probabilities") or ()]


def logprobs_of(entries: Sequence[Mapping[str, Any]], offset: int) -> Dict[str, Any]:
    """Tokens with their probabilities in OpenAI's shape. The text of the first one begins at that character."""
    tokens: list[str] = []
    logprobs: list[Any] = []
    top: list[Dict[str, Any] | None] = []
    offsets: list[int] = []
    for one in entries:
        tokens.append(str(one.get("token")))
        logprobs.append(one.get("logprob"))
        # Nothing predicts the first token of a prompt.
        predicted = one.get("logprob") is not None
        top.append({str(other.get("token")): other.get("logprob") for other in one.get("top_logprobs") or ()} if predicted else None)
        offsets.append(offset)
        offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
