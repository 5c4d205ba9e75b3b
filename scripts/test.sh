#!/usr/bin/env bash
# Every test of the workspace, and once more what stands in for features that older kernels lack. The C programs and the
# examples are built and run by tests of the workspace. One build, without optimisation, serves all.
# Full logs are kept in target/test-logs; the last lines say what ran, what failed and what was skipped.
# Usage: [PACKAGES='megapipe-ring megapipe-sys'] scripts/test.sh     only these, and once
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/provision.sh

provide build || exit
provide test || note 'going on without them: tests that need them are skipped and say so'
LOGS=target/test-logs
mkdir -p "$LOGS"
rm -f "$LOGS"/*.log
failed=()

# A suite that takes longer than this hangs. At a terminal there is Ctrl-C, which `timeout` would keep from it.
limit=(timeout 60m)
if [ -t 0 ]; then
    limit=()
fi
# What of the output tells how it goes.
TELLING='^(test |test result:|error|SKIPPED|skipped:)|^ +(Compiling megapipe|Running|Doc-tests)'

# Runs tests, shows the telling lines, keeps all of them, and remembers a failure. With --show-output, a test that
# cannot run prints "SKIPPED name: why" and is counted below.
run() {
    local name=$1
    shift
    local log=$LOGS/$name.log
    set -- "$CARGO" test --locked --no-fail-fast "$@" -- --show-output
    printf '\n== %s: %s\n' "$name" "$*"
    "${limit[@]}" "$@" 2>&1 | tee "$log" | { grep --line-buffered -E "$TELLING" || true; }
    local status=${PIPESTATUS[0]}
    if [ "$status" -ne 0 ]; then
        failed+=("$name")
        printf '== %s failed (status %s); from %s:\n' "$name" "$status" "$log"
        failures "$log" | head -n 400
    fi
    return "$status"
}

# Names of the test targets that cargo's metadata lists.
tests() {
    python3 -c '
import json, sys
targets = (target for package in json.load(sys.stdin)["packages"] for target in package["targets"])
print(*sorted({target["name"] for target in targets if target["kind"] == ["test"]}), sep="\n")'
}

# What failed and what it said; where nothing was run, why.
failures() {
    sed -n '/^failures:$/,/^test result:/p; /^error/,/^$/p' "$1"
}

all() {
    # One build for all that follows, with what tests load into programs; they need not ask cargo for it again.
    "$CARGO" build --locked --quiet --workspace --lib --bins --tests --examples || failed+=(build)
    export MEGAPIPE_TEST_BUILT=1
    # Most tests wait for other processes rather than compute.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}

    # Two at a time: those that wait for whole programs leave the CPUs idle. Chosen by the names of test targets, as a choice
    # of packages would be another choice of features, and build anew.
    local programs='^(command|listen|monitor|programs|promotion|run|top|transcripts|unwatched)$' target
    local waiting=() others=(--lib --bins --examples)
    while read -r target; do
        if [[ $target =~ $programs ]]; then
            waiting+=(--test "$target")
        else
            others+=(--test "$target")
        fi
    done < <("$CARGO" metadata --no-deps --format-version 1 | tests)
    run rust-programs --workspace "${waiting[@]}" >"$LOGS/programs.told" &
    local other=$!
    run rust --workspace "${others[@]}"
    wait "$other" || failed+=(rust-programs)
    cat "$LOGS/programs.told"
    run rust-examples-in-documents --workspace --doc

    # The io_uring engine with no more than Linux 6.1 gives it: what takes the place of a feature is tested here too.
    local LINUX_6_1_LACKS=no_sqarray,multishot_recvmsg,recv_len_cap,direct_descriptors_safe
    LINUX_6_1_LACKS+=,fixed_fd_install,min_wait,accept_reports_more
    MEGAPIPE_DISABLE=$LINUX_6_1_LACKS run rust-linux-6.1 --workspace --test conformance_uring

    # A receiver that has to read each socket until it is empty, on io_uring.
    MEGAPIPE_DISABLE=poll_tells_one run rust-poll-tells-less --workspace --test receiver

    # Other people's test suites, plain and with the preload library: the ones that take seconds. `make test-apps` has more.
    printf '\n== apps\n'
    if ! "${limit[@]}" tests/apps/run.sh --quick 2>&1 | tee "$LOGS/apps.log"; then
        failed+=(apps)
    fi
}

if [ -n "${PACKAGES:-}" ]; then
    # shellcheck disable=SC2046,SC2086 # names of packages have no blanks
    run rust $(printf -- '-p %s ' $PACKAGES)
else
    all
fi

printf '\n== result\n'
for log in "$LOGS"/*.log; do
    # The suites of others have a table of their own.
    [ "$log" = "$LOGS/apps.log" ] && continue
    scripts/count-tests.sh "$log"
    # Once more where the last lines are all that is kept.
    failures "$log" | tail -n 100
done

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
printf 'all tests passed\n'
