#!/usr/bin/env bash
# Runs hosts in C and Python against the library, llama.cpp included, under a sanitizer or Valgrind.
#   scripts/sanitize.sh address|thread|valgrind [SECONDS]    seconds of random calls on eight threads (20)
# The sanitizers need GCC and a nightly toolchain (for `thread` with rust-src), and compile llama.cpp anew in target/address or target/thread.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-} seconds=${2:-20}
root=$PWD triple=x86_64-unknown-linux-gnu
target=$root/models/stories-target.gguf draft=$root/models/stories-draft.gguf
# A wrapper around Python would be run instead of it.
python=$(python3 -c 'import sys; print(sys.executable)')

# missing WHAT: reports it; in CI (`CI` is set) it is a failure.
missing() {
    echo "skipped: $kind: no $1" >&2
    if [ -n "${CI:-}" ]; then exit 1; fi
    exit 0
}

# Builds the library in target/KIND.
build() {
    local flags="-fsanitize=$kind -fno-omit-frame-pointer -g1" std=() more=
    cargo +nightly --version >/dev/null 2>&1 || missing "nightly toolchain (rustup toolchain install nightly)"
    # Rust's standard library synchronises threads, which the thread sanitizer must see.
    if [ "$kind" = thread ]; then
        std=(-Zbuild-std)
        mkdir -p "$root/target/thread"
        "${CC:-cc}" -O1 -fPIC -c scripts/tsan_memory.c -o "$root/target/thread/tsan_memory.o"
        more="-Clink-arg=$root/target/thread/tsan_memory.o"
        [ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src" ] || missing "rust-src (rustup component add rust-src --toolchain nightly)"
    fi
    # The runtime is GCC's, which the host brings.
    CFLAGS=$flags CXXFLAGS=$flags CARGO_TARGET_DIR=$root/target/$kind \
        RUSTFLAGS="-Zsanitizer=$kind -Zexternal-clangrt -Clink-arg=-fsanitize=$kind -Cforce-frame-pointers=yes $more" \
        cargo +nightly build --release --lib --target "$triple" "${std[@]}"
}

# compile LIBRARY_FOLDER FLAGS...: builds the host in tests/hosts/life against a library.
compile() {
    local library=$1
    shift
    mkdir -p "$root/target/$kind"
    host=$root/target/$kind/life
    "${CC:-cc}" -g -O1 -Iinclude -pthread "$@" tests/hosts/life/*.c -o "$host" "-L$library" -lforedraft "-Wl,-rpath,$library"
}

# attempt NAME COMMAND...: runs a host, and shows its report if it fails.
attempt() {
    local name=$1 log=$root/target/$kind/${1//[ ,]/-}.log
    shift
    if "$@" >"$log" 2>&1; then
        echo "| $kind | $name | no report |"
    else
        tail -n 60 "$log"
        echo "| $kind | $name | failed, see $log |"
        failed=1
    fi
}

failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bug=bug leaks=()
case $kind in
    address)
        build
        library=$root/target/address/$triple/release
        compile "$library" -fsanitize=address
        preload=$(cc -print-file-name=libasan.so)
        # Memory that is still reachable at the end belongs to the process: see src/ffi/globals.c. Valgrind looks for leaks.
        export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99
        run=()
        ;;
    thread)
        build
        library=$root/target/thread/$triple/release
        compile "$library" -fsanitize=thread
        preload=$(cc -print-file-name=libtsan.so)
        export TSAN_OPTIONS="suppressions=$root/scripts/tsan.supp history_size=4 exitcode=99"
        # GCC's runtime knows only the usual layout of memory.
        run=(setarch -R)
        python=("${run[@]}" "$python")
        bug=race
        ;;
    valgrind)
        valgrind --version >/dev/null 2>&1 || missing "Valgrind (apt-get install valgrind)"
        export CARGO_TARGET_DIR=$root/target
        cargo build --release --lib
        library=$root/target/release
        compile "$library"
        preload=
        # Valgrind knows no AVX-512.
        export FOREDRAFT_CPU_LEVEL=avx2 PYTHONMALLOC=malloc
        run=(valgrind --quiet --fair-sched=try --error-exitcode=99 "--suppressions=$root/scripts/valgrind.supp")
        # CPython 3.11 reads numbers that are not initialized (`_PyLong_FromByteArray`), and passes them on.
        python=(valgrind --quiet --fair-sched=try --error-exitcode=99 --undef-value-errors=no "$python")
        # A forked child has lost the blocks of its parent's other threads.
        leaks=(--child-silent-after-fork=yes --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)
        ;;
    *)
        sed -n 2,4p "$0"
        exit 2
        ;;
esac

# Functions in Rust, C and C++ must be instrumented.
if [ "$kind" != valgrind ]; then
    for name in foredraft_tokenize ggml_graph_plan _ZN13llama_context6decodeERK11llama_batch; do
        # grep gets no -q, which would end objdump early.
        objdump -d --no-show-raw-insn "--disassemble=$name" "$library/libforedraft.so" | grep -E '__[at]san_' >/dev/null ||
            { echo "$name is not instrumented" >&2; exit 1; }
    done
    echo "| $kind | functions in Rust, C and C++ | instrumented |"
fi

# The tool must see a bug inside the library.
if "${run[@]}" "$host" "$folder" "$target" "$draft" "$bug" >"target/$kind/bug.log" 2>&1; then
    cat "target/$kind/bug.log"
    echo "$kind does not see a deliberate bug" >&2
    exit 1
fi
grep -qE 'heap-use-after-free|data race|Invalid read' "target/$kind/bug.log" || { cat "target/$kind/bug.log"; exit 1; }
echo "| $kind | a deliberate bug inside the library ($bug) | reported |"

life=("${run[@]}" "${leaks[@]}" "$host" "$folder" "$target" "$draft")
attempt "life cycle, speculation, sessions, errors in C" "${life[@]}" once
attempt "threads, cancels, loads, adapters in C" "${life[@]}" chaos "$seconds"
attempt "old host in Python" env ${preload:+"LD_PRELOAD=$preload"} FOREDRAFT_LIB="$library/libforedraft.so" "${python[@]}" tests/hosts/old_life.py "$target" "$draft"
attempt "package for Python" env ${preload:+"LD_PRELOAD=$preload"} FOREDRAFT_LIB="$library/libforedraft.so" PYTHONPATH=python/src "${python[@]}" tests/hosts/package_life.py "$target" "$draft"
exit "$failed"
