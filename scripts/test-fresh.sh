#!/usr/bin/env bash
# In a new minimal Debian or Ubuntu with git and make, as root and as a user: clone, `make demo`, `make test`. A
# command that a run as a user prints, for root, is run as root, and the user goes on. Nothing of the system is kept. Of
# this machine it uses the network, apt's mirrors and cargo's registry.
# Logs are in target/fresh. The whole of it builds twice from nothing.
# Usage: [SUITE=bookworm] [PACKAGES=megapipe-ring] [CACHE=1] scripts/test-fresh.sh [root] [user]
#   PACKAGES   whose tests `make test` runs; empty for all
#   CACHE      keeps target/ and cargo's downloads from one run to the next
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit

FRESH=$(realpath -m "${CARGO_TARGET_DIR:-target}/fresh")
OWN_SUITE=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
SUITE=${SUITE:-$OWN_SUITE}
PACKAGES=${PACKAGES-megapipe-ring}
LIMIT=${LIMIT:-3h} # of one command

skip() {
    printf 'SKIPPED test-fresh: %s\n' "$1"
    exit 0
}

# A minimal system, at most a day old.
make_system() {
    local sources=()
    if [ -n "$(find "$FRESH/$SUITE.tar" -mtime -1 2>/dev/null)" ]; then
        return
    fi
    # The machine's own mirrors, without those of others.
    if [ "$SUITE" = "$OWN_SUITE" ]; then
        sources=(/etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources /etc/apt/sources.list)
        mapfile -t sources < <(ls "${sources[@]}" 2>/dev/null)
    fi
    apt-config dump 2>/dev/null | grep -E '^Acquire::https?::' >"$FRESH/apt.conf"
    mmdebstrap --quiet --variant=apt --include=git,make,ca-certificates --aptopt="$FRESH/apt.conf" \
        "$SUITE" "$FRESH/part.tar" "${sources[@]}" && mv "$FRESH/part.tar" "$FRESH/$SUITE.tar"
}

# What follows runs with mounts and processes of its own, which end with it.

# Runs a command in the system, as root or as the user, in the clone.
enter() {
    local as=()
    [ "$who" = root ] || as=(setpriv --reuid=tester --regid=tester --init-groups)
    # shellcheck disable=SC2016 # the inner shell expands it
    timeout -k 10 "$LIMIT" chroot "$system" "${as[@]}" env -i "${variables[@]}" HOME="$home" LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c 'cd "$0" && exec "$@"' "$clone" "$@" </dev/null 2>&1
}

prepare() {
    local config=${CARGO_HOME:-$HOME/.cargo}/config.toml
    mount -t proc proc "$system/proc" && mount --rbind /dev "$system/dev" && mount --rbind /sys "$system/sys" &&
        mount -t tmpfs tmpfs "$system/run" || return
    rm -f "$system/etc/resolv.conf"
    cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
    if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
        cp /usr/local/share/ca-certificates/*.crt "$system/usr/local/share/ca-certificates/"
        chroot "$system" update-ca-certificates >/dev/null 2>&1
    fi
    # The system may lack useradd.
    printf 'tester:x:1000:1000::/home/tester:/bin/sh\n' >>"$system/etc/passwd"
    printf 'tester:x:1000:\n' >>"$system/etc/group"
    install -d -o "$uid" -g "$uid" "$system$home" "$system$cargo" "$system$clone" || return
    git bundle create --quiet "$system/megapipe.bundle" HEAD &&
        enter git -c advice.detachedHead=false clone --quiet /megapipe.bundle . && enter mkdir target || return
    if [ -n "${CACHE:-}" ]; then
        mkdir -p "$FRESH/cache/cargo" "$FRESH/cache/target"
        rm -rf "$FRESH/cache/target/tools" # servers and clients are unpacked anew
        chown -R "$uid:$uid" "$FRESH/cache"
        mount --bind "$FRESH/cache/cargo" "$system$cargo"
        mount --bind "$FRESH/cache/target" "$system$clone/target"
        # Cargo builds again what is younger than its build.
        # shellcheck disable=SC2016 # the inner shell expands it
        enter sh -c 'git ls-files -z | xargs -0 touch -d "@$(git log -1 --format=%ct)"'
    fi
    if [ -e "$config" ]; then
        enter touch "$cargo/config.toml"
        mount --bind "$config" "$system$cargo/config.toml"
    fi
}

# Runs a command, again after each command that it has the user run as root. Its output stays in $output.
obey() {
    local told
    for _ in 1 2 3; do
        printf '\n#### as %s: %s\n' "$who" "$*"
        enter "$@" | tee "$output" && return
        told=$(sed -n '/^run this, then try again:$/{n;n;s/^    sudo //p;}' "$output")
        [ "$who" != root ] && [ -n "$told" ] || return
        printf '#### as root, as it says: %s\n' "$told"
        DEBIAN_FRONTEND=noninteractive chroot "$system" sh -c "$told" >"$FRESH/apt.log" 2>&1 || {
            tail "$FRESH/apt.log"
            return 1
        }
    done
    return 1
}

inside() {
    local who=$1 system=$FRESH/system output=$FRESH/output home=/root uid=0 line package
    local clone=/home/megapipe cargo variables
    if [ "$who" = user ]; then
        home=/home/tester uid=1000
    fi
    cargo=$home/.cargo
    mapfile -t variables < <(env | grep -iE '^(https?|no)_proxy=')
    if [ -n "${CACHE:-}" ]; then
        cargo=/home/cargo # what cargo keeps fits one place
        variables+=("CARGO_HOME=$cargo")
    fi
    prepare || return
    obey make demo || return
    for line in 'Redis: 50 connections' 'nginx: 50 connections' 'redis-py: 1 thread'; do
        grep -q "^$line" "$output" || { printf 'make demo shows no "%s"\n' "$line" && return 1; }
    done
    for package in redis-server nginx; do
        ! chroot "$system" dpkg-query -W "$package" >/dev/null 2>&1 ||
            { printf 'make demo installed %s\n' "$package" && return 1; }
    done
    obey make test PACKAGES="$PACKAGES"
}

run() {
    local who=$1 status
    rm -rf --one-file-system "$FRESH/system"
    mkdir "$FRESH/system" && tar -C "$FRESH/system" --numeric-owner -xf "$FRESH/$SUITE.tar" || return
    unshare --mount --pid --fork --kill-child bash "$0" --inside "$who" | tee "$FRESH/$who.log"
    status=${PIPESTATUS[0]}
    rm -rf --one-file-system "$FRESH/system"
    return "$status"
}

if [ "${1:-}" = --inside ]; then
    inside "$2"
    exit
fi
[ "$(id -u)" -eq 0 ] || skip 'it needs root'
command -v mmdebstrap >/dev/null || skip 'there is no mmdebstrap (apt-get install mmdebstrap)'
[ -n "$SUITE" ] || skip 'this is not Debian or Ubuntu: name a SUITE'
unshare --mount --pid --fork true 2>/dev/null || skip 'mounts and processes of its own are not permitted'
mkdir -p "$FRESH"
make_system || exit
failed=()
[ $# -gt 0 ] || set -- root user
for who in "$@"; do
    start=$SECONDS
    run "$who" || failed+=("$who")
    printf '\n== %s, as %s: %d s\n' "$SUITE" "$who" $((SECONDS - start))
done
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
printf 'test-fresh passed\n'
