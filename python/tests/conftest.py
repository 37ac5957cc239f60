"""Helpers of the tests. They test the installed package, with the models in the folder that FOREDRAFT_MODELS names."""
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import foredraft

MODELS = Path(os.environ["FOREDRAFT_MODELS"])
TARGET = MODELS / "stories-target.gguf"
DRAFT = MODELS / "stories-draft.gguf"
#: A text without end, which only a cancellation ends.
ENDLESS = {"ignore_eos": True, "n_predict": -1}
#: Ends a test that hangs; no test asserts how long anything takes.
HANG = 600

CONFIG = {"model_draft": DRAFT, "n_parallel": 2, "n_ctx": 1024, "warmup": False}


@pytest.fixture(scope="session")
def engine():
    with foredraft.Engine(TARGET, **CONFIG) as engine:
        yield engine


def until(what, so):
    """Waits until that is so."""
    deadline = time.monotonic() + HANG
    while not so():
        assert time.monotonic() < deadline, f"{what}: not within {HANG} s"
        time.sleep(0.005)


def idle(engine):
    """Waits until no slot works and nothing is queued."""
    def is_idle():
        status = engine.status()
        return status["queue"] == 0 and all(slot["request_id"] is None for slot in status["slots"])

    until("an idle engine", is_idle)


class Program:
    """A Python program in a process of its own."""

    def __init__(self, source, *args):
        head = f"TARGET, DRAFT, ENDLESS, CONFIG = {str(TARGET)!r}, {str(DRAFT)!r}, {ENDLESS!r}, dict(model_draft={str(DRAFT)!r}, n_ctx=1024, warmup=False)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", head + textwrap.dedent(source), *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A background job of a shell ignores SIGINT, and its children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def line(self):
        """The next line that it prints."""
        return self.process.stdout.readline().strip()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, status=0):
        """Waits for its end, which must have that exit status; returns what it printed."""
        try:
            out, err = self.process.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            pytest.fail(f"it hangs\n{out}\n{err}")
        assert self.process.returncode == status, f"{self.process.returncode}\n{out}\n{err}"
        assert "FATAL" not in err and "Traceback" not in err or status != 0, err
        return out, err
