# What the tests in a booted system have in common. Sourced, in a directory of the test's.
# shellcheck shell=bash disable=SC2034 # the sourcing script reads `failed`
failed=0

check() {
    local what=$1
    shift
    # What it prints is of interest where something fails.
    if "$@" >&2; then
        printf 'ok      %s\n' "$what"
    else
        printf 'FAILED  %s: %s\n' "$what" "$*"
        failed=1
    fi
}

not() { ! "$@"; }
# A command's lines, joined by spaces.
is() { [ "$(eval "$1" | xargs)" = "$(xargs <<<"$2")" ]; }
contains() { grep -qF -- "$2" "$1"; }
gone() { ! [ -e "$1" ] && ! [ -L "$1" ]; }
listens() { ss -Hltn "sport = $1" | grep -q .; }

# For 10 seconds, or as many as SECONDS_MOST says.
until_true() {
    for _ in $(seq $((${SECONDS_MOST:-10} * 10))); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
moves() {
    local before
    before=$(cat "$1" 2>/dev/null)
    until_true not is "cat $1 2>/dev/null" "$before"
}
# At least so many ends send through shared memory.
promoted() {
    until_true in_rings "$1" && return 0
    megapipe top --once
    return 1
}
in_rings() { [ "$(megapipe top --once --interval 0 --json | grep -o '"lane": *"ring"' | wc -l)" -ge "$1" ]; }
