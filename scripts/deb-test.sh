#!/usr/bin/env bash
# Installs, upgrades, removes and purges the packages of `make deb` in a Debian 12 with systemd, while programs run. As root;
# needs mmdebstrap and systemd-container. What the system is unpacked from stays in target/deb-test.
# Usage: scripts/deb-test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
SYSTEM=$TARGET/deb-test
SUITE=bookworm

skip() {
    printf 'SKIPPED deb-test: %s\n' "$1"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip 'only root starts a system in a container'
for tool in mmdebstrap systemd-nspawn; do
    command -v "$tool" >/dev/null || skip "no $tool (apt-get install mmdebstrap systemd-container)"
done
if ! compgen -G "$TARGET/deb/*.deb" >/dev/null; then
    printf '%s: there are no packages in %s; run this first: make deb\n' "$0" "$TARGET/deb" >&2
    exit 1
fi

mkdir -p "$SYSTEM"
if [ ! -f "$SYSTEM/$SUITE.tar" ]; then
    mmdebstrap --quiet --format=tar --variant=apt \
        --include=systemd-sysv,dbus,iproute2,python3-minimal "$SUITE" "$SYSTEM/$SUITE.tar.new" ||
        skip "mmdebstrap cannot make a $SUITE"
    mv "$SYSTEM/$SUITE.tar.new" "$SYSTEM/$SUITE.tar"
fi
rm -rf "$SYSTEM/root"
mkdir "$SYSTEM/root"
tar -C "$SYSTEM/root" --numeric-owner -xf "$SYSTEM/$SUITE.tar"
mkdir -p "$SYSTEM"/root/test/{first,second}
cp "$TARGET"/deb/*.deb "$SYSTEM/root/test/first"
cp packaging/tests/pair.py packaging/tests/deb-inside.sh "$SYSTEM/root/test"

# The same files as a later version.
for package in "$TARGET"/deb/*.deb; do
    rm -rf "$SYSTEM/later"
    dpkg-deb --raw-extract "$package" "$SYSTEM/later"
    sed -i -E '/^Version:/s/$/.1/; /^Depends:/s/(megapipe[^ ]* \(= [^)]*)/\1.1/' "$SYSTEM/later/DEBIAN/control"
    dpkg-deb -Znone --root-owner-group --build "$SYSTEM/later" "$SYSTEM/root/test/second" >"$SYSTEM/build.log"
done

cat >"$SYSTEM/root/etc/systemd/system/deb-test.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /test/deb-inside.sh
StandardOutput=file:/test/result
StandardError=file:/test/errors
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
END
ln -s ../deb-test.service "$SYSTEM/root/etc/systemd/system/multi-user.target.wants/deb-test.service"

# A network of its own: its programs listen on ports.
timeout 300 systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --directory="$SYSTEM/root" \
    --console=pipe </dev/null >"$SYSTEM/console" 2>&1 || {
    printf 'the system did not end by itself; its console is in %s\n' "$SYSTEM/console"
}
cat "$SYSTEM/root/test/result" 2>/dev/null || skip "systemd does not start here; see $SYSTEM/console"
if ! grep -qx 'result 0' "$SYSTEM/root/test/result"; then
    cat "$SYSTEM/root/test/errors" >&2
    exit 1
fi
