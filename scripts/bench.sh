#!/usr/bin/env bash
# Benchmarks beside llama.cpp: scripts/bench.sh NAME [ARGS]. benches/measure has those that take no llama.cpp, or other programs.
#
#   quick [TARGET DRAFT]               tokens per second with drafts, and the cost of sampling and n-gram caches (`make bench`)
#   full [TARGET DRAFT]                the same with fixed draft lengths, all rules of verification and drafters, for an hour or more
#   busy [MODEL]                       tokens per second next to busy processes and on one core
#   products [ROWS WIDTH N_TOKENS REPEATS]    products of weights with tokens on one core, ggml's kernels beside ours at each level
set -euo pipefail
cd "$(dirname "$0")/.."
benchmark=${1:-quick}
[ $# -eq 0 ] || shift
# shellcheck disable=SC1091 # setup.sh writes it
. "$(scripts/setup.sh)"
export CARGO_TARGET_DIR=$PWD/target
# The feature `peer` compiles llama.cpp's side of the benchmarks, which is not part of the library.
bench() { cargo bench --features peer --bench "$@"; }
# The tasks with the models that the arguments name, or with SmolLM2 and two drafts.
given=("$@")
tasks() {
    local models=(target/models/smollm2-830m-q8_0.gguf --draft target/models/smollm2-135m-q4_1.gguf --far target/models/smollm2-far-q4_1.gguf)
    [ "${#given[@]}" = 0 ] || models=("${given[0]}" ${given[1]:+--draft "${given[1]}"})
    [ -e "${models[0]}" ] || { echo "skipped: benches/measure tasks: no ${models[0]}" && return; }
    cargo build --release --lib
    python3 benches/measure tasks "${models[@]}" --history auto,suffix,ngram-cache "$@"
}

case $benchmark in
    quick)
        scripts/models.sh --optional --enlarged=Q8_0
        bench engine -- "$@"
        bench sampling
        bench ngram -- --quick
        tasks --tasks question,editing --temperatures 0 --pairs 1 --n-predict 48
        ;;
    full)
        scripts/models.sh --optional --enlarged
        bench engine -- "$@"
        bench sampling
        bench ngram
        tasks --lengths 1,2,3,4,6,8,12,16 --verify match,rejection,block
        ;;
    busy)
        cargo build --release --lib
        cargo bench --bench busy -- "$@"
        ;;
    products)
        cargo build --release --lib
        scripts/bench-products.sh "$@"
        ;;
    *)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
