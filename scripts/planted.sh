#!/usr/bin/env bash
# Plants each of the bugs of crates/tcp/src/core/planted.rs in turn, and runs the test that has to fail with it; before that,
# each test has to pass without one. The simulator has FLOWS (10000) connections to find its bugs in. The last lines say for
# each bug which test found it, and in which simulated connection. BUGS names some.
# Usage: BUGS='EdgeRoundedDown ChallengeStorm' FLOWS=10000 scripts/planted.sh
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
FLOWS=${FLOWS:-10000}
# What a test may take at most: one that hangs has found nothing.
SECONDS_MAX=1800
TARGET=${CARGO_TARGET_DIR:-target}/planted
LOGS=$TARGET/logs

# Bug, file of crates/tcp/tests, test.
table() {
    cat <<'END'
WrappedComparison simulator every_flow_ends_with_the_right_bytes
LostWindowUpdate simulator every_flow_ends_with_the_right_bytes
OverlapTrimmedAtTheEnd simulator every_flow_ends_with_the_right_bytes
EvictionUntold simulator every_flow_ends_with_the_right_bytes
EdgeRoundedDown simulator every_flow_ends_with_the_right_bytes
ProbeTimerUnset simulator every_flow_ends_with_the_right_bytes
AckTimerUnset simulator every_flow_ends_with_the_right_bytes
BeyondTheWindow simulator every_flow_ends_with_the_right_bytes
AcknowledgesWhatIsDropped simulator every_flow_ends_with_the_right_bytes
RttFromRetransmission recovery ambiguous_round_trips
BackoffKept recovery timeout
CongestionIgnored recovery fast_recovery
NoFastRetransmit recovery peer_without_sack
ReorderingIsLoss recovery reordering_is_tolerated
BeyondTheEdge windows bytes_beyond_the_edge
FinForgotten windows early_fin
ChallengeStorm hardening forged_syns_and_acknowledgements
EndlessFinWait2 hardening closed_connections_end
OldTimestampsTaken hardening old_timestamps
TimeWaitAssassinated hardening time_wait_lasts
ResetAnywhere hardening forged_resets_in_every_state
END
}

known=$(sed -n 's/^    \([A-Z][A-Za-z0-9]*\),$/\1/p' crates/tcp/src/core/planted.rs | sort)
if [[ $known != "$(table | cut -d' ' -f1 | sort)" ]]; then
    echo 'the bugs of planted.rs are not those of this table'
    exit 1
fi

mkdir -p "$LOGS"
RUSTFLAGS="${RUSTFLAGS:-} --cfg tcp_planted" CARGO_TARGET_DIR=$TARGET "$CARGO" test --locked -p megapipe-tcp --no-run 2>&1 |
    tee "$LOGS/build.log"

# Runs a test with a bug, or with none.
run() {
    local bug=$1 file=$2 test=$3 flows=$4 program
    program=$(sed -n "s/^ *Executable tests\/$file\.rs (\(.*\))$/\1/p" "$LOGS/build.log")
    MEGAPIPE_TCP_PLANTED=$bug MEGAPIPE_TCP_FLOWS=$flows RUST_BACKTRACE=0 \
        timeout "$SECONDS_MAX" "$program" --exact "$test" --nocapture >"$LOGS/${bug:-none}-$test.log" 2>&1
}

status=0
while read -r file test; do
    run '' "$file" "$test" 1000 && continue
    printf '%s fails without a bug: %s\n' "$test" "$LOGS/none-$test.log"
    status=1
done < <(table | cut -d' ' -f2- | sort -u)

rows=()
found=0
count=0
while read -r bug file test; do
    [[ -z ${BUGS:-} || " $BUGS " == *" $bug "* ]] || continue
    count=$((count + 1))
    # 101: a test failed. All else, a timeout too, found nothing.
    code=0
    run "$bug" "$file" "$test" "$FLOWS" || code=$?
    outcome='NOT FOUND'
    if ((code == 101)); then
        outcome=found
        found=$((found + 1))
    fi
    flow=$(sed -n 's/^seed [0-9]*, after \([0-9]*\) flows$/after \1 flows/p' "$LOGS/$bug-$test.log" | head -n 1)
    rows+=("$(printf '%-26s %-10s %s::%s %s' "$bug" "$outcome" "$file" "$test" "$flow")")
done < <(table)

printf '\n== %d of %d planted bugs found\n' "$found" "$count"
printf '%s\n' "${rows[@]}"
((count > 0 && found == count)) || status=1
exit "$status"
