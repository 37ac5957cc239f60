# What the scripts for platforms (aarch64.sh, windows.sh, gpu.sh, macos.sh) and release.sh share. They source this file with `platform` set, with
# `triple` where they call add_target, and with `stage`, a folder for logs, where they test or make packages. A script that ends without having done
# everything says on its last line in which step.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
models=(models/stories-target.gguf models/stories-draft.gguf)
n_passed=0

# Goes to the repository, with the tools of a build, and makes the folders that are named.
enter() {
    cd "$root"
    # shellcheck disable=SC1090 # the path of what it writes
    . "$(scripts/setup.sh)"
    export CPATH=$root/scripts/gcc
    mkdir -p "$@"
}

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

# Reads the script's argument: one of the parts, or nothing for all of them.
choose() {
    what=$1
    shift
    case " $* all " in
    *" $what "*) ;;
    *) say "$what: expected one of: $*; or nothing" && exit 2 ;;
    esac
}
wants() { [ "$what" = all ] || [ "$what" = "$1" ]; }

crate_version() { sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1; }

# Runs a host that the script's `compile` has made, by its `run_host`: its name and arguments. What it prints is in $stage/NAME.out.
host() {
    local name=$1
    shift
    begin "$name $*"
    run_host "$stage/$name.exe" "$@" >"$stage/$name.out" 2>"$stage/$name.err" || { cat "$stage/$name.out" "$stage/$name.err" >&2; die "$name failed"; }
    passed "$name"
}
# The hosts that run on every platform. `compile` takes a name, gcc or g++, and the compiler's arguments.
common_hosts() {
    compile own_names gcc -std=c99 tests/hosts/own_names.c && host own_names "${models[@]}"
    compile wrapper g++ -std=c++17 tests/hosts/wrapper.cpp && host wrapper "${models[@]}"
    compile chat gcc -std=c99 -Iexamples examples/chat.c && host chat "Tell me a story." "${models[@]}"
    compile chat_cpp g++ -std=c++17 -Iexamples examples/chat.cpp && host chat_cpp "Tell me a story." "${models[@]}"
    compile old_host gcc -std=c99 -Iexamples examples/old_host.c && host old_host "Once upon a time" "${models[0]}"
}

# The results of tests/operations.rs with the build for this machine, in $stage/here.
operations_here() {
    rm -rf "$stage/here" && mkdir -p "$stage/here"
    begin "cargo test --test operations on this machine"
    FOREDRAFT_RESULTS=$stage/here cargo test --release --test operations >"$stage/here.log" 2>&1 || { cat "$stage/here.log" >&2; die "operations.rs fails here"; }
}
# Compares them with those in a folder, of the platform that is named.
compare_operations() {
    local name n
    for name in operations completions; do
        diff "$stage/here/$name" "$1/$name" >&2 || die "$name differ between this machine and $2"
        n=$(wc -l <"$stage/here/$name")
        [ "$n" -ge 12 ] || die "only $n $name"
        passed "$n $name have the same bits here and on $2" "$n"
    done
}

# Makes the wheel and the npm package in a folder, of the library that FOREDRAFT_LIB names, for the platform that the further arguments, settings
# of the environment, tell Python and Node.
make_packages() {
    local out=$1
    shift
    begin "the wheel"
    if have python3 && python3 -m venv "$stage/venv" 2>/dev/null; then
        "$stage/venv/bin/pip" install --quiet --disable-pip-version-check build
        env "$@" "$stage/venv/bin/python" -m build --wheel --outdir "$out" python >"$stage/wheel.log" 2>&1 || { cat "$stage/wheel.log" >&2; die "the wheel cannot be built"; }
    else
        skip "the wheel: no python3 with venv"
    fi
    begin "the npm package"
    if have npm; then
        (cd node && export "$@" && npm pack --silent --pack-destination "$out" "$(node scripts/platform.cjs)") >/dev/null
    else
        skip "the npm package: no npm"
    fi
}

