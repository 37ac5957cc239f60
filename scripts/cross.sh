# Functions that scripts/windows.sh, scripts/aarch64.sh and scripts/gpu.sh share. They source this file with `platform` and `root` set, and
# with `triple` where they call add_target. A script that ends without having done everything says on its last line in which step.

n_passed=0

# Messages go where the script's stderr does, also while a function's is in a file, as when a signal ends the script there.
exec {messages}>&2
say() { printf '%s: %s\n' "$platform" "$*" >&"$messages"; }
die() { say "$@"; exit 1; }

# The step that runs, and the command that failed where `set -e` ends the script.
step=setup
failed=
# Begins a step: its name.
begin() {
    step=$*
    say "$step"
}
end() {
    local status=$?
    [ "$status" = 0 ] || say "ended with $status in the step \"$step\"$failed"
}
set -E
trap 'failed=${BASH_SOURCE[0]-$0} failed=": ${failed##*/}, line $LINENO: $BASH_COMMAND"' ERR
trap end EXIT
# Without these, a signal ends the shell without the last line.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
have() { command -v "$1" >/dev/null 2>&1; }

# Prints a step that cannot run here; with CI set it is a failure.
skip() {
    printf 'skipped: %s: %s\n' "$platform" "$*"
    [ -z "${CI:-}" ] || exit 1
}
# Skips the rest of the script.
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
