#!/usr/bin/env bash
# Tries `megapipe setup`, the units and the drop-in of docs/services.md in a Debian 12 with systemd, with what `make product` has
# built. What the system is unpacked from stays in target/systemd-test.
# Usage: scripts/systemd-test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
SYSTEM=$TARGET/systemd-test
# shellcheck source=scripts/booted.sh
. scripts/booted.sh

unpack_system iproute2,procps,python3-minimal,redis-server
PREFIX=/usr/local LIBDIR=/usr/local/lib DESTDIR=$SYSTEM/root scripts/install.sh install >"$SYSTEM/install.log"
cp packaging/tests/{calls.py,checks.sh,pair.py} "$SYSTEM/root/test"
cp packaging/tests/systemd-inside.sh "$SYSTEM/root/test/inside.sh"
# The drop-in as people read it.
# shellcheck disable=SC2016 # backquotes end a block of code in Markdown
sed -n '/^# systemctl edit redis-server/,/^```/{/^```/d;p}' docs/services.md >"$SYSTEM/root/test/drop-in.conf"
run_in_system
