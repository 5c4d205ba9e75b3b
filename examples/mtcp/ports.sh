#!/usr/bin/env bash
# Builds mTCP's ports of lighttpd 1.4.32 and of Apache's ab, unchanged, over libmegapipe_mtcp:
#   examples/mtcp/ports.sh MTCP FOLDER [lighttpd|ab|kernel]
# MTCP is a checkout of github.com/mtcp-stack/mtcp, which nothing is written to; the programs are
# FOLDER/lighttpd and FOLDER/ab. `kernel` builds lighttpd as it is without mTCP: FOLDER/kernel/lighttpd.
# MEGAPIPE_MTCP_LIBRARY names a static library other than this clone's.
set -euo pipefail

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

case $#:${3:-both} in
2:both | 3:lighttpd | 3:ab | 3:kernel) wanted=${3:-both} ;;
*) fail "usage: ports.sh MTCP FOLDER [lighttpd|ab|kernel]" ;;
esac
clone=$(cd "$(dirname "$0")/../.." && pwd)
library=${MEGAPIPE_MTCP_LIBRARY:-$clone/target/release/libmegapipe_mtcp.a}
for program in cc make ar; do
    command -v "$program" >/dev/null || fail "no $program in the PATH"
done
for part in apps/lighttpd-1.4.32/configure apps/apache_benchmark/configure mtcp/src/include/eventpoll.h; do
    [ -f "$1/$part" ] || fail "no $part in $1: it is no checkout of github.com/mtcp-stack/mtcp"
done
[ -f "$library" ] || fail "no $library: run cargo build --release -p megapipe-mtcp"
library=$(realpath "$library")
mtcp=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
over_mtcp=()

# What their configure scripts expect of mTCP, and of the libraries below it that ours does not need.
# lighttpd includes eventpoll.h, of mTCP's own sources, and uses nothing of it.
stack=$folder/stack
rm -rf "$stack"
mkdir -p "$stack/lib" "$stack/src/include"
ln -s "$library" "$stack/lib/libmtcp.a"
for name in numa gmp ps; do
    ar rc "$stack/lib/lib$name.a"
done
cp "$clone"/crates/mtcp/include/*.h "$mtcp/mtcp/src/include/eventpoll.h" "$stack/src/include/"
cat >"$stack/src/include/numa.h" <<'HEADER'
struct bitmask;
static inline int numa_max_node(void) { return 0; }
static inline struct bitmask *numa_bitmask_alloc(unsigned int bits) { (void)bits; return 0; }
static inline void numa_bitmask_setbit(struct bitmask *mask, unsigned int bit) { (void)mask; (void)bit; }
static inline void numa_set_membind(struct bitmask *mask) { (void)mask; }
static inline void numa_bitmask_free(struct bitmask *mask) { (void)mask; }
HEADER

# Runs a command of a program's build with its words in a log, whose end it shows if the command fails.
logged() {
    local name=$1
    shift
    (cd "$folder/apps/$name" && "$@") >>"$folder/$name.log" 2>&1 || {
        tail -n 20 "$folder/$name.log" >&2
        fail "$name: $1 failed; all of it is in $folder/$name.log"
    }
}

# Copies a program's sources and builds it. All files get one age: else make may find that it lacks the
# autoconf and lemon with which some were made. The C is of a time before variables that headers define and
# calls that nothing declares were errors.
build() {
    local name=$1 application=$2
    shift 2
    rm -rf "${folder:?}/apps/$name"
    mkdir -p "$folder/apps"
    cp -r "$mtcp/apps/$application" "$folder/apps/$name"
    find "$folder/apps/$name" -exec touch -d @0 {} +
    : >"$folder/$name.log"
    logged "$name" ./configure --prefix="$folder/installed" --libdir="$folder/modules-$name" "${over_mtcp[@]}" \
        CFLAGS="-O2 -g -w -std=gnu89 -fcommon" LDFLAGS="-L$stack/lib" "$@"
}

lighttpd=(--without-pcre --without-zlib --without-bzip2)
if [ "$wanted" = kernel ]; then
    build kernel lighttpd-1.4.32 "${lighttpd[@]}" --sbindir="$folder/kernel" LIBS="-lm -lpthread"
    logged kernel make -j2 install
    exit
fi
over_mtcp=(--with-libmtcp="$stack" --with-libpsio="$stack")

if [ "$wanted" != ab ]; then
    build lighttpd lighttpd-1.4.32 "${lighttpd[@]}" --sbindir="$folder" LIBS=-lm
    logged lighttpd make -j2 install
fi
if [ "$wanted" != lighttpd ]; then
    build ab apache_benchmark --with-included-apr --disable-shared LIBS="-lmtcp -lm"
    logged ab make -j2
    cp "$folder/apps/ab/support/ab" "$folder/ab"
fi
