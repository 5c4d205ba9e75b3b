#!/usr/bin/env bash
# Packs what `make product` has built into one directory that works wherever it is unpacked: target/megapipe-VERSION-x86_64.tar.xz.
# Fails if a program or library asks for a newer glibc than `megapipe run` does.
# Usage: [VERSION=0.1.0] scripts/tarball.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
NEEDED=$(sed -n 's/.*NEEDED: Version = Version { major: \([0-9]*\), minor: \([0-9]*\) };/\1.\2/p' crates/cli/src/run/glibc.rs)
NAME=megapipe-$VERSION-x86_64
# The units need a path; docs/install.md links this one to the directory.
PREFIX=/opt/megapipe

STAGE=$TARGET/tarball
TREE=$STAGE/$NAME
rm -rf "$STAGE"
export CARGO_TARGET_DIR=$TARGET
DESTDIR=$STAGE/all PREFIX=$PREFIX LIBDIR='' scripts/install.sh install >/dev/null
mv "$STAGE/all$PREFIX" "$TREE"
rm -r "$STAGE/all" "$TREE/share/megapipe"
cp LICENSE-APACHE LICENSE-MIT CHANGELOG.md docs/install.md "$TREE"

# pkg-config knows where its file lies (pc(5)).
# shellcheck disable=SC2016 # variables of pkg-config
sed -i -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' -e 's|^libdir=.*|libdir=${prefix}/lib|' "$TREE"/lib/pkgconfig/*.pc

programs=("$TREE/bin/megapipe" "$TREE"/lib/libmegapipe*.so.*.* "$TREE/lib/megapipe/libmegapipe_preload.so")
strip --strip-unneeded "${programs[@]}"
strip --strip-debug --enable-deterministic-archives "$TREE"/lib/libmegapipe*.a

newer=$(objdump -T "${programs[@]}" | NEEDED=$NEEDED awk '
    BEGIN { split(ENVIRON["NEEDED"], needed, ".") }
    / file format / { file = $1 }
    match($0, /GLIBC_[0-9.]+/) {
        split(substr($0, RSTART + 6, RLENGTH - 6), version, ".")
        if (version[1] > needed[1] || (version[1] == needed[1] && version[2] + 0 > needed[2] + 0))
            print "  " file " " $NF " " substr($0, RSTART, RLENGTH)
    }')
if [ -n "$newer" ]; then
    printf '%s: these need a newer glibc than %s:\n%s\nbuild on a distribution with an older one (Debian 12), or avoid the functions\n' \
        "$0" "$NEEDED" "$newer" >&2
    exit 1
fi
printf 'no symbol of a glibc after %s\n' "$NEEDED"

DATE=$(git log -1 --format=%ct 2>/dev/null || date +%s)
tar -C "$STAGE" --sort=name --mtime="@$DATE" --owner=0 --group=0 --numeric-owner --xz -cf "$TARGET/$NAME.tar.xz" "$NAME"
stat --format='%8s %n' "$TARGET/$NAME.tar.xz"
