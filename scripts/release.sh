#!/usr/bin/env bash
# Makes what a release publishes for this platform, in target/packages, checks it, and installs and runs each package in an empty
# environment. The workflow .github/workflows/release.yml calls this for a tag.
#
#   scripts/release.sh [--without-c] [vVERSION]     environment: FOREDRAFT_LIB, the library to carry, else `make build` makes it
#
#   foredraft-VERSION.tar.gz                          the Python package's source archive
#   foredraft_llama_cpp-VERSION{.tar.gz,-py3-none-any.whl}    the Python package with llama-cpp-python's interface
#   foredraft-VERSION-py3-none-manylinux_*.whl        the wheel that `python -m build` makes of it
#   foredraft-VERSION.tgz                             the Node package
#   foredraft-PLATFORM-VERSION.tgz                    the Node package with this platform's library
#   Foredraft.VERSION.nupkg, com.foredraft.engine-VERSION.tgz, foredraft-VERSION-godot.zip
#                                                     for C#, Unity and Godot (scripts/csharp_packages.py)
#   foredraft-VERSION-c-PLATFORM.tar.gz               headers and libraries with CMake and pkg-config files; not with --without-c
#   SHA256SUMS
#
# Each package carries the program `foredraft-engine` beside the library; it is taken from beside FOREDRAFT_LIB.
#
# With a tag, the versions of all manifests and of CHANGELOG.md must be the tag's. What cannot be checked here is said with `skipped:`;
# where CI runs (CI=1) that is a failure.
set -euo pipefail

export PIP_DISABLE_PIP_VERSION_CHECK=1
platform=release
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
out=${FOREDRAFT_PACKAGES:-$root/target/packages}

with_c=1 tag=''
for argument in "$@"; do
    case $argument in
    --without-c) with_c='' ;;
    v[0-9]*) tag=$argument ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    *) die "$argument: expected --without-c or a tag such as v0.2.0" ;;
    esac
done

version=$(crate_version)
node "$root/node/scripts/platform.cjs" --check # package.json has this version, too; setup.py reads Cargo.toml
if [ -n "$tag" ]; then
    [ "$tag" = "v$version" ] || die "the tag is $tag, and Cargo.toml has the version $version"
    grep -q "^## \[$version\]" "$root/CHANGELOG.md" || die "CHANGELOG.md has no section [$version]"
fi

rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'end; rm -rf "$work"' EXIT
if [ -z "${FOREDRAFT_LIB:-}" ]; then
    make -C "$root" build
    export FOREDRAFT_LIB=$root/target/release/libforedraft.so
fi
FOREDRAFT_LIB=$(realpath "$FOREDRAFT_LIB")

# Python: the source archive, and the wheel that is built from it.
python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet build
for package in python python/llama-cpp; do
    "$work/build/bin/python" -m build --outdir "$out" "$root/$package" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
done

# Node: the package, and this platform's.
(cd "$root/node" && npm pack --silent --pack-destination "$out" && npm pack --silent --pack-destination "$out" "$(node scripts/platform.cjs)") >/dev/null

# C#: apart from the others at first, because npm installs what lies there.
python3 "$root/scripts/csharp_packages.py" make "$work/csharp-packages" "$FOREDRAFT_LIB"

# C and C++: the installed tree, which can lie anywhere.
if [ -n "$with_c" ]; then
    tree=foredraft-$version-c-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
    # shellcheck disable=SC1091 # setup.sh writes it
    (. "$("$root/scripts/setup.sh")" && install_tree "$work/$tree")
    tar -C "$work" -czf "$out/$tree.tar.gz" "$tree"
fi

"$root/scripts/check-packages.sh" "$out"/*.whl "$out"/*.tgz "$out"/*.tar.gz
keep_promise "$out" "Linux x86-64" "${tag:+tag}"
keep_sizes "$out" "$FOREDRAFT_LIB" "${tag:+tag}"
for package in "$out"/*.tgz "$out"/*.tar.gz "$out"/*.whl "$work"/csharp-packages/*; do
    # Text that names a folder of this machine: a search path, above all.
    mkdir "$work/unpacked"
    case $package in *.whl | *.nupkg | *.zip) python3 -m zipfile -e "$package" "$work/unpacked" ;; *) tar -C "$work/unpacked" -xzf "$package" ;; esac
    found=$(grep -rlI -e "$root" -e "$HOME/" "$work/unpacked" || true)
    [ -z "$found" ] || die "$(basename "$package") names folders of this machine: ${found//"$work/unpacked/"/}"
    rm -rf "$work/unpacked"
done

# Each in an empty environment, on this processor and on the oldest one that the library is for.
unset FOREDRAFT_LIB
shipped=$root/models
on_haswell() { # what, command...
    local what=$1 said
    shift
    if command -v qemu-x86_64 >/dev/null; then
        said=$(qemu-x86_64 -cpu Haswell "$@" 2>"$work/qemu.log") || { cat "$work/qemu.log" >&2; die "$what does not run on Haswell"; }
        [[ "$said" == *"$expected"* ]] || die "$what on Haswell gives another completion: $said"
        echo "$what on Haswell: $said"
    else
        skip "$what on Haswell: there is no qemu-x86_64 here"
    fi
}

python3 -m venv "$work/python"
"$work/python/bin/pip" install --quiet --no-index "$out"/*.whl
cat >"$work/run.py" <<PROGRAM
from foredraft import Engine
import os
isolate = os.environ.get("ISOLATE") == "1"
with Engine("$shipped/stories-target.gguf", warmup=False, n_threads=1, isolate=isolate) as engine:
    print(engine.complete("Once upon a time", n_predict=8, temperature=0).text)
PROGRAM
expected=$(cd "$work" && "$work/python/bin/python" run.py)
[ -n "$expected" ] || die "the wheel gives no completion"
echo "wheel: $expected"
same() { # what, command...: an engine in a process of its own gives the same
    local what=$1 said
    shift
    said=$(ISOLATE=1 "$@") || die "$what gives no completion in a process of its own"
    [[ "$said" == *"$expected"* ]] || die "$what in a process of its own gives another completion: $said"
    echo "$what, isolated: $said"
}
(cd "$work" && same wheel "$work/python/bin/python" run.py)
(cd "$work" && on_haswell wheel "$(realpath "$work/python/bin/python")" -c "import sys; sys.path.insert(0, '$(echo "$work"/python/lib/python*/site-packages)'); exec(open('run.py').read())")

