"""Engines, completions and streams."""
import asyncio
import ctypes
import errno
import json
import logging
import subprocess
import sys
import threading
import types
from typing import get_args

import pytest

import foredraft
from conftest import CONFIG, DRAFT, ENDLESS, TARGET, idle, until
from foredraft import Engine

STORY = {"prompt": "Once upon a time", "n_predict": 40, "temperature": 0}


def text_of(stream):
    return "".join(str(update) for update in stream)


async def text_of_async(stream):
    return "".join([str(update) async for update in stream])


def test_the_version_is_the_package_s():
    from importlib.metadata import version

    assert foredraft.version() == version("foredraft")


def test_devices_are_those_that_a_load_uses(engine):
    found = foredraft.devices()
    names = [device["name"] for device in found["devices"]]
    assert names and names == [device["name"] for device in engine.status()["devices"]]
    assert found["cpu"]["level"] in found["cpu"]["levels"] and found["cpu"]["cores"] >= 1
    assert 0 < found["cpu"]["memory_free"] <= found["cpu"]["memory_total"]


def test_complete_stream_and_async_stream_give_the_same(engine):
    whole = engine.complete(**STORY)
    assert whole.text and whole.stop_type == "limit" and whole.finish_reason == "length"
    assert whole.usage["completion_tokens"] == 40
    stream = engine.stream(**STORY)
    assert text_of(stream) == whole.text
    assert stream.finished and stream.completion.text == whole.text
    assert asyncio.run(text_of_async(engine.stream(**STORY))) == whole.text
    assert asyncio.run(engine.complete_async(**STORY)).text == whole.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux loads models from descriptors")
def test_models_come_from_open_files_and_memory(engine):
    expected = engine.complete(**STORY).text
    with open(TARGET, "rb") as target, open(DRAFT, "rb") as draft:
        other = Engine({"fd": target.fileno()}, model_draft={"fd": draft.fileno(), "offset": 0, "length": DRAFT.stat().st_size})
    with other:
        assert other.complete(**STORY).text == expected
    weights = TARGET.read_bytes()
    address = ctypes.cast(weights, ctypes.c_void_p).value
    with Engine({"address": address, "length": len(weights)}) as other:
        del weights
        assert other.complete(**STORY).text == expected
    with pytest.raises(foredraft.InvalidRequestError, match="no such open file descriptor"):
        Engine({"fd": 1_000_000})


def test_a_seed_gives_the_same_text_with_and_without_speculation(engine):
    request = {"prompt": "Once", "n_predict": 30, "temperature": 0.9, "seed": 7}
    text = engine.complete(**request).text
    assert engine.complete(**request).text == text
    assert engine.complete(**request, speculative=False).text == text
    assert engine.complete(**{**request, "seed": 8}).text != text


def test_tokens_and_probabilities_of_updates_are_joined(engine):
    answer = engine.complete(**STORY, return_tokens=True, n_probs=2)
    assert len(answer["tokens"]) == len(answer["sources"]) == len(answer["completion_probabilities"]) == 40
    assert engine.detokenize(answer["tokens"]) == answer.text


def test_a_completion_without_a_limit_ends_with_its_context():
    with Engine(TARGET, warmup=False, n_ctx=256) as engine:
        for ask in (lambda **request: engine.complete("Once upon a time", **request),
                    lambda **request: engine.chat([{"role": "user", "content": "Count."}], **request),
                    lambda **request: engine.stream("Once", **request).wait()):
            answer = ask(ignore_eos=True)
            assert answer.stop_type == "limit" and answer["truncated"]
            assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 256
            assert answer["generation_settings"]["ctx_shift"] is False
            # The engine does not change a limit that was asked for.
            assert ask(ignore_eos=True, max_tokens=3)["tokens_predicted"] == 3
            assert ask(ignore_eos=True, n_predict=300)["tokens_predicted"] == 300
        # llama.cpp's "no limit" is still there: the context shifts.
        stream = engine.stream("Once", n_predict=-1, ignore_eos=True)
        n_tokens = 0
        for update in stream:
            n_tokens += len(update.text) > 0
            if n_tokens > 300:
                break
        assert n_tokens > 300


