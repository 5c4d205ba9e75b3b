#!/usr/bin/env bash
# Unpacks the tarball of `make tarball` in a system with the oldest glibc that it is for, as far as one can be had, and runs
# Redis and its benchmark of that system under it: their connections have to be promoted. As root; needs mmdebstrap.
# Usage: scripts/tarball-test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
SYSTEM=$TARGET/tarball-test
UBUNTU=http://archive.ubuntu.com/ubuntu
KEYS=/usr/share/keyrings/ubuntu-archive-keyring.gpg
# Debian 12 has no package of Ubuntu's keys.
KEYS_PACKAGE=$UBUNTU/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb
KEYS_SHA256=0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f

skip() {
    printf 'SKIPPED tarball-test: %s\n' "$1"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip 'only root changes its root directory'
command -v mmdebstrap >/dev/null || skip 'no mmdebstrap (apt-get install mmdebstrap)'
tarballs=("$TARGET"/megapipe-*-x86_64.tar.xz)
if [ ! -f "${tarballs[0]}" ]; then
    printf '%s: there is no tarball in %s; run this first: make tarball\n' "$0" "$TARGET" >&2
    exit 1
fi

fetch_keys() {
    curl --fail --silent --show-error --max-time 60 --output "$SYSTEM/keys.deb" "$KEYS_PACKAGE" &&
        echo "$KEYS_SHA256  $SYSTEM/keys.deb" | sha256sum --check --quiet &&
        dpkg-deb --extract "$SYSTEM/keys.deb" "$SYSTEM/keys" && KEYS=$SYSTEM/keys$KEYS
}

# Ubuntu 22.04 has glibc 2.35, Debian 12 has 2.36; those with 2.34 (Ubuntu 21.10, RHEL 9) are in no archive of packages that
# apt reads by itself.
make_system() {
    [ ! -f "$SYSTEM/$1.tar" ] || return 0
    local options=() mirror=()
    if [ "$1" = jammy ]; then
        [ -f "$KEYS" ] || fetch_keys || return 1
        options=("--keyring=$KEYS" "--components=main,universe")
        mirror=("$UBUNTU")
    fi
    mmdebstrap --quiet --format=tar --variant=apt --include=redis-server,redis-tools \
        "${options[@]}" "$1" "$SYSTEM/$1.tar.new" "${mirror[@]}" && mv "$SYSTEM/$1.tar.new" "$SYSTEM/$1.tar"
}

mkdir -p "$SYSTEM"
made=
for suite in jammy bookworm; do
    if make_system "$suite"; then
        made=$suite
        break
    fi
done
[ -n "$made" ] || skip 'mmdebstrap can make neither Ubuntu 22.04 nor Debian 12'
rm -rf "$SYSTEM/root"
mkdir "$SYSTEM/root"
tar -C "$SYSTEM/root" --numeric-owner -xf "$SYSTEM/$made.tar"
mkdir "$SYSTEM/root/somewhere"
tar -C "$SYSTEM/root/somewhere" --strip-components=1 -xf "${tarballs[0]}"

cat >"$SYSTEM/root/test.sh" <<'END'
set -eu
PATH=$PATH:/somewhere/bin
megapipe --version
ldd --version | head -n 1
megapipe run --stats redis-server --save '' --port 7379 >/server.log 2>&1 &
for _ in $(seq 100); do
    redis-cli -p 7379 ping 2>/dev/null | grep -q PONG && break
    sleep 0.1
done
megapipe run --stats redis-benchmark -p 7379 -t get,set -n 200000 -c 8 --csv
redis-cli -p 7379 shutdown nosave || true
wait
grep megapipe /server.log
END
# In a network and a table of processes of its own: the end of the first process ends all others.
# shellcheck disable=SC2016 # $0 is of the inner shell
timeout 300 unshare --mount --net --pid --fork --kill-child bash -c '
    set -e
    mount -t proc proc "$0/proc"
    mount -t tmpfs tmpfs "$0/run"
    ip link set lo up
    exec chroot "$0" /bin/bash /test.sh' "$SYSTEM/root" 2>&1 | tee "$SYSTEM/log"

promoted=$(grep -cE 'megapipe.* [1-9][0-9]* promoted' "$SYSTEM/log") || true
if [ "$promoted" -lt 2 ]; then
    printf 'FAILED: not both ends say that connections were promoted\n'
    exit 1
fi
printf 'passed: promoted with %s on %s\n' "${tarballs[0]##*/}" "$made"
