#!/usr/bin/env bash
# Builds what the Python script of this name (soak.sh is a link to this) tests, and runs it with a real interpreter: a
# shell script in the place of one, as version managers have it, would be what is tested.
set -euo pipefail
script=tests/apps/$(basename "$0" .sh).py
cd "$(dirname "$0")/../.."

CARGO=${CARGO:-cargo}
if ! python=$(python3 -c 'import sys; assert sys.version_info >= (3, 11); print(sys.executable)' 2>/dev/null); then
    printf 'SKIPPED %s: no python3 of version 3.11 or later\n' "$script"
    exit 0
fi
# `make test` has built both, without optimisation; else they are built as they are installed.
if [ -z "${MEGAPIPE_TEST_BUILT:-}" ]; then
    "$CARGO" build --release --locked -p megapipe-cli -p megapipe-preload
fi
exec "$python" "$script" "$@"
