#!/bin/sh
# Lets programs that are linked statically bring a GetNumCPUs of their own, as many for mTCP do.
# Usage: weaken.sh libmegapipe_mtcp.a
#
# Rust has no weak symbols yet.
set -eu
exec "${OBJCOPY:-objcopy}" --weaken-symbol=GetNumCPUs "$1"
