#!/usr/bin/env bash
# Builds what tests/apps/run.py runs, and runs it with a real interpreter: a shell script in the place of one, as
# version managers have it, would be what is tested.
set -euo pipefail
cd "$(dirname "$0")/../.."

CARGO=${CARGO:-cargo}
if ! python=$(python3 -c 'import sys; assert sys.version_info >= (3, 9); print(sys.executable)' 2>/dev/null); then
    printf 'SKIPPED apps: no python3 of version 3.9 or later\n'
    exit 0
fi
"$CARGO" build --release --locked -p megapipe-cli -p megapipe-preload
exec "$python" tests/apps/run.py "$@"
