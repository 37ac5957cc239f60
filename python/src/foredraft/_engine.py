"""An engine: the models, and what is asked of them."""
from __future__ import annotations

import asyncio
import importlib
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Literal, Mapping, TypeVar, Union, cast, overload

from . import _decisions, _library
from ._decisions import Answer, GivenQuestion, Question
from ._hub import download, is_remote
from ._errors import ForedraftError, InvalidEngineError, InvalidRequestError, RequestCancelledError, TimedOutError, error_from
from ._logits import LogitsHook, LogitsHooks
from ._notify import Notifier
from ._options import Model, Path, Prompt
from ._stream import Stream
from ._types import Completion, Json, Message, Schema, Tool, schema_of, tool_of

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._answers import ConversationInfo, ModelInfo, RankedDocument, Status
    from ._options import (
        ConversationOptions, DecisionOptions, EngineOptions, LookupCacheOptions, LookupCreateOptions, LookupStatsOptions, RequestOptions, TemplateOptions,
    )

T = TypeVar("T")

#: Seconds between two looks at a load.
_LOOK = 0.02
#: The keys by which a request says when it ends.
_LIMITS = {"n_predict", "max_tokens", "max_completion_tokens", "ctx_shift"}

#: Gets the progress of a load, 0 to 1. `True`: a bar by tqdm, where that is installed.
Progress = Union[bool, Callable[[float], None]]


def _source(model: Model) -> Json:
    return model if isinstance(model, Mapping) else os.fspath(model)


def _found(model: Model, model_draft: Model | None, progress: Progress, stop: Callable[[], object]) -> tuple[Model, Model | None]:
    """The models, after a download of those that are `hf:owner/name[:quant]` or an address. A drafter beside a target is its draft."""
    show = _shown(progress, "download")

    def receive(path: str, done: int, size: int) -> None:
        stop()
        show(done / size)

    try:
        if isinstance(model, str) and is_remote(model):
            found = download(model, receive=receive, beside=("model_draft",) if model_draft is None else ())
            model, model_draft = found["model"], found.get("model_draft", model_draft)
        if isinstance(model_draft, str) and is_remote(model_draft):
            model_draft = download(model_draft, receive=receive, beside=())["model"]
    finally:
        show.close()
    return model, model_draft


def _messages(messages: Iterable[Message]) -> Json:
    """Messages as a list. The library says what is wrong with anything else."""
    return messages if isinstance(messages, (str, Mapping)) else list(messages)


def _whole(
    request: dict[str, Any],
    prompt: Prompt | None,
    messages: Iterable[Message] | None,
    tools: Iterable[Tool] | None,
    schema: Schema | None,
) -> dict[str, Any]:
    """A request as the library takes it."""
    # A full context would shift, and the completion might never end.
    if not _LIMITS & request.keys():
        request["ctx_shift"] = False
    if prompt is not None:
        request["prompt"] = prompt
    if messages is not None:
        request["messages"] = _messages(messages)
    if tools is not None:
        request["tools"] = [tool_of(tool, i) for i, tool in enumerate(tools)]
    if schema is not None:
        request["json_schema"] = schema_of(schema)
        if messages is not None:
            request.setdefault("schema_in_prompt", True)
    return request


