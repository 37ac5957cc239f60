#!/usr/bin/env bash
# Checks formatting, lints, the crates' documentation, the workflows of the code host, how much product code there is, and the subjects of commits
# that are not published yet. The lints are declared in Cargo.toml. A missing tool is reported and skipped; in CI (`CI` is set) it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# has NAME COMMAND...: whether the tool is available
has() {
    local name=$1
    shift
    if "$@" >/dev/null 2>&1; then return 0; fi
    if [ -n "${CI:-}" ]; then
        echo "$name is required in CI" >&2
        exit 1
    fi
    echo "skipped: no $name"
    return 1
}

scripts/budget.py
# Of the commits that neither the upstream branch nor `main` has.
published=$(git rev-parse --verify --quiet '@{upstream}' || git rev-parse --verify --quiet main || git rev-parse HEAD)
long=$(git log --format=%s "$published..HEAD" | grep -E '.{73}' || true)
if [ -n "$long" ]; then
    printf 'subjects of commits have at most 72 characters:\n%s\n' "$long" >&2
    exit 1
fi
if has rustfmt cargo fmt --version; then
    cargo fmt --all --check
fi
if has clippy cargo clippy --version; then
    # This includes `clippy::incompatible_msrv`: nothing newer than `rust-version` in Cargo.toml.
    cargo clippy --release --workspace --features peer --all-targets -- -D warnings
fi
# Other versions break lines elsewhere. On Debian 12: apt-get install clang-format
format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -n "$format" ] && "$format" --version | grep -q 'version 14\.'; then
    "$format" --dry-run --Werror crates/native/kernels/*.h crates/native/kernels/*.cpp crates/native/kernels/*.c
else
    echo "skipped: no clang-format 14"
fi
RUSTDOCFLAGS='-D warnings' cargo doc --release --workspace --no-deps --quiet
if has npm npm --version; then
    scripts/lint-workflows.sh
fi
