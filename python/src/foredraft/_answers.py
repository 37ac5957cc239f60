"""The library's answers as types: a type checker knows every field. docs/reference.md describes them."""
from __future__ import annotations

from typing import Any, Dict, List, Literal, Mapping, Optional, TypedDict, Union

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
StopType = Literal["eos", "word", "limit", "timeout", "cancelled", "error", ""]


class FunctionCall(TypedDict):
    """A function that the model calls; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessageParts(TypedDict, total=False):
    """The keys that an `AssistantMessage` can have."""

    reasoning_content: str
    tool_calls: List[ToolCall]
    function_call: FunctionCall


class AssistantMessage(AssistantMessageParts):
    """A message that the engine has answered. It can be appended to the conversation as it is. `content` is empty where the answer is
    nothing but calls."""

    role: Literal["assistant"]
    content: str


class CallDelta(TypedDict, total=False):
    """A piece of a call; `id` and the name are in its first one."""

    index: int
    id: str
    type: Literal["function"]
    function: Dict[str, str]


class Delta(TypedDict, total=False):
    """A piece of an `AssistantMessage`."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: List[CallDelta]
    function_call: Dict[str, str]


class PromptTokensDetails(TypedDict):
    """A part of `Usage`."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """A part of `Usage`."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageDetails(TypedDict, total=False):
    """The parts of `Usage`."""

    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Usage(UsageDetails):
    """How many tokens a completion took, as OpenAI reports them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ConversationInfo(TypedDict):
    """A conversation of an engine: where its state is, and how long it is."""

    conversation: str
    place: Literal["slot", "preempted", "memory", "disk"]
    id_slot: int | None
    n_tokens: int
    n_turns: int
    bytes: int
    pinned: bool
    running: bool


class RankedDocument(TypedDict):
    """A document of `rerank`: its index among the given ones, and its score, which is larger for a better answer."""

    index: int
    relevance_score: float


class DraftTimings(TypedDict, total=False):
    """The keys that `Timings` has with speculation, or with a deadline."""

    draft_n: int
    draft_n_accepted: int
    deadline_missed_ms: float


class Timings(DraftTimings):
    """Counts of tokens, times, and speeds."""

    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    cache_n: int
    preempted_n: int
    begun_n: int


class SpeculationStatistics(TypedDict, total=False):
    """The statistics of speculation."""

    type: str
    verify: Optional[Literal["coupled", "match", "rejection", "block"]]
    n_drafted: int
    n_accepted: int
    accept_rate: float
    n_steps: int
    tokens_per_step: float
    accepted_per_position: List[int]
    by_type: Dict[str, Dict[str, int]]
    t_draft_ms: float
    t_verify_ms: float
    n_max_final: int
    disabled: str
    first_difference: Optional[int]
    first_difference_logit_gap: Optional[float]
    compare_skipped: str


class SlotStatus(TypedDict):
    """A slot: what it does, for which request, and how many tokens its cache has."""

    id: int
    state: Literal["idle", "prompt", "generating"]
    request_id: Optional[int]
    n_past: int


class DeviceUse(TypedDict):
    """A model's layers and bytes on a device."""

    n_layers: int
    output: bool
    weights: int
    kv_cache: int
    compute: int


class Device(TypedDict):
    """A device that models can be computed on. Memory is in bytes."""

    name: str
    description: str
    type: str
    memory_free: int
    memory_total: int


class BackendModule(TypedDict):
    """A file with a backend of GPUs: whether it was found and is used, or why not."""

    path: str
    found: bool
    loaded: bool
    error: Optional[str]


class Processor(TypedDict):
    """The processor: its levels of instructions, the cores that this process may use, and the memory in bytes."""

    level: str
    levels: List[str]
    cores: int
    memory_total: int
    memory_free: int


class Devices(TypedDict):
    """What a load can use."""

    devices: List[Device]
    modules: List[BackendModule]
    cpu: Processor


class DeviceInUse(Device):
    """A device, and what the models have on it."""

    target: Optional[DeviceUse]
    draft: Optional[DeviceUse]


class DeviceFit(TypedDict):
    """What `fit` knows of a device, in bytes: what may be used, and the estimates of what was asked for and of the choice."""

    name: str
    limit: int
    asked: Optional[int]
    needed: Optional[int]


class Fit(TypedDict):
    """The values that `fit` has chosen, and why."""

    devices: List[DeviceFit]
    n_cpu_moe: int
    n_gpu_layers: int
    n_gpu_layers_draft: Optional[int]
    n_ctx: int
    reduced: bool
    fits: bool


class LookupProgress(TypedDict):
    """How far a lookup function is, 0 to 1."""

    function: str
    step: str
    progress: float


class IsolationStatus(TypedDict, total=False):
    """The key that `Status` has for an isolated engine."""

    isolation: Dict[str, Any]


class Status(IsolationStatus):
    """An engine's state, and the models that it has loaded."""

    success: bool
    load_state: Literal[-1, 0, 1]
    init_success: Literal[-1, 0, 1]
    state: Literal["uninitialized", "loading", "ready", "failed"]
    progress: float
    error: Optional[str]
    code: Optional[str]
    status: Optional[int]
    missing_file: Optional[str]
    denied_file: Optional[str]
    model: str
    model_alias: str
    model_draft: str
    model_description: Optional[str]
    model_size: int
    model_n_params: int
    n_ctx: int
    n_ctx_train: int
    n_rollback: Optional[int]
    n_parallel: int
    slots: List[SlotStatus]
    queue: int
    queue_order: List[int]
    conversations: Mapping[str, int]
    vocab_only: bool
    draft: Optional[Mapping[str, Any]]
    attention: Optional[Mapping[str, Any]]
    mmproj: Optional[Mapping[str, Any]]
    self_check: Optional[Mapping[str, bool]]
    cpu: Optional[Mapping[str, Any]]
    n_threads_now: int
    paused: bool
    pending_panel_bytes: int
    devices: List[DeviceInUse]
    fit: Optional[Fit]
    lookups: List[LookupProgress]
    system_info: Optional[str]
    warnings: List[str]
    llama_cpp: str
    version: str


class ModelInfo(TypedDict):
    """The metadata of a model's file."""

    success: bool
    description: str
    size: int
    n_params: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_vocab: int
    vocab_type: str
    bos: Optional[int]
    eos: Optional[int]
    eot: Optional[int]
    newline: Optional[int]
    eog: List[int]
    add_bos: bool
    add_eos: bool
    chat_template: Optional[str]
    metadata: Dict[str, str]


class PromptStats(TypedDict, total=False):
    """The statistics of a prompt."""

    n_ctx: int
    total_prompt_tokens: int
    truncated: bool
    n_past: int
    n_cached: int
    n_to_eval: int
    dropped_messages: int
    cached: str
    to_eval: str
    pending: bool


#: The statistics of one prompt, or a list of them for several.
PromptStatsOfAll = Union[PromptStats, List[PromptStats], None]
