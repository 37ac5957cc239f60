#!/usr/bin/env bash
# Installs foredraft for C and C++ programs, or removes it. `make install` and `scripts/install.sh uninstall` call this.
#
#   scripts/install.sh [uninstall | --no-build]     environment: PREFIX (/usr/local), LIBDIR ($PREFIX/lib), DESTDIR (empty)
#
# CARGO_BUILD_TARGET, with CC, CXX, NM and OBJCOPY of its compiler, builds for another platform.
#
# With --no-build it installs what an earlier run built.
#
# Under PREFIX:
#   include/foredraft.h, foredraft.hpp, rpcserver.h
#   lib/libforedraft.so.VERSION, with links libforedraft.so.ABI (the SONAME) and libforedraft.so
#   lib/libforedraft.a
#   lib/foredraft-engine, the program of isolated engines
#   lib/pkgconfig/foredraft.pc, lib/cmake/foredraft/
#
# The shared library is linked here from the static one, because rustc writes a version script of its own and takes no second
# one. This one gives the exported functions the version FOREDRAFT_ABI and hides everything else, llama.cpp included.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=$prefix/include
dest=${DESTDIR:-}
unset DESTDIR # else llama.cpp's own build installs its files there, too
headers=(foredraft.h foredraft.hpp rpcserver.h)
target=${CARGO_TARGET_DIR:-$root/target}
# For another platform, cargo's folder has the platform's name.
release=$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
work=$target/install${CARGO_BUILD_TARGET:+-$CARGO_BUILD_TARGET}

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
define() { sed -n "s/^#define $1 //p" "$root/include/foredraft.h"; }

case $prefix$libdir in *[[:space:]]*) die "PREFIX and LIBDIR must not contain white space" ;; esac
[ "${prefix#/}" != "$prefix" ] && [ "${libdir#/}" != "$libdir" ] || die "PREFIX and LIBDIR: expected absolute paths, got $prefix and $libdir"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
abi=$(define FOREDRAFT_ABI_VERSION)
[ -n "$version" ] && [ -n "$abi" ] || die "no version in Cargo.toml, or no ABI version in include/foredraft.h"
soname=libforedraft.so.$abi
real=libforedraft.so.$version

uninstall() {
    local header
    for header in "${headers[@]}"; do rm -f "$dest$includedir/$header"; done
    rm -f "$dest$libdir"/libforedraft.{a,so} "$dest$libdir/foredraft-engine" "$dest$libdir"/libforedraft.so.[0-9]* "$dest$libdir/pkgconfig/foredraft.pc"
    rm -rf "$dest$libdir/cmake/foredraft"
    # Folders that are empty now; those of the system never are.
    rmdir -p --ignore-fail-on-non-empty "$dest$libdir/pkgconfig" "$dest$libdir/cmake" "$dest$includedir" 2>/dev/null || true
}

# The options of a kind in linker.txt (build/link.rs).
linker_options() { sed -n "s/^$1 //p" "$linker"; }

# The archive, and in native-libs.txt what a program links with it.
build_static() {
    mkdir -p "$work"
    local messages=$work/messages.json
    (cd "$root" && cargo rustc --release --package foredraft-archive --message-format json-render-diagnostics -- --print native-static-libs) \
        2>&1 >"$messages" | tee "$work/build.log" >&2
    # build/link.rs writes the linker's options there.
    linker=$(sed -n 's|.*"reason":"build-script-executed","package_id":"[^"]*foredraft[#@][^"]*".*"out_dir":"\([^"]*\)".*|\1/linker.txt|p' "$messages")
    [ -s "$linker" ] || die "cargo did not say where the build script's output is"
    # Cargo prints the note of an earlier build again. Each library once, the first time.
    sed -n 's/^note: native-static-libs: //p' "$work/build.log" | tail -n 1 | tr ' ' '\n' | awk 'NF && !seen[$0]++' |
        paste -sd ' ' >"$work/native-libs.txt"
    [ -s "$work/native-libs.txt" ] || die "rustc did not say which libraries the archive needs"
    # Names without a prefix that the old server did not have: a program that has functions of these names keeps its own.
    local name weak=()
    for name in $(awk '/^#ifdef FOREDRAFT_RPCSERVER_ALL/ { n++ } n == 2' "$root/include/rpcserver.h" |
        sed -n 's/^FOREDRAFT_API .*[ *]\([a-z_]*\)(.*/\1/p'); do
        weak+=("--weaken-symbol=$name")
    done
    # A program that links the archive keeps the C library's functions, so the archive's calls of them are renamed.
    local renamed=()
    for name in $(linker_options rename); do renamed+=("--redefine-sym=$name=__wrap_$name"); done
    "${OBJCOPY:-objcopy}" "${weak[@]}" "${renamed[@]}" "$release/libforedraft_archive.a" "$work/libforedraft.a"
    printf '%s %s\n' "$(cat "$work/native-libs.txt")" "$(linker_options program | paste -sd ' ')" >"$work/native-libs.new"
    mv "$work/native-libs.new" "$work/native-libs.txt"
}

