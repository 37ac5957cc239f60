#!/usr/bin/env bash
# Fuzzes every parser of foreign bytes: the crates' parsers guided by coverage (cargo-fuzz, nightly), the others by mutations of valid documents.
#   scripts/fuzz.sh [SECONDS [EXECUTIONS]]    seconds of each guided target, executions of each other target
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60} executions=${2:-20000}

export CARGO_TARGET_DIR=$PWD/target/fuzz
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "skipped: no cargo-fuzz (cargo install cargo-fuzz) with a nightly toolchain" >&2
else
    # For the target that calls the C interface.
    export FOREDRAFT_LIBRARY=$PWD/target/release/libforedraft.so
    CARGO_TARGET_DIR=$PWD/target cargo build --release --lib
    for name in ngram_file gbnf read template template_api schema; do
        mkdir -p "fuzz/corpus/$name" "fuzz/seeds/$name"
        cargo +nightly fuzz build "$name" >"target/fuzz-$name.log" 2>&1
        cargo +nightly fuzz run "$name" "fuzz/corpus/$name" "fuzz/seeds/$name" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
            -max_len=2048 -print_final_stats=1 >"target/fuzz-$name.log" 2>&1 || { tail -n 40 "target/fuzz-$name.log"; exit 1; }
        count=$(sed -n 's/^stat::number_of_executed_units: *//p' "target/fuzz-$name.log")
        echo "| $name, guided by coverage | $count executions | $seconds s | no failure |"
    done
fi
unset CARGO_TARGET_DIR
export CARGO_TARGET_DIR=$PWD/target
FOREDRAFT_SEARCH_SECONDS=$seconds cargo test --release --quiet --test requests -- --nocapture slow_sources | grep -oE '\| .* \|$'
FOREDRAFT_FUZZ=$executions cargo test --release --quiet --lib -- --nocapture mutations | grep -oE '\| .* \|$'
FOREDRAFT_FUZZ=$executions cargo test --release --quiet --test against_llama -- --nocapture damaged_files | grep -oE '\| .* \|$'
# Random turns of each chat format.
FOREDRAFT_FUZZ=$((executions / 1000 + 100)) cargo test --release --quiet -p foredraft-chat random_turns
