#!/usr/bin/env bash
# Plain decoding, prompts and a pair of models with 1, 2, 4, ... threads, and where more of them stop helping: `python3 benches/measure cores`.
#
#   scripts/bench-cores.sh [TARGET [DRAFT]]     --help lists the options
exec python3 "$(dirname "$0")/../benches/measure" cores "$@"
