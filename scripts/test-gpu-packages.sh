#!/usr/bin/env bash
# Tests the packages of the module for GPUs as a user gets them, beside those of scripts/release.sh in the folder FOREDRAFT_PACKAGES: for Python, Node
# and C (NuGet's, by their files alone) with a module whose backend does not start, which the library finds and says so.
#
# What cannot be had is a line that begins with "skipped:"; where CI runs (CI=1) that is a failure.
set -euo pipefail

platform=GPU
# shellcheck source=scripts/cross.sh
. "$(dirname "$0")/cross.sh"
packages=$(realpath "$FOREDRAFT_PACKAGES")
work=$(mktemp -d)
trap 'end; rm -rf "$work"' EXIT
version=$(sed -n '/^name = "llama-cpp-sys-2"/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")

begin "packages of a module without a backend"
sed -e "s/@VERSION@/$version/" -e 's/#include.*/typedef void * ggml_backend_reg_t;/' -e 's/ggml_backend_vk_reg()/0/' "$root/scripts/gpu/module.c.in" |
    "${CC:-cc}" -shared -fPIC -x c - -o "$work/libforedraft-vulkan.so"
"$root/scripts/check-packages.sh" --with "$root/scripts/gpu_packages.py" make "$work/made" "$work/libforedraft-vulkan.so"
"$root/scripts/check-packages.sh" "$work"/made/*.whl "$work"/made/*.tgz "$work"/made/*.tar.gz
"$root/scripts/check-packages.sh" --with "$root/scripts/gpu_packages.py" check "$work"/made/*
passed "the files of the packages"

# What the library says of its modules has the module with its reason.
expect() {
    [[ $2 == *libforedraft-vulkan.so* && $2 == *"its backend does not start"* ]] || die "$1: the library did not find the module: $2"
    passed "$1 finds the module"
}
unset FOREDRAFT_LIB FOREDRAFT_BACKENDS NODE_PATH
for wheel in "$packages"/foredraft-*.whl "$work"/made/*.whl; do python3 -m zipfile -e "$wheel" "$work/python"; done
expect Python "$(cd "$work" && PYTHONPATH=$work/python python3 -c 'import foredraft; print(foredraft.devices()["modules"])')"

mkdir "$work/c" && for archive in "$packages"/foredraft-*-c-*.tar.gz "$work"/made/*.tar.gz; do
    [ ! -e "$archive" ] || tar -C "$work/c" --strip-components=1 -xzf "$archive"
done
[ -e "$work/c/lib/libforedraft.so" ] || cp "$work/python/foredraft/lib/libforedraft.so" "$work/c/lib"
expect C "$(python3 -c 'import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); library.foredraft_devices.restype = ctypes.c_char_p; print(library.foredraft_devices().decode())' \
    "$work/c/lib/libforedraft.so")"

if have npm; then
    mkdir "$work/node" && cd "$work/node" && npm init -y >/dev/null
    npm install --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error "$packages"/foredraft-*.tgz "$work"/made/*.tgz >&2
    expect Node "$(node -e "console.log(JSON.stringify(require('foredraft').devices().modules))")"
else
    skip "the npm package of the module: no npm"
fi
