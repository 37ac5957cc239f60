#!/usr/bin/env bash
# Checks on Linux what can be checked of foredraft for macOS (AArch64), without Apple's SDK: Rust's types, and whether the C and C++ files compile.
# Nothing is linked, and nothing is run.
#
#   scripts/macos.sh
#
#   cargo check of the crates that need no llama.cpp, and of the library with its program. llama-cpp-sys-2, whose build needs Apple's SDK, is
#   replaced by a crate that has the bindings and the sources of the build for this machine.
#   The library's C and C++ files, compiled by zig (ziglang from PyPI), which has the headers of macOS's C library and of libc++.
#
# The script installs missing tools with rustup and pip, in target/macos. For a tool that it cannot get, it prints a line that begins with
# "skipped:"; with CI set that is a failure.
set -euo pipefail

platform=macOS
triple=aarch64-apple-darwin
zig_version=0.17.1
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
work=$root/target/macos
here=${CARGO_TARGET_DIR:-$root/target}
enter "$work/bin"
add_target

set_up_zig() {
    if ! [ -x "$work/zig/bin/python" ] || ! "$work/zig/bin/python" -m ziglang version >/dev/null 2>&1; then
        [ "${FOREDRAFT_SETUP:-auto}" != none ] && have python3 || give_up "no zig, so no C++ was compiled"
        say "installing ziglang from PyPI"
        python3 -m venv "$work/zig" && "$work/zig/bin/pip" install --quiet --disable-pip-version-check "ziglang==$zig_version" >&2 ||
            give_up "no zig, so no C++ was compiled"
    fi
    local name
    for name in cc c++; do
        # cc passes Apple's own options, which zig takes from its target.
        cat >"$work/bin/zig-$name" <<WRAPPER
#!/usr/bin/env bash
arguments=()
while [ \$# -gt 0 ]; do
    case \$1 in
    -arch | -isysroot | -target) shift ;;
    --target=* | -mmacosx-version-min=* | -mmacos-version-min=*) ;;
    *) arguments+=("\$1") ;;
    esac
    shift
done
exec "$work/zig/bin/python" -m ziglang $name -target aarch64-macos "\${arguments[@]}"
WRAPPER
        chmod +x "$work/bin/zig-$name"
    done
    printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$work/zig/bin/python" >"$work/bin/zig-ar"
    chmod +x "$work/bin/zig-ar"
}

