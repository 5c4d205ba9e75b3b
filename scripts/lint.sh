#!/usr/bin/env bash
# Format, lints, documentation, dependencies and shell scripts. A check whose tool is not there says so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/provision.sh

failed=()

check() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    if ! "$@"; then
        failed+=("$name")
        printf '== %s failed\n' "$name"
    fi
}

skip() { printf '\n== %s: SKIPPED, %s\n' "$1" "$2"; }

documentation() { RUSTDOCFLAGS="-D warnings" "$CARGO" doc --locked --workspace --no-deps --quiet; }

fuzz_lock() {
    "$CARGO" metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 \
        --filter-platform x86_64-unknown-linux-gnu >/dev/null
}

decisions() {
    local record
    for record in docs/adr/0*.md; do
        grep -qF "($(basename "$record"))" docs/adr/README.md || { printf 'not listed: %s\n' "$record" && return 1; }
    done
}

# Compilers of distributions come without these.
if "$CARGO" fmt --version >/dev/null 2>&1; then
    check format "$CARGO" fmt --all --check
else
    skip format "rustfmt is not installed"
fi
if "$CARGO" clippy --version >/dev/null 2>&1; then
    check clippy "$CARGO" clippy --locked --workspace --all-targets --quiet -- -D warnings
else
    skip clippy "clippy is not installed"
fi
check documentation documentation
check "lock file of fuzz/" fuzz_lock
check "list of decisions" decisions
check "requirements of RFC 9293" scripts/requirements.sh
if command -v python3 >/dev/null; then
    check "circles of files" scripts/circles.py
    check "circles of made-up files" scripts/circles_test.py
    check "texts of planted bugs" scripts/planted.py check
    check "figures of records" scripts/figures.py
    check "figures of a made-up record" scripts/figures_test.py
else
    skip "circles of files, texts of planted bugs, figures of records" "python3 is not installed"
fi

if "$CARGO" deny --version >/dev/null 2>&1; then
    # Advisories need a database from the network and are looked at apart: `cargo deny check advisories`.
    check dependencies "$CARGO" deny --log-level error check bans licenses sources
else
    skip dependencies "cargo-deny is not installed (cargo install --locked cargo-deny)"
fi

if command -v shellcheck >/dev/null; then
    mapfile -t shell < <(git ls-files '*.sh')
    check shell shellcheck .ci/run packaging/debian/*.p{re,ost}* "${shell[@]}"
else
    skip shell "shellcheck is not installed (apt-get install shellcheck)"
fi

printf '\n'
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
printf 'all checks passed\n'