class Engine:
    """Models and the threads that run them. Engines are independent of each other, and usable from all threads.

        with Engine("target.gguf", model_draft="draft.gguf", n_ctx=4096) as engine:
            for update in engine.stream("Once upon a time", n_predict=200):
                print(update, end="", flush=True)

    A model `hf:owner/name:Q4_K_M`, or the address of one, is downloaded first: see docs/models.md.
    `config` takes every key of `foredraft_load` in docs/reference.md. Without a `model` none is loaded until `load`."""

    def __init__(
        self,
        model: Model | None = None,
        *,
        model_draft: Model | None = None,
        progress: Progress = False,
        **config: Unpack[EngineOptions],
    ) -> None:
        self._handle: int | None = None
        self._notifier = Notifier()
        self._logits = LogitsHooks()
        self._handle = _library.new_engine(self, (self._notifier.pipe, self._logits.callback))
        if model is not None:
            try:
                self.load(model, model_draft=model_draft, progress=progress, **config)
            except BaseException:
                self.close()
                raise

    @classmethod
    async def create(
        cls,
        model: Model,
        *,
        model_draft: Model | None = None,
        progress: Progress = False,
        **config: Unpack[EngineOptions],
    ) -> Self:
        """An engine with a model, loaded without blocking the event loop."""
        engine = cls()
        try:
            await engine.load_async(model, model_draft=model_draft, progress=progress, **config)
        except BaseException:
            engine.close()
            raise
        return engine

    # Life.

    def load(
        self,
        model: Model,
        *,
        model_draft: Model | None = None,
        progress: Progress = False,
        **config: Unpack[EngineOptions],
    ) -> None:
        """Loads the models in place of what is loaded, and waits for it. Ctrl-C ends the load."""
        model, model_draft = _found(model, model_draft, progress, lambda: None)
        show = _shown(progress)
        self._begin_load(model, model_draft, config)
        try:
            while not self._is_loaded(show):
                time.sleep(_LOOK)
        except BaseException:
            self._unload()
            raise
        finally:
            show.close()

    async def load_async(
        self,
        model: Model,
        *,
        model_draft: Model | None = None,
        progress: Progress = False,
        **config: Unpack[EngineOptions],
    ) -> None:
        """The same without blocking the event loop. Cancelling the task ends the load."""
        if is_remote(model) or is_remote(model_draft):
            with _Stop() as stop:
                model, model_draft = await asyncio.to_thread(_found, model, model_draft, progress, stop.check)
        show = _shown(progress)
        self._begin_load(model, model_draft, config)
        try:
            while not self._is_loaded(show):
                await asyncio.sleep(_LOOK)
        except BaseException:
            self._unload()
            raise
        finally:
            show.close()

    def _begin_load(self, model: Model, model_draft: Model | None, config: Mapping[str, Any]) -> None:
        whole = {"model": _source(model), **config, **self._notifier.config}
        if model_draft is not None:
            whole["model_draft"] = _source(model_draft)
        _library.check_process()
        _library.library().foredraft_load_async(self._open_handle(), _library.encode(whole))

    def _is_loaded(self, show: _Shown) -> bool:
        status = self.status()
        state = status["state"]
        if state == "loading":
            show(float(status.get("progress") or 0))
            return False
        if state == "failed":
            raise error_from(status)
        if state != "ready":
            raise RequestCancelledError("the load was ended by another load or unload")
        show(1.0)
        return True

    def _unload(self) -> None:
        if self._handle is not None and not _library.is_foreign():
            _library.library().foredraft_unload(self._handle)

    def unload(self) -> None:
        """Ends what runs and frees the models; `load` may follow."""
        _library.check_process()
        self._open_handle()
        self._unload()

    def pause(self) -> None:
        """Lets the engine's threads sleep, also in the middle of a decode, until as many calls of `resume` have followed. Returns at
        once. Requests wait meanwhile; they can be cancelled, and the engine can be closed."""
        _library.check_process()
        if code := _library.library().foredraft_pause(self._open_handle()):
            raise ForedraftError(f"foredraft_pause returned {code}")

    def resume(self) -> None:
        """Ends a pause. After the last one the threads go on where they were."""
        _library.check_process()
        if _library.library().foredraft_resume(self._open_handle()):
            raise InvalidRequestError("resume: the engine is not paused")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block during which the engine is paused."""
        self.pause()
        try:
            yield
        finally:
            if not self.closed:
                self.resume()

    def close(self) -> None:
        """Ends what runs, and the engine with it. Harmless at any time."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _library.free_engine(handle)
            self._notifier.close()

    @property
    def closed(self) -> bool:
        """True once the engine was closed."""
        return self._handle is None

    def status(self) -> Status:
        """The engine's status: `state`, `progress`, `slots`, `queue`, `devices`, ... Never waits."""
        return cast("Status", _library.status(self._open_handle()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            _library.drop_engine(handle)

    def _open_handle(self) -> int:
        if self._handle is None:
            _library.park_if_ending()
            raise InvalidEngineError("the engine is closed")
        return self._handle

    def _call(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return _library.call(name, self._open_handle(), request)

    def _submit(self, request: Mapping[str, Any], hook: LogitsHook | None) -> dict[str, Any]:
        if hook is None:
            return self._call("submit", request)
        _library.check_process()
        return self._logits.submit(self._open_handle(), hook, _library.encode(request))

    def _wait(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Calls what waits for the engine, or works for long."""
        return _library.interruptible(lambda: self._call(name, request))

    # Completions.

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        **request: Unpack[RequestOptions],
    ) -> Stream:
        """Begins a completion of a prompt or of a chat, and returns its updates for a loop (`for` or `async for`). The request takes
        every key of docs/reference.md; `schema` is a `json_schema`, or what has one, which
        the model of a chat sees (`schema_in_prompt`). Without `n_predict` it ends at the latest when
        the context is full. `logits_processor` and `stopping_criteria` are functions, or lists of them, that the engine's thread calls
        before each token: see the README."""
        whole: dict[str, Any] = dict(request)
        hook = LogitsHook.of(whole.pop("logits_processor", None), whole.pop("stopping_criteria", None))
        if hook is not None:
            whole["logits_callback"] = True
            several = "prompts" in whole or (whole.get("n_cmpl") or whole.get("n") or 1) > 1
            if several and hook.has_criteria:
                raise ValueError("stopping_criteria: expected one completion, got several, which would all end")
        return Stream(self, _whole(whole, prompt, messages, tools, schema), hook)

    def prepare(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        begin: bool = False,
        **request: Unpack[RequestOptions],
    ) -> int:
        """Prepares a request that may come, in its `conversation=`: while no request runs, its prompt is decoded, and with `begin` the answer
        is begun. The next request of the conversation takes over what fits. Returns at once, with the id of the preparation."""
        whole = _whole(dict(request), prompt, messages, tools, schema)
        return int(self._call("prepare", {**whole, "begin": begin})["id"])

    def complete(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        **request: Unpack[RequestOptions],
    ) -> Completion:
        """A completion of a prompt; takes what `stream` takes. Ctrl-C cancels it."""
        return self.stream(prompt, messages=messages, tools=tools, schema=schema, **request).wait()

    async def complete_async(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        **request: Unpack[RequestOptions],
    ) -> Completion:
        """The same without blocking the event loop. Cancelling the task cancels it."""
        return await self.stream(prompt, messages=messages, tools=tools, schema=schema, **request).wait_async()

    def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        **request: Unpack[RequestOptions],
    ) -> Completion:
        """The answer to a conversation; its `message` continues it."""
        return self.stream(None, messages=messages, tools=tools, schema=schema, **request).wait()

    async def chat_async(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[Tool] | None = None,
        schema: Schema | None = None,
        **request: Unpack[RequestOptions],
    ) -> Completion:
        """The same without blocking the event loop."""
        return await self.stream(None, messages=messages, tools=tools, schema=schema, **request).wait_async()

    # Text.

    def tokenize(self, text: Prompt, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text's tokens."""
        request = {"text": text, "add_special": add_special, "parse_special": parse_special}
        return [int(token) for token in self._call("tokenize", request)["ids"]]

    def detokenize(self, tokens: Iterable[int], *, special: bool = True) -> str:
        """The text of tokens; U+FFFD where they are not whole characters."""
        return str(self._call("detokenize", {"tokens": list(tokens), "special": special})["content"])

    def detokenize_bytes(self, tokens: Iterable[int], *, special: bool = True) -> bytes:
        """The text of tokens in UTF-8, exactly, also where they are not whole characters."""
        answer = self._call("detokenize", {"tokens": list(tokens), "special": special})
        return bytes(answer["bytes"]) if "bytes" in answer else str(answer["content"]).encode()

    def model_info(self, *, model: Literal["target", "draft"] = "target") -> ModelInfo:
        """The metadata of a model's file: `n_vocab`, `n_embd`, the ids of special tokens, `chat_template`, `metadata`."""
        return cast("ModelInfo", self._call("model_info", {"model": model}))

    def apply_template(self, messages: Iterable[Message], **request: Unpack[TemplateOptions]) -> str:
        """The prompt that the model's chat template makes of a conversation."""
        return str(self._call("apply_template", {"messages": _messages(messages), **request})["prompt"])

    def embed(self, text: Prompt, *, embd_normalize: int = 2, truncate: bool = False) -> list[float]:
        """The embedding of a text; the model must be loaded with `embedding=True`. A text that is too long is an error, or loses its end."""
        answer = self._wait("embed", {"content": text, "embd_normalize": embd_normalize, "truncate": truncate})
        return [float(x) for x in answer["embedding"]]

    def embed_many(self, texts: Iterable[str], *, embd_normalize: int = 2, truncate: bool = False) -> list[list[float]]:
        """The embedding of each text, as `embed` would give it alone. They are computed together, which takes less time."""
        return self._embed_many(texts, embd_normalize, truncate)[0]

    def embed_tokens(self, text: Prompt, *, embd_normalize: int = 2, truncate: bool = False) -> list[list[float]]:
        """The embedding of each token of a text."""
        request = {"content": text, "of_tokens": True, "embd_normalize": embd_normalize, "truncate": truncate}
        return [[float(x) for x in vector] for vector in self._wait("embed", request)["embedding"]]

    def _embed_many(self, texts: Iterable[str], embd_normalize: int, truncate: bool) -> tuple[list[list[float]], int]:
        """The same as `embed_many`, and of how many tokens all were made."""
        given = list(texts)
        if not given:
            return [], 0
        answer = self._wait("embed", {"input": given, "embd_normalize": embd_normalize, "truncate": truncate})
        return [[float(x) for x in entry["embedding"]] for entry in answer["data"]], int(answer["usage"]["prompt_tokens"])

    def rerank(
        self, query: str, documents: Iterable[str], *, top_n: int | None = None, truncate: bool = False
    ) -> list[RankedDocument]:
        """How well each document answers a query, the best first; at most `top_n`. The model must have a classifier, and be loaded with
        `reranking=True`. A document that is too long is an error, or loses its end."""
        request = {"query": query, "documents": list(documents), "top_n": top_n, "truncate": truncate}
        return cast("list[RankedDocument]", self._wait("rerank", request)["results"])

    @overload
    def decide(self, state: Json, questions: Question[T], **request: Unpack[DecisionOptions]) -> Answer[T]: ...
    @overload
    def decide(self, state: Json, questions: Mapping[str, Question[T]], **request: Unpack[DecisionOptions]) -> dict[str, Answer[T]]: ...
    @overload
    def decide(self, state: Json, questions: Mapping[str, GivenQuestion], **request: Unpack[DecisionOptions]) -> dict[str, Any]: ...
    def decide(self, state: Any, questions: Any, **request: Any) -> Any:
        """The answers to questions about a state: one `Question`, or several by name. Each has the bits that it has alone. The state is any
        JSON; `messages=` or `prompt=` stand for it if it is `None`. A question can be an object as the library takes it; then its answer is
        as the library gives it."""
        whole = {**request, "questions": _decisions.given(questions)}
        if state is not None:
            whole["state"] = state
        answer = self._wait("decide", whole)
        if answer["stop_type"] == "timeout":
            raise TimedOutError("timeout_ms: passed before the decision was made")
        if answer["stop_type"] != "eos":
            raise RequestCancelledError("the decision was cancelled")
        return _decisions.read(questions, answer["answers"])

    # Sessions and n-gram caches.

    def session_save(self, filename: Path, *, id_slot: int = 0, timeout_ms: int = 0) -> dict[str, Any]:
        """Saves what a slot holds. Waits while the slot is busy, at most `timeout_ms`; 0: without limit."""
        return self._wait("session_save", {"filename": os.fspath(filename), "id_slot": id_slot, "timeout_ms": timeout_ms})

    def session_load(self, filename: Path, *, id_slot: int = 0, timeout_ms: int = 0) -> dict[str, Any]:
        """Puts a saved session into a slot. Waits while the slot is busy, at most `timeout_ms`; 0: without limit."""
        return self._wait("session_load", {"filename": os.fspath(filename), "id_slot": id_slot, "timeout_ms": timeout_ms})

    def session_erase(self, *, id_slot: int = 0, timeout_ms: int = 0) -> dict[str, Any]:
        """Empties a slot's cache. Waits while the slot is busy, at most `timeout_ms`; 0: without limit."""
        return self._wait("session_erase", {"id_slot": id_slot, "timeout_ms": timeout_ms})

    def conversations(self) -> list[ConversationInfo]:
        """The conversations that requests have by name, in the order of their names."""
        return cast("list[ConversationInfo]", self._wait("conversation", {"action": "list"})["conversations"])

    def conversation(self, action: str, conversation: str, **request: Unpack[ConversationOptions]) -> ConversationInfo:
        """Does something with a conversation: `drop`, `fork` (`to`), `pin`, `unpin`, `rewind` (to the end of a `turn`, or to so many tokens,
        `token`), `save` and `load` (`filename`). Returns what it, or the fork, is afterwards."""
        whole = {"action": action, "conversation": conversation, **request}
        if "filename" in request:
            whole["filename"] = os.fspath(request["filename"])
        answer = self._wait("conversation", whole)
        return cast("ConversationInfo", answer)

    def lookup_cache(self, action: str, **request: Unpack[LookupCacheOptions]) -> dict[str, Any]:
        """Works on an n-gram cache of the engine while it serves."""
        return self._call("lookup_cache", {"action": action, **request})

    def lookup_create(self, **request: Unpack[LookupCreateOptions]) -> dict[str, Any]:
        """Makes an n-gram cache of a text."""
        return self._wait("lookup_create", request)

    def lookup_merge(self, inputs: Iterable[Path], output: Path) -> dict[str, Any]:
        """Adds n-gram caches up."""
        return self._wait("lookup_merge", {"inputs": [os.fspath(path) for path in inputs], "output": os.fspath(output)})

    def lookup_stats(self, **request: Unpack[LookupStatsOptions]) -> dict[str, Any]:
        """How well a text is drafted from n-gram caches."""
        return self._wait("lookup_stats", request)


class _Shown:
    """Shows how far a load is."""

    def __call__(self, done: float) -> None:
        """It is so far, 0 to 1."""

    def close(self) -> None:
        """It has ended."""


class _Told(_Shown):
    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._last: float | None = None

    def __call__(self, done: float) -> None:
        if done != self._last:
            self._last = done
            self._tell(done)


class _Bar(_Shown):
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, done: float) -> None:
        self._bar.update(round(100 * done) - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Stop:
    """Ends the work of another thread at its next step, when the block ends."""

    def __init__(self) -> None:
        self._has_ended = False

    def check(self) -> None:
        if self._has_ended:
            raise RequestCancelledError("the task was cancelled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True


def _shown(progress: Progress, what: str = "load") -> _Shown:
    if callable(progress):
        return _Told(progress)
    if progress:
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            return _Shown()
        return _Bar(tqdm(total=100, desc=what, unit="%"))
    return _Shown()
