"""Downloads, from the server of the repository's tests/hub."""
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foredraft import Engine, NotFoundError, RequestCancelledError, download
from foredraft_llama_cpp import Llama
from conftest import CONFIG, HANG, MODELS, TARGET

HUB = Path(os.environ["FOREDRAFT_HUB"])


@pytest.fixture(scope="module")
def hub():
    server = subprocess.Popen([sys.executable, HUB / "server.py", MODELS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield server.stdout.readline().strip()
    server.stdin.close()
    server.wait(timeout=HANG)


@pytest.fixture
def home(hub, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub)
    return tmp_path


def test_the_program_and_its_faults():
    program = Path(sys.executable).with_name("foredraft-get")
    done = subprocess.run([sys.executable, HUB / "check.py", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_engine_downloads_its_models(home):
    told = []
    with Engine("hf:stories/target", model_draft="hf:stories/draft", n_ctx=512, warmup=False, progress=told.append) as engine:
        assert Path(engine.status()["model"]).is_relative_to(home)
        assert engine.status()["draft"]["compatible"]
        text = engine.complete("Once", n_predict=8, temperature=0).text
    assert 0 < told[0] <= 1 and told[-1] == 1
    with Engine(TARGET, **{**CONFIG, "model_draft": None}) as engine:
        assert engine.complete("Once", n_predict=8, temperature=0).text == text


def test_a_task_downloads_without_blocking_and_can_be_cancelled(home):
    async def load():
        async with await Engine.create("hf:stories/target", n_ctx=512, warmup=False) as engine:
            assert engine.status()["state"] == "ready"
        task = asyncio.create_task(Engine.create("hf:slow/model"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(load())


def test_an_exception_of_the_receiver_ends_a_download(home):
    def receive(path, done, size):
        raise RequestCancelledError("enough")

    with pytest.raises(RequestCancelledError, match="enough"):
        download("slow/model", receive=receive)


def test_a_drafter_beside_a_target(home):
    found = download("tiny/model", beside=["model_draft"])
    assert sorted(found) == ["model", "model_draft"]
    with pytest.raises(NotFoundError, match="Q5_K_M"):
        Engine("hf:tiny/model:Q5_K_M")


def test_from_pretrained_takes_a_pattern(home):
    with Llama.from_pretrained("stories/target", filename="*target.gguf", n_ctx=512) as llm:
        assert Path(llm.model_path).is_relative_to(home)
    with pytest.raises(NotImplementedError, match="HF_HUB_CACHE"):
        Llama.from_pretrained("stories/target", filename="x.gguf", cache_dir="here")


def test_huggingface_hub_finds_the_files(home):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    found = download("tiny/model:Q8_0", beside=[])["model"]
    assert huggingface_hub.try_to_load_from_cache("tiny/model", "tiny-Q8_0.gguf", cache_dir=home / "hub") == found
    scanned = huggingface_hub.scan_cache_dir(home / "hub")
    assert [repo.repo_id for repo in scanned.repos] == ["tiny/model"] and not scanned.warnings
