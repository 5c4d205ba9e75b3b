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

# Starts the example on a free port, with the arguments given, and sets `port`.
start() {
    coproc EXAMPLE { MEGAPIPE_ENGINE=$engine exec "$build/$example" "$@" 2>&1; }
    server=$EXAMPLE_PID
    local line
    read -r -t 60 line <&"${EXAMPLE[0]}" || fail 'says no port'
    port=${line#port }
    [[ $port =~ ^[0-9]+$ ]] || fail "$line"
}

# Sends `$1` and expects `$2` back.
expect() {
    local answer
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$1" >&3
    read -r -t 60 -N "${#2}" answer <&3 || fail 'no answer'
    [ "$answer" = "$2" ] || fail "answered '$answer'"
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

# Datagrams of the player of `$1` until one of 1200 bytes has one of 400 behind it, which `$2` ends: everybody is told of.
expect_world() {
    local before=0 size
    for _ in {1..400}; do
        timeout 60 dd bs=4096 count=1 <&"$1" >"$build/world" 2>/dev/null || fail 'tells nothing'
        size=$(wc -c <"$build/world")
        if [ "$before $size" = '1200 400' ] && [ "$(tail -c 4 "$build/world")" = "$2" ]; then
            return
        fi
        before=$size
    done
    fail 'does not tell of all players'
}

for engine in ${MEGAPIPE_ENGINE:-uring epoll}; do
    example='echo'
    start 0 2
    expect 'over and over\n' $'over and over\n'
    expect 'and once more\n' $'and once more\n'
    expect_all 30000000
    kill "$server"
    wait "$server" || fail 'does not end as it should'
    server=

    example=http_hello
    start 0 2
    # Stopped and resumed: that interrupts the waits of all threads, and ends none.
    kill -STOP "$server"
    kill -CONT "$server"
    for _ in 1 2 3 4 5 6 7 8; do
        expect 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' $'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n'
    done
    finish

    example=game_server
    start 400 0
    sockets=()
    for player in {1..400}; do
        exec {socket}<>"/dev/udp/127.0.0.1/$port"
        sockets+=("$socket")
        if [ "$player" -lt 400 ]; then
            read -r -t 60 line <&"${EXAMPLE[0]}" || fail 'has too few ports'
            port=${line#port }
        fi
    done
    for socket in "${sockets[@]}"; do
        printf ab >&"$socket"
    done
    # The last player has moved since: number 399, x and y.
    printf xy >&"$socket"
    expect_world "${sockets[0]}" $'\x01\x8fxy'
    expect_world "${sockets[200]}" $'\x01\x8fxy'
    expect_world "$socket" $'\x01\x8fxy'
    for socket in "${sockets[@]}"; do
        exec {socket}>&-
    done
    finish
    printf 'PASS examples (%s)\n' "$engine"
done
