# What scripts/windows.sh and scripts/aarch64.sh share. Sourced by them, with `platform`, `triple` and `root` set.

n_passed=0

say() { printf '%s: %s\n' "$platform" "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# What cannot be tried is said aloud; with CI set it is a failure.
skip() {
    printf 'skipped: %s: %s\n' "$platform" "$*"
    [ -z "${CI:-}" ] || exit 1
}
# Skips all that is left.
give_up() {
    skip "$@"
    exit 0
}
passed() {
    n_passed=$((n_passed + ${2:-1}))
    printf 'passed: %s\n' "$1"
}

from_apt() {
    [ "${FOREDRAFT_SETUP:-auto}" != none ] && have apt-get || return 1
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo=(sudo)
    fi
    say "installing with apt-get: $*"
    "${sudo[@]}" apt-get update -qq && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
} >&2

have_target() { rustup target list --installed 2>/dev/null | grep -qx "$triple"; }
# Rust's standard library for the triple.
add_target() {
    have_target && return
    have rustup || give_up "no rustup, which installs Rust's standard library for $triple"
    [ "${FOREDRAFT_SETUP:-auto}" = none ] || rustup target add "$triple" >&2 || true
    have_target || give_up "rustup cannot install $triple"
}
