"""Limits of memory: what a process with too little of it gets. FOREDRAFT_LIMIT_MODEL names another model, FOREDRAFT_LIMIT_STEP the MiB from one limit
to the next one, FOREDRAFT_LIMIT_MOST the last one."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DRAFT

PROGRAM = Path(__file__).with_name("limited.py")
#: Codes of the steps of the program.
CODES = {"ok", "resource_exhausted", "model_error"}
#: Rust ends the process where it has no memory for its own tables, glibc where it has none for a new thread's. Both say so.
SAID = ["memory allocation of", "cannot create", "Fatal glibc error: failed to register TLS destructor"]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts otherwise")
def test_limits_of_memory_are_errors_or_said():
    model = os.environ.get("FOREDRAFT_LIMIT_MODEL", str(DRAFT))
    step, most = int(os.environ.get("FOREDRAFT_LIMIT_STEP", "6")), int(os.environ.get("FOREDRAFT_LIMIT_MOST", "60"))
    outcomes = {"load ok": 0, "load resource_exhausted": 0, "said": 0}
    for mebibytes in range(0, most + 1, step):
        ran = subprocess.run([sys.executable, PROGRAM, model, str(mebibytes << 10)], capture_output=True, text=True, timeout=120)
        shown = f"{mebibytes} MiB: {ran}"
        if any(reason in ran.stderr for reason in SAID):
            outcomes["said"] += 1
            continue
        lines = [line.split(" ", 1) for line in ran.stdout.splitlines()]
        assert ran.returncode == 0 and lines[-1] == ["again", "ok"], shown
        assert all(code in CODES for _, code in lines) and "Traceback" not in ran.stderr, shown
        for line in ran.stdout.splitlines():
            if line in outcomes:
                outcomes[line] += 1
    print(f"| limits of memory, from Python | {outcomes} |")
    assert outcomes["load ok"] > 0 and outcomes["load resource_exhausted"] > 0, outcomes
