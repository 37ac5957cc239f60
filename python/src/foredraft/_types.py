"""The types of requests and answers."""
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Protocol, Sequence, Type, TypeVar, Union, cast, overload, runtime_checkable

from ._errors import InvalidRequestError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._answers import AssistantMessage, Delta, FinishReason, PromptStats, SpeculationStatistics, StopType, Timings, Usage

# The keys of answers by the types of their values.
TextKey = Literal["content", "model", "stopping_word"]
CountKey = Literal["id", "index", "status", "tokens_predicted", "tokens_evaluated", "tokens_cached"]
FlagKey = Literal["success", "stop", "stopped_eos", "stopped_word", "stopped_limit", "truncated"]
ListKey = Literal["tokens", "sources", "warnings", "completion_probabilities", "prompt_logprobs"]
OtherKey = Literal["id_slot", "prompt", "reasoning_format", "logprobs", "choice", "choices", "session_load", "session_save", "tag", "error", "code"]
CompletionKey = Literal[
    TextKey, CountKey, FlagKey, ListKey, OtherKey, "generation_settings", "message", "finish_reason", "usage", "stop_type", "timings",
    "prompt_stats", "speculative",
]
UpdateKey = Literal[
    "content", "stop", "id", "index", "completion_probabilities", "tokens", "sources", "timings", "prompt_progress", "delta", "logprobs",
    "usage", "tag",
]

Json = Union[None, bool, int, float, str, Sequence[Any], Mapping[str, Any]]
#: A message of a chat: `role` and `content`, and whatever else the chat template knows.
Message = Mapping[str, Any]


@runtime_checkable
class HasSchema(Protocol):
    """A class with a JSON schema: one of pydantic's, or anything shaped like it."""

    def model_json_schema(self) -> Dict[str, Any]: ...


class Parses(Protocol):
    """A class of pydantic's, or anything that makes an object of JSON text as those do."""

    @classmethod
    def model_validate_json(cls, json_data: str, /) -> Self:
        """An object of that text."""


P = TypeVar("P", bound=Parses)

#: A JSON schema: an object, its text, or what has one.
Schema = Union[str, Mapping[str, Any], HasSchema]
#: A tool: OpenAI's object, or what has a schema (its name and docstring describe it).
Tool = Union[Mapping[str, Any], HasSchema]


class Update(Dict[str, Any]):
    """More of a completion: a partial update's fields; `str(update)` is its text."""

    if TYPE_CHECKING:
        # As with a TypedDict, which has no methods of its own, a misspelt key is an error.
        @overload  # type: ignore[override]
        def __getitem__(self, key: Literal["content"], /) -> str: ...
        @overload
        def __getitem__(self, key: Literal["id", "index"], /) -> int: ...
        @overload
        def __getitem__(self, key: Literal["delta"], /) -> Delta: ...
        @overload
        def __getitem__(self, key: Literal["timings"], /) -> Timings: ...
        @overload
        def __getitem__(self, key: UpdateKey, /) -> Any: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def get(self, key: UpdateKey, default: Any = None, /) -> Any: ...  # type: ignore[override]

    @property
    def text(self) -> str:
        """The text that is new."""
        return str(self.get("content") or "")

    @property
    def index(self) -> int:
        """Which of several completions it belongs to."""
        return int(self.get("index") or 0)

    def __str__(self) -> str:
        return self.text