# A llama-cpp-sys-2 that compiles nothing: the bindings of the build for this machine, and the folder of that build, which has the headers.
stand_in() {
    cargo build --release --lib >&2
    local out
    # The newest build's.
    out=$(find "$here/release/build" -path '*llama-cpp-sys-2-*/out/bindings.rs' -printf '%T@ %h\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
    [ -n "$out" ] || die "there is no build of llama-cpp-sys-2 in $here"
    local version
    version=$(sed -n 's/^llama-cpp-sys-2 = .*"=\([^"]*\)".*/\1/p' Cargo.toml)
    rm -rf "$work/llama" && mkdir -p "$work/llama/src"
    cat >"$work/llama/Cargo.toml" <<MANIFEST
[package]
name = "llama-cpp-sys-2"
version = "$version"
edition = "2021"
links = "llama"
[features]
default = []
[workspace]
MANIFEST
    printf 'fn main() { println!("cargo:ggml_cmake_dir=%s"); }\n' "$out/lib/cmake" >"$work/llama/build.rs"
    { echo '#![allow(warnings)]' && cat "$out/bindings.rs"; } >"$work/llama/src/lib.rs"
}

check_crates() {
    local crate
    for crate in base chat host ngram grammar jinja sampling schema speculation; do
        CARGO_TARGET_DIR=$work/target cargo check --release --quiet --target $triple -p foredraft-$crate >&2 || die "foredraft-$crate does not compile"
        passed "foredraft-$crate: cargo check"
    done
}

check_library() {
    export CC_aarch64_apple_darwin=$work/bin/zig-cc CXX_aarch64_apple_darwin=$work/bin/zig-c++ AR_aarch64_apple_darwin=$work/bin/zig-ar
    export SDKROOT=$work MACOSX_DEPLOYMENT_TARGET=11.0
    # bindgen's clang is not zig, so it takes its headers from this machine.
    export BINDGEN_EXTRA_CLANG_ARGS_aarch64_apple_darwin="--target=$(rustc --print host-tuple) ${BINDGEN_EXTRA_CLANG_ARGS:-}"
    local log=$work/check.log
    # The other llama-cpp-sys-2 gets into it. zig leaves empty files where it is asked what it is.
    cp Cargo.lock "$work/Cargo.lock"
    trap 'cp "$work/Cargo.lock" "$root/Cargo.lock" && rm -f "$root/a.o" "$root/a.out"' EXIT
    CARGO_TARGET_DIR=$work/target cargo check --release --lib --bins --target $triple --config "patch.crates-io.llama-cpp-sys-2.path=\"$work/llama\"" \
        >"$log" 2>&1 || { cat "$log" >&2; die "the library does not compile"; }
    ! grep -q '^warning: unused' "$log" || cat "$log" >&2
    passed "the library and its program: cargo check, with the C and C++ files that build.rs compiles for macOS"
}

# Each C and C++ file of the library that is compiled for AArch64 anywhere.
check_sources() {
    local llama file standard n=0
    llama=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$(sed -n 's/.*ggml_cmake_dir=\(.*\)");.*/\1/p' "$work/llama/build.rs")/../../build/CMakeCache.txt")
    local flags=("-DFOREDRAFT_SET_MASK=$(sed -n 's/^pub const SET_MASK: &str = "\(.*\)";/\1/p' crates/native/build/kernels.rs)") folder
    for folder in include src common vendor ggml/include ggml/src ggml/src/ggml-cpu; do flags+=(-isystem "$llama/$folder"); done
    for file in src/ffi/*.c crates/native/*.c* crates/native/kernels/{seam,states,copies,elementary,order,rounding,rope,attention_cost}.cpp; do
        standard=-std=c11
        case $file in *.cpp) standard=-std=c++17 ;; esac
        # The first two are for glibc and mingw; build.rs writes a part of the third, and compiles it below.
        case $file in crates/native/allocation.cpp | src/ffi/globals.c) continue ;; esac
        # An object, because zig first builds libc++ for anything else.
        "$work/bin/zig-$([ "$standard" = -std=c11 ] && echo cc || echo c++)" $standard -Wall "${flags[@]}" -c "$file" -o "$work/object.o" 2>"$work/zig.log" ||
            { cat "$work/zig.log" >&2; die "$file does not compile"; }
        n=$((n + 1))
    done
    for folder in "-mcpu=generic -DFOREDRAFT_NEON -DFOREDRAFT_LEVEL=neon" "-mcpu=apple_m1 -DFOREDRAFT_NEON -DFOREDRAFT_DOTPROD -DFOREDRAFT_LEVEL=neon_dotprod" \
        "-mcpu=apple_m2 -DFOREDRAFT_NEON -DFOREDRAFT_DOTPROD -DFOREDRAFT_I8MM -DFOREDRAFT_LEVEL=neon_i8mm"; do
        # shellcheck disable=SC2086 # several options
        "$work/bin/zig-c++" -std=c++17 -ffp-contract=off $folder "${flags[@]}" -c crates/native/kernels/level.cpp -o "$work/object.o" 2>"$work/zig.log" ||
            { cat "$work/zig.log" >&2; die "crates/native/kernels/level.cpp does not compile"; }
        n=$((n + 1))
    done
    passed "$n C and C++ files compile for macOS" "$n"
}

check_crates
set_up_zig
stand_in
check_sources
check_library
say "$n_passed passed: types and syntax only; nothing was linked or run"
