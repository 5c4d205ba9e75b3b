#!/usr/bin/env bash
# Builds the module for the distribution's nginx, in the folder given, from what its package nginx-dev
# has: its headers carry the distribution's changes, which those of nginx's own release lack. Needs an
# installed libmegapipe, which pkg-config finds.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
sources=${NGINX_SRC:-/usr/share/nginx/src}
mkdir -p "$1"
build=$(cd "$1" && pwd)

if [ ! -x "$sources/configure" ]; then
    echo "no nginx sources at $sources: install nginx-dev, of the same version as nginx" >&2
    exit 1
fi
if ! pkg-config --exists megapipe; then
    echo "pkg-config finds no libmegapipe: run make install in the project's folder, or set PKG_CONFIG_PATH" >&2
    exit 1
fi
MEGAPIPE_INCLUDE=$(pkg-config --variable=includedir megapipe)
MEGAPIPE_LIBS=$(pkg-config --libs megapipe)
export MEGAPIPE_INCLUDE MEGAPIPE_LIBS
# shellcheck disable=SC1091 # of the package: the options that the distribution's nginx was built with
. "$sources/conf_flags"
cd "$sources"
./configure --with-cc-opt='-O2 -g -fPIC' --with-ld-opt=-fPIC "${NGX_CONF_FLAGS[@]}" \
    --add-dynamic-module="$here" --builddir="$build" >"$build/configure.log" || {
    tail -n 20 "$build/configure.log" >&2
    exit 1
}
make -f "$build/Makefile" modules >"$build/make.log"
