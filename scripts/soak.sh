#!/usr/bin/env bash
# The random model at length: COUNT sequences on each engine, and COUNT on io_uring with no more than Linux 6.1 gives it.
# Each piece of 1000 has a seed of its own, which is printed: a failure is repeated with
#     MEGAPIPE_SOAK=1000 MEGAPIPE_SEED=seed cargo test --release -p megapipe --test model ENGINE
# Then 20,000 busy connections, or as many as the hard limit of open files has room for, for SCALE_SECONDS on each engine.
# Then the TCP in user space: TCP_FLOWS simulated connections with faults, as many without, and paths that some share, with
# their round trips and times, one for each fifty; and against Linux: TCP_MB each of
# its named transfers, every case of the matrix, and servers under the load generators of others.
# Usage: COUNT=10000 SEED=1 SCALE_SECONDS=60 TCP_FLOWS=100000 TCP_MB=1000 scripts/soak.sh
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
COUNT=${COUNT:-10000}
SEED=${SEED:-$(date +%s)}
SCALE_SECONDS=${SCALE_SECONDS:-60}
TCP_FLOWS=${TCP_FLOWS:-100000}
TCP_MB=${TCP_MB:-1000}
LOGS=${CARGO_TARGET_DIR:-target}/soak-logs
PIECE=1000
# As in test.sh.
LINUX_6_1_LACKS=no_sqarray,multishot_recvmsg,recv_len_cap,direct_descriptors_safe
LINUX_6_1_LACKS+=,fixed_fd_install,min_wait,accept_reports_more

mkdir -p "$LOGS"
rm -f "$LOGS"/*.log
# A copy, which later builds leave alone.
"$CARGO" test --locked --release -p megapipe --test model --test scale --no-run 2>&1 | tee "$LOGS/build.log"
for test in model scale; do
    program=$(sed -n "s/^ *Executable tests\/${test}[^ ]* (\(.*\))$/\1/p" "$LOGS/build.log")
    cp "$program" "$LOGS/$test"
done
failed=0

# Runs a command, whose output goes to a log of this name, and shows what a script of sed finds there; of a failure, where
# it was and the seed of its world.
attempt() {
    local log=$LOGS/$1.log told=$2
    shift 2
    if "$@" >"$log" 2>&1; then
        sed -n "$told" "$log"
    else
        failed=$((failed + 1))
        printf 'FAILED; from %s:\n' "$log"
        grep -A 1 -e panicked -e '^seed' "$log" | head -n 12 || tail -n 6 "$log"
    fi
}

# One engine, under the name of what is special about it, with the features to go without.
soak() {
    local name=$1 engine=$2 disabled=$3 done=0 piece seed
    local start=$SECONDS
    while [ "$done" -lt "$COUNT" ]; do
        piece=$((COUNT - done < PIECE ? COUNT - done : PIECE))
        seed=$((SEED + done / PIECE))
        printf '%-10s seed %-12s %5d sequences ' "$name" "$seed" "$piece"
        attempt "$name-$seed" '1s/.*/ok/p' env MEGAPIPE_DISABLE="$disabled" MEGAPIPE_SOAK="$piece" MEGAPIPE_SEED="$seed" \
            "$LOGS/model" --exact "$engine::random_sequences_agree_with_the_model" --nocapture
        done=$((done + piece))
    done
    printf '%-10s %d sequences in %d s\n' "$name" "$done" $((SECONDS - start))
}

# Many busy connections on one engine; what the test printed.
scale() {
    attempt "scale-$1" "s/^.*\($1: .*\)$/scale      \1/p; s/^clients: /scale      $1: /p" \
        env MEGAPIPE_SCALE_SECONDS="$SCALE_SECONDS" \
        "$LOGS/scale" --exact "$1::busy_connections_keep_every_byte" --nocapture
}

# Simulated connections from SEED on, with faults, then without.
simulated() {
    attempt simulated 's/^.*Seen { flows: \([0-9]*\),.*from seed \([0-9]*\)$/simulated  seed \2: \1 connections ok/p' \
        env MEGAPIPE_TCP_FLOWS="$TCP_FLOWS" MEGAPIPE_TCP_PATHS=$((TCP_FLOWS / 50)) MEGAPIPE_TCP_FIRST_SEED="$SEED" \
        RUST_BACKTRACE=0 "$CARGO" test --locked --release -p megapipe-tcp --test simulator --test flows -- \
        --nocapture --test-threads=1
}

# Transfers over a TUN device, as a user without privileges.
linux() {
    attempt linux \
        's/^\(test .* \)\{0,1\}\([a-z0-9_]*: [0-9]* MB .*\|[0-9]* cases;.*\)$/linux      \2/p; /^SKIPPED/p' \
        env MEGAPIPE_TCP_MB="$TCP_MB" MEGAPIPE_TCP_MATRIX=all \
        "$CARGO" test --locked --release -p megapipe-tcp --test linux -- --show-output --test-threads=1
}

# Servers on it, and memaslap, wrk and ab; what these printed.
demonstration() {
    attempt demonstration \
        's/^\(test .* \)\{0,1\}\(\(uring\|epoll\), [a-z].*\)$/servers    \2/p; /^skipped: /p' \
        env MEGAPIPE_DEMONSTRATION=full "$CARGO" test --locked --release -p megapipe-servers --test servers -- \
        demonstration --show-output --test-threads=1
}

printf 'COUNT=%s SEED=%s SCALE_SECONDS=%s TCP_FLOWS=%s TCP_MB=%s\n' "$COUNT" "$SEED" "$SCALE_SECONDS" "$TCP_FLOWS" "$TCP_MB"
soak uring uring ''
soak epoll epoll ''
soak uring-6.1 uring "$LINUX_6_1_LACKS"
scale uring
scale epoll
simulated
linux
demonstration
if [ "$failed" -gt 0 ]; then
    printf '%d FAILED\n' "$failed"
    exit 1
fi
printf 'all agreed with the model, and no byte was lost\n'