# Relinks the archive into a shared library with a SONAME and versioned symbols.
link_shared() {
    local functions undefined=() wrapped=() name
    functions=$(cd "$root/include" && sed -n 's/^FOREDRAFT_API .*[ *]\([a-z_]*\)(.*/\1/p' foredraft.h rpcserver.h)
    {
        echo "FOREDRAFT_$abi {"
        echo "    global:"
        for name in $functions; do echo "        $name;"; done
        echo "    local: *;"
        echo "};"
    } >"$work/foredraft.map"
    for name in $functions; do undefined+=("-Wl,-u,$name"); done
    for name in $(linker_options rename); do wrapped+=("-Wl,--wrap=$name"); done
    local native shared
    native=$(cat "$work/native-libs.txt")
    mapfile -t shared < <(linker_options shared)
    # shellcheck disable=SC2086 # $native is a list of words
    ${CC:-cc} -shared -o "$work/$real" "${shared[@]}" "${undefined[@]}" "$release/libforedraft_archive.a" $native \
        -Wl,-soname,"$soname" -Wl,--version-script="$work/foredraft.map" -Wl,--gc-sections -Wl,--as-needed -Wl,-O1 \
        -Wl,-z,relro,-z,now -Wl,-z,nodelete -Wl,-z,defs "${wrapped[@]}" -Wl,--strip-debug
}

# A template of packaging/, with its @NAMES@ replaced.
fill() {
    local major=${version%%.*} minor=${version#*.} native include_from_lib
    native=$(cat "$work/native-libs.txt")
    # Compares names alone, because this machine's /lib can be a link to /usr/lib.
    include_from_lib=$(realpath -ms --relative-to="$libdir" "$includedir")
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@LIBDIR@|$libdir|g" -e "s|@INCLUDEDIR@|$includedir|g" -e "s|@VERSION@|$version|g" \
        -e "s|@MAJOR@|$major|g" -e "s|@MINOR@|${minor%%.*}|g" -e "s|@REAL_NAME@|$real|g" -e "s|@SONAME@|$soname|g" \
        -e "s|@NATIVE_LIBS@|$native|g" -e "s|@NATIVE_LIBS_CMAKE@|${native// /;}|g" -e "s|@POINTER_SIZE@|$(($(getconf LONG_BIT) / 8))|g" \
        -e "s|@INCLUDE_FROM_LIB@|$include_from_lib|g" "$root/packaging/$1.in"
}

install_all() {
    [ -e "$work/$real" ] || die "nothing was built: run it without --no-build first"
    install -d "$dest$includedir" "$dest$libdir/pkgconfig" "$dest$libdir/cmake/foredraft"
    install -m 644 "${headers[@]/#/$root/include/}" "$dest$includedir"
    install -m 644 "$work/libforedraft.a" "$dest$libdir"
    install -m 755 "$work/$real" "$release/foredraft-engine" "$dest$libdir"
    ln -sf "$real" "$dest$libdir/$soname"
    ln -sf "$soname" "$dest$libdir/libforedraft.so"
    fill foredraft.pc >"$dest$libdir/pkgconfig/foredraft.pc"
    local file
    for file in foredraftConfig.cmake foredraftConfigVersion.cmake; do fill "$file" >"$dest$libdir/cmake/foredraft/$file"; done
    say "installed foredraft $version under $dest$prefix"
}

case ${1:-} in
uninstall) uninstall ;;
'')
    build_static
    link_shared
    (cd "$root" && cargo build --release --bin foredraft-engine) >&2
    install_all
    ;;
--no-build) install_all ;;
*) die "$1: expected uninstall, --no-build or nothing" ;;
esac
