#!/usr/bin/env bash
# Makes target/models/stories-target-750m-q8_0.gguf: the shipped target, enlarged until it costs what a real model of
# 750 M parameters costs, and still saying the same (models/inflate.py). Takes 0.8 GB of disk and about half a minute, once.
#
#   scripts/inflate.sh [--optional]     --optional: where it cannot be made, say so and go on
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
model=$root/target/models/stories-target-750m-q8_0.gguf
venv=$root/target/setup/gguf

say() { printf 'inflate: %s\n' "$*" >&2; }
give_up() {
    if [ "${optional:-}" = --optional ]; then say "$*; going on without the enlarged model"; exit 0; fi
    say "$*"
    exit 1
}

# A python with gguf and numpy: the system's, or one of our own.
find_python() {
    local imports='import gguf, numpy'
    command -v python3 >/dev/null || give_up "python3 is needed"
    for python in python3 "$venv/bin/python"; do
        "$python" -c "$imports" 2>/dev/null && return
    done
    say "installing gguf and numpy from PyPI into $venv"
    python3 -m venv "$venv" >&2 && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check gguf numpy >&2 ||
        give_up "gguf and numpy could not be installed (python3 with venv is needed)"
    "$python" -c "$imports" || give_up "gguf and numpy do not work"
}

optional=${1:-}
if [ ! -e "$model" ] || [ "$root/models/inflate.py" -nt "$model" ] || [ "$root/models/stories-target.gguf" -nt "$model" ]; then
    find_python
    mkdir -p "$(dirname "$model")"
    trap 'rm -f "$model.part"' EXIT
    say "enlarging the shipped target to 750 M parameters (0.8 GB under target/models, about half a minute, once)"
    "$python" "$root/models/inflate.py" "$root/models/stories-target.gguf" "$model.part" \
        --embd 2048 --layers 16 --ff 5632 --type Q8_0 >&2 || give_up "models/inflate.py failed"
    mv "$model.part" "$model"
fi
