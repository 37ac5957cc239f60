"""The interface of llama-cpp-python."""
import json

import pytest

from conftest import DRAFT, TARGET
from foredraft import Llama, LlamaGrammar

MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "One about a crow."}]


@pytest.fixture(scope="module")
def llm():
    with Llama(str(TARGET), n_ctx=512, n_threads=2, draft_model=str(DRAFT), verbose=False, warmup=False) as llm:
        yield llm


def test_completion(llm):
    answer = llm("Once upon a time", max_tokens=12, temperature=0, stop=["\\n\\n"], echo=True)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    choice = answer["choices"][0]
    assert choice["text"].startswith("Once upon a time") and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == 12 + answer["usage"]["prompt_tokens"]


def test_the_chunks_of_a_completion_are_its_text(llm):
    whole = llm.create_completion("Once", max_tokens=12, temperature=0)["choices"][0]["text"]
    chunks = list(llm.create_completion("Once", max_tokens=12, temperature=0, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_logprobs(llm):
    logprobs = llm("Once", max_tokens=4, temperature=0, logprobs=2)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 4
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])


def test_chat(llm):
    answer = llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3)
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert len(choice["logprobs"]["content"]) == 12
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_leaving_the_chunks_cancels(llm):
    for _ in llm.create_completion("Once", max_tokens=None, logit_bias={0: -100.0}, stream=True, ignore_eos=True):
        break
    assert llm("Once", max_tokens=1)["choices"][0]["finish_reason"] == "length"


def test_formats(llm):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    for asked in (
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"grammar": LlamaGrammar.from_json_schema(json.dumps(schema))},
    ):
        answer = llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, **asked)
        assert json.loads(answer["choices"][0]["message"]["content"])["n"] in range(10)
    yes = llm("Yes or no?", max_tokens=9, grammar=LlamaGrammar.from_string('root ::= "yes" | "no"'))
    assert yes["choices"][0]["text"] in ("yes", "no") and yes["choices"][0]["finish_reason"] == "stop"


def test_tokens(llm):
    ids = llm.tokenize("Hello, Zoë".encode(), add_bos=False)
    assert llm.detokenize(ids) == "Hello, Zoë".encode()
    assert llm.n_ctx() == 512


def test_embeddings():
    with Llama(str(TARGET), embedding=True, verbose=False, warmup=False) as llm:
        one, two = (llm.embed(text) for text in ("Hello", "Good bye"))
        assert len(one) == len(two) and one != two
        both = llm.create_embedding(["Hello", "Good bye"])
        assert [data["index"] for data in both["data"]] == [0, 1]


def test_a_prompt_that_does_not_fit_is_a_value_error(llm):
    with pytest.raises(ValueError):
        llm("Once " * 2000, max_tokens=1)


def test_what_cannot_be_done_is_refused(llm):
    with pytest.raises(NotImplementedError):
        llm("Once", logits_processor=[print])
    with pytest.raises(ValueError, match="split_mode"):
        Llama(str(TARGET), split_mode=9)


LOOK = {"name": "look", "description": "Looks", "parameters": {
    "type": "object", "properties": {"place": {"enum": ["river", "hill"]}}, "required": ["place"], "additionalProperties": False}}


@pytest.mark.parametrize("asked", [
    {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": LOOK}], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    {"functions": [LOOK], "function_call": {"name": "look"}},
])
def test_calls(llm, asked):
    answer = llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, parallel_tool_calls=False, **asked)
    choice = answer["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"])["place"] in ("river", "hill")
    old = "functions" in asked
    assert choice["finish_reason"] == ("function_call" if old else "tool_calls")
    assert ("function_call" in choice["message"]) == old
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, parallel_tool_calls=False, stream=True, **asked))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert [piece["function"]["name"] for piece in pieces if piece.get("id")] == ["look"]
    assert "".join(piece["function"].get("arguments", "") for piece in pieces) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_usage_says_what_was_cached(llm):
    first = llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0)
    messages = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    usage = llm.create_chat_completion(messages, max_tokens=4, temperature=0)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert usage["completion_tokens_details"].keys() == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
