#!/usr/bin/env bash
# Builds llama.cpp's Vulkan backend as a module, which the library loads where it is present, and tests it on a device.
#
#   scripts/gpu.sh [build | test | windows | packages]     without an argument: all
#
# In target/gpu: libforedraft-vulkan.so. Put it beside libforedraft.so, or name it by FOREDRAFT_BACKENDS. It needs Vulkan's loader (libvulkan.so.1).
#
# `windows` builds foredraft-vulkan.dll for Windows (x86-64) with mingw-w64, in the same folder, and checks what it exports and needs: beside the DLLs
# of Windows that is vulkan-1.dll, which comes with a GPU's driver. `scripts/windows.sh gpu` loads it under Wine.
#
# `packages` makes packages of the modules that are there, in target/gpu/packages (scripts/gpu_packages.py), and checks them as the registries do.
#
# The tests (tests/gpu/devices.py) run on the device that GGML_VK_VISIBLE_DEVICES names, by default on the first one. Without a GPU that is Mesa's
# lavapipe, which computes on the CPU; "0,0" makes two devices of one. What is missing is installed with apt-get, as root or with a sudo that asks for no password, or with
# FOREDRAFT_SETUP=none is not. What cannot be had is a line that begins with "skipped:"; with CI set it is a failure.
set -euo pipefail

platform=GPU
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
work=$root/target/gpu
module=$work/libforedraft-vulkan.so
library=${CARGO_TARGET_DIR:-$root/target}/release/libforedraft.so
# The functions of a module: crates/llama/src/backend/modules.rs.
exports=(ggml_backend_init ggml_log_set foredraft_backend_version)

# The folder of llama.cpp's sources, as cargo has them.
sources() {
    cargo metadata --format-version 1 --locked | python3 -c '
import json, pathlib, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == "llama-cpp-sys-2":
        print(pathlib.Path(package["manifest_path"]).parent / "llama.cpp", package["version"])'
}

# Sets `llama` and `version`, and makes sure of the compiler of shaders and of Vulkan's headers.
prepare() {
    if ! have glslc || ! [ -e /usr/include/vulkan/vulkan.hpp ] || ! [ -e /usr/include/spirv ]; then
        from_apt libvulkan-dev glslc spirv-headers || true
    fi
    have glslc && [ -e /usr/include/vulkan/vulkan.hpp ] || give_up "no glslc or no Vulkan headers (Debian: glslc libvulkan-dev spirv-headers)"
    read -r llama version <<<"$(sources)"
}

# Builds the backend as a static library in a folder, and the module's exports as an object: cmake's further arguments are those of the platform.
compile_backend() {
    local folder=$1 system=$2 compiler=$3
    shift 3
    begin "building the Vulkan backend of llama-cpp-sys-2 $version for $system (5 minutes or more on two cores)"
    cmake -S "$llama" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_VULKAN=ON -DGGML_CPU=OFF -DGGML_OPENMP=OFF \
        -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF -DLLAMA_OPENSSL=OFF \
        -DGGML_CCACHE=OFF "$@" >"$folder/cmake.log" 2>&1 || { tail -n 20 "$folder/cmake.log" >&2; die "cmake failed"; }
    cmake --build "$folder/build" --target ggml-vulkan -j "$(nproc)" >"$folder/build.log" 2>&1 || { tail -n 20 "$folder/build.log" >&2; die "the build failed"; }
    sed "s/@VERSION@/$version/" scripts/gpu/module.c.in >"$folder/module.c"
    "$compiler" -O2 -fPIC -I"$llama/ggml/include" -c "$folder/module.c" -o "$folder/module.o"
}

build() {
    prepare
    # A header of ours makes up for what Debian's lack.
    local -x CPATH=$root/scripts/gpu
    compile_backend "$work" Linux "${CC:-cc}"
    # Its own copy of ggml's base library is hidden, as the library's is.
    echo "{ global: $(printf '%s; ' "${exports[@]}")local: *; };" >"$work/module.map"
    "${CXX:-c++}" -shared -o "$module" "$work/module.o" -Wl,--whole-archive "$work/build/ggml/src/ggml-vulkan/libggml-vulkan.a" \
        -Wl,--no-whole-archive "$work/build/ggml/src/libggml-base.a" -lvulkan -pthread -Wl,--version-script="$work/module.map" -Wl,--gc-sections \
        -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,now -Wl,--strip-debug
    say "made $module: $(stat -c %s "$module") bytes"
}

