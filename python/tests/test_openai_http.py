"""The example that answers OpenAI's API over HTTP, asked by the standard library's client and by OpenAI's own."""
import base64
import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import foredraft
from conftest import DRAFT, HANG, TARGET, until

EXAMPLE = Path(os.environ["FOREDRAFT_EXAMPLES"]) / "openai_http.py"
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"]}}}


class Served:
    """The example in a process of its own."""

    def __init__(self, *options):
        command = [sys.executable, EXAMPLE, TARGET, "--port", "0", "--ctx", "16384", "--parallel", "2", "--threads", "1", *options]
        # A shell's background job ignores SIGINT, and so would its processes.
        heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=heeds)
        self.port = int(re.search(r":(\d+)/v1", self.process.stdout.readline()).group(1))
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="secret", max_retries=0, timeout=HANG)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(HANG)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)

    def ask(self, method, path, body=None, **headers):
        """The status and the value of an answer."""
        connection = self.connection()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", "Authorization": "Bearer secret", **headers})
        answer = connection.getresponse()
        value = answer.read()
        connection.close()
        return answer.status, json.loads(value)


@pytest.fixture(scope="module")
def served():
    served = Served("--draft", DRAFT, "--embeddings", "--api-key", "secret", "--queue", "1")
    yield served
    served.end()
    assert served.process.returncode == 0


STATE = "Tom had a red kite. The wind took it away."


def test_decisions_have_the_engines_answers_in_both_apis(served):
    questions = {
        "thing": {"type": "choice", "instructions": "What did Tom have?", "criteria": {"kite": None, "true": "it is so"}},
        "mood": {"type": "score", "instructions": "How sad is Tom?", "criteria": ["low: not sad", "high"]},
        "lost": {"type": "noul", "instructions": "Tom lost something."},
    }
    with foredraft.Engine(TARGET, n_ctx=1024) as engine:
        expected = engine.decide(STATE, questions)
    status, answer = served.ask("POST", "/v1/systemone", {"model": "jev-latest", "state": STATE, "questions": questions})
    assert status == 200 and answer["answers"] == expected
    assert answer["usage"]["input_tokens"] > 50 and answer["usage"]["output_tokens"] == 0
    asked = [
        {"type": "choice", "name": "thing", "instructions": "What did Tom have?", "choices": [{"value": "kite"}, {"value": True, "description": "it is so"}]},
        {"type": "score", "instructions": "How sad is Tom?", "levels": [{"label": "low", "description": "not sad"}, {"label": "high"}]},
        {"type": "predicate", "name": "lost", "instructions": "Tom lost something."},
    ]
    for given in (STATE, [{"role": "user", "content": [{"type": "input_text", "text": STATE}]}]):
        status, answer = served.ask("POST", "/v1/decisions", {"model": "any", "input": given, "questions": asked})
        assert status == 200
        thing, mood, lost = answer["answers"]
        assert [item["probability"] for item in thing["probabilities"]] == list(expected["thing"]["probabilities"].values())
        assert thing["choice"] == {"kite": "kite", "true": True}[expected["thing"]["choice"]] and thing["name"] == "thing"
        assert mood["score"] == expected["mood"]["score"] and mood["name"] is None
        assert [item["label"] for item in mood["probabilities"]] == ["low", "high"]
        assert lost == {"type": "predicate", "name": "lost", "probability": expected["lost"]["noul"]}
    for path, body in [
        ("/v1/systemone", {"questions": questions}), ("/v1/systemone", {"state": STATE, "questions": {}}),
        ("/v1/systemone", {"state": STATE, "questions": {"a": {"type": "choice"}}}), ("/v1/decisions", {"input": STATE, "questions": [{}]}),
        ("/v1/decisions", {"input": STATE, "questions": [asked[2], asked[2]]}), ("/v1/decisions", {"input": [5], "questions": asked}),
    ]:
        status, answer = served.ask("POST", path, body)
        assert status == 400 and answer["error"]["message"], body


