#!/usr/bin/env bash
# Measures mTCP's lighttpd, built by ports.sh, beside the same sources over the kernel's TCP, in turns; as root:
#   examples/mtcp/ports.sh MTCP FOLDER && examples/mtcp/ports.sh MTCP FOLDER kernel
#   examples/mtcp/lighttpd.sh FOLDER [ROUNDS] [SECONDS]
# wrk asks for a file of 64 bytes, on CPU 1; the server has CPU 0. The kernel's server is behind a veth pair, the port's
# stack behind a TUN device. CPU: of the server's process, its stack included; both: and of wrk, in whose calls the kernel
# does part of its server's work.
set -euo pipefail

if [ "${INSIDE:-}" != 1 ]; then
    [ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" && exit 1; }
    INSIDE=1 exec unshare --net --mount -- "$0" "$@"
fi
port=$(realpath "$1")/lighttpd
kernels=$(realpath "$1")/kernel/lighttpd
rounds=${2:-3}
seconds=${3:-2}
place=$(mktemp -d)
server=
other=
trap 'kill -KILL $server $other 2>/dev/null || :; rm -rf "$place"' EXIT

head -c 64 /dev/zero | tr '\0' x >"$place/file"
: >"$place/mtcp.conf" # lighttpd sets max_concurrency itself, to what its arrays have room for
ip link set lo up
unshare --net sleep infinity &
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add veth0 type veth peer name veth0 netns "$other"
ip address add 10.98.0.2/24 dev veth0
ip link set veth0 up
nsenter --net --target "$other" sh -c 'ip address add 10.98.0.1/24 dev veth0; ip link set veth0 up; ip link set lo up'
echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
echo '1024 65535' >/proc/sys/net/ipv4/ip_local_port_range

configure() {
    cat >"$place/lighttpd.conf" <<CONF
server.document-root = "$place"
server.errorlog = "$place/errors"
server.bind = "$1"
server.port = 80
server.listen-backlog = 1024
server.max-connections = 1000
server.max-keep-alive-requests = 1000000
$2
CONF
}

start() {
    local address=$1
    cd "$place"
    case $2 in
    kernel)
        configure "$address" 'server.event-handler = "linux-sysepoll"'
        nsenter --net --target "$other" taskset -c 0 "$kernels" -D -f lighttpd.conf &
        ;;
    *)
        configure "$address" $'server.event-handler = "mtcp-epoll"\nserver.network-backend = "mtcp_writev"'
        MEGAPIPE_STACK="tun:mtcp%d,$address/24" MEGAPIPE_STACK_THREAD=${2#mtcp-} \
            taskset -c 0 "$port" -D -n 1 -f lighttpd.conf >"$place/output" 2>&1 &
        ;;
    esac
    server=$!
    for ((try = 0; try < 50; try++)); do
        timeout 1 bash -c ": </dev/tcp/$address/80" 2>/dev/null && return
        kill -0 "$server" || break
        sleep 0.02
    done
    printf '%s does not listen\n' "$2" >&2
    cat "$place/errors" "$place/output" >&2
    return 1
}

# Of a process and its threads, in us.
cpu() { cat "/proc/$1"/task/*/schedstat | awk '{ ns += $1 } END { printf "%d\n", ns / 1000 }'; }

measure() { # round, server, requests on a connection, connections
    local address=10.98.0.1 before after header=()
    [ "$2" = kernel ] || address=10.79.0.2
    [ "$3" = keep-alive ] || header=(-H 'Connection: close')
    start "$address" "$2"
    before=$(cpu "$server")
    { time taskset -c 1 wrk -t 1 -c "$4" -d "${seconds}s" --latency "${header[@]}" "http://$address/file" \
        >"$place/wrk" 2>&1; } 2>"$place/client"
    after=$(cpu "$server")
    kill -KILL "$server" # the port may wait for events without a limit before it ends
    wait "$server" 2>/dev/null || :
    awk -v cpu="$((after - before))" -v client="$(<"$place/client")" -v which="$1 $2 $3 $4" '
        /requests in/ { requests = $1 }
        /Requests\/sec/ { rate = $2 }
        $1 == "99%" { p99 = $2 }
        /Socket errors|Non-2xx/ { errors = $0 }
        END {
            if (!requests) {
                print which, "answered nothing"
                exit
            }
            split(client, times, " ")
            both = cpu + (times[1] + times[2]) * 1e6
            printf "%s %.0f %.2f %.2f %s %s\n", which, rate, cpu / requests, both / requests, p99, errors
        }' "$place/wrk"
}

TIMEFORMAT='%U %S'
printf 'round server connections at-a-time requests/s us-of-server-CPU us-of-both p99\n'
for ((round = 1; round <= rounds; round++)); do
    for kind in keep-alive short; do
        for connections in 1 8 64; do
            servers=(kernel mtcp-own mtcp-none)
            for ((turn = 0; turn < 3; turn++)); do
                measure "$round" "${servers[(turn + round) % 3]}" "$kind" "$connections"
            done
        done
    done
done
