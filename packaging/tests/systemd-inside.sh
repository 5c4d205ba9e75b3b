#!/bin/bash
# `megapipe setup` and the units where systemd is process 1; scripts/systemd-test.sh runs it as a unit there.
set -uo pipefail
cd /test || exit
# shellcheck source=packaging/tests/checks.sh
. ./checks.sh
unit=megapipe-monitor
socket=/run/megapipe/monitor.sock

as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}
state() { systemctl show --value -p "$2" "$unit.$1"; }
# The line of --stats: at least one connection of this program was promoted.
has_promoted() { grep -Eq 'connections, [1-9][0-9]* promoted' "$1"; }
# A user's own monitor ends within 10 s, its programs look for another every 5 s.
found_by_both() { SECONDS_MOST=30 until_true is_client alice && SECONDS_MOST=30 until_true is_client bob; }
is_client() { megapipe top --once --interval 0 --socket $socket | grep -Eq "^ *[0-9]+ +$(id -u "$1") +python3"; }
has_granted() { megapipe top --once --interval 0 --json --socket $socket | grep -q '"granted": *[1-9]'; }
pids() { pgrep -u "$1" python3; }

useradd --system alice
useradd --system bob
chmod 1777 /test

# Without a policy.
check 'no policy: the socket unit is skipped' systemctl start $unit.socket
check 'no policy: and is not active' is "state socket ActiveState" inactive
as alice megapipe run true 2>alone.log
check "no policy: users have a monitor of their own" is 'cat alone.log' ''

# Two programs that run from now on, before there is anything that lets them share.
as alice megapipe run --promote eager python3 /test/calls.py server 7000 &
until_true listens 7000
as bob megapipe run --promote eager python3 /test/calls.py client 7000 /test/count.7000 &
check 'before setup: their connections move' moves count.7000

# A monitor that somebody started by hand.
megapipe monitor 2>by-hand.log &
by_hand=$!
until_true test -S $socket
inode=$(stat -c %i $socket)
check 'a living monitor: setup says so' not megapipe setup --allow alice:bob
check 'a living monitor: keeps its socket' is "stat -c %i $socket" "$inode"
check 'a living monitor: answers' megapipe top --once --interval 0 --socket $socket
kill $by_hand
wait $by_hand

# A second setup adds, and ends in the state that the first wanted.
check 'setup' megapipe setup --allow redis:bob
check 'setup: once more' megapipe setup --allow alice:bob
check 'setup: the unit is enabled' is "systemctl is-enabled $unit.socket" enabled
check 'setup: the unit listens' is "state socket SubState" listening
check 'setup: two rules' is 'grep -c "one =" /etc/megapipe/monitor.toml' 2

check 'setup: programs that ran before go over to the monitor' found_by_both
check 'setup: their new connections are promoted' until_true has_granted
check 'setup: all of them move' moves count.7000
pids alice | xargs kill

# Two programs of two users.
as alice megapipe run --promote eager python3 /test/pair.py server 7001 &
until_true listens 7001
as bob megapipe run --promote eager python3 /test/pair.py client 7001 /test/count.7001 &
check 'two users: their connection moves' moves count.7001
check 'two users: it is promoted' promoted 2

# The drop-in of docs/services.md, for the unit as Debian ships it.
systemctl start redis-server
check 'redis: its unit is confined' is 'systemctl show --value -p PrivateTmp,User,Type redis-server | sort | xargs' 'notify redis yes'
mkdir -p /etc/systemd/system/redis-server.service.d
cp drop-in.conf /etc/systemd/system/redis-server.service.d/megapipe.conf
systemctl daemon-reload
check 'redis: starts with the drop-in' systemctl restart redis-server
as bob megapipe run --promote eager --stats -- redis-benchmark -t get -n 20000 -c 4 -q >benchmark.log 2>benchmark.stats
check 'redis: its connections are promoted' has_promoted benchmark.stats
redis=$(systemctl show --value -p MainPID redis-server)

megapipe doctor "$redis" >doctor.log
check 'redis: doctor says what it is connected to' contains doctor.log "connected  to $socket"
check 'redis: and what the policy allows' contains doctor.log 'with: itself, bob ('

# What an installation replaces: program and library by rename, then the monitor starts anew.
before=$(state service MainPID)
programs=$(pids alice; pids bob)
for file in /usr/local/bin/megapipe /usr/local/lib/megapipe/libmegapipe_preload.so; do
    cp $file $file.new
    mv -fT $file.new $file
done
systemctl restart $unit.service
check 'upgrade: the monitor is another process' not is "state service MainPID" "$before"
check 'upgrade: the programs are the same' is "pids alice; pids bob" "$programs"
check 'upgrade: their connection goes on' moves count.7001
as alice megapipe run --promote eager python3 /test/pair.py server 7002 &
until_true listens 7002
as bob megapipe run --promote eager python3 /test/pair.py client 7002 /test/count.7002 &
check 'upgrade: a new connection of theirs is promoted' promoted 2

# Clients after somebody removed the policy: the socket goes on.
mv /etc/megapipe/monitor.toml policy
systemctl stop $unit.service
for _ in $(seq 30); do megapipe top --once --interval 0 >top.log; done
check 'a policy that vanished: the socket unit lives' is "state socket SubState; state socket Result" 'running success'
mv policy /etc/megapipe/monitor.toml

megapipe setup --undo >undo.log
check 'undo: names what still runs' contains undo.log "redis-server (pid $redis, user redis"
check 'undo: no policy' gone /etc/megapipe
check 'undo: the unit is disabled' is "systemctl is-enabled $unit.socket" disabled
check 'undo: nothing of it runs' is "state socket ActiveState; state service ActiveState" 'inactive inactive'
check 'undo: programs run on' is "pids alice | head -n 1; pids bob | head -n 1" "$(xargs <<<"$(pids alice | head -n 1) $(pids bob | head -n 1)")"
check 'undo: their connection goes on' moves count.7001
check 'undo: redis serves' as bob redis-cli ping
pids alice | xargs kill
printf 'result %d\n' "$failed"
