#!/usr/bin/env bash
# What logs of Rust tests say: a line for each log, and below it what was skipped and why.
# Usage: scripts/count-tests.sh LOG...
set -euo pipefail

for log in "$@"; do
    # "test result: ok. 7 passed; 0 failed; 0 ignored; ..." per test program. A test that runs its
    # own program again for a single test has a number of tests "filtered out" in that one's result.
    awk -v name="$(basename "$log" .log)" '
        /^test result:.* 0 filtered out/ { passed += $4; failures += $6; ignored += $8 }
        # Suites that end with a list of what they skipped say it twice.
        /^ *(skipped:|SKIPPED:?) / { sub(/^ *(skipped:|SKIPPED:?) /, ""); if (!seen[$0]++) skipped[++skips] = $0 }
        END {
            printf "%-16s %4d passed, %d failed, %d skipped, %d ignored\n", name, passed, failures, skips, ignored
            for (i = 1; i <= skips; i++) printf "    skipped (the runner says passed): %s\n", skipped[i]
        }' "$log"
done
