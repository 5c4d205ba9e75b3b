#!/usr/bin/env bash
# Megapipe on this machine: Redis and nginx, if they are installed, as they are and under `megapipe run`; then, beside
# epoll, the RPC micro-benchmark and the key-value server under a real memcached load.
# Prints tables, writes demo.svg; the records are in target/demo. Under four minutes after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/provision.sh

ENGINES=megapipe-uring,megapipe-epoll,epoll-shared,epoll-reuseport
TRANSACTIONS=1,10,128
ROUNDS=3
KV_SECONDS=3
KV_CONNECTIONS=64
KV_VALUE=64
# Requests of one measurement of Redis, and connections of all that run under `megapipe run`.
REDIS_REQUESTS=50000
APP_CONNECTIONS=(1 50)
APP_SECONDS=2

BUILT=${CARGO_TARGET_DIR:-target}/release
MEGAPIPE=$BUILT/megapipe
BENCH=$BUILT/megapipe-bench
KV=$BUILT/megapipe-kv
OUT=${CARGO_TARGET_DIR:-target}/demo
TICKS=$(getconf CLK_TCK)
server=

say() { printf '\n== %s\n' "$*"; }

stop_server() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}

# A monitor of the demo's own, and the files of the servers, below a path that is short enough for a socket.
place=$(mktemp -d)
monitor=
leave() {
    stop_server
    if [ -n "$monitor" ]; then
        kill "$monitor" 2>/dev/null || true
        wait "$monitor" 2>/dev/null || true
    fi
    rm -rf "$place"
}
trap leave EXIT

prepare() {
    say "what is needed"
    provide build test
    provide_packages jq
    say "building"
    # What `make build` has built is not built again: another choice of packages would mean other features.
    make --no-print-directory build CARGO="$CARGO"
    rm -rf "$OUT"
    mkdir -p "$OUT"
}

# memaslap of libmemcached is called memcaslap in newer packages.
choose_load() {
    load=$(command -v memcaslap || command -v memaslap || true)
    if [ -z "$load" ]; then
        printf 'the package libmemcached-tools of this system has neither memcaslap nor memaslap\n' >&2
        exit 1
    fi
}

# The first and the last CPU this process may use, as `megapipe-bench` has it: one serves, the other is the client.
choose_cpus() {
    local cpus
    cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    server_cpu=${cpus%%[-,]*}
    client_cpu=${cpus##*[-,]}
    if [ "$server_cpu" = "$client_cpu" ]; then
        printf 'note: one CPU for server and client together; figures say little\n'
    fi
}

rpc() {
    say "RPC: $ENGINES"
    "$BENCH" rpc --engines "$ENGINES" --transactions "$TRANSACTIONS" --rounds "$ROUNDS" \
        --json "$OUT/rpc.jsonl" --plot demo.svg >"$OUT/rpc.txt"
}

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() {
    local port
    for _ in $(seq 100); do
        port=$((20000 + RANDOM % 10000))
        if ! is_open "$port"; then
            printf '%s' "$port"
            return
        fi
    done
    printf 'no free port found\n' >&2
    return 1
}

# CPU time of a process in clock ticks: the fields utime and stime, counted after the name, which may hold blanks.
cpu_ticks() {
    local stat
    stat=$(<"/proc/$1/stat")
    # shellcheck disable=SC2086 # split on purpose
    set -- ${stat##*) }
    printf '%s' $((${12} + ${13}))
}

start_monitor() {
    echo 'same_user = true' >"$place/policy.toml"
    MEGAPIPE_LOG=error "$MEGAPIPE" monitor --socket "$place/monitor" --config "$place/policy.toml" &
    monitor=$!
    for _ in $(seq 100); do
        if [ -S "$place/monitor" ]; then
            break
        fi
        sleep 0.05
    done
    export MEGAPIPE_MONITOR=$place/monitor
}

# Starts an application's server on its CPU, with or without `megapipe run` before it; its pid is in $server.
start_app() {
    local app=$1 port=$2
    shift 2
    case $app in
    Redis) set -- "$@" redis-server --bind 127.0.0.1 --port "$port" --save '' --appendonly no --dir "$place" ;;
    nginx)
        cat >"$place/nginx.conf" <<EOF
$([ "$(id -u)" -ne 0 ] || echo 'user root;')
daemon off;
worker_processes 1;
pid $place/nginx.pid;
error_log stderr crit;
events { worker_connections 512; }
http {
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path $place/body;
    proxy_temp_path $place/proxy;
    fastcgi_temp_path $place/fastcgi;
    uwsgi_temp_path $place/uwsgi;
    scgi_temp_path $place/scgi;
    server { listen 127.0.0.1:$port; location / { return 200 "hello\n"; } }
}
EOF
        set -- "$@" nginx -c "$place/nginx.conf" -p "$place" -e stderr
        ;;
    esac
    taskset -c "$server_cpu" "$@" >"$OUT/$app.log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        if is_open "$port"; then
            return
        fi
        sleep 0.05
    done
    printf '%s did not start:\n' "$app" >&2
    cat "$OUT/$app.log" >&2
    return 1
}

