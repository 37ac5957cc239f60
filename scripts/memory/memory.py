"""Memory after many short requests: resident megabytes after every tenth part of them.

    python3 scripts/memory/memory.py [requests]      with the package `foredraft` installed, or PYTHONPATH=python/src
"""
import sys
from pathlib import Path

from foredraft import Engine

MODELS = Path(__file__).resolve().parents[2] / "models"
count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000

with Engine(MODELS / "stories-draft.gguf", n_ctx=256, warmup=False) as engine:
    for i in range(count + 1):
        if i % (count // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            print(f"{i:6} requests {pages * 4096 / 1e6:7.1f} MB", flush=True)
        engine.complete(f"Number {i}", n_predict=1)
