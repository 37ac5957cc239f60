#!/usr/bin/env bash
# Builds the library for machines other than this one, into target/portable/foredraft: libforedraft.so, and beside it the
# llama.cpp libraries it needs, ggml's CPU code once for each generation of processors; the best one is chosen when it is
# loaded. Copy the whole folder. (`make build` makes one file, for this machine's processor.)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/target/portable
result=$build/foredraft

# RUSTFLAGS replaces .cargo/config.toml's `target-cpu=native`. Each library finds the others in its own folder.
export RUSTFLAGS='-C link-arg=-Wl,-rpath,$ORIGIN'
export CMAKE_INSTALL_RPATH='$ORIGIN'
cargo build --release --lib --features portable --target-dir "$build" --manifest-path "$root/Cargo.toml"

rm -rf "$result"
mkdir -p "$result"
cp "$build/release/libforedraft.so" "$root"/include/foredraft.{h,hpp} "$root/include/rpcserver.h" "$result/"
llama=$(find "$build/release/build" -path '*/llama-cpp-sys-2-*/out' -type d -prune -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
cp "$llama"/backends/*.so "$result/"
# Under the names that the loader asks for (libllama.so.0), and each once.
for library in "$llama"/lib*/*.so; do
    name=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
    cp -L "$library" "$result/${name:-$(basename "$library")}"
done
missing=$(LD_LIBRARY_PATH='' ldd "$result/libforedraft.so" | grep 'not found' || true)
[ -z "$missing" ] || { printf 'portable: the folder is not complete:\n%s\n' "$missing" >&2; exit 1; }
# What a system must have for it: that of the machine it was built on, or newer.
needs() { objdump -T "$result"/*.so* | grep -o "$1_[0-9.]*" | sort -V | tail -n 1; }
echo "needs $(needs GLIBC), $(needs GLIBCXX)"
du -sh "$result"
