#!/usr/bin/env bash
# Times products of weights with tokens on one core of an x86-64 processor: ggml's kernels for AVX2 beside ours at each level.
#
#   scripts/bench-products.sh [ROWS WIDTH N_TOKENS REPEATS]      (8192 2048 1 15)
#
# Links the kernels with the ggml that cargo has compiled: `cargo build --release --lib` comes first.
set -euo pipefail
cd "$(dirname "$0")/.."
size=("${1:-8192}" "${2:-2048}" "${3:-1}" "${4:-15}")
target=${CARGO_TARGET_DIR:-$PWD/target}
lib=$(ls -dt "$target"/release/build/llama-cpp-sys-2-*/out/lib | head -1)
source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$lib/../build/CMakeCache.txt")
work=$target/products
mkdir -p "$work"
flags=(-std=c++17 -O3 -ffp-contract=off -w -isystem "$source/ggml/include" -isystem "$source/ggml/src" -isystem "$source/ggml/src/ggml-cpu")
level() { g++ "${flags[@]}" -mavx2 -mfma -mf16c -mbmi2 "${@:2}" -DFOREDRAFT_LEVEL="$1" -c crates/native/kernels/level.cpp -o "$work/$1.o"; }
level avx2
level avx_vnni -mavxvnni -DFOREDRAFT_AVX_VNNI
level avx512_vnni -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -DFOREDRAFT_AVX512_VNNI
g++ "${flags[@]}" crates/native/kernels/{seam,states,copies,panels,making}.cpp benches/products/products.cpp "$work"/{avx2,avx_vnni,avx512_vnni}.o -o "$work/products" \
    -L"$lib" -Wl,--start-group -lggml-cpu -lggml-base -lggml -Wl,--end-group -fopenmp -lpthread -ldl -lm
levels=(-1) names='ggml, AVX2'
offer() { if grep -qw "$2" /proc/cpuinfo; then levels+=("$1") names+=" | $3, as in a file | in panels | without prefetches"; fi; }
offer 0 avx2 avx2
offer 1 avx_vnni avx-vnni
offer 2 avx512_vnni avx512-vnni
offer 3 amx_int8 amx
echo "| weights | $names |"
printf "| %s\n" "$(sed "s|[^|]*|---|g" <<<" $names | ")"
"$work/products" "${size[@]}" "${levels[@]}"
