#!/bin/sh
# templates.sh: gets llama.cpp's collection of real chat templates into target/templates, for tests/templates.rs. The crate
# llama-cpp-sys-2 leaves them out; the source package of llama-cpp-python on PyPI has them (76 MB).
set -eu
cd "$(dirname "$0")/.."
version=0.3.36
out=target/templates
[ -e "$out/.$version" ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version"
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
mkdir -p "$out"
mv "$work"/llama_cpp_python-*/vendor/llama.cpp/models/templates/*.jinja "$out"
touch "$out/.$version"
