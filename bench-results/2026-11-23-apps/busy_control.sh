#!/usr/bin/env bash
# As busy.sh, but server and client may use both CPUs, as in `megapipe bench apps`, and with two more sides: the library that only
# watches, and plain once more, which tells what differs by itself. As a user that PostgreSQL
# accepts; DATA is a data directory with a filled database `postgres`, MEGAPIPE_MONITOR a monitor's socket that allows promotion.
set -euo pipefail
MEGAPIPE=${MEGAPIPE:-target/release/megapipe}
BIN=${BIN:-/usr/lib/postgresql/15/bin}
export PGHOST=127.0.0.1 PGPORT=7654
busy=()
for cpu in 0 0 0 0 1 1 1 1; do
    taskset -c $cpu bash -c 'while :; do :; done' &
    busy+=($!)
done
trap 'kill "${busy[@]}"' EXIT
# Clock ticks of the server's processes that have ended (proc_pid_stat(5), cutime and cstime).
ticks() { awk '{ print $16 + $17 }' "/proc/$1/stat"; }
measure() {
    local name=$1 server before after
    shift
    taskset -c 0,1 "$@" "$BIN/postgres" -D "$DATA" -p $PGPORT -k "$DATA" -c fsync=off -c autovacuum=off >/dev/null 2>&1 &
    server=$!
    sleep 1.5
    PGHOST=$DATA taskset -c 0,1 "$BIN/pgbench" -nS -c 4 -t 4000 postgres >/dev/null 2>&1
    before=$(ticks $server)
    taskset -c 0,1 "$@" "$BIN/pgbench" -nS -c 50 -T 5 -P 1 postgres >"$DATA/result" 2>&1
    sleep 0.7
    after=$(ticks $server)
    awk -v name="$name" -v ticks=$((after - before)) '
        /progress/ { each = each " " int($4) } /actually processed/ { count = $NF } /^tps/ { rate = int($3) }
        END { printf "%-9s %6d requests/s  %4d us of the server each   by second:%s\n", name, rate, ticks * 10000 / count, each }
    ' "$DATA/result"
    kill -INT $server
    wait $server || true
}
for _ in 1 2 3 4 5 6; do
    measure plain
    measure megapipe "$MEGAPIPE" run --
    measure observe "$MEGAPIPE" run --promote observe --
    measure plain-too
    measure observe "$MEGAPIPE" run --promote observe --
    measure plain-too
    measure plain
    measure megapipe "$MEGAPIPE" run --
done
