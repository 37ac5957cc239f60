#!/usr/bin/env bash
# Plays a newcomer: for each language a fresh clone, the README's commands alone, and the README's program. Prints each command with its output and
# the minutes of CPU that it took, and at the end a table of the minutes to the first completion.
#
#   scripts/newcomer.sh [--hub FOLDER] [--model MODEL [--draft DRAFT]] [--built FOLDER] [c cpp python node csharp rust]     without a language: all of them
#
# The programs load the README's toy, or MODEL in its place: a path, or what the library downloads (`hf:owner/name:Q4_K_M`). With --hub the server of
# tests/hub is the hub, whose `local/NAME` has NAME.gguf of FOLDER. What a command needs is taken from README.md, for C++ and Rust from the pages that it
# names. Logs and clones are in /tmp/foredraft-newcomer. Each language compiles everything again, as a newcomer does: 8 minutes or more on two cores, more
# where they are shared. With --built the library is that of FOLDER (another build's target/release), and its build is left out, as the table says; Rust
# compiles it nevertheless.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
# Not below the repository, whose settings cargo would find.
work=${TMPDIR:-/tmp}/foredraft-newcomer
model='' draft='' hub='' built='' languages=()
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=$2 && shift 2 ;;
    --draft) draft=$2 && shift 2 ;;
    --hub) hub=$(realpath "$2") && shift 2 ;;
    --built) built=$(realpath "$2") && shift 2 ;;
    c | cpp | python | node | csharp | rust) languages+=("$1") && shift ;;
    *)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
    esac
