"""Many requests, and the same answers as every other language gets."""
import json
import sys

import pytest

from conftest import DRAFT
from foredraft import Engine, _library

CHAT = {
    "messages": [{"role": "user", "content": "Repeat after me: Zoë said \"two\n€ 🦀\" and ran."}],
    "seed": 42, "temperature": 0.8, "n_predict": 60,
}


def test_the_same_chat_as_the_c_function_for_the_same_seed(engine):
    answer = _library.take(_library.library().foredraft_complete(engine._handle, json.dumps(CHAT).encode()))
    assert engine.chat(**CHAT).text == answer["content"] != ""


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_many_short_requests():
    with Engine(DRAFT, n_ctx=256, warmup=False) as engine:
        def request(count):
            for i in range(count):
                engine.complete(f"Number {i}", n_predict=1)
            return resident()

        before = request(500)
        assert request(1500) - before < 8e6
