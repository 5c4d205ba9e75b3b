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

# Sends `$2` on `/dev/$1` and expects `$3` back.
expect() {
    local answer
    exec 3<>"/dev/$1/127.0.0.1/$port"
    printf '%b' "$2" >&3
    read -r -t 60 -N "${#3}" answer <&3 || fail 'no answer'
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

# Whether every thread of these processes sleeps.
asleep() {
    local pid thread state
    for pid; do
        for thread in /proc/"$pid"/task/*/stat; do
            read -r state <"$thread" || return 1
            state=${state##*) }
            [ "${state:0:1}" = S ] || return 1
        done
    done
}

# Sends $FLOOD bytes of lines on descriptor 4 and reads nothing, until neither side goes on. Sets `writer`.
FLOOD=28000000
flood() {
    exec 4<>"/dev/tcp/127.0.0.1/$port"
    cat "$build/lines" >&4 2>/dev/null &
    writer=$!
    local calm=0
    for _ in {1..3000}; do
        kill -0 "$writer" 2>/dev/null || fail 'takes everything from a client that does not read'
        if asleep "$writer" "$server" 2>/dev/null; then calm=$((calm + 1)); else calm=0; fi
        [ "$calm" -lt 10 ] || return 0
        sleep 0.02
    done
    fail 'never rests'
}

# Expects so many bytes of answers in a file.
expect_answers() {
    cmp <(yes 'A LINE' | head -c "$1") "$2" || fail 'answers something else'
}

head -c "$FLOOD" < <(yes 'a line') >"$build/lines"
for engine in ${MEGAPIPE_ENGINE:-uring epoll}; do
    example=echo
    start 0 2
    expect tcp 'over and over\n' $'over and over\n'
    expect tcp 'and once more\n' $'and once more\n'
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
        expect tcp 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' $'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n'
    done
    finish

    example=udp_echo
    start 0 2
    expect udp 'a datagram' 'a datagram'
    expect udp 'and another' 'and another'
    finish

    example=line_server
    start 0 60
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    for piece in o ne '\ntwo\nthr' 'ee\n'; do
        printf '%b' "$piece" >&3
        sleep 0.05
    done
    for word in ONE TWO THREE; do
        read -r -t 60 line <&3 || fail 'no answer to a line in pieces'
        [ "$line" = "$word" ] || fail "answered '$line'"
    done
    flood
    expect tcp 'hello\n' $'HELLO\n'
    head -c "$FLOOD" <&4 >"$build/answers"
    wait "$writer" || fail 'does not take all'
    expect_answers "$FLOOD" "$build/answers"
    exec 4>&-
    # Told to end while answers are pending.
    flood
    kill "$server"
    sleep 0.2
    kill -0 "$server" || fail 'ends before its answers are taken'
    cat <&4 >"$build/answers"
    kill "$writer"
    wait "$writer" || true
    exec 3>&- 4>&-
    count=$(wc -c <"$build/answers")
    ((count > 0 && count % 7 == 0)) || fail "$count bytes of answers"
    expect_answers "$count" "$build/answers"
    wait "$server" || fail 'does not end as it should'
    server=
    # Half a line, and answers that are not taken, are no sign of life.
    start 0 3
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf half >&3
    flood
    exec 5<>"/dev/tcp/127.0.0.1/$port"
    half=142
    for _ in {1..600}; do
        printf 'x\n' >&5
        read -r -t 60 line <&5 || fail 'disconnects a client that is not idle'
        # Above 128: nothing came in time. The end of the stream is 1.
        [ "$half" -le 128 ] || { half=0; read -r -t 0.1 line <&3 2>/dev/null || half=$?; }
        if [ "$half" = 1 ] && ! kill -0 "$writer" 2>/dev/null; then break; fi
        sleep 0.05
    done
    [ "$half" = 1 ] || fail 'keeps a client with half a line'
    ! kill -0 "$writer" 2>/dev/null || fail 'keeps a client that does not read'
    ! wait "$writer" || fail 'takes everything from a client that does not read'
    exec 3>&- 4>&- 5>&-
    finish

    example=game_server
    for arguments in 'x 0' '4 y' '0 0' '10001 0' '4 65533' '4 0 0'; do
        # shellcheck disable=SC2086 # they are several
        ! "$build/$example" $arguments 2>"$build/usage" || fail "takes $arguments"
        grep -q '^usage: game_server \[PLAYERS\] \[FIRST_PORT\]$' "$build/usage" || fail 'tells no usage'
    done
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
