"""A language model and embeddings for LlamaIndex (package `llama-index-core`, version 0.14), in this process:

    from foredraft import Engine
    from llama_index.core import Settings
    from llama_index_foredraft import ForedraftEmbedding, ForedraftLLM  # this file under that name

    engine = Engine("target.gguf", model_draft="draft.gguf", embedding=True)
    Settings.llm = ForedraftLLM(engine, max_tokens=200)
    Settings.embed_model = ForedraftEmbedding(engine)

Copy the file into your project, under a name other than `llama_index`: it needs no package but the two above.
"""
import asyncio
import json

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection


def _given(message):
    """A message of LlamaIndex as the engine's."""
    calls, texts = [], []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            arguments = block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs)
            calls.append({"id": block.tool_call_id, "type": "function", "function": {"name": block.tool_name, "arguments": arguments}})
        elif isinstance(block, TextBlock):
            texts.append(block.text)
        else:
            raise ValueError(f"the engine reads text only, got a part of the type {block.block_type}")
    given = {"role": message.role.value, "content": "".join(texts)}
    if calls:
        given["tool_calls"] = calls
    if "tool_call_id" in message.additional_kwargs:
        given["tool_call_id"] = message.additional_kwargs["tool_call_id"]
    return given


def _taken(message):
    """The engine's message as one of LlamaIndex."""
    calls = [
        ToolCallBlock(tool_call_id=call["id"], tool_name=call["function"]["name"], tool_kwargs=json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text=message.get("content") or ""), *calls])


def _joined(updates):
    """The text so far and the update, for each update."""
    text = ""
    for update in updates:
        text += update.text
        yield text, update


async def _joined_async(updates):
    text = ""
    async for update in updates:
        text += update.text
        yield text, update


def _completed(completion):
    return CompletionResponse(text=completion.text, raw=dict(completion))


def _partly_completed(text, update):
    return CompletionResponse(text=text, delta=update.text, raw=dict(update))


def _answered(completion):
    return ChatResponse(message=_taken(completion.message), raw=dict(completion))


def _partly_answered(text, update):
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=update.text, raw=dict(update))


def _last(completion):
    """The whole message, with its calls, after the last update."""
    response = _answered(completion)
    response.delta = ""
    return response


class ForedraftLLM(FunctionCallingLLM):
    """A model that completes prompts, answers messages and calls tools. `request`: keys of the engine's requests."""

    _engine = PrivateAttr()
    _request = PrivateAttr()

    def __init__(self, engine, **request):
        super().__init__()
        self._engine = engine
        self._request = request

    @classmethod
    def class_name(cls):
        return "foredraft"

    @property
    def metadata(self):
        status = self._engine.status()
        limit = self._request.get("max_tokens", self._request.get("n_predict", 256))
        return LLMMetadata(
            context_window=status["n_ctx"], num_output=limit, is_chat_model=True, is_function_calling_model=True,
            model_name=status["model_alias"])

    def _stream(self, **request):
        """Begins a completion. The keys of a call come after those of the model."""
        return self._engine.stream(**{**self._request, **request})

    def _chat(self, messages, request):
        return self._stream(messages=[_given(message) for message in messages], **request)

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **request):
        return _completed(self._stream(prompt=prompt, **request).wait())

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **request):
        stream = self._stream(prompt=prompt, **request)
        return (_partly_completed(text, update) for text, update in _joined(stream))

    @llm_completion_callback()
    async def acomplete(self, prompt, formatted=False, **request):
        return _completed(await self._stream(prompt=prompt, **request).wait_async())

    @llm_completion_callback()
    async def astream_complete(self, prompt, formatted=False, **request):
        stream = self._stream(prompt=prompt, **request)
        return (_partly_completed(text, update) async for text, update in _joined_async(stream))

    @llm_chat_callback()
    def chat(self, messages, **request):
        return _answered(self._chat(messages, request).wait())

    @llm_chat_callback()
    def stream_chat(self, messages, **request):
        def responses():
            stream = self._chat(messages, request)
            for text, update in _joined(stream):
                yield _partly_answered(text, update)
            yield _last(stream.completion)

        return responses()

    @llm_chat_callback()
    async def achat(self, messages, **request):
        return _answered(await self._chat(messages, request).wait_async())

    @llm_chat_callback()
    async def astream_chat(self, messages, **request):
        async def responses():
            stream = self._chat(messages, request)
            async for text, update in _joined_async(stream):
                yield _partly_answered(text, update)
            yield _last(stream.completion)

        return responses()

    def _prepare_chat_with_tools(
        self, tools, user_msg=None, chat_history=None, verbose=False, allow_parallel_tool_calls=False, tool_required=False, **request
    ):
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {
            "messages": messages, "tools": [tool.metadata.to_openai_tool() for tool in tools],
            "tool_choice": "required" if tool_required else "auto", "parallel_tool_calls": allow_parallel_tool_calls, **request,
        }

    def structured_predict(self, output_cls, prompt, llm_kwargs=None, **prompt_args):
        return self._shaped(output_cls, prompt, llm_kwargs, prompt_args).wait().parse(output_cls)

    async def astructured_predict(self, output_cls, prompt, llm_kwargs=None, **prompt_args):
        return (await self._shaped(output_cls, prompt, llm_kwargs, prompt_args).wait_async()).parse(output_cls)

    def _shaped(self, output_cls, prompt, llm_kwargs, prompt_args):
        """Begins an answer that is JSON of a class of pydantic's."""
        messages = prompt.format_messages(llm=self, **prompt_args)
        return self._chat(messages, {**(llm_kwargs or {}), "schema": output_cls})

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **_):
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError(f"the model called no tool, but answered: {response.message.content}")
        return [ToolSelection(tool_id=call.tool_call_id, tool_name=call.tool_name, tool_kwargs=call.tool_kwargs) for call in calls]


class ForedraftEmbedding(BaseEmbedding):
    """Embeddings. The engine must be loaded with `embedding=True`."""

    _engine = PrivateAttr()

    def __init__(self, engine, **fields):
        super().__init__(**fields)
        self._engine = engine

    @classmethod
    def class_name(cls):
        return "foredraft"

    def _get_text_embedding(self, text):
        return self._engine.embed(text)

    def _get_text_embeddings(self, texts):
        return self._engine.embed_many(texts)

    def _get_query_embedding(self, query):
        return self._engine.embed(query)

    async def _aget_query_embedding(self, query):
        return await asyncio.to_thread(self._engine.embed, query)
