#!/usr/bin/env bash
# Long checks, which `make test` does not run: scripts/check.sh NAME [ARGS].
#
#   architectures                 what works with a small random model of every architecture of llama.cpp; writes the table of docs/architectures.md.
#                                 Then each number of their metadata is changed, one at a time
#   asan | tsan | valgrind [S]    hosts under the address sanitizer, the thread sanitizer or Valgrind, with S seconds of random calls
#   miri                          parsers of the pure crates under Miri
#   fuzz [SECONDS EXECUTIONS]     every parser of foreign bytes
#   faults [FAULTS KILLS]         lets each call of the system fail in turn, kills processes that save (40 and 100), and limits Python's memory
#   chaos [MINUTES] | soak        random calls on eight threads (10); memory after 100000 requests and 1000 loads
#   deaths                        kills isolated engines at random moments; prints the table of docs/isolation.md
#   conversations [TURNS]         turns of a hundred conversations in random order, with forks and rewinds (1000), on each kind of memory
#   exactness                     compares the distributions of 100000 sampled outputs with and without speculation, for each verification rule
#   templates                     prompts of real chat templates beside Jinja2's, and messages of completions beside llama.cpp's (downloads 76 MB)
#   schemas                       the JSON Schema test suite: no grammar accepts what it calls invalid (downloads 0.4 MB)
#   tool-calls [MODEL]            forces 200 calls of tools of SmolLM2, and counts forward passes with the grammar as the drafter
#   rig                           the adapter for rig, with its tests (downloads rig)
#   audit                         compares the dependencies with RustSec's advisories
set -euo pipefail
cd "$(dirname "$0")/.."
check=${1:-}
[ $# -eq 0 ] || shift

setup() {
    # shellcheck disable=SC1091 # setup.sh writes it
    . "$(scripts/setup.sh)"
    export CARGO_TARGET_DIR=$PWD/target
}
tests() { cargo test --release "$@"; }

# The interpreter is some thousand times slower, so it runs the parsers' tests with one random case each, without long inputs, loops over
# all characters, and calls that Miri lacks (`fsync` of a folder). Samplers and drafters read no foreign bytes, and their tests draw thousands of times.
miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || {
        echo "skipped: no Miri (rustup toolchain install nightly --component miri)" >&2
        [ -z "${CI:-}" ]
        exit
    }
    export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1
    local not_in_miri=() name
    for name in updates_in_pieces merge_adds clear_removes long_lists files_round_trip almost_valid any_bytes changed_number every_truncation \
        many_new_tokens memory_is missing_and; do
        not_in_miri+=(--skip "$name")
    done
    cargo +nightly miri test -p foredraft-base --lib -- prompt_fit::
    cargo +nightly miri test -p foredraft-grammar --lib -- parse:: trigger:: --skip huge --skip valid_grammars
    cargo +nightly miri test -p foredraft-jinja --lib -- expressions statements values_that
    cargo +nightly miri test -p foredraft-ngram --lib -- file:: cache:: "${not_in_miri[@]}"
}

case $check in
    asan | tsan | valgrind | miri | fuzz | faults | chaos | soak | deaths | conversations | architectures | exactness | templates | schemas | tool-calls | rig) setup ;;
    audit) ;;
    *)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
case $check in
    rig) tests --manifest-path examples/adapters/rig/Cargo.toml "$@" ;;
    asan) scripts/sanitize.sh address "$@" ;;
    tsan) scripts/sanitize.sh thread "$@" ;;
    valgrind) scripts/sanitize.sh valgrind "$@" ;;
    miri) miri ;;
    fuzz) scripts/fuzz.sh "$@" ;;
    faults)
        cargo build --release --lib
        FOREDRAFT_FAULTS=${1:-40} FOREDRAFT_KILLS=${2:-100} tests --quiet --test hosts -- --nocapture faults:: | grep -oE '\| .* \|$'
        FOREDRAFT_LIMIT_STEP=1 scripts/test-python.sh -s -k limits_of_memory | grep -oE '\| .* \|$'
        ;;
    chaos) scripts/soak.sh chaos "${1:-10}" ;;
    soak) scripts/soak.sh soak "$@" ;;
    deaths)
        tests --quiet --test isolation -- --ignored --nocapture deaths_at_twenty cost_of never_polled | sed 's/^[.]*|/|/' | grep '^|'
        ;;
    conversations)
        echo "| memory | turns | cached | states found | missed | bytes at most | samples |"
        FOREDRAFT_TURNS=${1:-1000} tests --quiet --test exactness -- --nocapture outputs_of_a_fresh_engine small_limit 2>&1 | grep -E '^\||panicked|^test result'
        ;;
    architectures)
        FOREDRAFT_TABLE=1 tests --test architectures -- --ignored --exact all_architectures
        tests --test architectures -- --ignored --nocapture changed_numbers_of_all
        ;;
    exactness)
        # About 800,000 short requests, 15 minutes or more on two cores. FOREDRAFT_CONTINUATIONS=4000 takes two minutes; smaller numbers are not enough.
        tests -p foredraft-engine --lib -- --ignored tests::distribution
        tests --test exactness -- --ignored --nocapture distribution::
        ;;
    templates)
        scripts/templates.sh
        tests --test requests -- --ignored templates::
        scripts/chat-peer.sh
        tests --lib -- --ignored --nocapture real_templates
        tests --test against_llama -- --ignored vocabularies::
        ;;
    schemas)
        scripts/schemas.sh
        tests -p foredraft-schema -- --ignored --nocapture suite
        ;;
    tool-calls)
        cargo build --release
        scripts/tool-calls.sh "$@"
        ;;
    audit) scripts/audit.sh ;;
esac
