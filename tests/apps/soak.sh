#!/usr/bin/env bash
# Builds what tests/apps/soak.py runs, and runs it for DURATION seconds (600) from SEED (the time) on, or as the
# arguments say.
set -euo pipefail
cd "$(dirname "$0")/../.."

CARGO=${CARGO:-cargo}
if ! python=$(python3 -c 'import sys; assert sys.version_info >= (3, 9); print(sys.executable)' 2>/dev/null); then
    printf 'SKIPPED soak of applications: no python3 of version 3.9 or later\n'
    exit 0
fi
"$CARGO" build --release --locked -p megapipe-cli -p megapipe-preload
exec "$python" tests/apps/soak.py --seconds "${DURATION:-600}" --seed "${SEED:-$(date +%s)}" "$@"
