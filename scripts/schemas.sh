#!/bin/sh
# schemas.sh: gets the JSON Schema test suite into target/json-schema-test-suite, for crates/schema/src/tests/suite.rs. The source package of
# jsonschema on PyPI has it (0.4 MB).
set -eu
cd "$(dirname "$0")/.."
version=4.26.0
out=target/json-schema-test-suite
[ -e "$out/.$version" ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="python3 -m pip"
$pip --version >/dev/null 2>&1 || { python3 -m venv "$work/venv" && pip="$work/venv/bin/python -m pip"; }
$pip download --quiet --no-deps --no-binary jsonschema --dest "$work" "jsonschema==$version"
tar -xzf "$work"/jsonschema-*.tar.gz -C "$work" --wildcards '*/json/tests/*'
rm -rf "$out"
mkdir -p target
mv "$work"/jsonschema-*/json/tests "$out"
touch "$out/.$version"
