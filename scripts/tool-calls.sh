#!/bin/sh
# tool-calls.sh [MODEL]: runs tool-calls.py with SmolLM2, and with jsonschema in an environment of its own.
set -eu
cd "$(dirname "$0")/.."
environment=target/tool-calls
[ -e "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -c 'import jsonschema, rfc3339_validator' 2>/dev/null ||
    "$environment/bin/python" -m pip install --quiet 'jsonschema==4.26.0' 'rfc3339-validator==0.1.4'
model=${1:-target/models/smollm2-135m-q4_1.gguf}
[ -e "$model" ] || scripts/models.sh >/dev/null
FOREDRAFT_LIB=$PWD/target/release/libforedraft.so exec "$environment/bin/python" scripts/tool-calls.py "$model"