done
[ "${#languages[@]}" -gt 0 ] || languages=(c cpp python node csharp rust)
[[ $model != */* || $model == *:* ]] || model=$(realpath "$model")
[[ $draft != */* || $draft == *:* ]] || draft=$(realpath "$draft")
# A newcomer's shell has none of a developer's settings.
for name in $(compgen -e | grep -E '^(CARGO_(TARGET|BUILD|INCREMENTAL|PROFILE)|CPATH|CMAKE_|FOREDRAFT_|GGML_|PYTHONPATH|NODE_PATH|RUSTFLAGS|CCACHE)'); do unset "$name"; done
PATH=${PATH//\/usr\/lib\/ccache:/}
if [ -n "$hub" ]; then
    rm -rf "$work/hf"
    coproc HUB { exec python3 "$root/tests/hub/server.py" "$hub"; }
    read -r HF_ENDPOINT <&"${HUB[0]}"
    export HF_ENDPOINT HF_HOME=$work/hf
fi

# The first block of code of a page in a language, with the given models in the place of the toy.
block() {
    awk -v fence="\`\`\`$2" '!on && $0 == fence { on = 1; next } on && /^```/ { exit } on' "$1" |
        if [ -n "$model" ]; then sed -e "s|models/stories-target.gguf|$model|" -e "s|models/stories-draft.gguf|$draft|"; else cat; fi
}
# README's command that begins so, without what its comment says.
command_of() { sed -n "s/^    \(\($1\).*\)/\1/p" README.md | sed 's/  *#.*//' | head -n 1; }

# Runs a command in a shell of its own, shows it with its output, and adds its time on the processor to $cpu, in seconds.
perform() {
    local times status=0
    printf '$ %s\n' "$*"
    { times=$( { TIMEFORMAT='%U %S'; time bash -c "$prelude$*" </dev/null >&3 2>&4; } 2>&1 ) || status=$?; } 3>&1 4>&1
    local spent
    spent=$(awk '{ print $1 + $2 }' <<<"$times")
    cpu=$(awk -v a="$cpu" -v b="$spent" 'BEGIN { print a + b }')
    printf '[%s: %.1f s of CPU]\n' "$([ $status = 0 ] && echo done || echo "ended with $status")" "$spent"
    return $status
}

# README's command that builds the library, and the packages' use of one that was built elsewhere.
build() {
    [ -n "$built" ] || { perform "$(command_of 'make build')" && return; }
    mkdir -p target/release && cp "$built"/{libforedraft.so,foredraft-engine} target/release
    echo "$ $(command_of 'make build')"
    echo "[left out: the library is that of $built]"
}
# For the languages that download nothing, the models' paths, from the program of docs/models.md.
get_models() {
    [[ $model == *:* ]] || return 0
    python3 -m venv venv && perform ". venv/bin/activate; $(command_of 'pip install')"
    local reference
    for reference in "$model" "$draft"; do
        [ -z "$reference" ] || perform ". venv/bin/activate; foredraft-get --only-model '$reference' | tee /dev/stderr | sed -n 's/.*\"model\": \"\(.*\)\".*/\1/p' >>paths"
    done
    { read -r model && read -r draft || true; } <paths
}

# The commands up to the first completion, in a clone.
play() {
    case $1 in
    c) build && get_models && block README.md c >hello.c && perform "$(command_of 'cc ')" ;;
    cpp)
        build && get_models && block docs/first-completion.md cpp >examples/guide/hello.cpp
        perform "$(awk '/^## C\+\+/ { on = 1 } on' docs/first-completion.md | sed -n '/^```sh/,/^```/{//!p}' | head -n 3)"
        ;;
    csharp) block README.md csharp >hello.cs && build && perform "$(command_of 'mcs ')" ;;
    python)
        # Debian's Python installs into virtual environments alone.
        prelude='. venv/bin/activate; '
        python3 -m venv venv && block README.md python >hello.py
        perform "$(command_of 'pip install')" && perform 'python hello.py'
        ;;
    node)
        block README.md js >hello.mjs
        [ -z "$built" ] || build
        perform "$(command_of 'make node' | sed "s/^make/make${built:+ -o build}/")" && perform 'node hello.mjs'
        ;;
    rust)
        prelude='cd ../hello && . ../clone/target/setup/env.sh && '
        (cd "$folder" && cargo init --quiet --vcs none --name hello hello)
        sed -n 's/.*`\(foredraft = { path = "\)[^"]*\(" }\)`.*/\1..\/clone\2/p' docs/building.md >>../hello/Cargo.toml
        block README.md rust | awk '/^use / { print; next } !begun { print "fn main() -> foredraft::Result<()> {"; begun = 1 } { print } END { print "Ok(())\n}" }' >../hello/src/main.rs
        [ -n "$model" ] || ln -s ../clone/models ../hello/models
        # cmake and libclang, as docs/building.md says.
        scripts/setup.sh >/dev/null
        perform 'cargo run --release'
        ;;
    esac
}

mkdir -p "$work"
rows=()
for language in "${languages[@]}"; do
    folder=$work/$language
    rm -rf "$folder" && mkdir "$folder"
    [ -z "$built" ] || export FOREDRAFT_LIB=$built/libforedraft.so
    git clone --quiet "$root" "$folder/clone"
    cpu=0 prelude='' result=yes began=$SECONDS
    exec 5>&1
    cd "$folder/clone"
    echo "== $language"
    play "$language" > >(tee "$folder/log" >&5) 2>&1 || result=no
    sleep 1 # tee writes what it has
    completion=$(grep -v '^\[\|^\$' "$folder/log" | tail -n 1 | cut -c 1-60)
    rows+=("| $language | $result | $(awk -v s="$cpu" 'BEGIN { printf "%.1f", s / 60 }') | $(((SECONDS - began) / 60)) | $completion |")
    cd "$root"
    rm -rf "$folder/clone/target"
done
[ -z "$built" ] || printf '\nWithout the minutes of the build of the library, which was that of %s (but for Rust).\n' "$built"
printf '\n| language | works | minutes of CPU | minutes | the last line |\n| --- | --- | --- | --- | --- |\n'
printf '%s\n' "${rows[@]}"
[[ "${rows[*]}" != *'| no |'* ]]
