#!/usr/bin/env bash
# Compares the versions of all dependencies with RustSec's advisories. Fails if one has a known vulnerability. Skipped where cargo-audit or the
# advisories cannot be had, so that a failure of the network breaks nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
advisories=target/advisory-db

skip() {
    echo "skipped: $*" >&2
    exit 0
}

command -v cargo-audit >/dev/null || skip "no cargo-audit (cargo install cargo-audit --locked)"
mkdir -p target
if [ -d "$advisories/.git" ]; then
    timeout 60 git -C "$advisories" pull --quiet --depth 1 >/dev/null 2>&1 || skip "the advisories of RustSec cannot be fetched"
else
    rm -rf "$advisories"
    GIT_TERMINAL_PROMPT=0 timeout 60 git clone --quiet --depth 1 https://github.com/RustSec/advisory-db.git "$advisories" 2>/dev/null ||
        skip "the advisories of RustSec cannot be fetched"
fi
for lock in Cargo.lock fuzz/Cargo.lock; do
    cargo-audit audit --db "$advisories" --no-fetch --stale --file "$lock"
done