def test_several_texts(engine):
    stream = engine.stream(prompts=["Once", "Then"], n_predict=8, temperature=0)
    texts = ["", ""]
    for update in stream:
        texts[update.index] += update.text
    assert [answer.text for answer in stream.completions] == texts
    assert all(texts) and texts[0] != texts[1]


def test_fields_that_are_left_out_leave_requests_whole(engine):
    expected = engine.complete("Once", n_predict=3, seed=1)
    for fields in ["content"], ["timings/prompt_n"]:
        request = {"n_predict": 3, "seed": 1, "response_fields": fields}
        answer = engine.complete("Once", **request)
        assert answer.text == expected.text and answer["id"] > expected["id"] and "model" not in answer
        assert asyncio.run(text_of_async(engine.stream("Once", **request))) == expected.text
        with engine.stream("Once", **request, n_cmpl=2) as stream:
            assert len(list(stream)) > 1 and [one["index"] for one in stream.completions] == [0, 1]


def test_chat(engine):
    messages = [{"role": "user", "content": "Tell me a story about Zoë."}]
    answer = engine.chat(messages, n_predict=20, temperature=0)
    prompt = engine.apply_template(messages)
    assert answer.text == engine.complete(prompt, n_predict=20, temperature=0, parse_special=True).text
    assert answer.message["role"] == "assistant"
    assert asyncio.run(engine.chat_async(messages, n_predict=20, temperature=0)).text == answer.text


