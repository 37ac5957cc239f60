"""The keyword arguments of engines and of requests, as types: a type checker knows every key. docs/reference.md describes them."""
from __future__ import annotations

import os
from typing import Any, Iterable, Literal, Mapping, Sequence, TypedDict, Union

from ._logits import Criteria, Processors

Path = Union[str, "os.PathLike[str]"]
#: A path, or an object that says where else the file is: docs/reference.md, "Models from elsewhere".
Model = Union[Path, Mapping[str, Any]]
Prompt = Union[str, Sequence[Union[str, int]]]
Switch = Literal["on", "off", "auto"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
Verify = Literal["coupled", "match", "rejection", "block"]


class SpeculativeOptions(TypedDict, total=False):
    """How to speculate."""

    type: Union[str, Sequence[str]]
    model: Literal["target", "draft"]
    verify: Verify
    adaptive: Union[bool, Literal["heuristic"]]
    compare: bool
    n_max: int
    n_min: int
    n_draft: int
    n_max_text: int
    p_min: float
    p_split: float
    n_branches: int
    lookup_cache_static: Path
    lookup_cache_dynamic: Path
    suffix_depth: int
    suffix_factor: float
    suffix_p_min: float


class FrameBudget(TypedDict):
    """The engine decodes for at most `busy_ms` of each `per_ms` milliseconds."""

    busy_ms: float
    per_ms: float


class EngineOptions(TypedDict, total=False):
    """The options of a load, beside its models."""

    model_alias: str
    chat_template: str
    chat_template_file: Path
    lora: Sequence[Union[Path, Mapping[str, Any]]]
    override_kv: Union[str, Sequence[str], Mapping[str, Union[str, int, float, bool]]]
    check_tensors: bool
    vocab_only: bool
    n_gpu_layers: Union[int, Literal["auto", "all"]]
    n_gpu_layers_draft: Union[int, Literal["auto", "all"]]
    devices: Union[str, Sequence[str]]
    devices_draft: Union[str, Sequence[str]]
    split_mode: Literal["none", "layer", "row", "tensor"]
    main_gpu: int
    tensor_split: Sequence[float]
    n_cpu_moe: Union[int, Literal["all"]]
    n_cpu_moe_draft: Union[int, Literal["all"]]
    override_tensor: Union[str, Sequence[str], Mapping[str, str]]
    override_tensor_draft: Union[str, Sequence[str], Mapping[str, str]]
    fit: Union[bool, Literal["on", "off"]]
    fit_margin_mb: int
    fit_ctx: int
    rpc: Union[str, Sequence[str]]
    rpc_timeout_ms: int
    use_mmap: bool
    repack: bool
    use_mlock: bool
    numa: Union[bool, Literal["disabled", "distribute", "isolate", "numactl"]]
    n_ctx: int
    n_ctx_draft: int
    n_parallel: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    cpu_level: str
    n_threads: int
    n_threads_draft: int
    n_threads_batch: int
    n_threads_batch_draft: int
    flash_attn: Union[bool, Switch]
    cache_type_k: CacheType
    cache_type_v: CacheType
    cache_type_k_draft: CacheType
    cache_type_v_draft: CacheType
    offload_kqv: bool
    swa_full: bool
    rope_freq_base: float
    rope_freq_scale: float
    rope_scaling: Literal["none", "linear", "yarn", "longrope"]
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    ctx_shift: bool
    grp_attn_n: int
    grp_attn_w: int
    embedding: bool
    pooling: Literal["none", "mean", "cls", "last", "rank"]
    reranking: bool
    prio: Union[int, Literal["idle"]]
    prio_batch: Union[int, Literal["idle"]]
    prio_draft: Union[int, Literal["idle"]]
    prio_batch_draft: Union[int, Literal["idle"]]
    cpu_mask: str
    cpu_mask_batch: str
    cpu_mask_draft: str
    cpu_mask_batch_draft: str
    cpu_range: str
    cpu_range_batch: str
    cpu_range_draft: str
    cpu_range_batch_draft: str
    cpu_strict: bool
    cpu_strict_batch: bool
    cpu_strict_draft: bool
    cpu_strict_batch_draft: bool
    poll: int
    poll_batch: int
    poll_draft: int
    poll_batch_draft: int
    frame_budget: Union[Literal[False], FrameBudget]
    seed: int
    n_keep: int
    n_cache_reuse: int
    speculative: Union[bool, SpeculativeOptions]
    lookup_cache_static: Path
    lookup_cache_dynamic: Path
    spm_infill: bool
    n_beams: int
    draft_vocab: int
    draft_weights: Literal["measured", "file", "q8_0", "q4_0"]
    max_queue: int
    cache_ram_mb: int
    cache_dir: Path
    cache_dir_mb: int
    mmproj: Model
    mmproj_weights: Literal["file", "q8_0"]
    image_min_tokens: int
    image_max_tokens: int
    image_cache_mb: int
    isolate: bool
    isolate_path: Path
    isolate_cpus: str
    isolate_nice: int
    memory_mb: int
    fallback: bool
    warmup: bool
    log_level: Union[int, Literal["none", "error", "warn", "info", "debug"]]


class RequestOptions(TypedDict, total=False):
    """The options of a request, beside its prompt or messages, tools and schema."""

    prompts: Sequence[Prompt]
    chat_template: str
    chat_template_kwargs: Mapping[str, Any]
    add_generation_prompt: bool
    parse_special: bool
    on_overflow: Literal["drop_turns", "truncate", "error"]
    input_prefix: str
    input_suffix: str
    input_extra: Sequence[Mapping[str, str]]
    choices: Sequence[Union[str, Mapping[str, Any]]]
    questions: Mapping[str, Mapping[str, Any]]
    state: Any
    temperatures: Mapping[str, float]
    n_predict: int
    max_tokens: int
    max_completion_tokens: int
    tool_choice: Union[str, Mapping[str, Any]]
    parallel_tool_calls: bool
    functions: Sequence[Mapping[str, Any]]
    function_call: Union[str, Mapping[str, Any]]
    response_format: Mapping[str, Any]
    reasoning_format: Literal["auto", "none", "deepseek"]
    reasoning_budget_tokens: int
    reasoning_budget_message: str
    reasoning_budget_start_tag: str
    reasoning_budget_end_tags: Sequence[str]
    continue_final_message: Union[bool, Literal["content", "reasoning_content"]]
    logprobs: bool
    top_logprobs: int
    grammar_lazy: bool
    grammar_triggers: Sequence[Mapping[str, Any]]
    grammar_prefix: str
    preserved_tokens: Sequence[str]
    generation_prompt: str
    timeout_ms: int
    conversation: str
    priority: int
    deadline_ms: int
    t_max_predict_ms: int
    stop: Union[str, Sequence[str]]
    special: bool
    ignore_eos: bool
    grammar: str
    json_schema: Union[str, Mapping[str, Any]]
    schema_in_prompt: Union[bool, str]
    property_order: Literal["schema", "any"]
    additional_properties: bool
    logit_bias: Union[Sequence[Sequence[Any]], Sequence[Mapping[str, Any]], Mapping[str, Union[float, Literal[False]]]]
    seed: int
    n_cmpl: int
    n: int
    n_beams: int
    lora: Sequence[Mapping[str, float]]
    n_keep: int
    ctx_shift: bool
    cache_prompt: bool
    n_cache_reuse: int
    id_slot: int
    session_load: Path
    session_save: Path
    seed_position: int
    n_probs: int
    post_sampling_probs: bool
    prompt_logprobs: int
    return_tokens: bool
    return_progress: bool
    timings_per_token: bool
    response_fields: Sequence[str]
    tag: Any
    stream: bool
    stream_options: Mapping[str, Any]
    model: str
    n_ctx: int
    prediction: Mapping[str, Any]
    speculative: Union[bool, SpeculativeOptions]
    temperature: float
    temp: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    tfs_z: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    adaptive_target: float
    adaptive_decay: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalize_nl: bool
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    samplers: Union[str, Sequence[str]]
    min_keep: int
    logits_callback: bool
    # Python's own.
    logits_processor: Union[Processors, None]
    stopping_criteria: Union[Criteria, None]


class DecisionOptions(TypedDict, total=False):
    """The options of `decide`, beside the state and the questions."""

    messages: Sequence[Mapping[str, Any]]
    prompt: Prompt
    temperatures: Mapping[Literal["choice", "score", "noul"], float]
    chat_template: str
    chat_template_kwargs: Mapping[str, Any]
    on_overflow: Literal["drop_turns", "truncate", "error"]
    timeout_ms: int
    id_slot: int
    cache_prompt: bool
    lora: Sequence[Mapping[str, float]]
    tag: Any


class TemplateOptions(TypedDict, total=False):
    """The options of `apply_template`, beside the messages."""

    add_generation_prompt: bool
    chat_template: str
    chat_template_kwargs: Mapping[str, Any]
    tools: Iterable[Any]


class ConversationOptions(TypedDict, total=False):
    """The options of `conversation`, beside the action and the name."""

    to: str
    turn: int
    token: int
    filename: Path


class LookupCacheOptions(TypedDict, total=False):
    """The options of `lookup_cache`, beside the action."""

    cache: Literal["static", "dynamic"]
    filename: Path
    tokens: Sequence[int]
    n_new: int
    n_draft: int
    ngram_min: int
    ngram_max: int


class LookupText(TypedDict, total=False):
    """The text of `lookup_create` and `lookup_stats`: one of the first three."""

    text: str
    file: Path
    tokens: Sequence[int]


class LookupCreateOptions(LookupText, total=False):
    """The options of `lookup_create`."""

    output: Path
    ngram_min: int
    ngram_max: int


class LookupStatsOptions(LookupText, total=False):
    """The options of `lookup_stats`."""

    n_draft: int
    n_ctx: int
    lookup_cache_static: Path
    lookup_cache_dynamic: Path

