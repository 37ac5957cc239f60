#!/usr/bin/env bash
# Benchmarks beside llama.cpp: scripts/bench.sh NAME [ARGS]. benches/measure has those that take no llama.cpp, or other programs.
#
#   quick [TARGET DRAFT]               tokens per second of each drafter, and the cost of sampling and n-gram caches (`make bench`)
#   full [TARGET DRAFT]                the same for an hour or more; also writes the plot docs/speedup.svg
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

case $benchmark in
    quick)
        scripts/models.sh --optional --enlarged=Q8_0
        bench engine -- "$@"
        bench sampling
        bench ngram -- --quick
        bench speculation -- --quick "$@"
        ;;
    full)
        scripts/models.sh --optional --enlarged
        bench engine -- "$@"
        bench sampling
        bench ngram
        bench speculation -- --plot docs/speedup.svg "$@"
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
