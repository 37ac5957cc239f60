#!/usr/bin/env bash
# Builds with the oldest Rust that Cargo.toml promises (`rust-version`), in a target folder of its own. Needs rustup and a network.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
command -v rustup >/dev/null || { echo "skipped: no rustup, so no Rust $version"; exit 0; }
rustup toolchain list | grep -q "^$version" || rustup toolchain install "$version" --profile minimal ||
    { echo "skipped: Rust $version cannot be installed here"; exit 0; }
cargo "+$version" check --release --lib --target-dir target/msrv
