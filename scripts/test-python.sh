#!/usr/bin/env bash
# Tests the Python packages as a user gets them: builds the source archives and the wheels from those, installs the wheels into a fresh
# virtual environment, and runs their tests and mypy in a folder outside the repository.
#
#   scripts/test-python.sh [arguments of pytest]      FOREDRAFT_LIB: the library to carry, else target/release's
#                                                     FOREDRAFT_PACKAGES: a folder in which scripts/release.sh has made them, instead
#
# Without python3 (3.9 or newer, with venv) it is skipped; where CI runs (CI=1) that is a failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1
export FOREDRAFT_LIB=${FOREDRAFT_LIB:-$root/target/release/libforedraft.so}

if ! "$python" -c 'import ctypes, ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then
    echo "skipped: the Python package: no python3 of at least 3.9 with venv here"
    [ -z "${CI:-}" ]
    exit
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
# The wheel is built from the source archive, with the library that FOREDRAFT_LIB names.
"$folder/venv/bin/pip" install --quiet setuptools wheel
# A library that is older than its sources is not carried: `make build` would write another one.
mkdir -p "$folder/old/python" "$folder/old/target/release"
cp "$root/Cargo.toml" "$folder/old" && cp "$root/python/setup.py" "$folder/old/python"
printf 'build:\n\t@echo new >target/release/libforedraft.so\n' >"$folder/old/Makefile"
echo old >"$folder/old/target/release/libforedraft.so"
cat >"$folder/old/python/carry.py" <<'PROGRAM'
import runpy, sys
sys.argv = ["setup.py", "--name"]
print(runpy.run_path("setup.py")["library"]().read_text())
PROGRAM
carried=$(cd "$folder/old/python" && FOREDRAFT_LIB='' "$folder/venv/bin/python" carry.py 2>"$folder/carried.log" | grep -x -e old -e new)
grep -q 'the package carries .*release/libforedraft.so' "$folder/carried.log"
# A build says on the terminal how long it takes, because pip hides its output.
rm "$folder/old/target/release/libforedraft.so"
(cd "$folder/old/python" && FOREDRAFT_LIB='' "$folder/venv/bin/python" -c "
import pty, sys
pty.spawn(['sh', '-c', sys.executable + ' carry.py >hidden 2>&1'])" </dev/null >"$folder/terminal.log")
grep -q 'about ten minutes' "$folder/terminal.log" || { echo "a build says nothing on the terminal"; exit 1; }
[ "$carried" = new ] || { echo "the wheel carries an old library"; exit 1; }
if [ -n "${FOREDRAFT_PACKAGES:-}" ]; then
    mkdir "$folder/wheel"
    find "$FOREDRAFT_PACKAGES" -name '*.whl' -o -name 'foredraft*.tar.gz' ! -name '*-c-*' | xargs -I{} cp {} "$folder/wheel"
else
    "$folder/venv/bin/pip" install --quiet build
    for package in python python/llama-cpp; do
        "$folder/venv/bin/python" -m build --outdir "$folder/wheel" "$root/$package" >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
    done
fi
"$root/scripts/check-packages.sh" "$folder"/wheel/*.whl
tar -C "$folder" -xzf "$folder"/wheel/foredraft-*.tar.gz
# Cargo finds the whole workspace in it.
! command -v cargo >/dev/null || cargo metadata --quiet --no-deps --format-version 1 --manifest-path "$folder"/foredraft-*/source/Cargo.toml >/dev/null
"$folder/venv/bin/pip" install --quiet pytest mypy openai jinja2 huggingface_hub "$folder"/wheel/*.whl
echo "wheel: $(cd "$folder/wheel" && ls)"
cp -r "$root/python/tests" "$folder/tests"

cd "$folder"
unset FOREDRAFT_LIB PYTHONPATH
export FOREDRAFT_MODELS=$root/models FOREDRAFT_EXAMPLES=$root/examples FOREDRAFT_HUB=$root/tests/hub
venv/bin/mypy --strict -p foredraft -p foredraft_llama_cpp
venv/bin/mypy --strict tests/typed.py
venv/bin/python -m pytest -q -p no:cacheprovider --rootdir "$folder" "$@" tests
# The adapter for LlamaIndex, which brings numpy: so the rows of processors are arrays of numpy's, too.
if venv/bin/pip install --quiet --no-compile llama-index-core; then
    venv/bin/python -m pytest -q -p no:cacheprovider --rootdir "$folder" tests/test_llama_index.py tests/test_logits.py
else
    echo "skipped: the adapter for LlamaIndex, which cannot be installed here"
    [ -z "${CI:-}" ]
fi