class Point:
    """A point in the plane."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    @classmethod
    def model_json_schema(cls):
        coordinate = {"type": "integer", "minimum": 0, "maximum": 9}
        return {"type": "object", "properties": {"x": coordinate, "y": coordinate}, "required": ["x", "y"],
                "additionalProperties": False, "title": "Point"}

    @classmethod
    def model_validate_json(cls, text):
        return cls(**json.loads(text))


def test_the_types_of_answers_have_the_fields_that_answers_have(engine):
    from foredraft import _answers as types

    def same(found, kind, optional=()):
        fields = kind.__annotations__.keys()
        assert set(optional) <= fields and fields - set(optional) <= found.keys() <= fields, kind

    status = engine.status()
    same(status, types.Status, ["isolation"])
    same(status["slots"][0], types.SlotStatus)
    same(status["devices"][0], types.DeviceInUse)
    same(status["devices"][0]["target"], types.DeviceUse)
    same(engine.model_info(), types.ModelInfo)
    answer = engine.chat([{"role": "user", "content": "Hi"}], n_predict=8, speculative={"compare": True})
    same(answer.timings, types.Timings, ["draft_n", "draft_n_accepted", "deadline_missed_ms"])
    same(answer.usage, types.Usage)
    same(answer.speculation, types.SpeculationStatistics, ["disabled", "compare_skipped", "first_difference_logit_gap"])
    same(answer["prompt_stats"], types.PromptStats, ["pending"])
    same(answer.message, types.AssistantMessage, ["reasoning_content", "tool_calls", "function_call"])


def test_the_types_have_all_keys_of_completions_and_their_updates(engine):
    from foredraft import _answers, _types as types

    all_of = {"return_tokens": True, "n_probs": 1, "prompt_logprobs": 1, "timings_per_token": True, "return_progress": True, "tag": 1, "n_predict": 60}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "stream_options": {"include_usage": True}}
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": Point.model_json_schema()}}], "tool_choice": "required"}
    updates, answers = [], []
    for request in ({"prompt": "Once"}, chat, {**chat, **tools}, {"prompt": "Once", "response_fields": []}):
        updates += (stream := engine.stream(**{**all_of, **request}))
        answers += stream.completions
    answers.append(engine.complete("Once", choices=["one", "two"]))
    keys = lambda values: {key for value in values for key in value}
    assert keys(answers) <= set(get_args(types.CompletionKey))
    assert keys(updates) <= set(get_args(types.UpdateKey)) and any("prompt_progress" in update for update in updates)
    deltas = [update["delta"] for update in updates if "delta" in update]
    assert keys(deltas) <= _answers.Delta.__annotations__.keys() and "tool_calls" in keys(deltas)
    assert keys(call for delta in deltas for call in delta.get("tool_calls", ())) == _answers.CallDelta.__annotations__.keys()


def test_a_class_with_a_schema_shapes_the_answer(engine):
    answer = engine.chat([{"role": "user", "content": "A point?"}], schema=Point, n_predict=100, seed=1)
    point = answer.parse(Point)
    assert 0 <= point.x <= 9 and 0 <= point.y <= 9
    assert set(answer.json()) == {"x", "y"}
    asked = dict(schema=Point, n_predict=1, response_fields=["prompt"])
    shown = [engine.chat([{"role": "user", "content": "A point?"}], **asked, **more)["prompt"] for more in ({}, {"schema_in_prompt": False})]
    assert [json.dumps(Point.model_json_schema(), separators=(",", ":")) in prompt for prompt in shown] == [True, False]
    assert json.loads(engine.complete("A point: ", schema=Point.model_json_schema(), n_predict=100, seed=2).text)


def test_a_class_with_a_schema_is_a_tool():
    from foredraft._types import tool_of

    function = {"name": "Point", "description": "A point in the plane.", "parameters": Point.model_json_schema()}
    assert tool_of(Point) == {"type": "function", "function": function}
    assert tool_of({"type": "function"}) == {"type": "function"}


def test_a_prepared_turn_takes_over_the_begun_answer(engine):
    turn = {"prompt": "Once upon a time, there was a cat that", "conversation": "cat", "n_predict": 4, "seed": 1}
    alone = engine.complete(**turn)
    number = engine.prepare(**turn, begin=True)
    while not engine._call("poll", {"id": number, "timeout_ms": 1000})["finished"]:
        pass
    answer = engine.complete(**turn)
    assert (answer["content"], answer.timings["begun_n"]) == (alone["content"], 3)
    with pytest.raises(foredraft.InvalidRequestError, match="conversation"):
        engine.prepare("a")


def test_tokens(engine):
    ids = engine.tokenize("Hello, world", add_special=False)
    assert ids and engine.detokenize(ids) == "Hello, world"


def test_embeddings():
    with Engine(TARGET, embedding=True, warmup=False) as engine:
        vector = engine.embed("Hello")
        assert engine.embed_many(["Hello", "Good bye"]) == [vector, engine.embed("Good bye")]
        assert engine.embed_many([]) == []
        with pytest.raises(foredraft.InvalidRequestError, match="classifier"):
            engine.rerank("Hello", ["Good bye"], top_n=1)
        assert abs(sum(x * x for x in vector) - 1) < 1e-3


def test_sessions(engine, tmp_path):
    engine.complete("Once upon a time", n_predict=4, id_slot=0)
    saved = engine.session_save(tmp_path / "session", id_slot=0)
    assert engine.session_load(tmp_path / "session", id_slot=1)["n_restored"] == saved["n_saved"] > 0
    assert engine.session_erase(id_slot=1)["n_erased"] == saved["n_saved"]


def test_conversations(tmp_path):
    with Engine(TARGET, warmup=False, n_parallel=2, cache_dir=tmp_path / "folder") as engine:
        first = engine.complete("Once upon a time", n_predict=4, seed=3, conversation="Mia")
        fork = engine.conversation("fork", "Mia", to="Tom")
        assert (fork["conversation"], fork["place"], fork["n_turns"], fork["running"]) == ("Tom", "memory", 1, False)
        assert engine.conversation("rewind", "Tom", token=3)["n_tokens"] == 3
        assert engine.conversation("pin", "Tom")["pinned"]
        engine.conversation("save", "Mia", filename=tmp_path / "file")
        assert engine.conversation("load", "Eve", filename=tmp_path / "file")["n_tokens"] == fork["n_tokens"]
        assert [one["conversation"] for one in engine.conversations()] == ["Eve", "Mia", "Tom"]
        again = engine.complete("Once upon a time", n_predict=4, seed=3, conversation="Eve")
        assert again["content"] == first["content"]
        engine.conversation("drop", "Tom")
        with pytest.raises(foredraft.NotFoundError):
            engine.conversation("pin", "Tom")


@pytest.mark.skipif(sys.platform == "win32", reason="the limit of a file's size is POSIX's")
def test_conversations_without_room_on_disk(tmp_path):
    script = f"""
