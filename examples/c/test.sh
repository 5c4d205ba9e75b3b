#!/usr/bin/env bash
# Tries the examples that were built in the directory given, on the engine that
# MEGAPIPE_ENGINE names, or on both.
set -euo pipefail

build=$1
server=

fail() {
    printf 'FAIL %s (%s): %s\n' "$example" "$engine" "$1"
    exit 1
}

finish() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
trap finish EXIT

# Starts the example on a free port and sets `port`.
start() {
    coproc EXAMPLE { MEGAPIPE_ENGINE=$engine exec "$build/$example" 0 2 2>&1; }
    server=$EXAMPLE_PID
    local line
    read -r -t 20 line <&"${EXAMPLE[0]}" || fail 'says no port'
    port=${line#port }
    [[ $port =~ ^[0-9]+$ ]] || fail "$line"
}

# Sends `$2` on `/dev/$1` and expects `$3` back.
expect() {
    local answer
    exec 3<>"/dev/$1/127.0.0.1/$port"
    printf '%b' "$2" >&3
    read -r -t 20 -N "${#3}" answer <&3 || fail 'no answer'
    [ "$answer" = "$3" ] || fail "answered '$answer'"
    exec 3>&-
}

# Sends so many bytes and reads all along; all come back, however slow the reader is.
expect_all() {
    local count
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    head -c "$1" /dev/zero >&3 &
    count=$(head -c "$1" <&3 | dd bs=512 2>/dev/null | wc -c)
    wait $! || fail 'does not take all'
    [ "$count" -eq "$1" ] || fail "$count of $1 bytes came back"
    exec 3>&-
}

for engine in ${MEGAPIPE_ENGINE:-uring epoll}; do
    example=echo
    start
    expect tcp 'over and over\n' $'over and over\n'
    expect tcp 'and once more\n' $'and once more\n'
    expect_all 30000000
    kill "$server"
    wait "$server" || fail 'does not end as it should'
    server=

    example=http_hello
    start
    for _ in 1 2 3 4; do
        expect tcp 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' $'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n'
    done
    finish

    example=udp_echo
    start
    expect udp 'a datagram' 'a datagram'
    expect udp 'and another' 'and another'
    finish
    printf 'PASS examples (%s)\n' "$engine"
done