build_for_windows() {
    local tool=x86_64-w64-mingw32 folder=$work/windows dll=$work/foredraft-vulkan.dll header found
    have $tool-g++-posix || from_apt g++-mingw-w64-x86-64-posix gcc-mingw-w64-x86-64-posix || true
    have $tool-g++-posix || give_up "no $tool-g++-posix (Debian: g++-mingw-w64-x86-64-posix)"
    prepare
    # Vulkan's headers without those of this system's C library. cmake wants a file as Vulkan's library, with which it links nothing here.
    mkdir -p "$folder/include"
    for header in vulkan vk_video spirv; do ln -sfn "/usr/include/$header" "$folder/include/$header"; done
    : >"$folder/libvulkan-1.dll.a"
    local CPATH && unset CPATH
    compile_backend "$folder" Windows $tool-gcc-posix -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=x86_64 \
        -DCMAKE_C_COMPILER=$tool-gcc-posix -DCMAKE_CXX_COMPILER=$tool-g++-posix -DCMAKE_C_FLAGS=-D_WIN32_WINNT=0x602 \
        "-DCMAKE_CXX_FLAGS=-I$root/scripts/gpu -I$folder/include -D_WIN32_WINNT=0x602" -DVulkan_INCLUDE_DIR="$folder/include" \
        -DVulkan_LIBRARY="$folder/libvulkan-1.dll.a" -DVulkan_GLSLC_EXECUTABLE="$(command -v glslc)" \
        -DSPIRV-Headers_DIR=/usr/share/cmake/SPIRV-Headers
    # An import library of what the backend takes from Vulkan's loader.
    { printf '%s\n' 'LIBRARY vulkan-1.dll' EXPORTS && $tool-nm -u "$folder/build/ggml/src/ggml-vulkan/ggml-vulkan.a" | sed -n 's/^ *U \(vk[A-Z].*\)/\1/p' | sort -u; } >"$folder/vulkan.def"
    $tool-dlltool -d "$folder/vulkan.def" -l "$folder/libvulkan-1.dll.a"
    printf '%s\n' 'LIBRARY foredraft-vulkan.dll' EXPORTS "${exports[@]}" >"$folder/module.def"
    $tool-g++-posix -shared -static -o "$dll" "$folder/module.o" "$folder/module.def" -Wl,--whole-archive "$folder/build/ggml/src/ggml-vulkan/ggml-vulkan.a" \
        -Wl,--no-whole-archive "$folder/build/ggml/src/ggml-base.a" "$folder/libvulkan-1.dll.a" -Wl,--gc-sections -Wl,--strip-all
    found=$($tool-objdump -p "$dll" | sed -n '/Ordinal\/Name Pointer/,/^$/s/^.*\] //p' | awk '{ print $NF }' | grep -vx Table | sort -u)
    [ "$found" = "$(printf '%s\n' "${exports[@]}" | sort)" ] || die "foredraft-vulkan.dll exports $found"
    found=$($tool-objdump -p "$dll" | sed -n 's/.*DLL Name: //p' | tr A-Z a-z | sort -u | grep -vxE 'kernel32.dll|msvcrt.dll|advapi32.dll|vulkan-1.dll' || true)
    [ -z "$found" ] || die "foredraft-vulkan.dll needs $found"
    passed "foredraft-vulkan.dll exports ${exports[*]}, and has $(stat -c %s "$dll") bytes"
}

test_device() {
    [ -e "$module" ] || give_up "there is no $module: scripts/gpu.sh build"
    compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null || from_apt mesa-vulkan-drivers || true
    compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null ||
        give_up "no Vulkan driver (Debian: mesa-vulkan-drivers)"
    begin "the library"
    cargo build --release --lib >&2
    begin "tests/gpu/devices.py"
    # lavapipe counts as a CPU, which ggml takes only if it is named.
    GGML_VK_VISIBLE_DEVICES=${GGML_VK_VISIBLE_DEVICES:-0} FOREDRAFT_MODULE=$module FOREDRAFT_LIB=$library PYTHONPATH=$root/python/src \
        python3 tests/gpu/devices.py "${models[@]}"
}

packages() {
    local out=$work/packages made=()
    for file in "$module" "$work/foredraft-vulkan.dll"; do [ ! -e "$file" ] || made+=("$file"); done
    [ "${#made[@]}" -gt 0 ] || give_up "there is no module: scripts/gpu.sh build, or windows"
    begin "packages of ${made[*]##*/}"
    rm -rf "$out"
    scripts/check-packages.sh --with "$root/scripts/gpu_packages.py" make "$out" "${made[@]}"
    scripts/check-packages.sh "$out"/*.whl "$out"/*.tgz "$out"/*.tar.gz
    scripts/publish.sh check-modules "$out"
    passed "packages of ${made[*]##*/}"
}

choose "${1:-all}" build test windows packages
enter "$work"
! wants build || build
! wants test || test_device
! wants windows || build_for_windows
! wants packages || packages
