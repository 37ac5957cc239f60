#!/usr/bin/env bash
# Runs the basic flows of programs that others wrote over the packages for Python and Node, with the shipped models, and prints the table of
# docs/clients.md. Downloads the clients into target/clients: some 500 MB from PyPI and npm, or 5 GB with txtai, which needs PyTorch.
#
#   scripts/clients.sh [--txtai]      FOREDRAFT_LIB: the library, else target/release's
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export FOREDRAFT_LIB=${FOREDRAFT_LIB:-$root/target/release/libforedraft.so}
export FOREDRAFT_MODELS=$root/models FOREDRAFT_EXAMPLES=$root/examples PYTHONPATH=$root/python/src:$root/python/llama-cpp/src PYTHONDONTWRITEBYTECODE=1
folder=$root/target/clients
mkdir -p "$folder/node"
cd "$folder"

[ -x venv/bin/python ] || python3 -m venv venv
clients=(langchain llama-index haystack instructor outlines guidance lm-format-enforcer openai)
packages=(langchain-core langchain-community llama-index-core haystack-ai instructor outlines numba guidance lm-format-enforcer openai numpy)
if [ "${1:-}" = --txtai ]; then
    clients+=(txtai)
    packages+=(txtai)
fi
venv/bin/pip install --quiet --disable-pip-version-check --only-binary :all: "${packages[@]}"
# These two ask for llama-cpp-python, in whose place this package is.
venv/bin/pip install --quiet --disable-pip-version-check --no-deps llama-index-llms-llama-cpp llama-cpp-haystack
for client in "${clients[@]}"; do
    timeout 300 venv/bin/python -W ignore "$root/scripts/clients/flows.py" "$client" 2>"$client.log" || echo "{\"client\": \"$client\", \"version\": \"it ended with $?\"}"
done >rows

cd node
[ -f package.json ] || npm init -y >/dev/null
npm install --ignore-scripts --no-audit --no-fund --loglevel=error ai@6 @langchain/core@1 openai@6 koffi@3 >&2
mkdir -p node_modules/foredraft
cp -r "$root/node/lib" "$root/node/package.json" node_modules/foredraft
cp "$root"/examples/adapters/{ai_sdk,langchain}.mjs "$root/scripts/clients/flows.mjs" .
PYTHON=../venv/bin/python timeout 300 node --no-warnings flows.mjs >>../rows 2>../node.log

python3 - ../rows <<'PROGRAM'
import json, sys

flows = ["completion", "chat", "stream", "tool call", "schema", "embeddings"]
print("| client | version |", " | ".join(flows), "|")
print("| --- " * (2 + len(flows)) + "|")
for line in open(sys.argv[1]):
    row = json.loads(line)
    print("|", " | ".join(str(row.get(column, "")).replace("|", "\\|") for column in ["client", "version", *flows]), "|")
PROGRAM
