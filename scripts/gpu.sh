#!/usr/bin/env bash
# Builds llama.cpp's Vulkan backend as a module, which the library loads where it is present, and tests it on a device.
#
#   scripts/gpu.sh [build | test]     without an argument: both
#
# In target/gpu: libforedraft-vulkan.so. Put it beside libforedraft.so, or name it by FOREDRAFT_BACKENDS. It needs Vulkan's loader (libvulkan.so.1).
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

# The folder of llama.cpp's sources, as cargo has them.
sources() {
    cargo metadata --format-version 1 --locked | python3 -c '
import json, pathlib, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == "llama-cpp-sys-2":
        print(pathlib.Path(package["manifest_path"]).parent / "llama.cpp", package["version"])'
}

build() {
    if ! have glslc || ! [ -e /usr/include/vulkan/vulkan.hpp ] || ! [ -e /usr/include/spirv ]; then
        from_apt libvulkan-dev glslc spirv-headers || true
    fi
    have glslc && [ -e /usr/include/vulkan/vulkan.hpp ] || give_up "no glslc or no Vulkan headers (Debian: glslc libvulkan-dev spirv-headers)"
    local llama version
    read -r llama version <<<"$(sources)"
    begin "building the Vulkan backend of llama-cpp-sys-2 $version (5 minutes or more on two cores)"
    # A header of ours makes up for what Debian's lack.
    CPATH=$root/scripts/gpu cmake -S "$llama" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_VULKAN=ON -DGGML_CPU=OFF -DGGML_OPENMP=OFF \
        -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF -DLLAMA_OPENSSL=OFF \
        -DGGML_CCACHE=OFF >"$work/cmake.log" 2>&1 || { tail -n 20 "$work/cmake.log" >&2; die "cmake failed"; }
    CPATH=$root/scripts/gpu cmake --build "$work/build" --target ggml-vulkan -j "$(nproc)" >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; die "the build failed"; }
    # Its own copy of ggml's base library is hidden, as the library's is.
    sed "s/@VERSION@/$version/" scripts/gpu/module.c.in >"$work/module.c"
    echo '{ global: ggml_backend_init; ggml_log_set; foredraft_backend_version; local: *; };' >"$work/module.map"
    "${CC:-cc}" -O2 -fPIC -I"$llama/ggml/include" -c "$work/module.c" -o "$work/module.o"
    "${CXX:-c++}" -shared -o "$module" "$work/module.o" -Wl,--whole-archive "$work/build/ggml/src/ggml-vulkan/libggml-vulkan.a" \
        -Wl,--no-whole-archive "$work/build/ggml/src/libggml-base.a" -lvulkan -pthread -Wl,--version-script="$work/module.map" -Wl,--gc-sections \
        -Wl,-z,nodelete -Wl,-z,defs -Wl,--strip-debug
    say "made $module: $(stat -c %s "$module") bytes"
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

choose "${1:-all}" build test
enter "$work"
! wants build || build
! wants test || test_device
