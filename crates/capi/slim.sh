#!/bin/sh
# Leaves out of a static library what no C linker takes: the debug information and bitcode of
# Rust's standard library, most of its bytes.
# Usage: slim.sh LIBRARY [RESULT], in place without RESULT
set -eu
exec "${OBJCOPY:-objcopy}" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd "$@"
