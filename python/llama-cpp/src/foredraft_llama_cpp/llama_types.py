"""The types of requests and answers."""
from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

from foredraft import AssistantMessage, FinishReason, ToolCall, Usage

JsonType = Union[None, int, str, bool, List[Any], Dict[str, Any]]
#: A message of a conversation, with all that the chat template knows. (It can be called, as there.)
ChatCompletionRequestMessage = dict[str, Any]
ChatCompletionRequestSystemMessage = ChatCompletionRequestMessage
ChatCompletionRequestUserMessage = ChatCompletionRequestMessage
ChatCompletionRequestAssistantMessage = ChatCompletionRequestMessage
ChatCompletionRequestToolMessage = ChatCompletionRequestMessage
ChatCompletionRequestFunctionMessage = ChatCompletionRequestMessage
ChatCompletionRequestMessageContentPart = Dict[str, Any]
ChatCompletionStreamResponseDelta = Dict[str, Any]
ChatCompletionStreamResponseDeltaEmpty = Dict[str, Any]
ChatCompletionTool = Dict[str, Any]
ChatCompletionToolChoiceOption = Union[Literal["none", "auto", "required"], Dict[str, Any]]
ChatCompletionResponseMessage = AssistantMessage
ChatCompletionMessageToolCall = ToolCall
CompletionUsage = Usage


class ChatCompletionRequestResponseFormat(TypedDict, total=False):
    """The form of the answer: a text, JSON, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    schema: JsonType
    json_schema: Dict[str, Any]


class CompletionLogprobs(TypedDict):
    """Tokens with their probabilities."""

    tokens: List[str]
    token_logprobs: List[Optional[float]]
    top_logprobs: List[Optional[Dict[str, float]]]
    text_offset: List[int]


class CompletionChoice(TypedDict):
    """One of the completions."""

    text: str
    index: int
    logprobs: Optional[CompletionLogprobs]
    finish_reason: Optional[FinishReason]


class CreateCompletionStreamResponse(TypedDict):
    """A chunk of a completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: List[CompletionChoice]


class CreateCompletionResponse(CreateCompletionStreamResponse):
    """A completion."""

    usage: Usage


class ChatCompletionResponseChoice(TypedDict):
    """One of the answers."""

    index: int
    message: AssistantMessage
    logprobs: Optional[Dict[str, Any]]
    finish_reason: Optional[FinishReason]


class CreateChatCompletionResponse(TypedDict):
    """The answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: List[ChatCompletionResponseChoice]
    usage: Usage


class ChatCompletionStreamResponseChoice(TypedDict):
    """A piece of one of the answers."""

    index: int
    delta: ChatCompletionStreamResponseDelta
    logprobs: Optional[Dict[str, Any]]
    finish_reason: Optional[FinishReason]


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of the answer to a conversation."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: List[ChatCompletionStreamResponseChoice]


class Embedding(TypedDict):
    """An embedding of one of the texts."""

    index: int
    object: Literal["embedding"]
    embedding: List[float]


class EmbeddingUsage(TypedDict):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class CreateEmbeddingResponse(TypedDict):
    """Embeddings."""

    object: Literal["list"]
    model: str
    data: List[Embedding]
    usage: EmbeddingUsage


#: llama-cpp-python's older names.
Completion = CreateCompletionResponse
CompletionChunk = CreateCompletionStreamResponse
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChunk = CreateChatCompletionStreamResponse
ChatCompletionMessage = ChatCompletionRequestMessage


__all__ = [
    "ChatCompletion", "ChatCompletionChunk", "ChatCompletionMessage", "ChatCompletionMessageToolCall",
    "ChatCompletionRequestAssistantMessage", "ChatCompletionRequestFunctionMessage", "ChatCompletionRequestMessage",
    "ChatCompletionRequestMessageContentPart", "ChatCompletionRequestResponseFormat", "ChatCompletionRequestSystemMessage",
    "ChatCompletionRequestToolMessage", "ChatCompletionRequestUserMessage", "ChatCompletionResponseChoice",
    "ChatCompletionResponseMessage", "ChatCompletionStreamResponseChoice", "ChatCompletionStreamResponseDelta",
    "ChatCompletionStreamResponseDeltaEmpty", "ChatCompletionTool", "ChatCompletionToolChoiceOption", "Completion", "CompletionChoice",
    "CompletionChunk", "CompletionLogprobs", "CompletionUsage", "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse", "CreateCompletionStreamResponse", "CreateEmbeddingResponse", "Embedding", "EmbeddingUsage", "JsonType",
]
