"""llama.cpp in your process, with speculative decoding.

    from foredraft import Engine

    with Engine("target.gguf", model_draft="draft.gguf") as engine:
        for update in engine.stream("Once upon a time", n_predict=200):
            print(update, end="", flush=True)

`Llama` has the interface of llama-cpp-python: code written for that moves by changing its import.
"""
from . import _constants
from ._constants import *  # noqa: F403
from ._answers import (
    AssistantMessage,
    Device,
    Devices,
    ModelInfo,
    PromptStats,
    RankedDocument,
    SlotStatus,
    SpeculationStatistics,
    Status,
    Timings,
    ToolCall,
    Usage,
)
from ._engine import Engine
from ._errors import (
    ContextFullError,
    DataFileNotFoundError,
    DataPermissionError,
    ForedraftError,
    InternalError,
    InvalidEngineError,
    InvalidJsonError,
    InvalidRequestError,
    ModelError,
    ModelFileNotFoundError,
    ModelLoadingError,
    ModelPermissionError,
    NotFoundError,
    NotInitializedError,
    QueueFullError,
    RequestCancelledError,
    ResourceExhaustedError,
    TimedOutError,
    WouldDeadlockError,
)
from ._library import devices, version
from ._llama_state import LlamaCache, LlamaRAMCache, LlamaState
from ._options import EngineOptions, RequestOptions, SpeculativeOptions
from ._stream import Stream
from ._types import Completion, Update
from .llama import Llama, LlamaGrammar

__all__ = [
    "AssistantMessage", "Completion", "ContextFullError", "DataFileNotFoundError", "DataPermissionError", "Device", "Devices", "Engine",
    "EngineOptions", "ForedraftError", "InternalError", "InvalidEngineError", "InvalidJsonError", "InvalidRequestError", "Llama",
    "LlamaCache", "LlamaGrammar", "LlamaRAMCache", "LlamaState", "ModelError", "ModelFileNotFoundError", "ModelInfo",
    "ModelLoadingError", "ModelPermissionError", "NotFoundError", "NotInitializedError", "PromptStats", "QueueFullError",
    "RankedDocument", "RequestCancelledError", "RequestOptions", "ResourceExhaustedError", "SlotStatus", "SpeculationStatistics",
    "SpeculativeOptions", "Status", "Stream", "TimedOutError", "Timings", "ToolCall", "Update", "Usage", "WouldDeadlockError",
    "devices", "version",
]
__all__ += _constants.__all__
