"""The interface of llama-cpp-python: `from foredraft import Llama` in place of `from llama_cpp import Llama`.

Arguments that mean nothing here are ignored with a warning in the log; those that would change what the program does are
refused. Speculation is on, as `draft_model` (a path, or whatever else llama-cpp-python takes) or the text's own repetitions
allow; the completions are the same.
"""
from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Union

from ._engine import Engine
from ._library import logger
from ._stream import Stream
from ._types import Completion, Tool, Update

Chunk = Dict[str, Any]
Response = Dict[str, Any]
Stop = Union[str, List[str], None]

#: What is said to the engine under another name.
_RENAMED = {
    "n_gpu_layers": "n_gpu_layers", "main_gpu": "main_gpu", "tensor_split": "tensor_split", "vocab_only": "vocab_only",
    "use_mmap": "use_mmap", "use_mlock": "use_mlock", "kv_overrides": "override_kv", "n_batch": "n_batch",
    "n_ubatch": "n_ubatch", "n_threads": "n_threads", "n_threads_batch": "n_threads_batch",
    "yarn_ext_factor": "yarn_ext_factor", "yarn_attn_factor": "yarn_attn_factor", "yarn_beta_fast": "yarn_beta_fast",
    "yarn_beta_slow": "yarn_beta_slow", "yarn_orig_ctx": "yarn_orig_ctx", "rope_freq_base": "rope_freq_base",
    "rope_freq_scale": "rope_freq_scale", "embedding": "embedding", "offload_kqv": "offload_kqv",
    "flash_attn": "flash_attn", "swa_full": "swa_full", "spm_infill": "spm_infill",
}
#: Numbers of llama.cpp's enums, which the engine knows by name.
_SPLIT_MODES = {0: "none", 1: "layer", 2: "row"}
_POOLING = {0: "none", 1: "mean", 2: "cls", 3: "last"}
_ROPE_SCALING = {0: "none", 1: "linear", 2: "yarn"}
_CACHE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}
#: What an engine's own key names: passed on as it is.
_ENGINE_KEYS = {
    "model_draft", "n_parallel", "kv_unified", "speculative", "lookup_cache_static", "lookup_cache_dynamic", "max_queue",
    "n_ctx_draft", "n_gpu_layers_draft", "n_threads_draft", "devices", "devices_draft", "rpc", "warmup", "cache_type_k",
    "cache_type_v", "ctx_shift", "n_keep", "log_level", "prio", "prio_batch", "cpu_mask", "cpu_range", "cpu_strict", "poll", "frame_budget",
}
#: What has no effect on completions, or none here.
_IGNORED = {
    "last_n_tokens_size", "lora_base", "numa", "chat_handler", "tokenizer", "no_perf", "op_offload", "logits_all", "verbose",
    "attention_type",
}


