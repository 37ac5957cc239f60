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

        # What a runtime keeps stops growing. A leak is there in each series.
        resident_after = [request(500)]
        for _ in range(4):
            resident_after.append(request(1500))
            if resident_after[-1] - resident_after[-2] < 8e6:
                break
        assert resident_after[-1] - resident_after[-2] < 8e6, resident_after
