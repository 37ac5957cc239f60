#!/usr/bin/env bash
# Makes this machine able to build foredraft: finds or installs cmake, libclang and a C++ compiler, and writes
# what cargo has to know about them to target/setup/env.sh, whose path is all it prints to stdout.
#
#   scripts/setup.sh [--examples]     --examples: also what tests of other languages need (koffi for Node, Mono for C#, pkg-config, SDL2 and Xvfb)
#   . "$(scripts/setup.sh)"           the same, for a shell in which cargo is then called by hand
#
# Missing tools come from apt, as root or with a sudo that asks for no password; else cmake and libclang come from
# PyPI into target/setup/pypi. FOREDRAFT_SETUP=pypi takes them from PyPI even where the system has them;
# FOREDRAFT_SETUP=none installs nothing. When all is there nothing is downloaded, and it takes a fraction of a second.
set -euo pipefail
shopt -s nullglob

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/setup
pypi=$dir/pypi
how=${FOREDRAFT_SETUP:-auto}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
at_least() { printf '%s\n%s\n' "$1" "$2" | sort -CV; }  # is version $2 at least $1?

case $how in auto | pypi | none) ;; *) die "FOREDRAFT_SETUP: expected pypi or none, got \"$how\"" ;; esac

find_rust() {
    rust_path=
    if ! have cargo; then
        [ -x "$HOME/.cargo/bin/cargo" ] || die "no Rust toolchain: install one from https://rustup.rs, then try again"
        rust_path=$HOME/.cargo/bin
        PATH=$rust_path:$PATH
    fi
    local version
    version=$(cargo --version | cut -d' ' -f2)
    at_least 1.88 "$version" || die "Rust 1.88 or newer is needed, cargo is $version: try \`rustup update\`"
}

have_compiler() { have "${CC:-cc}" && have "${CXX:-c++}" && have make; }

have_cmake() { [ "$how" != pypi ] && have cmake && at_least 3.14 "$(cmake --version | sed -n 's/^cmake version //p')"; }

# The directories in which bindgen looks for libclang, and those where other distributions keep it.
find_libclang() {
    local found=
    if [ "$how" != pypi ]; then
        if [ -n "${LIBCLANG_PATH:-}" ]; then
            found=$LIBCLANG_PATH
        else
            local file
            for file in /usr/lib/llvm-*/lib/libclang{,-[0-9]*}.so* /usr/{local/,}lib{64,}/{,*-linux-gnu*/,llvm*/lib*/}libclang{,-[0-9]*}.so*; do
                [ -e "$file" ] && found=$(dirname "$(readlink -f "$file")")
            done
        fi
    fi
    libclang=$found
    [ -n "$found" ]
}

