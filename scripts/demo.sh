#!/usr/bin/env bash
# Megapipe on this machine: Redis, a client library of Python and nginx as they are and under `megapipe run`, as a user
# would start them. Gets what it needs (scripts/provision.sh), builds the product and measures: two minutes on two quiet
# cores, without the downloads. Records are in target/demo.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
. scripts/provision.sh

PAIRS=${PAIRS:-5} # runs of each row: plain and under megapipe run, in turn
if ! [[ $PAIRS =~ ^[1-9][0-9]*$ ]]; then
    printf 'PAIRS is %s; give a number from 1 on\n' "$PAIRS" >&2
    exit 2
fi
RUN=0.5           # seconds that a run takes, about
# A row says what disturbed it from these on.
UNEVEN=1.3 # the fastest plain run to the slowest
OTHERS=20  # per cent of a CPU that other programs used
STEAL=5    # per cent of a CPU that the hypervisor gave to others

BUILT=${CARGO_TARGET_DIR:-target}/release
MEGAPIPE=$BUILT/megapipe
OUT=${CARGO_TARGET_DIR:-target}/demo
RUNS=$OUT/runs.csv
HZ=$(getconf CLK_TCK)

say() { printf '\n== %s\n' "$*"; }

servers=()
place=$(mktemp -d) # the servers' files
stop_servers() {
    if [ "${#servers[@]}" -gt 0 ]; then
        kill "${servers[@]}" 2>/dev/null || true
        wait "${servers[@]}" 2>/dev/null || true
    fi
    servers=()
}
trap 'stop_servers; rm -rf "$place"' EXIT

prepare() {
    say "what is needed"
    provide build
    provide demo || note 'the demonstration leaves out what needs them'
    python=$(python_with redis) || python=
    "$CARGO" --version
    say "building"
    make --no-print-directory program
    rm -rf "$OUT"
    mkdir -p "$OUT"
    # The first and the last CPU that may be used: one for servers, one for clients.
    local cpus
    cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    server_cpu=${cpus%%[-,]*}
    client_cpu=${cpus##*[-,]}
    # Where a monitor is started on demand, it is not to stay on the CPU of the servers.
    "$MEGAPIPE" run -- true
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

nginx_conf() {
    cat <<END
$([ "$(id -u)" -ne 0 ] || printf 'user root;')
daemon off;
worker_processes 1;
pid $place/nginx-$1.pid;
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
    server { listen 127.0.0.1:$1; location / { return 200 "hello\n"; } }
}
END
}

# Starts a server twice, plain and under `megapipe run`; the ports are in ${port[plain]} and ${port[run]}.
declare -A port prefix=([plain]='' [run]="$MEGAPIPE run --")
start_servers() {
    local program=$1 mode command
    for mode in plain run; do
        port[$mode]=$(free_port)
        case $program in
        redis) command=(redis-server --bind 127.0.0.1 --port "${port[$mode]}" --save '' --appendonly no --dir "$place") ;;
        nginx)
            nginx_conf "${port[$mode]}" >"$place/nginx-$mode.conf"
            command=(nginx -c "$place/nginx-$mode.conf" -p "$place" -e stderr)
            ;;
        esac
        # shellcheck disable=SC2086 # words
        taskset -c "$server_cpu" ${prefix[$mode]} "${command[@]}" >"$OUT/$program-$mode.log" 2>&1 &
        servers+=($!)
        for _ in $(seq 100); do
            ! is_open "${port[$mode]}" || continue 2
            sleep 0.05
        done
        printf '%s did not start:\n' "$program" >&2
        cat "$OUT/$program-$mode.log" >&2
        return 1
    done
}

# A thread that asks and waits, as programs in Python do; it prints what redis-benchmark --csv does.
REDIS_PY='
import redis, sys, time
client, requests = redis.Redis(port=int(sys.argv[1])), int(sys.argv[2])
latencies = []
start = time.perf_counter()
for _ in range(requests):
    sent = time.perf_counter()
    client.get("key")
    latencies.append(time.perf_counter() - sent)
