"""Logits processors and stopping criteria."""
import asyncio
import math
import threading

import pytest

import foredraft
from conftest import DRAFT, TARGET, Program
from foredraft_llama_cpp import Llama

PROMPT = "Once upon a time"
REQUEST = {"n_predict": 40, "seed": 7, "repeat_penalty": 1, "return_tokens": True}
DRAFTED = {"adaptive": False, "n_max": 5}


def ban_the_last_but_one(ids, scores):
    scores[int(ids[-2])] = -math.inf
    return scores


def test_processors_change_the_completion_and_speculation_does_not(engine):
    seen, n_vocab = [], engine.model_info()["n_vocab"]

    def note(ids, scores):
        assert len(scores) == n_vocab
        seen.append([int(token) for token in ids])

    for temperature in (0, 0.8):
        request = {**REQUEST, "temperature": temperature}
        expected = engine.complete(PROMPT, speculative=False, logits_processor=ban_the_last_but_one, **request)
        assert all(one != other for one, other in zip(expected["tokens"], expected["tokens"][2:]))
        assert expected.text != engine.complete(PROMPT, speculative=False, **request).text
        seen.clear()
        drafted = engine.complete(PROMPT, speculative=DRAFTED, logits_processor=[note, ban_the_last_but_one], **request)
        assert drafted.text == expected.text and drafted.speculation["n_accepted"] > 0
        whole = [*engine.tokenize(PROMPT), *drafted["tokens"]]
        assert seen == [whole[:n] for n in range(len(engine.tokenize(PROMPT)), len(whole))]


def test_a_processor_may_return_another_row(engine):
    def only(ids, scores):
        return [1.0 if token == 70 else -math.inf for token in range(len(scores))]

    answer = engine.complete(PROMPT, n_predict=5, return_tokens=True, logits_processor=only)
    assert answer["tokens"] == [70] * 5


def test_rows_are_views_of_numpys_where_that_is_installed(engine):
    numpy = pytest.importorskip("numpy")

    def halve(ids, scores):
        assert ids.dtype == numpy.intc and scores.dtype == numpy.single and scores.shape == (1536,)
        return scores / 2

    halved = engine.complete(PROMPT, **{**REQUEST, "temperature": 0.4, "top_k": 0, "top_p": 1}, logits_processor=halve)
    assert halved.text == engine.complete(PROMPT, **{**REQUEST, "temperature": 0.8, "top_k": 0, "top_p": 1}).text


@pytest.mark.parametrize("speculative", [False, DRAFTED])
def test_criteria_end_the_completion_before_the_next_token(engine, speculative):
    n_prompt = len(engine.tokenize(PROMPT))
    whole = engine.complete(PROMPT, speculative=speculative, **REQUEST)
    answer = engine.complete(
        PROMPT, speculative=speculative, stopping_criteria=lambda ids, scores: len(ids) >= n_prompt + 7, **REQUEST)
    assert answer["tokens"] == whole["tokens"][:7] and answer.finish_reason == "stop"
    assert whole.text.startswith(answer.text)
    with pytest.raises(ValueError, match="stopping_criteria: expected one completion"):
        engine.stream(PROMPT, n=2, stopping_criteria=[lambda ids, scores: False])


class Broken(Exception):
    """The exception of a processor."""


def test_what_a_processor_raises_is_raised_to_the_caller(engine):
    calls = []

    def broken(ids, scores):
        calls.append(len(ids))
        if len(calls) == 4:
            raise Broken("no")

    stream = engine.stream(PROMPT, **REQUEST, logits_processor=broken)
    with pytest.raises(Broken, match="no"):
        stream.wait()
    assert len(calls) == 4
    with pytest.raises(Broken):
        stream.completion
    with pytest.raises(Broken):
        calls.clear()
        asyncio.run(engine.complete_async(PROMPT, **REQUEST, logits_processor=broken))
    with pytest.raises(foredraft.InvalidRequestError, match="logits_callback"):
        engine.complete(PROMPT, logits_processor=lambda ids, scores: [math.nan] * len(scores))
    assert engine.complete(PROMPT, n_predict=3)["tokens_predicted"] == 3


def test_requests_beside_each_other_have_their_own_processors(engine):
    def only(token):
        def keep(ids, scores):
            for other in range(len(scores)):
                if other != token:
                    scores[other] = -math.inf
        return keep

    streams = [engine.stream(PROMPT, n_predict=6, return_tokens=True, logits_processor=only(token)) for token in (70, 71)]
    plain = engine.stream(PROMPT, n_predict=6, return_tokens=True, temperature=0)
    assert [stream.wait()["tokens"] for stream in streams] == [[70] * 6, [71] * 6]
    assert plain.wait()["tokens"] == engine.complete(PROMPT, n_predict=6, return_tokens=True, temperature=0)["tokens"]


def test_processors_run_on_the_engines_thread_and_may_call_the_engine(engine):
    threads, errors = set(), []

    def processor(ids, scores):
        threads.add(threading.get_ident())
        engine.tokenize("Once")
        try:
            engine.session_save("/no/such")
        except foredraft.WouldDeadlockError as error:
            errors.append(error)

    engine.complete(PROMPT, n_predict=3, logits_processor=processor)
    assert len(threads) == 1 and threading.get_ident() not in threads and len(errors) == 3


def test_every_method_of_llama_takes_processors():
    with Llama(str(TARGET), draft_model=str(DRAFT), n_ctx=512, verbose=False, warmup=False) as llm:
        def only(ids, scores):
            return [1.0 if token == 70 else -math.inf for token in range(len(scores))]

        text = llm.detokenize([70]).decode()
        assert llm(PROMPT, max_tokens=4, logits_processor=[only])["choices"][0]["text"].strip() == (text * 4).strip()
        chunks = llm(PROMPT, max_tokens=4, logits_processor=[only], stream=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks).strip() == (text * 4).strip()
        answer = llm.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=4, logits_processor=[only])
        assert answer["choices"][0]["message"]["content"].strip() == (text * 4).strip()
        llm.eval(llm.tokenize(PROMPT.encode()))
        assert llm.sample(logits_processor=only) == 70
        tokens = llm.generate([300], reset=False, logits_processor=only, stopping_criteria=lambda ids, scores: len(ids) > 12)
        assert set(tokens) == {70}
        with pytest.raises(Broken):
            def broken(ids, scores):
                raise Broken
            llm(PROMPT, logits_processor=broken)


def test_a_program_may_end_while_a_processor_runs():
    program = Program("""
        import threading, time
        import foredraft
        engine = foredraft.Engine(TARGET, **CONFIG)
        begun = threading.Event()
        def slow(ids, scores):
            begun.set()
            time.sleep(0.05)
        stream = engine.stream("Once", logits_processor=slow, **ENDLESS)
        begun.wait()
        print("ends")
    """)
    assert program.end()[0].endswith("ends\n")