# libclang needs a compiler's own headers (stddef.h); PyPI's has none, and a distribution may package them apart.
has_own_headers() {
    local header=("$1"/clang/*/include/stddef.h "$1"/../lib*/clang/*/include/stddef.h /usr/lib*/clang/*/include/stddef.h)
    [ ${#header[@]} -gt 0 ] || have clang
}

from_apt() {
    local sudo=()
    have apt-get || return 1
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo=(sudo)
    fi
    say "installing with apt-get: $*"
    {
        "${sudo[@]}" apt-get update -qq &&
            "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    } </dev/null >"$dir/apt.log" 2>&1 || {
        say "apt-get failed; its last lines (all of them are in $dir/apt.log):"
        tail -n 5 "$dir/apt.log" >&2
        return 1
    }
}

# pip by any of its names; a virtual environment brings one where the system's python has none.
from_pypi() {
    local pip=()
    if have python3 && python3 -m pip --version >/dev/null 2>&1; then
        pip=(python3 -m pip --disable-pip-version-check)
    elif have python3 && python3 -m venv "$dir/venv" >/dev/null 2>&1; then
        pip=("$dir/venv/bin/python" -m pip --disable-pip-version-check)
    elif have uv; then
        pip=(uv pip)
    else
        return 1
    fi
    say "installing from PyPI into $pypi: $*"
    PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --upgrade --target "$pypi" "$@" </dev/null >&2
}

pypi_cmake=$pypi/cmake/data/bin
pypi_libclang=$pypi/clang/native

find_tools() {
    local apt=()
    have_compiler || apt+=(g++ make)
    if [ "$how" != pypi ]; then
        have_cmake || apt+=(cmake)
        find_libclang || apt+=(libclang-dev)
    fi
    # Tools that an earlier run took from PyPI serve again before anything is installed.
    if [ "$how" = auto ] && [ ${#apt[@]} -gt 0 ] && ! { have_compiler && [ -e "$dir/pypi.done" ]; }; then
        from_apt "${apt[@]}" || true
        hash -r
    fi
    have_compiler || die "llama.cpp needs a C and a C++ compiler and make, and at least one of them is missing;" \
        "on Debian: apt-get install g++ make"

    local wheels=()
    have_cmake || wheels+=("cmake>=3.18")
    find_libclang || wheels+=("libclang>=16")
    if [ ${#wheels[@]} -gt 0 ] && { [ ! -e "$dir/pypi.done" ] || [ ! -x "$pypi_cmake/cmake" ] || [ ! -e "$pypi_libclang/libclang.so" ]; }; then
        rm -f "$dir/pypi.done" # an interrupted installation begins again
        [ "$how" != none ] || die "missing: ${wheels[*]} (FOREDRAFT_SETUP=none, so nothing was installed)"
        from_pypi "cmake>=3.18" "libclang>=16" || die "cmake and libclang are needed and could not be installed:" \
            "apt-get needs root or a sudo without a password, PyPI needs python3 with pip or venv;" \
            "on Debian: apt-get install cmake libclang-dev"
        touch "$dir/pypi.done"
    fi
}

write_env() {
    local env=$dir/env.sh
    {
        echo "# Written by scripts/setup.sh, for the Makefile and for shells that call cargo themselves."
        [ -z "$rust_path" ] || printf 'export PATH=%q:"$PATH"\n' "$rust_path"
        have_cmake || printf 'export PATH=%q:"$PATH"\n' "$pypi_cmake"
        if ! find_libclang; then
            libclang=$pypi_libclang
            printf 'export LIBCLANG_PATH=%q\n' "$libclang"
        fi
        # gcc's headers, if libclang has none of its own. A variable that is already set is kept.
        if [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ] && { [ "$libclang" = "$pypi_libclang" ] || ! has_own_headers "$libclang"; }; then
            printf 'export BINDGEN_EXTRA_CLANG_ARGS=%q\n' "-isystem $("${CC:-cc}" -print-file-name=include)"
        fi
    } >"$env.$$"
    mv "$env.$$" "$env"
    printf '%s\n' "$env"
}

set_up_examples() {
    local font=/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf
    if ! have pkg-config && [ "$how" = auto ]; then
        from_apt pkg-config || say "no pkg-config: the test of the installed pkg-config file is left out"
    fi
    if [ "$how" = auto ] && ! { pkg-config --exists sdl2 SDL2_ttf && have Xvfb && [ -e "$font" ]; } 2>/dev/null; then
        from_apt libsdl2-dev libsdl2-ttf-dev fonts-dejavu-core xvfb || say "no SDL2 or no Xvfb: the window is left out"
    fi
    if ! have qemu-x86_64 && [ "$how" = auto ] && [ "$(uname -sm)" = 'Linux x86_64' ]; then
        from_apt qemu-user || say "no qemu-user: the test of emulated processors is left out"
    fi
    if ! { have mcs && have mono; } && [ "$how" = auto ]; then
        from_apt mono-mcs mono-runtime libmono-system-core4.0-cil || say "no Mono: the tests of the bindings for C# are left out"
    fi
    have python3 || say "no python3: the Python example and the real models are left out"
    if ! have node || ! have npm; then
        say "no node with npm: the Node example is left out"
        return
    fi
    local lock=$root/examples/package-lock.json installed=$root/examples/node_modules/.package-lock.json
    [ ! -e "$lock" ] && return
    if [ ! -e "$installed" ] || [ "$lock" -nt "$installed" ]; then
        say "installing koffi for the Node example into examples/node_modules"
        (cd "$root/examples" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) </dev/null >&2 ||
            say "npm ci failed: the Node example is left out"
    fi
}

mkdir -p "$dir"
find_rust
find_tools
write_env
[ "${1:-}" != --examples ] || set_up_examples
