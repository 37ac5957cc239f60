#!/usr/bin/env bash
# Frame times of examples/window with a frame budget, with pauses, and without: the figures of docs/figures/hosts.md.
#
#   scripts/frame_times.sh [model.gguf [mmproj.gguf]]     after `make window` has built target/window
#
# With a projector, also the same with a picture each second beside the answers.
# The host computes WORK milliseconds on two threads in each frame. FRAMES frames a run, RUNS interleaved runs of each setting.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:-target/models/smollm2-135m-q4_1.gguf} mmproj=${2:-}
work=${WORK:-6} frames=${FRAMES:-300} runs=${RUNS:-3}

# Drawn into memory: the processes of a window system would take cores, too.
export SDL_VIDEODRIVER=dummy

questions=()
for part in 1 2 3 4 5 6; do questions+=(--ask "Tell me a long story about a fox and a crow, part $part."); done
looks=()
[ -z "$mmproj" ] || looks=(--mmproj "$mmproj" --look 1000 --init '"n_parallel": 2, "n_ubatch": 512, "mmproj_weights": "q8_0"')
# Each letter prepares the question so far.
typed="Tell me a long story about a fox and a crow who live in the woods behind the old mill."

# Prints a setting's name, its frames, late frames, median, p99, the longest time in the library's calls, tokens per second, and the frames
# that are late only because the host drew them for longer than others.
measure() {
    local name=$1
    shift
    target/window --plain --work "$work" --frames "$frames" --report "$@" "$model" | awk -v name="$name" '
        /^loaded: [0-9]/ { frames = $2; median = $5; p99 = $8; late = $(NF - 9); drawn = $(NF - 5) }
        /^loaded: calls/ { calls = $(NF - 5) }
        /^looks: / { looks = $2 }
        /^answer: / && $5 > 0 { tokens += $3; seconds += $3 / $5 }
        END { print name, frames, late, median, p99, calls, (seconds > 0 ? tokens / seconds : 0), drawn, looks + 0 }'
}

for _ in $(seq "$runs"); do
    measure no_requests
    measure no_budget "${questions[@]}"
    measure 6_of_16_ms --budget 6:16 "${questions[@]}"
    measure 3_of_16_ms --budget 3:16 "${questions[@]}"
    measure pause --pause "${questions[@]}"
    measure no_budget_prepares --type "$typed"
    measure 6_of_16_ms_prepares --budget 6:16 --type "$typed"
    measure pause_prepares --pause --type "$typed"
    measure pause_idle --pause --init '"prio": "idle"' "${questions[@]}"
    [ -n "$mmproj" ] || continue
    measure no_budget_looks "${looks[@]}" "${questions[@]}"
    measure 6_of_16_ms_looks --budget 6:16 "${looks[@]}" "${questions[@]}"
    measure pause_looks --pause "${looks[@]}" "${questions[@]}"
    measure pause_idle_looks --pause "${looks[@]}" --init '"prio": "idle"' "${questions[@]}"
done | awk '
    !($1 in n) { order[++count] = $1 }
    { n[$1]++; frames[$1] += $2; late[$1] += $3; median[$1] += $4; p99[$1] += $5; tokens[$1] += $7; drawn[$1] += $8; looks[$1] += $9; if ($6 > calls[$1]) calls[$1] = $6 }
    END {
        print "| | median ms | p99 ms | above 20 ms | but for long drawing | longest in calls, ms | tokens/s | pictures |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
        for (i = 1; i <= count; i++) {
            k = order[i]
            printf "| %s | %.1f | %.1f | %.1f %% | %.1f %% | %.1f | %.1f | %d |\n", k, median[k] / n[k], p99[k] / n[k], 100 * late[k] / frames[k], 100 * (late[k] - drawn[k]) / frames[k], calls[k], tokens[k] / n[k], looks[k]
        }
    }'
