"""The keys of requests from the arguments of `Llama`'s methods."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Union

Stop = Union[str, List[str], None]


def tokens_of(prompt: Sequence[int]) -> list[int]:
    """The tokens of a prompt. The engine would read texts among them as parts of one prompt."""
    if any(isinstance(token, (str, bytes)) for token in prompt):
        raise TypeError("prompt: expected a text or its tokens, got several texts: each is a call of its own")
    return [int(token) for token in prompt]


def n_choices_of(request: Mapping[str, Any]) -> int:
    return int(request.get("n_cmpl") or request.get("n") or 1)


def seed_of(seed: int | None) -> int:
    return -1 if seed is None or seed in (-1, 0xFFFFFFFF) else seed


def sampling_of(
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    min_p: float,
    typical_p: float,
    stop: Stop,
    frequency_penalty: float,
    presence_penalty: float,
    repeat_penalty: float,
    top_k: int,
    seed: int | None,
    tfs_z: float,
    mirostat_mode: int,
    mirostat_tau: float,
    mirostat_eta: float,
    logit_bias: Mapping[int, float] | None,
) -> Dict[str, Any]:
    request: Dict[str, Any] = {
        "n_predict": max_tokens if max_tokens is not None and max_tokens > 0 else -1,
        "temperature": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p, "top_k": top_k, "tfs_z": tfs_z,
        "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty, "repeat_penalty": repeat_penalty,
        "mirostat": mirostat_mode, "mirostat_tau": mirostat_tau, "mirostat_eta": mirostat_eta,
    }
    if stop:
        request["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if seed is not None:
        request["seed"] = seed_of(seed)
    if logit_bias:
        request["logit_bias"] = [[int(token), bias] for token, bias in logit_bias.items()]
    return request