class LlamaGrammar:
    """A GBNF grammar."""

    def __init__(self, grammar: str) -> None:
        self.grammar: str | None = grammar
        self.schema: Any = None

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar of its text."""
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar of a file."""
        return cls(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """The texts that are valid under a JSON schema."""
        grammar = cls("")
        grammar.grammar, grammar.schema = None, json.loads(json_schema)
        return grammar


class Llama:
    """A model, as llama-cpp-python has it. `engine` is the engine behind it."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_gpu_layers: int = 0,
        seed: int = 0xFFFFFFFF,
        split_mode: int | None = None,
        rope_scaling_type: int | None = None,
        pooling_type: int | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        chat_format: str | None = None,
        draft_model: Any = None,
        verbose: bool = True,
        **others: Any,
    ) -> None:
        # As there, a completion without max_tokens ends with the context.
        config: Dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "seed": _seed(seed), "ctx_shift": False}
        named = {
            "split_mode": (split_mode, _SPLIT_MODES), "rope_scaling": (rope_scaling_type, _ROPE_SCALING),
            "pooling": (pooling_type, _POOLING), "cache_type_k": (type_k, _CACHE_TYPES), "cache_type_v": (type_v, _CACHE_TYPES),
        }
        for key, (number, names) in named.items():
            if number is not None and number != -1:
                if number not in names:
                    raise ValueError(f"{key}: expected one of {sorted(names)}, got {number}")
                config[key] = names[number]
        if lora_path:
            config["lora"] = [{"path": lora_path, "scale": lora_scale}]
        if chat_format == "chatml":
            config["chat_template"] = "chatml"
        elif chat_format is not None:
            logger.warning("chat_format %r is ignored: the model's own chat template counts", chat_format)
        if isinstance(draft_model, (str, os.PathLike)):
            config["model_draft"] = os.fspath(draft_model)
        elif draft_model is not None:
            # LlamaPromptLookupDecoding: what the engine does by itself.
            most = getattr(draft_model, "num_pred_tokens", None)
            config["speculative"] = {"n_max": most} if isinstance(most, int) else True
        for key, value in others.items():
            if key in _ENGINE_KEYS:
                config[key] = value
            elif value is None or key in _IGNORED:
                continue
            elif key in _RENAMED:
                config[_RENAMED[key]] = value
            else:
                logger.warning("Llama(%s=...) is unknown and ignored", key)
        self.model_path = os.fspath(model_path)
        self.verbose = verbose
        self.engine = Engine(self.model_path, **config)

    def close(self) -> None:
        """Frees the model."""
        self.engine.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def n_ctx(self) -> int:
        """Tokens of context."""
        return int(self.engine.status()["n_ctx"])

    def reset(self) -> None:
        """Nothing is left of earlier requests anyway, but what makes the next one faster."""

    # Text.

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of a text's tokens."""
        return self.engine.tokenize(text.decode("utf-8", "replace"), add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes:
        """The text of tokens, in UTF-8."""
        if not prev_tokens:
            return self.engine.detokenize(tokens, special=special).encode()
        before = self.engine.detokenize(prev_tokens, special=special).encode()
        return self.engine.detokenize([*prev_tokens, *tokens], special=special).encode()[len(before):]

    def embed(self, input: str | Sequence[str], normalize: bool = False, truncate: bool = True) -> Any:
        """The embedding of a text, or of each of several."""
        if isinstance(input, str):
            return self.engine.embed(input, embd_normalize=2 if normalize else -1)
        return [self.embed(text, normalize, truncate) for text in input]

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Response:
        """The same in OpenAI's shape."""
        texts = [input] if isinstance(input, str) else list(input)
        n_tokens = sum(len(self.engine.tokenize(text)) for text in texts)
        return {
            "object": "list",
            "data": [{"object": "embedding", "embedding": self.embed(text), "index": i} for i, text in enumerate(texts)],
            "model": model or self.model_path,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    # Completions.

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: Stop = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        **request: Any,
    ) -> Any:
        """A completion in OpenAI's shape; with `stream` its chunks, one by one. `request` takes the engine's own keys."""
        _refuse(stopping_criteria=stopping_criteria, logits_processor=logits_processor)
        whole: Dict[str, Any] = {
            **_sampling(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **_grammar(grammar),
            **request,
        }
        if suffix is not None:
            whole.update(input_prefix=prompt, input_suffix=suffix)
            whole["prompt"] = ""
        else:
            whole["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        if logprobs is not None:
            whole["n_probs"] = max(logprobs, 1)
        shown = prompt if isinstance(prompt, str) else self.engine.detokenize(prompt) if echo else ""
        head = _head("cmpl", "text_completion", model or self.model_path)
        running = self.engine.stream(**whole)
        if stream:
            return self._completion_chunks(running, head, shown if echo else "", logprobs is not None)
        answer = running.wait()
        text = (shown if echo else "") + answer.text + (suffix or "" if echo else "")
        return {
            **head,
            "choices": [{
                "text": text,
                "index": 0,
                "logprobs": _logprobs(answer) if logprobs is not None else None,
                "finish_reason": answer.finish_reason,
            }],
            "usage": answer.usage,
        }

    __call__ = create_completion

    def _completion_chunks(self, running: Stream, head: Response, first: str, with_logprobs: bool) -> Iterator[Chunk]:
        def chunk(text: str, logprobs: Any, reason: str | None) -> Chunk:
            choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        with running:
            if first:
                yield chunk(first, None, None)
            for update in running:
                if update.text:
                    yield chunk(update.text, _logprobs(update) if with_logprobs else None, None)
            yield chunk("", None, running.completion.finish_reason)

    def create_chat_completion(
        self,
        messages: Iterable[Mapping[str, Any]],
        functions: Any = None,
        function_call: Any = None,
        tools: Iterable[Tool] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: Stop = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **request: Any,
    ) -> Any:
        """The answer to a conversation in OpenAI's shape; with `stream` its chunks, one by one."""
        _refuse(logits_processor=logits_processor)
        whole: Dict[str, Any] = {
            **_sampling(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **_grammar(grammar),
            **_format(response_format),
            **request,
        }
        if tool_choice is not None:
            whole["tool_choice"] = tool_choice
        if functions is not None:
            whole["functions"] = list(functions)
        if function_call is not None:
            whole["function_call"] = function_call
        if logprobs:
            whole["n_probs"] = max(top_logprobs or 1, 1)
        name = model or self.model_path
        running = self.engine.stream(messages=messages, tools=tools, **whole)
        if stream:
            return self._chat_chunks(running, _head("chatcmpl", "chat.completion.chunk", name), bool(logprobs))
        answer = running.wait()
        return {
            **_head("chatcmpl", "chat.completion", name),
            "choices": [{
                "index": 0,
                "message": answer.message,
                "logprobs": {"content": _chat_logprobs(answer)} if logprobs else None,
                "finish_reason": answer.finish_reason,
            }],
            "usage": answer.usage,
        }

    def _chat_chunks(self, running: Stream, head: Response, with_logprobs: bool) -> Iterator[Chunk]:
        def chunk(delta: Mapping[str, Any], logprobs: Any = None, reason: str | None = None) -> Chunk:
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        with running:
            yield chunk({"role": "assistant"})
            for update in running:
                delta = {key: value for key, value in (update.get("delta") or {}).items() if key != "role"}
                if delta or (with_logprobs and update.get("completion_probabilities")):
                    yield chunk(delta, {"content": _chat_logprobs(update)} if with_logprobs else None)
            yield chunk({}, None, running.completion.finish_reason)


def _head(prefix: str, kind: str, model: str) -> Response:
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}


def _seed(seed: int | None) -> int:
    return -1 if seed is None or seed in (-1, 0xFFFFFFFF) else seed


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not available: the engine samples outside Python")


def _sampling(
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
        request["seed"] = _seed(seed)
    if logit_bias:
        request["logit_bias"] = [[int(token), bias] for token, bias in logit_bias.items()]
    return request


def _grammar(grammar: LlamaGrammar | None) -> Dict[str, Any]:
    if grammar is None:
        return {}
    return {"json_schema": grammar.schema} if grammar.grammar is None else {"grammar": grammar.grammar}


def _format(response_format: Mapping[str, Any] | None) -> Dict[str, Any]:
    if response_format is None or response_format.get("type") == "text":
        return {}
    kind = response_format.get("type")
    if kind == "json_object":
        return {"json_schema": response_format.get("schema") or {"type": "object"}}
    if kind == "json_schema":
        named = response_format.get("json_schema") or response_format
        return {"json_schema": named.get("schema") or {"type": "object"}}
    raise ValueError(f"response_format: expected type text, json_object or json_schema, got {kind!r}")


def _chat_logprobs(answer: Update | Completion) -> list[Any]:
    keys = ("token", "logprob", "bytes", "top_logprobs")
    return [{key: one.get(key) for key in keys} for one in answer.get("completion_probabilities") or ()]


def _logprobs(answer: Update | Completion) -> Dict[str, Any]:
    tokens: list[str] = []
    logprobs: list[Any] = []
    top: list[Dict[str, Any]] = []
    offsets: list[int] = []
    offset = 0
    for one in answer.get("completion_probabilities") or ():
        tokens.append(str(one.get("token")))
        logprobs.append(one.get("logprob"))
        top.append({str(other.get("token")): other.get("logprob") for other in one.get("top_logprobs") or ()})
        offsets.append(offset)
        offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
