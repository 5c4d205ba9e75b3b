#!/usr/bin/env bash
# Installs, upgrades, removes and purges the packages of `make deb` in a Debian 12 with systemd, while programs run. As root;
# needs mmdebstrap and systemd-container. What the system is unpacked from stays in target/deb-test.
# Usage: scripts/deb-test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
SYSTEM=$TARGET/deb-test
# shellcheck source=scripts/booted.sh
. scripts/booted.sh

if ! compgen -G "$TARGET/deb/*.deb" >/dev/null; then
    printf '%s: there are no packages in %s; run this first: make deb\n' "$0" "$TARGET/deb" >&2
    exit 1
fi

unpack_system iproute2,python3-minimal
mkdir "$SYSTEM"/root/test/{first,second}
cp "$TARGET"/deb/*.deb "$SYSTEM/root/test/first"
cp packaging/tests/{checks.sh,pair.py} "$SYSTEM/root/test"
cp packaging/tests/deb-inside.sh "$SYSTEM/root/test/inside.sh"

# The same files as a later version.
for package in "$TARGET"/deb/*.deb; do
    rm -rf "$SYSTEM/later"
    dpkg-deb --raw-extract "$package" "$SYSTEM/later"
    sed -i -E '/^Version:/s/$/.1/; /^Depends:/s/(megapipe[^ ]* \(= [^)]*)/\1.1/' "$SYSTEM/later/DEBIAN/control"
    dpkg-deb -Znone --root-owner-group --build "$SYSTEM/later" "$SYSTEM/root/test/second" >"$SYSTEM/build.log"
done

run_in_system