rate = requests / (time.perf_counter() - start)
p99 = sorted(latencies)[requests * 99 // 100] * 1000
print(f"\"GET\",\"{rate:.2f}\",\"\",\"\",\"\",\"\",\"{p99:.3f}\",\"\"")
'

# One run of a client; prints requests a second and the 99th percentile of their latency in ms.
load() {
    local program=$1 mode=$2
    shift 2
    case $program in
    redis) set -- redis-benchmark -p "${port[$mode]}" -n "${requests[$mode]}" --csv "$@" ;;
    redis-py) set -- env PYTHONPATH="$MODULES" "$python" -c "$REDIS_PY" "${port[$mode]}" "${requests[$mode]}" ;;
    nginx) set -- wrk -t 1 -d 1s --latency "$@" "http://127.0.0.1:${port[$mode]}/" ;;
    esac
    # shellcheck disable=SC2086 # words
    taskset -c "$client_cpu" ${prefix[$mode]} "$@" 2>>"$OUT/clients-$mode.log" | awk -F , '
        # "test","rps","avg","min","p50","p95","p99","max"; before Redis 6.2 only the first two
        /^"(GET|SET)/ { gsub(/"/, ""); rate = $2; if (NF > 6) p99 = $7 }
        /^ +99%/ {
            split($0, words, " ")
            p99 = words[2] * (words[2] ~ /us$/ ? 0.001 : words[2] ~ /ms$/ ? 1 : 1000)
        }
        /^Requests\/sec:/ { split($0, words, " "); rate = words[2] }
        END { printf "%s %s\n", rate == "" ? "-" : rate, p99 == "" ? "-" : p99 }'
}

