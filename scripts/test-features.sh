#!/usr/bin/env bash
# Tests downloads in Rust (the feature `hub`), and the library without the cargo feature `rpcserver`: it exports none of the old names, links with a host that has functions with
# these names, and works.
#
# Builds in target/no-rpcserver, which starts as hard links to what target/ has of all other crates, so that llama.cpp is not built again.
# A missing compiler or nm is a skipped test; where CI runs (CI is set) it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in "${CC:-cc}" nm; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: the library without rpcserver: no $tool"
        [ -z "${CI:-}" ]
        exit
    fi
done

built=${CARGO_TARGET_DIR:-target}/release
own=target/no-rpcserver
[ -d "$built/build" ] || { echo "run make build first" >&2; exit 1; }
mkdir -p "$own/release"
# This crate's own files are not shared: cargo would overwrite them.
(cd "$built" && find .fingerprint build deps ! -type d ! -path '*foredraft*' -print0 |
    xargs -0 cp --archive --link --no-clobber --parents --target-directory "$OLDPWD/$own/release")
CARGO_TARGET_DIR=$PWD/$own cargo build --release --lib --no-default-features

library=$own/release/libforedraft.so
old=$(sed -n 's/^FOREDRAFT_API .*[ *]\([a-z_]*\)(.*/\1/p' include/rpcserver.h)
exported=$(nm -D --defined-only "$library" | awk '{ print $3 }')
if [ "$(wc -w <<<"$old")" -lt 20 ] || ! grep -qx foredraft_complete <<<"$exported"; then
    echo "the names of the functions were not found" >&2
    exit 1
fi
if grep -vx 'foredraft_[a-z_]*' <<<"$exported" || grep -Fxf <(printf '%s\n' $old) <<<"$exported"; then
    echo "the library without rpcserver exports these" >&2
    exit 1
fi
"${CC:-cc}" -std=c99 -Wall -Wextra -Werror -Iinclude tests/hosts/own_names.c -L"$own/release" -lforedraft -Wl,-rpath,"$PWD/$own/release" \
    -o "$own/own_names"
"$own/own_names" models/stories-target.gguf models/stories-draft.gguf
echo "ok: the library without rpcserver"
CARGO_TARGET_DIR=$PWD/$own cargo test --release --no-default-features --features hub --test typed hub
