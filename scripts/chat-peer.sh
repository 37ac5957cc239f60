#!/bin/sh
# chat-peer.sh: runs llama.cpp's tests of chat formats (test-chat.cpp, from scripts/templates.sh) with llama.cpp's own chat code, as llama-server uses it, and
# writes the completions and messages of these tests to target/templates/chat-messages.jsonl, for src/api/prompts/chat_format/tests/peer.rs.
set -eu
cd "$(dirname "$0")/.."
peer=target/templates/peer
out=$PWD/target/templates/chat-messages.jsonl
# Behind the tests of formats are tests of the server's own functions, which are not run, and need its sources.
sed '/^static void test_reasoning_budget_tokens_per_request/,$d' "$peer/tests/test-chat.cpp" >"$peer/tests/formats.cpp"
mkdir -p "$peer/tools/server" "$peer/models"
: >"$peer/tools/server/server-chat.h"
ln -sfn ../.. "$peer/models/templates"
libraries=$(dirname "$(ls -t "${CARGO_TARGET_DIR:-target}"/release/build/llama-cpp-sys-2-*/out/lib/libllama.a | head -n 1)")
manifest=$(cargo metadata --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/host: //p')" |
    python3 -c 'import json, sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "llama-cpp-sys-2"))')
program=$peer/chat_peer
if [ ! -e "$program" ] || [ tests/hosts/chat_peer.cpp -nt "$program" ] || [ "$libraries/libllama.a" -nt "$program" ]; then
    # shellcheck disable=SC2046 # arguments are words
    ${CXX:-c++} -std=c++17 -O0 -w -I"$peer/tests" tests/hosts/chat_peer.cpp -o "$program" $(scripts/llama-common.sh "$(dirname "$manifest")/llama.cpp" "$libraries")
fi
(cd "$peer" && ./chat_peer "$out" 2>"$out.log" >&2) || { tail -n 5 "$out.log"; exit 1; }
wc -l "$out"