def test_chats_have_the_engines_answer_whole_and_in_chunks(served):
    request = {"messages": MESSAGES, "max_tokens": 24, "seed": 7, "n": 2}
    with foredraft.Engine(TARGET, n_ctx=1024) as engine:
        stream = engine.stream(**request)
        list(stream)
    expected = [answer.message["content"] for answer in stream.completions]
    whole = served.client.chat.completions.create(model="any", logprobs=True, top_logprobs=2, **request)
    assert [choice.message.content for choice in whole.choices] == expected
    assert whole.usage.completion_tokens == 48 and whole.choices[0].finish_reason == "length"
    assert "".join(token.token for token in whole.choices[0].logprobs.content) == expected[0]
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in served.client.chat.completions.create(model="any", stream=True, stream_options={"include_usage": True}, **request):
        assert usage is None, "the usage comes last"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == expected and reasons == ["length", "length"] and usage.total_tokens == whole.usage.total_tokens


def test_tools_are_called_and_schemas_hold(served):
    request = {"model": "any", "messages": MESSAGES, "max_tokens": 100}
    called = served.client.chat.completions.create(tools=[WEATHER], tool_choice="required", **request).choices[0]
    call = called.message.tool_calls[0].function
    assert called.finish_reason == "tool_calls" and call.name == "weather" and 1 <= json.loads(call.arguments)["days"] <= 9
    arguments = ""
    for chunk in served.client.chat.completions.create(tools=[WEATHER], tool_choice="required", stream=True, **request):
        for part in chunk.choices[0].delta.tool_calls or ():
            arguments += part.function.arguments or ""
    assert 1 <= json.loads(arguments)["days"] <= 9
    other = {"type": "function", "function": {"name": "look"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    assert served.client.chat.completions.create(tools=[WEATHER, other], tool_choice=allowed, **request).choices[0].message.tool_calls[0].function.name == "look"
    schema = {"type": "json_schema", "json_schema": {"name": "fox", "schema": {
        "type": "object", "properties": {"tail": {"type": "boolean"}}, "required": ["tail"]}}}
    answer = served.client.chat.completions.create(response_format=schema, **request).choices[0].message.content
    assert isinstance(json.loads(answer)["tail"], bool)


def test_completions_take_texts_and_tokens_and_echo_them(served):
    create = served.client.completions.create
    request = {"model": "any", "max_tokens": 8, "temperature": 0}
    with foredraft.Engine(TARGET, n_ctx=1024) as engine:
        prompts = ["Once upon a time", "The fox"]
        tokens = [engine.tokenize(prompt, add_special=False) for prompt in prompts]
        expected = [engine.complete(prompt, max_tokens=8, temperature=0).text for prompt in prompts]
    assert [choice.text for choice in create(prompt=prompts, **request).choices] == expected
    assert create(prompt=prompts[0], **request).choices[0].text == expected[0]
    assert len(create(prompt=tokens, **request).choices) == 2 and create(prompt=tokens[1], **request).choices[0].text
    echoed = create(prompt=prompts[0], echo=True, logprobs=2, **request).choices[0]
    assert echoed.text == prompts[0] + expected[0]
    assert "".join(echoed.logprobs.tokens) == echoed.text and echoed.logprobs.text_offset[0] == 0
    plain = create(prompt=prompts[0], logprobs=2, **request).choices[0].logprobs
    assert plain.text_offset == [offset for offset in echoed.logprobs.text_offset if offset >= len(prompts[0])]
    # As lm-eval measures a text: no token is generated.
    measured = create(prompt=tokens[0], echo=True, logprobs=1, **{**request, "max_tokens": 0}).choices[0]
    assert len(measured.logprobs.token_logprobs) == len(tokens[0]) and all(p is None or p <= 0 for p in measured.logprobs.token_logprobs)
    texts = ["", ""]
    for chunk in create(prompt=prompts, stream=True, echo=True, **request):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [prompt + text for prompt, text in zip(prompts, expected)]


def test_embeddings_are_numbers_or_base64(served):
    texts = ["a fox", "a crow"]
    with foredraft.Engine(TARGET, n_ctx=1024, embedding=True) as engine:
        expected = engine.embed_many(texts)
    # OpenAI's client asks for base64, and decodes it.
    answer = served.client.embeddings.create(model="any", input=texts)
    assert [one.embedding for one in answer.data] == [pytest.approx(vector) for vector in expected] and answer.usage.prompt_tokens > 0
    status, plain = served.ask("POST", "/v1/embeddings", {"input": "a fox"})
    assert status == 200 and plain["data"][0]["embedding"] == expected[0]
    coded = served.ask("POST", "/v1/embeddings", {"input": ["a fox"], "encoding_format": "base64"})[1]["data"][0]["embedding"]
    assert list(struct.unpack(f"<{len(expected[0])}f", base64.b64decode(coded))) == pytest.approx(expected[0])


def test_answers_are_openais_types_and_its_types_are_requests(served):
    """pydantic converts nothing here, so each field has its type."""
    request = {"messages": MESSAGES, "max_tokens": 60, "logprobs": True, "top_logprobs": 1, "tools": [WEATHER], "tool_choice": "required"}
    answer = ChatCompletion.model_validate_json(json.dumps(served.ask("POST", "/v1/chat/completions", request)[1]), strict=True)
    # pydantic does not miss a key that may be null; clients in other languages do.
    assert {"refusal"} <= answer.choices[0].message.model_fields_set and {"refusal"} <= answer.choices[0].logprobs.model_fields_set
    prompt = {"prompt": "Once", "max_tokens": 4, "logprobs": 1, "echo": True}
    completion = Completion.model_validate_json(json.dumps(served.ask("POST", "/v1/completions", prompt)[1]), strict=True)
    assert completion.choices[0].text.startswith("Once")
    CreateEmbeddingResponse.model_validate_json(json.dumps(served.ask("POST", "/v1/embeddings", {"input": "a fox"})[1]), strict=True)
    Model.model_validate_json(json.dumps(served.ask("GET", "/v1/models/stories-target")[1]), strict=True)
    # (Of a completion's chunk OpenAI's type wants a reason in each, which OpenAI itself does not send.)
    connection = served.connection()
    text = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})
    connection.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json", "Authorization": "Bearer secret"})
    events = connection.getresponse().read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and len(events) > 4
    for event in events[:-2]:
        ChatCompletionChunk.model_validate_json(event.removeprefix("data: "), strict=True)
    # The answer goes back as it is, with the result of the call.
    call = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "clear"}
    following = served.client.chat.completions.create(model="any", messages=[*MESSAGES, call, result], max_tokens=4)
    assert following.choices[0].message.content


