#!/usr/bin/env bash
# PostgreSQL with pgbench at 50 connections while four processes keep each of two CPUs busy, plain and under `megapipe run` in
# turns: requests per second and the server's CPU time for each over 5 s, and in each of them. As a user that PostgreSQL
# accepts; DATA is a data directory with a filled database `postgres`, MEGAPIPE_MONITOR a monitor's socket that allows promotion.
# `busy_control` is ROUNDS=6 SERVER=0,1 CLIENT=0,1 and as SIDES: plain megapipe observe plain-too observe plain-too plain megapipe.
set -euo pipefail
MEGAPIPE=${MEGAPIPE:-target/release/megapipe}
BIN=${BIN:-/usr/lib/postgresql/15/bin}
SERVER=${SERVER:-0} CLIENT=${CLIENT:-1} ROUNDS=${ROUNDS:-4}
SIDES=${SIDES:-plain megapipe megapipe plain}
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
    taskset -c "$SERVER" "$@" "$BIN/postgres" -D "$DATA" -p $PGPORT -k "$DATA" -c fsync=off -c autovacuum=off >/dev/null 2>&1 &
    server=$!
    sleep 1.5
    PGHOST=$DATA taskset -c "$CLIENT" "$BIN/pgbench" -nS -c 4 -t 4000 postgres >/dev/null 2>&1
    before=$(ticks $server)
    taskset -c "$CLIENT" "$@" "$BIN/pgbench" -nS -c 50 -T 5 -P 1 postgres >"$DATA/result" 2>&1
    sleep 0.7
    after=$(ticks $server)
    awk -v name="$name" -v ticks=$((after - before)) '
        /progress/ { each = each " " int($4) } /actually processed/ { count = $NF } /^tps/ { rate = int($3) }
        END { printf "%-9s %6d requests/s  %4d us of the server each   by second:%s\n", name, rate, ticks * 10000 / count, each }
    ' "$DATA/result"
    kill -INT $server
    wait $server || true
}
for ((round = 0; round < ROUNDS; round++)); do
    for side in $SIDES; do
        case $side in
        megapipe) measure "$side" "$MEGAPIPE" run -- ;;
        observe) measure "$side" "$MEGAPIPE" run --promote observe -- ;;
        *) measure "$side" ;;
        esac
    done
done
