"""The configuration of an engine from the arguments of `Llama`."""
from __future__ import annotations

import logging
import os
from typing import Any, Dict, Mapping

from . import _constants as numbers
from ._chat_formats import template_of
from ._llama_request import seed_of

#: The package's own log.
logger = logging.getLogger("foredraft")

#: Arguments, and the engine's names for them.
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
_SPLIT_MODES = {numbers.LLAMA_SPLIT_MODE_NONE: "none", numbers.LLAMA_SPLIT_MODE_LAYER: "layer", numbers.LLAMA_SPLIT_MODE_ROW: "row"}
_POOLING = {
    numbers.LLAMA_POOLING_TYPE_NONE: "none", numbers.LLAMA_POOLING_TYPE_MEAN: "mean", numbers.LLAMA_POOLING_TYPE_CLS: "cls",
    numbers.LLAMA_POOLING_TYPE_LAST: "last", numbers.LLAMA_POOLING_TYPE_RANK: "rank",
}
_ROPE_SCALING = {
    numbers.LLAMA_ROPE_SCALING_TYPE_NONE: "none", numbers.LLAMA_ROPE_SCALING_TYPE_LINEAR: "linear",
    numbers.LLAMA_ROPE_SCALING_TYPE_YARN: "yarn", numbers.LLAMA_ROPE_SCALING_TYPE_LONGROPE: "longrope",
}
_NUMA = {
    numbers.GGML_NUMA_STRATEGY_DISABLED: "disabled", numbers.GGML_NUMA_STRATEGY_DISTRIBUTE: "distribute",
    numbers.GGML_NUMA_STRATEGY_ISOLATE: "isolate", numbers.GGML_NUMA_STRATEGY_NUMACTL: "numactl",
}
_CACHE_TYPES = {
    numbers.GGML_TYPE_F32: "f32", numbers.GGML_TYPE_F16: "f16", numbers.GGML_TYPE_Q4_0: "q4_0", numbers.GGML_TYPE_Q4_1: "q4_1",
    numbers.GGML_TYPE_Q5_0: "q5_0", numbers.GGML_TYPE_Q5_1: "q5_1", numbers.GGML_TYPE_Q8_0: "q8_0", numbers.GGML_TYPE_IQ4_NL: "iq4_nl",
    numbers.GGML_TYPE_BF16: "bf16",
}
#: Why an argument or a function of llama-cpp-python is not there.
REASONS = {
    "scores": "the engine keeps no logits: ask for logprobs",
    "chat_handler": "the engine renders messages itself: use chat_format, or the engine's chat_template",
    "tokenizer": "the engine tokenizes by the model's own vocabulary",
}
#: The engine's own keys, passed on as they are.
_ENGINE_KEYS = {
    "model_draft", "n_parallel", "kv_unified", "speculative", "draft_vocab", "draft_weights", "lookup_cache_static", "lookup_cache_dynamic",
    "n_ctx_draft", "n_gpu_layers_draft", "n_threads_draft", "devices", "devices_draft", "fit", "fit_margin_mb", "fit_ctx", "rpc", "warmup", "cache_type_k",
    "cache_type_v", "ctx_shift", "n_keep", "log_level", "prio", "prio_batch", "cpu_mask", "cpu_range", "cpu_strict", "poll", "frame_budget",
    "max_queue",
}
#: Arguments without effect on completions, or here.
_IGNORED = {
    "last_n_tokens_size", "lora_base", "no_perf", "op_offload", "logits_all", "verbose",
    "attention_type",
}


def config_of(
    n_ctx: int,
    n_gpu_layers: int,
    seed: int,
    split_mode: int | None,
    rope_scaling_type: int | None,
    pooling_type: int | None,
    type_k: int | None,
    type_v: int | None,
    lora_path: str | None,
    lora_scale: float,
    chat_format: str | None,
    numa: bool | int,
    draft_model: Any,
    chat_handler: Any,
    tokenizer: Any,
    others: Mapping[str, Any],
) -> Dict[str, Any]:
    """The engine's configuration from the arguments of `Llama`."""
    # A handler of a template is that template. Others are functions that the engine does not call.
    handled = getattr(chat_handler, "template", None)
    refuse(chat_handler=None if isinstance(handled, str) else chat_handler, tokenizer=tokenizer)
    # As there, a completion without max_tokens ends with the context.
    config: Dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "seed": seed_of(seed), "ctx_shift": False}
    named = {
        "split_mode": (split_mode, _SPLIT_MODES), "rope_scaling": (rope_scaling_type, _ROPE_SCALING),
        "pooling": (pooling_type, _POOLING), "cache_type_k": (type_k, _CACHE_TYPES), "cache_type_v": (type_v, _CACHE_TYPES),
        "numa": (int(numa) or None, _NUMA),
    }
    for key, (number, names) in named.items():
        if number is not None and number != -1:
            if number not in names:
                raise ValueError(f"{key}: expected one of {sorted(names)}, got {number}")
            config[key] = names[number]
    if lora_path:
        config["lora"] = [{"path": lora_path, "scale": lora_scale}]
    if chat_format is not None:
        config["chat_template"] = template_of(chat_format)
    if handled is not None:
        config["chat_template"] = handled
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
    return config


def refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not available: {REASONS[name]}")