# Requests a second of one load on its CPU.
load_app() {
    local app=$1 port=$2 connections=$3
    shift 3
    case $app in
    Redis)
        taskset -c "$client_cpu" "$@" redis-benchmark -p "$port" -c "$connections" -n "$REDIS_REQUESTS" -t get --csv |
            sed -n 's/^"GET","\([0-9.]*\)".*/\1/p'
        ;;
    nginx)
        taskset -c "$client_cpu" "$@" wrk -t 1 -c "$connections" -d "${APP_SECONDS}s" "http://127.0.0.1:$port/" |
            sed -n 's/^Requests\/sec: *//p'
        ;;
    esac
}

# One application, plain and under `megapipe run` in turn: medians, and the ratio within this run.
app() {
    local app=$1 connections round mode port rate prefix
    for connections in "${APP_CONNECTIONS[@]}"; do
        for round in $(seq "$ROUNDS"); do
            for mode in plain run; do
                prefix=()
                if [ "$mode" = run ]; then
                    prefix=("$MEGAPIPE" run --)
                fi
                port=$(free_port)
                start_app "$app" "$port" "${prefix[@]}"
                rate=$(load_app "$app" "$port" "$connections" "${prefix[@]}")
                stop_server
                jq -cn --arg app "$app" --arg mode "$mode" --argjson connections "$connections" \
                    --argjson round "$round" --argjson rate "${rate:-null}" \
                    '{record: "app", $app, $mode, $connections, $round, requests_per_s: $rate}' >>"$OUT/apps.jsonl"
            done
        done
    done
}

apps() {
    local name tools tool
    : >"$OUT/apps.jsonl"
    for name in Redis nginx; do
        case $name in
        Redis) tools=(redis-server redis-benchmark) ;;
        nginx) tools=(nginx wrk) ;;
        esac
        for tool in "${tools[@]}"; do
            if ! command -v "$tool" >/dev/null; then
                printf '\n== %s: left out, since %s is not installed\n' "$name" "$tool"
                continue 2
            fi
        done
        say "$name, plain and under megapipe run"
        app "$name"
    done
    if [ -s "$OUT/apps.jsonl" ]; then
        say "unmodified programs: medians of $ROUNDS alternating rounds, server on one CPU, client on the other"
        jq -rs '
            def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
            group_by(.app, .connections)[]
            | (map(select(.mode == "plain") | .requests_per_s) | median) as $plain
            | (map(select(.mode == "run") | .requests_per_s) | median) as $run
            | [.[0].app, .[0].connections, ($plain | round), ($run | round), $run / $plain] | @tsv' "$OUT/apps.jsonl" |
            awk -F '\t' '
                BEGIN { printf "%-8s %12s %16s %22s %8s\n", "", "connections", "plain, req/s", "megapipe run, req/s", "ratio" }
                { printf "%-8s %12s %16s %22s %7.1fx\n", $1, $2, $3, $4, $5 }'
    fi
}

# Starts one key-value server on its CPU; its pid is in $server.
start_kv() {
    local name=$1 port=$2
    case $name in
    memcached)
        local user=()
        if [ "$(id -u)" -eq 0 ]; then
            user=(-u nobody)
        fi
        taskset -c "$server_cpu" memcached "${user[@]}" -l 127.0.0.1 -p "$port" -U 0 -t 1 -m 256 -c 4096 \
            >"$OUT/$name.log" 2>&1 &
        ;;
    megapipe-*)
        MEGAPIPE_ENGINE=${name#megapipe-} taskset -c "$server_cpu" \
            "$KV" --listen "127.0.0.1:$port" --threads 1 --memory-limit 256 \
                >"$OUT/$name.log" 2>&1 &
        ;;
    esac
    server=$!
    for _ in $(seq 100); do
        if is_open "$port"; then
            return
        fi
        if ! kill -0 "$server" 2>/dev/null; then
            break
        fi
        sleep 0.05
    done
    printf '%s did not start:\n' "$name" >&2
    cat "$OUT/$name.log" >&2
    return 1
}