class Completion(Dict[str, Any]):
    """A final response's fields; `str(completion)` is its text."""

    if TYPE_CHECKING:
        @overload  # type: ignore[override]
        def __getitem__(self, key: TextKey, /) -> str: ...
        @overload
        def __getitem__(self, key: CountKey, /) -> int: ...
        @overload
        def __getitem__(self, key: FlagKey, /) -> bool: ...
        @overload
        def __getitem__(self, key: ListKey, /) -> List[Any]: ...
        @overload
        def __getitem__(self, key: Literal["generation_settings"], /) -> Dict[str, Any]: ...
        @overload
        def __getitem__(self, key: Literal["message"], /) -> AssistantMessage: ...
        @overload
        def __getitem__(self, key: Literal["finish_reason"], /) -> Optional[FinishReason]: ...
        @overload
        def __getitem__(self, key: Literal["usage"], /) -> Usage: ...
        @overload
        def __getitem__(self, key: Literal["stop_type"], /) -> StopType: ...
        @overload
        def __getitem__(self, key: Literal["timings"], /) -> Timings: ...
        @overload
        def __getitem__(self, key: Literal["prompt_stats"], /) -> PromptStats: ...
        @overload
        def __getitem__(self, key: Literal["speculative"], /) -> SpeculationStatistics: ...
        @overload
        def __getitem__(self, key: CompletionKey, /) -> Any: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def get(self, key: CompletionKey, default: Any = None, /) -> Any: ...  # type: ignore[override]

    @property
    def text(self) -> str:
        """The completion."""
        return str(self.get("content") or "")

    @property
    def message(self) -> AssistantMessage:
        """The assistant's message, to be appended to the conversation."""
        return cast("AssistantMessage", self.get("message") or {"role": "assistant", "content": self.text})

    @property
    def stop_type(self) -> StopType:
        """Why it ended: `eos`, `word`, `limit`, `timeout`, `cancelled`."""
        return cast("StopType", self.get("stop_type") or "")

    @property
    def finish_reason(self) -> FinishReason:
        """The same in OpenAI's words: `stop`, `length`, `tool_calls`."""
        given = self.get("finish_reason")
        return cast("FinishReason", given) if given else "length" if self.stop_type in ("limit", "timeout") else "stop"

    @property
    def usage(self) -> Usage:
        """How many tokens it took, as OpenAI reports them."""
        if given := self.get("usage"):
            return cast("Usage", given)
        prompt, completion = int(self.get("tokens_evaluated") or 0), int(self.get("tokens_predicted") or 0)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    @property
    def timings(self) -> Timings:
        """Counts of tokens, times, and speeds."""
        return self["timings"]

    @property
    def speculation(self) -> SpeculationStatistics:
        """The statistics of speculation; empty where there was none."""
        return cast("SpeculationStatistics", self.get("speculative") or {})

    @property
    def accept_rate(self) -> float:
        """The share of drafted tokens that were accepted; 0 where nothing was drafted."""
        return self.speculation.get("accept_rate") or 0.0

    @property
    def tokens_per_second(self) -> float:
        """How fast it was generated."""
        return float((self.get("timings") or {}).get("predicted_per_second") or 0)

    def json(self) -> Any:
        """The content as JSON, as with a `schema` it is."""
        return json.loads(self._content)

    def parse(self, schema: Type[P]) -> P:
        """The content as an object of that class of pydantic's."""
        return schema.model_validate_json(self._content)

    @property
    def _content(self) -> str:
        """The text that the user sees, without a chat's reasoning."""
        return str(self.message.get("content") or "")

    def __str__(self) -> str:
        return self.text


def schema_of(schema: Schema) -> Json:
    """A schema as the library takes it."""
    return schema.model_json_schema() if isinstance(schema, HasSchema) else schema


def tool_of(tool: Tool, i: int = 0) -> Mapping[str, Any]:
    """Tool `i` as OpenAI's object."""
    if not isinstance(tool, HasSchema):
        if callable(tool):
            raise InvalidRequestError(
                f'tools[{i}]: expected {{"type": "function", "function": {{"name", "description", "parameters"}}}} or a class of pydantic\'s, '
                f"got {tool!r}: the model needs the JSON schema of a function's arguments")
        return tool
    parameters = dict(tool.model_json_schema())
    name = getattr(tool, "__name__", None) or parameters.get("title") or type(tool).__name__
    function = {"name": name, "parameters": parameters}
    if description := parameters.get("description") or getattr(tool, "__doc__", None):
        function["description"] = description
    return {"type": "function", "function": function}