mkdir "$work/node"
cat >"$work/node/run.mjs" <<PROGRAM
import { Engine } from 'foredraft';
const engine = await Engine.load({ model: '$shipped/stories-target.gguf', warmup: false, n_threads: 1, isolate: process.env.ISOLATE === '1' });
console.log((await engine.complete({ prompt: 'Once upon a time', n_predict: 8, temperature: 0 })).content);
await engine.close();
PROGRAM
(cd "$work/node" && npm init -y >/dev/null && npm install --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error "$out"/*.tgz >/dev/null)
said=$(cd "$work/node" && node run.mjs)
[ "$said" = "$expected" ] || die "the Node package gives another completion: $said"
echo "npm: $said"
(cd "$work/node" && same npm node run.mjs)
(cd "$work/node" && on_haswell npm "$(node -p process.execPath)" run.mjs)

if command -v mcs >/dev/null && command -v mono >/dev/null; then
    python3 -m zipfile -e "$work"/csharp-packages/*.nupkg "$work/nupkg"
    chmod +x "$work"/nupkg/runtimes/*/native/foredraft-engine # as NuGet unpacks it
    cat >"$work/run.cs" <<PROGRAM
using System;
using Foredraft;
static class Program
{
    static void Main()
    {
        using (var engine = new Engine())
        {
            var isolate = Environment.GetEnvironmentVariable("ISOLATE") == "1";
            engine.Load(new Json { ["model"] = "$shipped/stories-target.gguf", ["warmup"] = false, ["n_threads"] = 1, ["isolate"] = isolate });
            Console.WriteLine(engine.Complete(new Json { ["prompt"] = "Once upon a time", ["n_predict"] = 8, ["temperature"] = 0 })["content"].Text);
        }
    }
}
PROGRAM
    mcs -langversion:7 -out:"$work/run.exe" "$work/run.cs" "$work"/nupkg/contentFiles/cs/any/Foredraft/*.cs
    natives=$(echo "$work"/nupkg/runtimes/*/native)
    said=$(LD_LIBRARY_PATH=$natives mono "$work/run.exe")
    [ "$said" = "$expected" ] || die "the NuGet package gives another completion: $said"
    echo "NuGet: $said"
    LD_LIBRARY_PATH=$natives same NuGet mono "$work/run.exe"
else
    skip "the NuGet package: there is no Mono here"
fi

if [ -n "$with_c" ]; then
    tar -C "$work" -xzf "$out/$tree.tar.gz" --one-top-level=c --strip-components=1
    cat >"$work/run.c" <<PROGRAM
#include <foredraft.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    foredraft_engine *engine = foredraft_engine_new();
    const char *config = getenv("ISOLATE") != NULL
        ? "{\"model\": \"$shipped/stories-target.gguf\", \"warmup\": false, \"n_threads\": 1, \"isolate\": true}"
        : "{\"model\": \"$shipped/stories-target.gguf\", \"warmup\": false, \"n_threads\": 1}";
    if (foredraft_load(engine, config) != 0) return 1;
    char *answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0, \"response_fields\": [\"content\"]}");
    puts(answer);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    return 0;
}
PROGRAM
    if command -v pkg-config >/dev/null; then
        # shellcheck disable=SC2046 # flags are words
        ${CC:-cc} "$work/run.c" -o "$work/run" $(PKG_CONFIG_PATH=$work/c/lib/pkgconfig pkg-config --define-prefix --cflags --libs foredraft) -Wl,-rpath,"$work/c/lib"
        said=$("$work/run")
        [[ "$said" == *"$expected"* ]] || die "the C archive gives another completion: $said"
        echo "C: $said"
        same "C archive" "$work/run"
        on_haswell "C archive" "$work/run"
    else
        skip "the C archive: there is no pkg-config here"
    fi
    # The CMake package, with the shared and with the static library. setup.sh has made sure of cmake.
    (
        # shellcheck disable=SC1090 # the path of what it writes
        . "$("$root/scripts/setup.sh")"
        cmake -S "$root/examples/cmake" -B "$work/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/c" && cmake --build "$work/cmake"
    ) >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log" >&2; die "examples/cmake cannot be built with the C archive"; }
    question=("$shipped/stories-target.gguf" "Tell me a story about a fox.")
    expected=$("$work/cmake/ask" "${question[@]}" 2>/dev/null)
    [ -n "$expected" ] || die "the CMake package gives no completion"
    echo "CMake:$expected"
    said=$("$work/cmake/ask_static" "${question[@]}" 2>/dev/null)
    [ "$said" = "$expected" ] || die "the static library gives another completion: $said"
    echo "CMake, static:$said"
    on_haswell "CMake package" "$work/cmake/ask" "${question[@]}"
    on_haswell "CMake package, static" "$work/cmake/ask_static" "${question[@]}"
fi

mv "$work"/csharp-packages/* "$out"
"$root/scripts/publish.sh" check "$out"
(cd "$out" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
say "made in $out:"
ls -l "$out" >&2
