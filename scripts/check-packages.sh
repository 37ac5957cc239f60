#!/usr/bin/env bash
# Runs scripts/check_packages.py, or another program, in an environment of its own that has pyelftools, in target/checks:
#
#   scripts/check-packages.sh PACKAGE...
#   scripts/check-packages.sh --with PROGRAM ARGUMENT...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
checks=$root/target/checks
if ! "$checks/bin/python" -c 'import elftools' 2>/dev/null; then
    python3 -m venv "$checks"
    "$checks/bin/pip" install --quiet --disable-pip-version-check pyelftools
fi
program=$root/scripts/check_packages.py
if [ "${1:-}" = --with ]; then
    program=$2
    shift 2
fi
exec "$checks/bin/python" "$program" "$@"
