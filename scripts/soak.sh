#!/usr/bin/env bash
# The random model at length: COUNT sequences on each engine, and COUNT on io_uring with no more than Linux 6.1 gives it.
# Each piece of 1000 has a seed of its own, which is printed: a failure is repeated with
#     MEGAPIPE_SOAK=1000 MEGAPIPE_SEED=seed cargo test --release -p megapipe-channel --test model ENGINE
# Usage: COUNT=10000 SEED=1 scripts/soak.sh
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
COUNT=${COUNT:-10000}
SEED=${SEED:-$(date +%s)}
LOGS=${CARGO_TARGET_DIR:-target}/soak-logs
PIECE=1000
# As in test.sh.
LINUX_6_1_LACKS=no_sqarray,multishot_recvmsg,recv_len_cap,direct_descriptors_safe
LINUX_6_1_LACKS+=,fixed_fd_install,min_wait,accept_reports_more

mkdir -p "$LOGS"
rm -f "$LOGS"/*.log
# A copy, which later builds leave alone.
"$CARGO" test --locked --release -p megapipe-channel --test model --no-run 2>&1 | tee "$LOGS/build.log"
program=$(sed -n 's/^ *Executable tests\/model[^ ]* (\(.*\))$/\1/p' "$LOGS/build.log")
cp "$program" "$LOGS/model"
failed=0

# One engine, under the name of what is special about it, with the features to go without.
soak() {
    local name=$1 engine=$2 disabled=$3 done=0 piece seed log
    local start=$SECONDS
    while [ "$done" -lt "$COUNT" ]; do
        piece=$((COUNT - done < PIECE ? COUNT - done : PIECE))
        seed=$((SEED + done / PIECE))
        log=$LOGS/$name-$seed.log
        if MEGAPIPE_DISABLE=$disabled MEGAPIPE_SOAK=$piece MEGAPIPE_SEED=$seed \
            "$LOGS/model" --exact "$engine::random_sequences_agree_with_the_model" --nocapture >"$log" 2>&1; then
            printf '%-10s seed %-12s %5d sequences ok\n' "$name" "$seed" "$piece"
        else
            failed=$((failed + 1))
            printf '%-10s seed %-12s FAILED; from %s:\n' "$name" "$seed" "$log"
            grep -A 1 panicked "$log" | head -n 6 || tail -n 6 "$log"
        fi
        done=$((done + piece))
    done
    printf '%-10s %d sequences in %d s\n' "$name" "$done" $((SECONDS - start))
}

printf 'COUNT=%s SEED=%s\n' "$COUNT" "$SEED"
soak uring uring ''
soak epoll epoll ''
soak uring-6.1 uring "$LINUX_6_1_LACKS"
if [ "$failed" -gt 0 ]; then
    printf '%d pieces FAILED\n' "$failed"
    exit 1
fi
printf 'all agreed with the model\n'
