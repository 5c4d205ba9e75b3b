#!/usr/bin/env bash
# The long suite: the three figures of the MegaPipe paper (transactions per connection, message size, cores), few
# connections, and latency at half load, for every server; round trips and streams between two processes over every
# transport; unmodified servers. Into target/bench, with the machine and the commands beside the figures.
# Usage: scripts/bench.sh [folder]
set -euo pipefail
cd "$(dirname "$0")/.."

BUILT=${CARGO_TARGET_DIR:-target}/release
MEGAPIPE=$BUILT/megapipe
BENCH=$BUILT/megapipe-bench
OUT=${1:-${CARGO_TARGET_DIR:-target}/bench}
export ROUNDS=${ROUNDS:-5}
export SECONDS_EACH=${SECONDS_EACH:-2}
PAIR_SECONDS=${PAIR_SECONDS:-1} # of one measurement between two processes, of which there are more

if [ ! -x "$MEGAPIPE" ]; then
    printf 'no %s: run make build first\n' "$MEGAPIPE" >&2
    exit 1
fi
mkdir -p "$OUT"
"$MEGAPIPE" doctor --json >"$OUT/doctor.json" || true # what it says about the machine counts, not whether all is well

failed=() # what was absent at some points only; the rest is measured all the same

record() {
    local name=$1 scenario=$2
    shift 2
    printf '\n== %s\n' "$name"
    "$BENCH" "$scenario" --rounds "$ROUNDS" "$@" --json "$OUT/$name.jsonl" | tee "$OUT/$name.txt" || failed+=("$name")
    [ "$scenario" = tcp ] || # the one without a plot
        "$BENCH" show "$OUT/$name.jsonl" --plot "$OUT/$name.svg" >/dev/null || failed+=("$name.svg")
}

measure() {
    local name=$1
    shift
    record "$name" rpc --seconds "$SECONDS_EACH" "$@"
}

scripts/figure1.sh "$OUT" || failed+=(figure1)
measure connections --transactions 128 --connections 1,8,64,256,1024
# Latency at half of what the better epoll server can do, the same rate for every server.
measure latency --transactions 1,10,128 --rate half
measure latency-connections --transactions 128 --connections 1,8,64 --rate half

# Two processes of this host.
record pingpong pingpong --seconds "$PAIR_SECONDS"
record stream stream --seconds "$PAIR_SECONDS"

# Many sockets with a small message each: to the server, on TCP, and from it.
record mmsg mmsg
record mmsg-others mmsg --traffic tcp,udp-send

# TCP in user space beside the kernel's and smoltcp.
record tcp tcp --seconds "$PAIR_SECONDS"

# Servers of the distribution, unmodified, as far as they are installed. A figure that is missed, or a server that fails,
# does not end the suite: the table says so.
record apps apps --apps redis,memcached,nginx,haproxy,postgres,mariadb,overhead --seconds "$SECONDS_EACH"
# Clients in Python, Java and PHP and servers behind proxies, also at half of what plain TCP bears.
record ordinary apps --apps redis-py,psycopg2,jdbc,phpredis,grpc,gunicorn,haproxy-node --placements two-cores --transports megapipe \
    --open-loop --seconds "$PAIR_SECONDS"

printf '\nresults: %s\n' "$OUT"
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed, at least in part: %s\n' "${failed[*]}" >&2
    exit 1
fi
