"""A host with the package for Python: threads, cancels, sessions, speculation, errors and a second load, for sanitizers. Arguments: target, draft."""
import asyncio
import sys
import tempfile
import threading
from pathlib import Path

from foredraft import Engine, ForedraftError

target, draft = sys.argv[1:3]
options = {"n_ctx": 512, "n_parallel": 2, "n_threads": 1, "n_threads_batch": 1, "log_level": "none"}
greedy = {"n_predict": 12, "temperature": 0, "speculative": {"type": "auto"}}
wrong = []


def uses(engine, expected, index):
    for round in range(4):
        with engine.stream("Once upon a time", n_predict=-1, ignore_eos=True) as stream:
            next(iter(stream))
        text = engine.complete("Once upon a time", **greedy).text
        if text != expected:
            wrong.append((index, round, text))
        engine.status()


with tempfile.TemporaryDirectory() as folder, Engine(target, model_draft=draft, **options) as engine:
    expected = engine.complete("Once upon a time", **greedy).text
    threads = [threading.Thread(target=uses, args=(engine, expected, index)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    session = Path(folder) / "session"
    engine.complete("Once upon a time", id_slot=0, **greedy)
    engine.session_save(session)
    engine.session_load(session, id_slot=1)
    for call in (
        lambda: engine.session_load(Path(folder) / "none"),
        lambda: engine.complete("x", grammar="root ::= ["),
        lambda: engine.complete("x", n_predict="many"),
    ):
        try:
            call()
        except ForedraftError:
            continue
        raise AssertionError("no error")

    async def several():
        return await asyncio.gather(*(engine.complete_async("Once upon a time", **greedy) for _ in range(3)))

    assert [completion.text for completion in asyncio.run(several())] == [expected] * 3
    engine.load(target, **options)
    assert engine.complete("Once upon a time", **{**greedy, "speculative": False}).text == expected
print("done")
