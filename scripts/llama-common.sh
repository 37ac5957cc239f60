#!/usr/bin/env bash
# Compiles llama.cpp's folder `common`, which the library does not use, for tests that compare with it, once, and prints the compiler's arguments for
# a program that uses it: scripts/llama-common.sh SOURCES LIBRARIES, the folder of llama.cpp's sources and that of its compiled libraries.
set -euo pipefail
sources=$1 libraries=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$sources/../Cargo.toml" | head -n 1)
folder=$(cd "$(dirname "$0")/.." && pwd)/target/llama-common/$version
archive=$folder/libllama-common.a
includes=("-I$sources/common" "-I$sources/include" "-I$sources/ggml/include" "-I$sources/vendor")
mkdir -p "$folder"
# Tests run at the same time.
exec 9>"$folder/lock"
flock 9
if [ ! -e "$archive" ]; then
    # Without what downloads, or starts programs.
    (cd "$sources/common" && ls -- *.cpp jinja/*.cpp parsers/*.cpp) | grep -vxE '(arg|console|debug|download|hf-cache|imatrix-loader|llguidance|preset|subproc)\.cpp' |
        xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} sh -c \
            'file=$1 && shift && ${CXX:-c++} -std=c++17 -O0 -w "$@" -c "'"$sources"'/common/$file" -o "'"$folder"'/$(echo "$file" | tr / _).o"' sh {} "${includes[@]}" >&2
    # CMake would write the numbers of a build.
    sed 's/@[A-Z_]*@/0/g' "$sources/common/build-info.cpp.in" >"$folder/build-info.cpp"
    "${CXX:-c++}" -w "${includes[@]}" -c "$folder/build-info.cpp" -o "$folder/build-info.o"
    ar crs "$archive.part" "$folder"/*.o
    mv "$archive.part" "$archive"
fi
printf '%s\n' "${includes[@]}" -Wl,--start-group "$archive" "$libraries"/libggml*.a "$libraries/libllama.a" -Wl,--end-group -fopenmp -lpthread -ldl