import resource
from foredraft import Engine
with Engine({str(TARGET)!r}, warmup=False, n_parallel=1, cache_ram_mb=0, cache_dir={str(tmp_path)!r}) as engine:
    ask = lambda name: engine.complete("Once upon a time", n_predict=4, seed=3, conversation=name)
    first = ask("Mia")
    ask("Tom")
    assert ask("Mia")["timings"]["cache_n"] > 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    for name in ["Eve", "Tom", "Eve", "Bob", "Mia"]:
        assert ask(name)["content"] == first["content"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".conversation"}


def test_lookups(engine, tmp_path):
    made = engine.lookup_create(text="one two three one two three", output=tmp_path / "cache")
    merged = engine.lookup_merge([tmp_path / "cache", tmp_path / "cache"], tmp_path / "merged")
    assert merged["n_observations"] == 2 * made["n_observations"] > 0
    assert engine.lookup_cache("stats", cache="dynamic")["success"]


# Leaving.


def test_leaving_a_loop_cancels(engine):
    stream = engine.stream("Once", **ENDLESS)
    for _ in stream:
        break
    idle(engine)
    assert stream.finished


def test_a_completion_that_was_left_is_a_clear_error(engine):
    running = engine.stream("Once", **ENDLESS)
    with pytest.raises(RuntimeError, match="has not ended"):
        running.completion
    next(running)
    running.close()
    for ask in (lambda: running.completion, lambda: running.completions):
        with pytest.raises(RuntimeError, match="was closed before its end"):
            ask()


def test_the_end_of_a_block_and_of_the_object_cancel(engine):
    with engine.stream("Once", **ENDLESS) as stream:
        next(stream)
    idle(engine)
    stream = engine.stream("Once", **ENDLESS)
    next(stream)
    del stream
    idle(engine)


def test_an_exception_in_the_loop_cancels(engine):
    with pytest.raises(ZeroDivisionError):
        for _ in engine.stream("Once", **ENDLESS):
            1 / 0
    idle(engine)


def test_cancel_ends_the_loop(engine):
    stream = engine.stream("Once", **ENDLESS)
    text = ""
    for update in stream:
        text += str(update)
        stream.cancel()
    assert stream.completion.stop_type == "cancelled" and stream.completion.text == text


def test_leaving_an_async_loop_cancels(engine):
    async def leave():
        async for _ in engine.stream("Once", **ENDLESS):
            break

    asyncio.run(leave())
    idle(engine)


def test_cancelling_a_task_cancels(engine):
    async def cancel():
        task = asyncio.create_task(engine.complete_async("Once", **ENDLESS))
        while not any(slot["request_id"] for slot in engine.status()["slots"]):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    idle(engine)


# Event loops.


def test_streams_of_one_loop_run_together_and_leave_it_free(engine):
    async def together():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        texts = await asyncio.gather(*(text_of_async(engine.stream(**STORY)) for _ in range(6)))
        ticking.cancel()
        return texts, ticks

    texts, ticks = asyncio.run(together())
    assert set(texts) == {engine.complete(**STORY).text}
    assert ticks > 0


def test_loops_of_several_threads_share_an_engine(engine):
    texts = []

    def run():
        async def both():
            texts.extend(await asyncio.gather(*(text_of_async(engine.stream(**STORY)) for _ in range(2))))

        asyncio.run(both())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 6 and set(texts) == {engine.complete(**STORY).text}


def test_loading_leaves_the_loop_free():
    async def load():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with await Engine.create(TARGET, **CONFIG) as engine:
            text = (await engine.complete_async(**STORY)).text
        ticking.cancel()
        return text, ticks

    text, ticks = asyncio.run(load())
    assert text and ticks > 0


def test_without_pipes_waits_look_again(engine, monkeypatch):
    from foredraft import _notify

    monkeypatch.setattr(_notify, "HAS_PIPES", False)
    with Engine(TARGET, **CONFIG) as other:
        assert other._notifier.config == {}
        assert asyncio.run(text_of_async(other.stream(**STORY))) == engine.complete(**STORY).text


def test_pipes_are_closed():
    import os

    def count():
        return len(os.listdir("/proc/self/fd"))

    async def use():
        async with await Engine.create(TARGET, **CONFIG) as engine:
            await engine.complete_async(**STORY)
            async for _ in engine.stream("Once", **ENDLESS):
                break

    asyncio.run(use())
    before = count()
    for _ in range(3):
        asyncio.run(use())
    assert count() == before