def test_models_are_listed(served):
    assert [model.id for model in served.client.models.list()] == ["stories-target"]
    assert served.client.models.retrieve("stories-target").owned_by == "foredraft"
    assert served.ask("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize("method, path, body, headers, status, said", [
    ("POST", "/v1/chat/completions", b"{", {}, 400, "JSON"),
    ("POST", "/v1/chat/completions", b"[" * 100_000, {}, 400, "JSON"),
    ("POST", "/v1/chat/completions", [], {}, 400, "object"),
    ("POST", "/v1/chat/completions", {}, {}, 400, "messages"),
    ("POST", "/v1/chat/completions", {"messages": "Hello"}, {}, 400, "messages"),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES, "tools": {}}, {}, 400, "tools"),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "stream_options": []}, {}, 400, "stream_options"),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES, "top_p": 2}, {}, 400, "top_p"),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "n": "two"}, {}, 400, "n"),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 20000}]}, {}, 400, "context"),
    ("POST", "/v1/completions", {"prompt": {"a": 1}}, {}, 400, "prompt"),
    ("POST", "/v1/completions", {"prompt": "Once", "suffix": "end"}, {}, 400, "suffix"),
    ("POST", "/v1/embeddings", {"input": []}, {}, 400, "input"),
    ("POST", "/v1/embeddings", {"input": "fox", "dimensions": 3}, {}, 400, "dimensions"),
    ("POST", "/v1/completions", {"prompt": "Once"}, {"Content-Type": "text/plain"}, 415, "Content-Type"),
    ("POST", "/v1/completions", {"prompt": "Once"}, {"Authorization": "Bearer other"}, 401, "key"),
    ("POST", "/v1/completions", {"prompt": "Once"}, {"Content-Length": "9000000000"}, 413, "bytes"),
    ("POST", "/v1/completions", {"prompt": "Once"}, {"Content-Length": "-1"}, 411, "Content-Length"),
    ("GET", "/v1/nothing", None, {}, 404, "nothing"),
    ("GET", "/v1/completions", None, {}, 404, "nothing"),
])
def test_failures_have_openais_form(served, method, path, body, headers, status, said):
    found, answer = served.ask(method, path, body, **headers)
    error = answer["error"]
    assert found == status and error["type"] == "invalid_request_error" and said in error["message"] and {"param", "code"} <= error.keys()


