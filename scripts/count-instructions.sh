#!/usr/bin/env bash
# Counts the instructions of a step of the engine with the fake backend (see crates/engine/src/tests/instructions.rs), without
# those of the fake models' own decodes. Needs valgrind. A binary of the unit tests can be given instead of the one that is built here.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:-$(cargo test --release -p foredraft-engine --lib --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*foredraft_engine-[^"]*\)".*/\1/p' | tail -1)}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for test in without_drafts with_history_drafters with_a_draft_model; do
    valgrind --tool=callgrind --toggle-collect='*counted_step*' --callgrind-out-file="$folder/$test" "$binary" --exact \
        "tests::instructions::counted_steps_$test" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
    callgrind_annotate --inclusive=yes --threshold=100 "$folder/$test" >"$folder/annotated"
    all=$(sed -n 's/,//g; s/^ *\([0-9]*\).*PROGRAM TOTALS.*/\1/p' "$folder/annotated")
    backend=$(sed 's/,//g' "$folder/annotated" | awk '/FakeBackend.*decode/ { if ($1 > most) most = $1 } END { print most + 0 }')
    [ "$backend" -gt 0 ] || { echo "$test: the decodes of the fake backend are not found" >&2; exit 1; }
    echo "$test: $(((all - backend) / 100)) instructions per step, and $((backend / 100)) of the fake backend"
done