# Life.


def test_engines_are_independent():
    with Engine(TARGET, **CONFIG) as one, Engine(DRAFT, warmup=False) as other:
        running = one.stream("Once", **ENDLESS)
        next(running)
        assert other.complete("Once", n_predict=4).text
        other.close()
        assert next(running).text is not None
        assert one.status()["state"] == "ready" and other.closed


def test_an_engine_loads_again():
    with Engine() as engine:
        assert engine.status()["state"] == "uninitialized"
        with pytest.raises(foredraft.NotInitializedError):
            engine.complete("Once")
        engine.load(DRAFT, warmup=False)
        assert engine.complete("Once", n_predict=2).text
        engine.unload()
        assert engine.status()["state"] == "uninitialized"


def test_a_paused_engine_waits(engine):
    request = {"prompt": "Once upon a time", "n_predict": 20, "seed": 3}
    expected = engine.complete(**request).text
    contents = []
    thread = threading.Thread(target=lambda: contents.append(engine.complete(**request).text))
    with engine.paused(), engine.paused():
        assert engine.status()["paused"]
        thread.start()
        until("it is queued", lambda: engine.status()["queue"] == 1)
        assert not contents
    thread.join()
    assert not engine.status()["paused"]
    assert contents == [expected]
    with pytest.raises(foredraft.InvalidRequestError, match="not paused"):
        engine.resume()


def test_progress_is_told():
    told = []
    with Engine(TARGET, progress=told.append, **CONFIG):
        pass
    assert told[-1] == 1 and told == sorted(told)


def test_progress_is_shown_where_tqdm_is(monkeypatch):
    shown = []

    class Bar:
        def __init__(self, total, **_):
            self.n = 0
            shown.append(total)

        def update(self, n):
            self.n += n
            shown.append(self.n)

        def close(self):
            shown.append("closed")

    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    with Engine(TARGET, progress=True, **CONFIG):
        pass
    assert shown[0] == 100 and shown[-2:] == [100, "closed"]


def test_a_closed_engine_says_so(engine):
    other = Engine(DRAFT, warmup=False)
    running = other.stream("Once", **ENDLESS)
    next(running)
    other.close()
    other.close()
    with pytest.raises(foredraft.InvalidEngineError) as caught:
        other.complete("Once")
    assert caught.value.code == "invalid_engine"
    with pytest.raises(foredraft.ForedraftError):
        for _ in running:
            pass


def test_closing_while_a_loop_waits(engine):
    async def close():
        other = await Engine.create(DRAFT, warmup=False)
        task = asyncio.create_task(other.complete_async("Once", **ENDLESS))
        await asyncio.sleep(0.05)
        other.close()
        with pytest.raises(foredraft.ForedraftError):
            await task

    asyncio.run(close())


# Failures.


@pytest.mark.parametrize("request_, error, code", [
    ({"top_p": 2}, foredraft.InvalidRequestError, "invalid_request"),
    ({"grammar": "root ::= ("}, foredraft.InvalidRequestError, "invalid_request"),
    ({"session_load": "/nowhere"}, foredraft.NotFoundError, "not_found"),
])
def test_failures_have_the_library_s_codes(engine, request_, error, code):
    with pytest.raises(error) as caught:
        engine.complete("Once", n_predict=1, **request_)
    assert caught.value.code == code and caught.value.status >= 400
    assert isinstance(caught.value, foredraft.ForedraftError)


def test_a_failure_after_the_request_was_queued_is_heard_of(engine):
    # A long text is tokenized by the engine's side, after the call has returned.
    messages = [{"role": "user", "content": "word " * 5000}]
    for wait in (engine.chat, lambda *args, **request: asyncio.run(engine.chat_async(*args, **request))):
        with pytest.raises(foredraft.ContextFullError):
            wait(messages, on_overflow="error")


def test_what_is_not_json_is_refused(engine):
    with pytest.raises(ValueError):
        engine.complete("Once", temperature=float("nan"))
    with pytest.raises(TypeError):
        engine.complete("Once", tag=object())


