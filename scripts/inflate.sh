#!/usr/bin/env bash
# Makes target/models/stories-target-750m-q8_0.gguf: the shipped target, enlarged until it costs what a real model of
# 750 M parameters costs, and still saying the same (models/inflate.py). Takes 0.8 GB of disk and about half a minute, once.
#
#   scripts/inflate.sh [--optional] [--all]     --optional: where it cannot be made, say so and go on
#                                               --all: also 100 M and 1.5 B parameters, each in Q8_0 and F16 (7 GB, minutes)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
models=$root/target/models
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

# enlarge PARAMETERS TYPE EMBD LAYERS FF
enlarge() {
    local model source=$root/models/stories-target.gguf
    model=$models/stories-target-$1-$(tr '[:upper:]' '[:lower:]' <<<"$2").gguf
    if [ -e "$model" ] && [ ! "$root/models/inflate.py" -nt "$model" ] && [ ! "$source" -nt "$model" ]; then return; fi
    [ -n "$python" ] || find_python
    mkdir -p "$models"
    part=$model.part
    say "enlarging the shipped target to $1 parameters in $2 (under target/models, once)"
    "$python" "$root/models/inflate.py" "$source" "$part" --embd "$3" --layers "$4" --ff "$5" --type "$2" >&2 ||
        give_up "models/inflate.py failed"
    mv "$part" "$model"
}

optional='' all='' python='' part=''
trap '[ -z "$part" ] || rm -f "$part"' EXIT
for option in "$@"; do
    case $option in
    --optional) optional=$option ;;
    --all) all=$option ;;
    *) say "$option: no such option"; exit 2 ;;
    esac
done
enlarge 750m Q8_0 2048 16 5632
[ -z "$all" ] || for type in Q8_0 F16; do
    enlarge 100m "$type" 768 16 2048
    enlarge 750m "$type" 2048 16 5632
    enlarge 1500m "$type" 2048 32 5632
done
