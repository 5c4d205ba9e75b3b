#!/usr/bin/env bash
# Every test of the workspace, once as it is and once with the epoll engine forced. The C programs and the examples are
# built and run by tests of the workspace.
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
}

# What failed and what it said; where nothing was run, why.
failures() {
    sed -n '/^failures:$/,/^test result:/p; /^error/,/^$/p' "$1"
}

# Tests of other packages load it into programs.
"$CARGO" build --locked --quiet -p megapipe-preload || failed+=(preload)

all() {
    local selected=(--workspace)
    if ! rust_is "$RUST_NEEDED_BENCH"; then
        printf 'SKIPPED megapipe-bench: Rust is %s, needed is %s\n' "$(rust_version)" "$RUST_NEEDED_BENCH"
        selected+=(--exclude megapipe-bench)
    fi
    run rust "${selected[@]}"

    # The suites that choose their engine by themselves have run on both by now. These take the default engine.
    MEGAPIPE_ENGINE=epoll run rust-epoll -p megapipe-capi -p megapipe-cli

    # The io_uring engine with no more than Linux 6.1 gives it: what takes the place of a feature is tested here too.
    local LINUX_6_1_LACKS=no_sqarray,multishot_recvmsg,recv_len_cap,direct_descriptors_safe
    LINUX_6_1_LACKS+=,fixed_fd_install,min_wait,accept_reports_more
    MEGAPIPE_DISABLE=$LINUX_6_1_LACKS run rust-linux-6.1 -p megapipe

    # A receiver that has to read each socket until it is empty, on io_uring.
    MEGAPIPE_DISABLE=poll_tells_one run rust-poll-tells-less -p megapipe-mmsg --test receiver

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