def test_a_full_queue_says_so():
    with Engine(DRAFT, warmup=False, max_queue=0) as engine:
        running = engine.stream("Once", **ENDLESS)
        with pytest.raises(foredraft.QueueFullError):
            engine.stream("Once")
        running.close()


def test_a_missing_file_is_python_s_own_error(engine, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        Engine("/nowhere.gguf")
    error = caught.value
    assert isinstance(error, foredraft.ModelError) and error.code == "model_error" and error.status == 500
    assert error.filename == "/nowhere.gguf" and error.errno == errno.ENOENT and "nowhere.gguf" in str(error)
    with pytest.raises(FileNotFoundError) as caught:
        Engine(TARGET, model_draft="/no-draft.gguf", warmup=False)
    assert caught.value.filename == "/no-draft.gguf"
    engine.complete("Once", n_predict=1, id_slot=0)  # a slot that can be saved
    for wait in (lambda: engine.session_load(tmp_path / "none"), lambda: engine.complete("Once", session_load="/none"),
                 lambda: engine.lookup_create(file="/none", output=tmp_path / "cache"),
                 lambda: engine.session_save(tmp_path / "no folder" / "session")):
        with pytest.raises(FileNotFoundError) as caught:
            wait()
        assert isinstance(caught.value, foredraft.NotFoundError) and caught.value.filename

    # Other failures are not.
    (tmp_path / "wrong.gguf").write_bytes(b"not a model")
    with pytest.raises(foredraft.ModelError) as caught:
        Engine(tmp_path / "wrong.gguf")
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_file_that_may_not_be_read_is_python_s_own_error(tmp_path):
    from conftest import Program

    model = tmp_path / "secret.gguf"
    model.write_bytes(b"GGUF")
    model.chmod(0)
    # Root may read everything; nobody may not.
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o555)
    out, _ = Program("""
        import errno, os, sys
        from foredraft import DataPermissionError, Engine, InvalidRequestError, ModelError, ModelPermissionError
        engine = Engine(TARGET, warmup=False)
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            Engine(sys.argv[1])
        except PermissionError as error:
            print(error.filename == sys.argv[1], error.errno == errno.EACCES, isinstance(error, (ModelError, ModelPermissionError)))
        for call in (lambda: engine.session_load(sys.argv[1]), lambda: engine.lookup_create(file=sys.argv[1], output="/nowhere/cache")):
            try:
                call()
            except PermissionError as error:
                print(error.filename == sys.argv[1], isinstance(error, InvalidRequestError), isinstance(error, DataPermissionError))
    """, str(model)).end()
    assert out.split() == ["True"] * 9, out


def test_a_failed_load_is_raised_and_not_printed_as_well():
    from conftest import Program

    out, err = Program("""
        from foredraft import Engine, ForedraftError
        for config in ({"model": "/nowhere.gguf"}, {"model": TARGET, "n_ctx": -5}, {"model": "/etc/passwd"}):
            try:
                Engine(**config)
            except ForedraftError as error:
                print(error.status, error.answer["status"], error.code)
    """).end()
    assert out.splitlines() == ["500 500 model_error", "400 400 invalid_request", "500 500 model_error"]
    assert err == ""


def test_warnings_are_logged(engine, caplog):
    with caplog.at_level(logging.WARNING, "foredraft"):
        engine.complete("Once", n_predict=1, temprature=1)
    assert any("temprature" in record.getMessage() for record in caplog.records)


def test_threads_may_use_one_engine(engine):
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(engine.complete(**STORY).text)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 6 and len(set(texts)) == 1


@pytest.mark.parametrize("messages", ["hello", {"role": "user", "content": "hello"}])
def test_messages_that_are_no_list_are_explained(engine, messages):
    for call in engine.chat, engine.apply_template:
        with pytest.raises(foredraft.InvalidRequestError, match=r'an array of messages, such as \[\{"role": "user"'):
            call(messages)


def test_a_function_as_a_tool_is_explained(engine):
    def weather(city: str) -> str:
        return city

    with pytest.raises(foredraft.InvalidRequestError, match=r"tools\[1\]: expected .*pydantic.* got <function .*weather"):
        engine.chat([{"role": "user", "content": "x"}], tools=[{"type": "function", "function": {"name": "a"}}, weather])
