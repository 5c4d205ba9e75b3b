#!/usr/bin/env bash
# Makes the Debian packages of what `make product LIBDIR=/usr/lib/MULTIARCH` has built, below target/deb, and has lintian check
# them. Needs debhelper; lintian is skipped where it is not installed.
# Usage: [VERSION=0.1.0] scripts/deb.sh
set -euo pipefail
cd "$(dirname "$0")/.."
SOURCE=$PWD
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
export SOURCE CARGO_TARGET_DIR
# Lines of the compiler's: backtraces of the library name them, and nobody keeps the other package.
export DEB_BUILD_OPTIONS="noautodbgsym ${DEB_BUILD_OPTIONS:-}"

if ! command -v dh >/dev/null; then
    printf '%s: dh is not there; install it first: apt-get install debhelper\n' "$0" >&2
    exit 1
fi

OUT=$CARGO_TARGET_DIR/deb
rm -rf "$OUT"
mkdir -p "$OUT/megapipe"
cp -a packaging/debian "$OUT/megapipe/debian"
cd "$OUT/megapipe"

# The revision sorts before that of a package of Debian's own. The date is that of the last commit, so that the same tree makes the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$SOURCE" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
maintainer=$(sed -n 's/^Maintainer: //p' debian/control)
cat >debian/changelog <<END
megapipe ($VERSION-0upstream1) unstable; urgency=medium

  * See changelog.gz.

 -- $maintainer  $(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
END

dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
cd "$OUT"

status=0
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --show-overrides --info --tag-display-limit 0 ./*.changes || status=$?
else
    printf 'SKIPPED lintian: it is not installed (apt-get install lintian)\n'
fi
printf '\n'
stat --format='%8s %n' "$OUT"/*.deb
exit "$status"
