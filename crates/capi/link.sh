#!/bin/sh
# Links the shared library from the static one, with versioned symbols and a soname.
# Usage: link.sh STATIC SHARED, as in `link.sh libmegapipe_c.a libmegapipe.so.0.1.0`
#
# The compiler gives every cdylib a version script of its own, and linkers refuse or
# ignore a second one; so the shared library is not a cdylib.
set -eu
here=$(dirname "$0")
exec "${CC:-cc}" -shared -o "$2" \
    -Wl,-soname,libmegapipe.so.0 \
    -Wl,--version-script="$here/megapipe.map" \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive \
    -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--as-needed \
    -lgcc_s -lpthread -ldl -lm -lc