def endless(served, **more):
    """A connection on which an answer without end begins."""
    connection = served.connection()
    body = {"prompt": "Once", "max_tokens": 15000, "ignore_eos": True, **more}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer secret"})
    return connection


def test_a_full_queue_is_a_rate_limit(served):
    running = [endless(served, stream=True).getresponse() for _ in range(2)]
    assert all(answer.read(20).startswith(b"data: {") for answer in running)
    # One of these waits, and the other one is refused.
    waiting = [endless(served) for _ in range(2)]
    refused = select.select([connection.sock for connection in waiting], [], [], HANG)[0][0]
    answer = next(connection for connection in waiting if connection.sock is refused).getresponse()
    assert answer.status == 429 and json.loads(answer.read())["error"]["code"] == "queue_full"
    for one in running + waiting:
        one.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_hangs_up_cancels_its_request(served, streams):
    """Two requests have both slots. Were they not cancelled, the third one would wait for 15,000 tokens of each, for minutes."""
    connections = []

    def began():
        connections[:] = [endless(served, stream=streams) for _ in range(2)]
        if streams:
            # An answer that ends with its connection takes it over.
            connections[:] = [connection.getresponse() for connection in connections]
            # Refused, if the server has not read yet that clients of the test before are gone.
            if not all(answer.read(20).startswith(b"data: {") for answer in connections):
                for connection in connections:
                    connection.close()
                return False
        return True

    until("both requests", began)
    for connection in connections:
        connection.close()

    def is_answered():
        try:
            served.client.completions.create(model="any", prompt="The fox", max_tokens=1, timeout=20)
        except openai.RateLimitError:
            return False  # until the server has seen that the clients are gone
        return True

    until("a free slot", is_answered)


def test_connections_stay_open_for_further_requests(served):
    connection = served.connection()
    head = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    for body in [{"prompt": "Once", "max_tokens": 1}, {"prompt": "Once", "max_tokens": 1, "top_p": 2}, {"prompt": "The", "max_tokens": 1}]:
        connection.request("POST", "/v1/completions", json.dumps(body), head)
        answer = connection.getresponse()
        assert answer.status == (400 if "top_p" in body else 200) and answer.getheader("Connection") is None
        answer.read()
    connection.close()


def test_many_connections_at_once_all_have_an_answer(served):
    """None is accepted while the process is stopped, so all of them wait in the socket's queue."""
    served.process.send_signal(signal.SIGSTOP)
    connections = [socket.socket() for _ in range(100)]
    try:
        for one in connections:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", served.port))
        until("all connections", lambda: len(select.select([], connections, [], 0)[1]) == len(connections))
    finally:
        served.process.send_signal(signal.SIGCONT)
    for one in connections:
        one.settimeout(HANG)
        one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n")
    for one in connections:
        assert one.recv(64).startswith(b"HTTP/1.1 200")
        one.close()
