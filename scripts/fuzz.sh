#!/usr/bin/env bash
# Every fuzz target for FUZZ_SECONDS (600) each, from fuzz/seeds and what earlier runs have found. An input that breaks one
# is kept in fuzz/artifacts.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

CARGO=${CARGO:-cargo}
FUZZ_SECONDS=${FUZZ_SECONDS:-600}

skip() {
    printf 'SKIPPED fuzz: %s\n' "$1"
    exit 0
}

"$CARGO" fuzz --version >/dev/null 2>&1 || skip 'no cargo-fuzz (cargo install --locked cargo-fuzz)'
"$CARGO" +nightly --version >/dev/null 2>&1 || skip 'no nightly toolchain (rustup toolchain install nightly)'

failed=()
for target in $("$CARGO" +nightly fuzz list); do
    printf '\n== %s for %s s\n' "$target" "$FUZZ_SECONDS"
    mkdir -p "fuzz/corpus/$target"
    options=(-max_total_time="$FUZZ_SECONDS" -print_final_stats=1)
    # A thread that its monitor is just starting would count as a leak.
    [ "$target" = submissions ] && options+=(-detect_leaks=0)
    "$CARGO" +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- "${options[@]}" || failed+=("$target")
done
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
