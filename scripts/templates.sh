#!/bin/sh
# templates.sh: gets llama.cpp's collections of real chat templates, real vocabularies and their test vectors, and its tests of chat formats into
# target/templates, for tests/requests/templates.rs, tests/against_llama/vocabularies.rs and scripts/chat-peer.sh. The crate llama-cpp-sys-2 leaves them out; the source package of llama-cpp-python on PyPI has them (76 MB).
set -eu
cd "$(dirname "$0")/.."
version=0.3.36
out=target/templates
[ -e "$out/.$version-with-tests" ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="python3 -m pip"
$pip --version >/dev/null 2>&1 || { python3 -m venv "$work/venv" && pip="$work/venv/bin/python -m pip"; }
$pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version"
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --wildcards \
    '*/vendor/llama.cpp/models/templates/*.jinja' '*/vendor/llama.cpp/models/ggml-vocab-*' '*/vendor/llama.cpp/tests/test-chat.cpp'
mkdir -p "$out/peer/tests"
mv "$work"/llama_cpp_python-*/vendor/llama.cpp/tests/test-chat.cpp "$out/peer/tests"
mv "$work"/llama_cpp_python-*/vendor/llama.cpp/models/templates/*.jinja "$out"
mv "$work"/llama_cpp_python-*/vendor/llama.cpp/models/ggml-vocab-* "$out"
touch "$out/.$version-with-tests"
