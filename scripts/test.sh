#!/usr/bin/env bash
# Runs all tests of the workspace, program by program, the longest first, and prints the output of each as a whole.
#
#   scripts/test.sh [arguments of the test programs]      FOREDRAFT_TEST_LANES: how many programs run at a time (2; on one core 1)
#
# Two at a time take 12 minutes on two cores and one 20, because many tests wait, compile or compute on one core.
# The tests of a program run one after another (RUST_TEST_THREADS in .cargo/config.toml).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

lanes=${FOREDRAFT_TEST_LANES:-$(($(getconf _NPROCESSORS_ONLN) > 1 ? 2 : 1))}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The engine's tests by themselves: they alone need llama.cpp's fake, which other tests must not link.
others=(--workspace --exclude foredraft-engine)
{ cargo test --release "${others[@]}" --no-run && cargo test --release -p foredraft-engine --no-run; } 2>&1 | tee "$work/built" || exit 1
# The longest first. `units` are those of all other crates.
first=(hosts isolation exactness engine_alone units kernels hostile real_models speculation)
# Cargo names each program as `Executable tests/hosts/main.rs (target/release/deps/hosts-43d317644705b423)`.
mapfile -t found < <(sed -n 's|^ *Executable tests/.*(.*/\([^/]*\)-[0-9a-f]*)$|\1|p' "$work/built" | sort)
[ ${#found[@]} -gt 0 ] || { echo "cargo named no test program" >&2; exit 1; }
mapfile -t jobs < <(printf '%s\n' "${first[@]}" "${found[@]}" documents_of_crates | awk '!seen[$0]++')

# Runs the jobs that no other lane has begun. A folder can be made only once.
run_lane() {
    local job what result=0
    for job in "${jobs[@]}"; do
        mkdir "$work/$job" 2>/dev/null || continue
        case $job in
        engine_alone) what=(-p foredraft-engine) ;;
        units) what=("${others[@]}" --lib --bins) ;;
        documents_of_crates) what=("${others[@]}" --doc) ;;
        *) what=("${others[@]}" --test "$job") ;;
        esac
        cargo test --release --no-fail-fast "${what[@]}" -- "$@" >"$work/$job/output" 2>&1 </dev/null || result=1
        until mkdir "$work/printing" 2>/dev/null; do sleep 0.1; done
        cat "$work/$job/output"
        rmdir "$work/printing"
    done
    return $result
}

pids=() result=0
for ((lane = 0; lane < lanes; lane++)); do
    run_lane "$@" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || result=1; done
exit $result