# CPU time in ticks: of all programs on this machine, taken by the hypervisor, and of this script with its servers.
ticks() {
    local user nice system steal stat pid own=0
    read -r _ user nice system _ _ _ _ steal _ </proc/stat
    for pid in $$ "${servers[@]}" $(cat /proc/"${servers[0]}"/task/*/children /proc/"${servers[1]}"/task/*/children 2>/dev/null); do
        stat=$(cat "/proc/$pid/stat")
        # shellcheck disable=SC2086 # words
        set -- ${stat##*) }
        own=$((own + ${12} + ${13}))
        # Of children that have ended, too; servers' have not.
        [ "$pid" -ne $$ ] || own=$((own + ${14} + ${15}))
    done
    printf '%s %s %s' $((user + nice + system)) "$steal" "$own"
}

# A row: pairs of runs, plain and under `megapipe run`; the order within a pair alternates. One before them is not kept.
declare -A requests rate
row() {
    local name=$1 program=$2 pair mode modes p99 before after start
    shift 2
    requests=([plain]=3000 [run]=3000)
    for pair in $(seq 0 "$PAIRS"); do
        modes=(plain run)
        [ $((pair % 2)) -eq 0 ] || modes=(run plain)
        if [ "$pair" -eq 1 ]; then
            before=$(ticks)
            start=$(date +%s%N)
        fi
        for mode in "${modes[@]}"; do
            read -r "rate[$mode]" p99 <<<"$(load "$program" "$mode" "$@")"
            if [ "${rate[$mode]}" = - ]; then
                printf '%s: a client failed:\n' "$name" >&2
                tail -n 5 "$OUT/clients-$mode.log" "$OUT/$program-$mode.log" >&2
                return 1
            fi
            requests[$mode]=$(awk -v count="${rate[$mode]}" -v run="$RUN" 'BEGIN { printf "%d", count * run < 500 ? 500 : count * run }')
            [ "$pair" -eq 0 ] || printf '%s,%s,%s,%s,%s\n' "$name" "$mode" "$pair" "${rate[$mode]}" "$p99" >>"$RUNS"
        done
    done
    after=$(ticks)
    # shellcheck disable=SC2086 # words
    set -- $before $after $(($(date +%s%N) - start))
    printf '%s,machine,,%s,%s\n' "$name" \
        $(((($4 - $1) - ($6 - $3)) * 100 * 1000000000 / HZ / $7)) $((($5 - $2) * 100 * 1000000000 / HZ / $7)) >>"$RUNS"
    summary "$name"
}

heading() {
    printf '\n%-32s %25s %17s   %s\n' '' 'requests a second' 'p99, ms' 'megapipe to plain'
    printf '%-32s %12s %12s %8s %8s   %-6s %s\n' '' plain megapipe plain megapipe median "of $PAIRS pairs"
}

# What the runs say: a line of the table for the row that is named, or else what the table means.
summary() {
    awk -F , -v row="${1:-}" -v uneven="$UNEVEN" -v others="$OTHERS" -v steal="$STEAL" '
        # Sorts list[1..count].
        function sort(list, count,    i, j, value) {
            for (i = 2; i <= count; i++) {
                value = list[i]
                for (j = i - 1; j >= 1 && list[j] > value; j--) list[j + 1] = list[j]
                list[j + 1] = value
            }
        }
        function median(list, count) { return (list[int((count + 1) / 2)] + list[int(count / 2) + 1]) / 2 }
        # The median of a column of a mode of runs.
        function middle(name, mode, column,    i, list) {
            for (i = 1; i <= pairs; i++) list[i] = run[name, mode, i, column] + 0
            sort(list, pairs)
            return median(list, pairs)
        }
        function latency(name, mode) {
            return run[name, mode, 1, "p99"] == "-" ? "-" : sprintf("%.3f", middle(name, mode, "p99"))
        }
        # The spread of the ratios of a row and what disturbed it.
        function study(name,    i, list, plain) {
            for (i = 1; i <= pairs; i++) {
                plain[i] = run[name, "plain", i, "rate"] + 0
                list[i] = plain[i] ? run[name, "run", i, "rate"] / plain[i] : 0
            }
            sort(list, pairs)
            sort(plain, pairs)
            ratio[name] = median(list, pairs)
            least[name] = list[1]
            most[name] = list[pairs]
            why[name] = ""
            if (plain[pairs] > uneven * plain[1]) say(name, sprintf("plain runs %.0f to %.0f", plain[1], plain[pairs]))
            if (busy[name] > others) say(name, sprintf("other programs used %d %% of a CPU", busy[name]))
            if (stolen[name] > steal) say(name, sprintf("the hypervisor took %d %% of a CPU", stolen[name]))
        }
        function say(name, what) { why[name] = why[name] (why[name] == "" ? "" : "; ") what }
        $2 == "machine" { names[++count] = $1; busy[$1] = $4; stolen[$1] = $5; next }
        { run[$1, $2, $3, "rate"] = $4; run[$1, $2, $3, "p99"] = $5; if ($3 > pairs) pairs = $3 }
        END {
            for (i = 1; i <= count; i++) study(names[i])
            if (row != "") {
                printf "%-32s %12.0f %12.0f %8s %8s   %5.2fx %.2f to %.2f%s\n", row,
                    middle(row, "plain", "rate"), middle(row, "run", "rate"), latency(row, "plain"), latency(row, "run"),
                    ratio[row], least[row], most[row], why[row] == "" ? "" : " *"
                exit
            }
            best = worst = names[1]
            for (i = 1; i <= count; i++) {
                if (ratio[names[i]] > ratio[best]) best = names[i]
                if (ratio[names[i]] < ratio[worst]) worst = names[i]
                if (why[names[i]] != "" && !disturbed++) print "\n* Disturbed; run it again on a quiet machine:"
                if (why[names[i]] != "") printf "  %s: %s\n", names[i], why[names[i]]
            }
            print ""
            if (least[best] > 1)
                printf "%s gains: %.2f times the requests of plain TCP, at least %.2f.\n", best, ratio[best], least[best]
            else if (ratio[best] > 1.2)
                printf "%s gains: %.2f times the requests of plain TCP, but not in every pair.\n", best, ratio[best]
            else
                print "No program gained. `megapipe doctor` says what may stand in the way."
            printf "%s %s: %.2f times, %.2f to %.2f.\n", worst, ratio[worst] < 1.1 ? "does not gain" : "gains least",
                ratio[worst], least[worst], most[worst]
            if (ratio[worst] < 1.1 && worst ~ /each/)
                print "A connection of one request is over before memory of its own pays: it stays on TCP."
        }' "$RUNS"
}

# Whether the programs of a row are there.
can() {
    local program
    for program in "${@:2}"; do
        if ! has "$program"; then
            printf '%s: left out, there is no %s\n' "$1" "$program"
            return 1
        fi
    done
}

programs() {
    say "programs as they are: $PAIRS pairs of runs, server and client on a CPU each"
    heading
    if can Redis redis-server redis-benchmark; then
        start_servers redis
        row 'Redis: 1 connection' redis -t get -c 1
        row 'Redis: 50 connections' redis -t get -c 50
        if [ -n "$python" ]; then
            row 'redis-py: 1 thread' redis-py
        else
            printf 'redis-py: left out, there is no python3 with the module redis\n'
        fi
        stop_servers
    fi
    if can nginx nginx wrk; then
        start_servers nginx
        row 'nginx: 50 connections' nginx -c 50
        row 'nginx: a connection each request' nginx -c 50 -H 'Connection: close'
        stop_servers
    fi
    [ ! -e "$RUNS" ] || summary
    # What the library said itself: why it stayed out.
    cat "$OUT"/*-run.log 2>/dev/null | grep -a '^megapipe' | sort -u || true
    if [ ! -e "$RUNS" ]; then
        printf '\nnothing was measured: no server and no client is here\n' >&2
        return 1
    fi
    printf '\nall figures: %s; the programs: %s\n' "$RUNS" "$BUILT"
}

prepare
programs
