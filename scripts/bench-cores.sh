#!/usr/bin/env bash
# How decoding, prompts and a pair of models scale with threads, in less than ten minutes: benches/cores.py.
#
#   scripts/bench-cores.sh [TARGET [DRAFT]] [--threads 1,2,4,8,16] [--seconds 500]
#
# Needs python3 and the built library (`make build`), and takes the largest pair that `scripts/models.sh` has made, or the shipped one.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -e "${CARGO_TARGET_DIR:-target}/release/libforedraft.so" ] || { echo "bench-cores: no library: run make build" >&2; exit 1; }
exec python3 benches/cores.py --library "${CARGO_TARGET_DIR:-target}/release/libforedraft.so" "$@"
