"""llama.cpp in your process, with speculative decoding.

    from foredraft import Engine

    with Engine("target.gguf", model_draft="draft.gguf") as engine:
        for update in engine.stream("Once upon a time", n_predict=200):
            print(update, end="", flush=True)

The package foredraft-llama-cpp has the interface of llama-cpp-python, for code that was written for that.
"""
from ._answers import (
    AssistantMessage,
    ConversationInfo,
    Device,
    Devices,
    FinishReason,
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
from ._decisions import Answer, Question
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
from ._hub import download
from ._library import devices, version
from ._media import picture, sound
from ._options import EngineOptions, RequestOptions, SpeculativeOptions
from ._stream import Stream
from ._types import Completion, Update

__version__: str


def __getattr__(name: str) -> str:
    # The library is loaded when it is first needed.
    if name == "__version__":
        return version()
    if name == "llama_cpp" or name.startswith(("Llama", "LLAMA_", "GGML_")):
        raise AttributeError(f"foredraft has no {name!r}: llama-cpp-python's interface is the package foredraft-llama-cpp (import foredraft_llama_cpp)")
    raise AttributeError(f"module 'foredraft' has no attribute {name!r}")


__all__ = [
    "Answer", "AssistantMessage", "Completion", "ContextFullError", "ConversationInfo", "DataFileNotFoundError", "DataPermissionError", "Device",
    "Devices", "Engine", "EngineOptions", "FinishReason", "ForedraftError", "InternalError", "InvalidEngineError", "InvalidJsonError",
    "InvalidRequestError", "ModelError", "ModelFileNotFoundError", "ModelInfo", "ModelLoadingError", "ModelPermissionError",
    "NotFoundError", "NotInitializedError", "PromptStats", "Question", "QueueFullError", "RankedDocument", "RequestCancelledError",
    "RequestOptions", "ResourceExhaustedError", "SlotStatus", "SpeculationStatistics", "SpeculativeOptions", "Status", "Stream",
    "TimedOutError", "Timings", "ToolCall", "Update", "Usage", "WouldDeadlockError", "devices", "download",
    "picture", "sound", "version",
]
