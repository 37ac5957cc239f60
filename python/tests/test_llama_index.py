"""The adapter for LlamaIndex, an example, with the package. scripts/test-python.sh installs LlamaIndex for it."""
import asyncio
import importlib.util
import os
import pathlib

import pytest

from conftest import DRAFT, TARGET
from foredraft import Engine

pytest.importorskip("llama_index.core")

from llama_index.core import Document, VectorStoreIndex  # noqa: E402
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

QUESTION = "Tell me a story about a fox."
REQUEST = {"max_tokens": 24, "seed": 7}


class Weather(BaseModel):
    """The weather."""

    days: int = Field(ge=1, le=9)


def weather(days: int) -> str:
    """The weather of some days."""
    return f"clear for {days} days"


@pytest.fixture(scope="module")
def engine():
    with Engine(TARGET, model_draft=DRAFT, n_ctx=2048, n_threads=1, embedding=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def adapter():
    path = pathlib.Path(os.environ["FOREDRAFT_EXAMPLES"], "adapters", "llama_index.py")
    spec = importlib.util.spec_from_file_location("llama_index_foredraft", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def llm(engine, adapter):
    return adapter.ForedraftLLM(engine, **REQUEST)


def test_it_completes_and_answers_as_the_engine_does(engine, llm):
    messages = [ChatMessage(role="system", content="You tell stories."), ChatMessage(role="user", content=QUESTION)]
    completed = engine.complete("Once upon a time", **REQUEST).text
    answered = engine.chat([{"role": "system", "content": "You tell stories."}, {"role": "user", "content": QUESTION}], **REQUEST).text
    assert llm.complete("Once upon a time").text == completed and llm.chat(messages).message.content == answered
    parts = list(llm.stream_complete("Once upon a time"))
    assert parts[-1].text == "".join(part.delta for part in parts) == completed
    parts = list(llm.stream_chat(messages))
    assert parts[-1].message.content == "".join(part.delta for part in parts) == answered

    async def asynchronous():
        assert (await llm.acomplete("Once upon a time")).text == completed
        assert (await llm.achat(messages)).message.content == answered
        assert "".join([part.delta async for part in await llm.astream_complete("Once upon a time")]) == completed
        assert "".join([part.delta async for part in await llm.astream_chat(messages)]) == answered

    asyncio.run(asynchronous())
    assert llm.complete("Once upon a time", max_tokens=3).raw["tokens_predicted"] == 3
    assert llm.metadata.context_window == 2048 and llm.metadata.num_output == 24


def test_it_calls_tools_and_makes_objects(llm, adapter):
    tool = FunctionTool.from_defaults(fn=weather)
    reply = llm.predict_and_call([tool], user_msg=QUESTION, tool_required=True, max_tokens=100)
    assert reply.response.startswith("clear for ")
    response = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True, max_tokens=100)
    call = llm.get_tool_calls_from_response(response)[0]
    assert call.tool_name == "weather" and isinstance(call.tool_kwargs["days"], int)
    streamed = list(llm.stream_chat_with_tools([tool], user_msg=QUESTION, tool_required=True, max_tokens=100))[-1]
    assert llm.get_tool_calls_from_response(streamed)[0].tool_kwargs == call.tool_kwargs
    history = [
        ChatMessage(role="user", content=QUESTION), response.message,
        ChatMessage(role="tool", content="clear", additional_kwargs={"tool_call_id": call.tool_id}),
    ]
    assert llm.chat(history).message.content
    assert 1 <= llm.as_structured_llm(Weather).chat(history[:1], max_tokens=100).raw.days <= 9


def test_an_index_finds_texts_by_their_embeddings(engine, adapter, llm):
    embedding = adapter.ForedraftEmbedding(engine)
    texts = ["A fox runs.", "A crow sings in a tree.", "The river is cold."]
    assert embedding.get_text_embedding_batch(texts) == engine.embed_many(texts)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=embedding)
    found = index.as_retriever(similarity_top_k=1).retrieve("A crow sings in a tree.")
    assert [node.text for node in found] == [texts[1]]
    assert str(index.as_query_engine(llm=llm).query("Who sings?"))