# One measurement: memaslap's mix of 10 % set and 90 % get, one client thread.
measure_kv() {
    local name=$1 round=$2 port before after operations
    port=$(free_port)
    start_kv "$name" "$port"
    before=$(cpu_ticks "$server")
    taskset -c "$client_cpu" "$load" --servers="127.0.0.1:$port" --threads=1 --concurrency="$KV_CONNECTIONS" \
        --time="${KV_SECONDS}s" --fixed_size="$KV_VALUE" >"$OUT/load.txt" 2>&1
    after=$(cpu_ticks "$server")
    stop_server
    if grep -q 'ERROR' "$OUT/load.txt"; then
        printf 'the load against %s got errors for answers:\n' "$name" >&2
        cat "$OUT/load.txt" >&2
        return 1
    fi
    operations=$(sed -n 's/.*Ops: \([0-9]*\).*/\1/p' "$OUT/load.txt")
    if [ -z "$operations" ] || [ "$operations" -eq 0 ]; then
        printf 'no operation of %s succeeded:\n' "$name" >&2
        cat "$OUT/load.txt" >&2
        return 1
    fi
    jq -cn --arg engine "$name" --argjson round "$round" --argjson operations "$operations" \
        --argjson cpu_ns "$(((after - before) * 1000000000 / TICKS))" --argjson seconds "$KV_SECONDS" \
        '{record: "kv", engine: $engine, round: $round, operations_per_s: ($operations / $seconds),
          server_cpu_ns_per_operation: ($cpu_ns / $operations)}' >>"$OUT/kv.jsonl"
}

kv() {
    say "key-value server: megapipe-uring, megapipe-epoll, memcached"
    local round name
    for round in $(seq "$ROUNDS"); do
        for name in megapipe-uring megapipe-epoll memcached; do
            printf '   round %s of %s: %s\n' "$round" "$ROUNDS" "$name"
            measure_kv "$name" "$round"
        done
    done
}

# Medians over the rounds, as tab-separated lines: workload, server, CPU us per operation, ratio, operations/s, p99 us.
rows() {
    jq -rs --arg connections "$KV_CONNECTIONS" --arg value "$KV_VALUE" '
        def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
        def lines(workload; cost; rate; p99; is_baseline):
            [group_by(.engine)[] | {engine: .[0].engine, cost: (map(cost) | median), rate: (map(rate) | median),
                                    p99: (if .[0] | p99 == null then "-" else map(p99) | median | round | tostring end)}]
            | (map(select(.engine | is_baseline) | .cost) | min) as $baseline
            | sort_by(.cost)[]
            | [workload, .engine, .cost / 1000, (if $baseline then .cost / $baseline else "-" end),
               (.rate | round), .p99]
            | @tsv;
        (map(select(.record == "measurement")) | group_by(.transactions)[]
            | "RPC of \(.[0].size) B, \(.[0].transactions) per connection" as $workload
            | lines($workload; .server_cpu_ns_per_transaction; .transactions_per_s; .p99_us;
                    . == "epoll-shared" or . == "epoll-reuseport")),
        (map(select(.record == "kv"))
            | lines("key-value, \($value) B, \($connections) connections"; .server_cpu_ns_per_operation;
                    .operations_per_s; null; . == "memcached"))
    ' "$OUT/rpc.jsonl" "$OUT/kv.jsonl"
}

table() {
    say "result: medians of $ROUNDS rounds, one server core; ratio to the better epoll server (memcached for key-value)"
    {
        printf 'workload\tserver\tCPU us/op\tratio\top/s\tp99 us\n'
        rows
    } | awk -F '\t' '
        $1 == last { $1 = "" }
        $1 != "" { if (NR > 1) print ""; last = $1 }
        NR > 1 { $3 = sprintf("%.2f", $3) }
        NR > 1 && $4 != "-" { $4 = sprintf("%.2f", $4) }
        { printf "%-36s %-16s %9s %6s %9s %8s\n", $1, $2, $3, $4, $5, $6 }'
    # What the benchmark says of a disturbed machine belongs to its figures.
    sed -n '/^Disturbed/,/^$/p' "$OUT/rpc.txt"
    printf '\nfull figures: %s/rpc.txt   records: %s/*.jsonl   plot: demo.svg\n' "$OUT" "$OUT"
}

prepare
choose_load
choose_cpus
start_monitor
apps
rpc
kv
table