# Installs the npm package in $stage/node, with the package of a platform and with Node for it, which npm has as a package: the former's file, the
# latter's name, and npm's options for the platform. False, with a message, if npm is not here or cannot do it.
install_node() {
    local carrier=$1 node=$2
    shift 2
    have npm || { skip "Node for $platform: no npm" && return 1; }
    begin "the npm package with Node for $platform"
    rm -rf "$stage/node" && mkdir -p "$stage/node"
    (
        cd "$root/node" && npm pack --silent --pack-destination "$stage/node"
        cd "$stage/node" && npm init -y
        # koffi's binary for another platform is a package of its own.
        npm install --ignore-scripts --no-audit --no-fund --loglevel=error --force "$@" ./foredraft-[0-9]*.tgz "$carrier" "$node"
    ) >"$stage/npm.log" 2>&1 || { cat "$stage/npm.log" >&2; skip "Node for $platform: npm cannot install it" && return 1; }
}

# Installs the C archive's tree, which can lie anywhere, in a folder.
install_tree() {
    PREFIX=/ LIBDIR=/lib DESTDIR=$1 "$root/scripts/install.sh"
    # shellcheck disable=SC2016 # pkg-config's variables
    sed -i -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' -e 's|^libdir=.*|libdir=${prefix}/lib|' -e 's|^includedir=.*|includedir=${prefix}/include|' \
        "$1/lib/pkgconfig/foredraft.pc"
    cp "$root/LICENSE" "$1"
}

# Checks that the C library that docs/building.md promises for a platform is enough for the wheel in a folder. `tag`: it is for a release. Otherwise a
# machine with a newer C library may make packages for itself.
keep_promise() {
    local promised needed
    promised=$(sed -n "s/^| $2, glibc 2\.\([0-9]*\) or newer.*/\1/p" "$root/docs/building.md")
    needed=$(find "$1" -name '*.whl' | sed -n 's/.*manylinux_2_\([0-9]*\)_.*/\1/p')
    [ -n "$promised" ] || die "docs/building.md names no version of glibc for $2"
    if [ "${needed:-0}" -gt "$promised" ]; then
        [ "$3" != tag ] || die "docs/building.md promises glibc 2.$promised, and the wheel needs 2.$needed"
        say "the packages need glibc 2.$needed, newer than the 2.$promised of docs/building.md"
    fi
}

# Checks that docs/building.md has the sizes of the repository, of a library and of the packages in a folder, in MB and to a fifth. `tag` as above; where
# CI runs another size is a failure, too. (A library without optimization is larger.)
keep_sizes() {
    local promised file index=0
    keep_size() { # a name, its bytes, and the size of the page
        local size=$((($2 + 500000) / 1000000))
        [ -n "$3" ] || die "docs/building.md has no size of $1"
        if [ $((size * 5)) -gt $(($3 * 6)) ] || [ $((size * 6)) -lt $(($3 * 5)) ]; then
            say "$1 has $size MB, and docs/building.md says $3"
            [ -z "$tag_or_ci" ] || exit 1
        fi
    }
    sizes_of() { sed -n "s/^| $1.* | \([0-9; ]*\) |$/\1/p" "$root/docs/building.md" | tr -d ';'; }
    local tag_or_ci=$3${CI:-}
    keep_size "the repository" "$(cd "$root" && git ls-files -z | xargs -0 cat | wc -c)" "$(sizes_of 'the repository')"
    read -r -a promised < <(sizes_of 'the library')
    keep_size "$(basename "$2")" "$(stat -c %s "$2")" "${promised[0]:-}"
    read -r -a promised < <(sizes_of 'a wheel')
    for file in "$1"/foredraft-[0-9]*.whl "$1"/*-linux-*[0-9].tgz "$1"/*-c-linux-*.tar.gz; do
        [ ! -e "$file" ] || keep_size "$(basename "$file")" "$(stat -c %s "$file")" "${promised[index]:-}"
        index=$((index + 1))
    done
}
