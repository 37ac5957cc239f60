#!/usr/bin/env bash
# Long runs of the host in tests/hosts/life.
#   scripts/soak.sh soak [REQUESTS LOADS]    memory after many requests and loads
#   scripts/soak.sh chaos [MINUTES]          random calls on eight threads; each completion is compared with its solo run, and the memory is measured each minute
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
library=$PWD/target/release
cargo build --release --lib
"${CC:-cc}" -O1 -Iinclude -pthread tests/hosts/life/*.c -o "$folder/life" "-L$library" -lforedraft "-Wl,-rpath,$library"
life=("$folder/life" "$folder" models/stories-target.gguf models/stories-draft.gguf)
case $1 in
    soak) "${life[@]}" soak "${2:-100000}" "${3:-1000}" ;;
    chaos)
        seconds=$((${2:-10} * 60))
        # Without the allocator's own caches (those of each thread, and the free ends of its heaps, which malloc_trim leaves), memory is what the library holds.
        export GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.trim_threshold=131072
        "${life[@]}" chaos "$seconds" &
        host=$!
        # Much more time means that it hangs: the watchdog shows where.
        (
            sleep $((seconds + 120))
            echo "no end after $((seconds + 120)) s:" >&2
            gdb -p "$host" -batch -ex 'thread apply all backtrace' >&2 || cat /proc/"$host"/task/*/stack >&2
            kill -ABRT "$host"
        ) &
        watchdog=$!
        status=0
        wait "$host" || status=$?
        kill "$watchdog" 2>/dev/null || true
        exit "$status"
        ;;
esac
