#!/bin/bash
# The life of the packages on a system with systemd; scripts/deb-test.sh runs it as a unit there.
# The packages lie in /test/first and, as a later version, in /test/second.
set -uo pipefail
cd /test || exit
# shellcheck source=packaging/tests/checks.sh
. ./checks.sh

pair() {
    megapipe run --promote eager python3 /test/pair.py server "$1" &
    servers+=($!)
    until_true listens "$1"
    megapipe run --promote eager python3 /test/pair.py client "$1" "/test/count.$1" &
    clients+=($!)
    until_true test -s "/test/count.$1"
}
answers() { megapipe top --once >/dev/null; }

servers=() clients=()
unit=megapipe-monitor
packages=(megapipe megapipe-preload libmegapipe{-dev,0} libmegapipe-mtcp{-dev,0})

dpkg --install first/*.deb >install.log 2>&1 || { cat install.log; exit 1; }
check 'installed: nothing is enabled' is "systemctl is-enabled $unit.socket" disabled
check 'installed: nothing is started' is "systemctl is-active $unit.socket" inactive
check 'the loader finds the C library' contains <(ldconfig -p) libmegapipe.so.0
check 'the loader finds the library of mTCP'\''s calls' contains <(ldconfig -p) libmegapipe_mtcp.so.0

# The socket unit before there is a policy, beside a monitor that somebody started, and when the policy goes.
place=/run/megapipe/monitor.sock
systemctl start $unit.socket
check 'no policy: the socket unit is skipped' is "systemctl is-active $unit.socket" inactive
mkdir -p /etc/megapipe
echo 'same_user = true' >/etc/megapipe/monitor.toml
megapipe monitor >monitor.log 2>&1 &
monitor=$!
until answers 2>/dev/null; do sleep 0.1; done
inode=$(stat -c %i $place)
check 'a monitor lives: the socket unit fails' is "systemctl start $unit.socket 2>/dev/null || echo failed" failed
journalctl --sync
journalctl --unit $unit.socket --output cat >socket.log
check 'a monitor lives: the log names it' contains socket.log "already (process $monitor)"
check 'a monitor lives: it keeps its socket' test "$(stat -c %i $place)" = "$inode"
kill $monitor
wait $monitor
systemctl reset-failed $unit.socket
check 'the monitor has ended: the socket unit starts' systemctl start $unit.socket
rm -r /etc/megapipe
check 'the policy has gone: the monitor answers' answers
check 'the policy has gone: and again' answers
check 'the policy has gone: the unit runs' is "systemctl is-active $unit.service" active
systemctl stop $unit.socket $unit.service

check 'setup' megapipe setup
check 'setup: enabled' is "systemctl is-enabled $unit.socket" enabled
check 'setup: the policy is there' test -f /etc/megapipe/monitor.toml

pair 7001
check 'a pair is promoted' promoted 2
first=$(systemctl show --value -p MainPID $unit.service)
check 'the system monitor serves it' test "$first" -gt 0

library=$(echo /usr/lib/*/megapipe/libmegapipe_preload.so)
inode=$(stat -c %i "$library")
dpkg --install second/*.deb >upgrade.log 2>&1 || { cat upgrade.log; exit 1; }
second=$(systemctl show --value -p MainPID $unit.service)
check 'upgrade: the monitor is another process' test "$second" -gt 0 -a "$second" != "$first"
check 'upgrade: the programs are the same' kill -0 "${servers[0]}" "${clients[0]}"
check 'upgrade: their connection goes on' moves count.7001
check 'upgrade: they have mapped the library that was' grep -q 'libmegapipe_preload.so.*(deleted)' "/proc/${clients[0]}/maps"
check 'upgrade: the library is another file' test "$(stat -c %i "$library")" != "$inode"
pair 7002
check 'upgrade: a new pair is promoted' promoted 2

mkdir -p /etc/systemd/system/other.service.d
printf '[Service]\nEnvironment=LD_PRELOAD=%s\n' "$library" >/etc/systemd/system/other.service.d/megapipe.conf
dpkg --remove "${packages[@]}" >remove.log 2>&1 || { cat remove.log; exit 1; }
check 'removal: warns of LD_PRELOAD' contains remove.log 'ld.so prints an error'
check 'removal: names the unit' contains remove.log /etc/systemd/system/other.service.d/megapipe.conf
check 'removal: the programs run' kill -0 "${servers[@]}" "${clients[@]}"
check 'removal: their connections go on' moves count.7001
check 'removal: and the later one' moves count.7002
check 'removal: the monitor has ended' is "systemctl is-active $unit.service $unit.socket | sort -u" inactive
check 'removal: the policy stays' test -f /etc/megapipe/monitor.toml
check 'a program with LD_PRELOAD runs all the same' env LD_PRELOAD="$library" true

dpkg --purge "${packages[@]}" >purge.log 2>&1 || { cat purge.log; exit 1; }
check 'purge: no policy' gone /etc/megapipe
check 'purge: no unit is enabled' gone /etc/systemd/system/sockets.target.wants/$unit.socket
find /usr /etc /var/lib /run -name '*megapipe*' -not -path '*/other.service.d/*' -not -path '/run/credentials/*' >left
check "purge: nothing is left: $(tr '\n' ' ' <left)" test ! -s left
kill "${servers[@]}" "${clients[@]}" 2>/dev/null

# A policy that the administrator wrote is his.
dpkg --install first/*.deb >install.log 2>&1
mkdir -p /etc/megapipe
echo 'same_user = true' >/etc/megapipe/monitor.toml
dpkg --purge "${packages[@]}" >purge.log 2>&1
check "purge: the administrator's policy stays" test -f /etc/megapipe/monitor.toml
printf 'result %d\n' "$failed"
