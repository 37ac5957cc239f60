#!/usr/bin/env bash
# Tests the Node package as a user gets it: packs it and the package of this platform, installs both tarballs into a fresh project outside the repository, and
# runs its tests there.
#
#   scripts/test-node.sh [arguments of node]      FOREDRAFT_LIB: the library to carry, else target/release's
#                                                 FOREDRAFT_PACKAGES: a folder in which scripts/release.sh has made both, instead
#
# Without Node 18 and npm it is skipped; where CI runs (CI=1) that is a failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export FOREDRAFT_LIB=${FOREDRAFT_LIB:-$root/target/release/libforedraft.so}

if ! node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' >/dev/null 2>&1 || ! npm --version >/dev/null 2>&1; then
    echo "skipped: the Node package: no node of at least 18 with npm here"
    [ -z "${CI:-}" ]
    exit
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -n "${FOREDRAFT_PACKAGES:-}" ]; then
    cp "$FOREDRAFT_PACKAGES"/foredraft-*.tgz "$folder"
else
    (cd "$root/node" && npm pack --silent --pack-destination "$folder" && npm pack --silent --pack-destination "$folder" "$(node scripts/platform.cjs)")
fi
! command -v python3 >/dev/null || "$root/scripts/check-packages.sh" "$folder"/*.tgz
cd "$folder"
unset FOREDRAFT_LIB NODE_PATH
npm init -y >/dev/null
npm install --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error ./*.tgz
cp -r "$root/node/test" test
export FOREDRAFT_MODELS=$root/models FOREDRAFT_HUB=$root/tests/hub
# The types, and what older Nodes only run compiled (`await using`).
if npm install --no-save --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error typescript@5.9 @types/node@20 openai@6 esbuild@0.25; then
    npx tsc --noEmit --strict --module nodenext --target es2022 test/typed.mts test/openai.mts
    # Compiles the guide's programs as TypeScript.
    cp -r "$root/examples/guide" guide
    npx tsc --noEmit --strict --allowJs --checkJs --module nodenext --target es2022 guide/*.mjs
    npx tsc --strict --module nodenext --target es2022 --allowJs --outDir built test/*.test.mts
    mv built/*.test.mjs test
else
    echo "skipped: the types of the Node package: TypeScript cannot be installed here"
    [ -z "${CI:-}" ]
fi
node --expose-gc --test --test-reporter=tap "$@" test/*.test.mjs
# The adapters for other packages.
if npm install --no-save --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error ai@6 @langchain/core@1 typescript@5.9 @types/node@20 @types/json-schema@7; then
    cp "$root"/examples/adapters/*.m?s .
    npx tsc --noEmit --strict --module nodenext --target es2022 test_types.mts
    node --test --test-reporter=tap adapters.test.mjs
else
    echo "skipped: the adapters for the AI SDK and LangChain.js: these cannot be installed here"
    [ -z "${CI:-}" ]
fi
