#!/usr/bin/env bash
# The checks that take long, one after the other, each of them whatever came of those before. The last lines say for each
# whether it passed, failed or was skipped, and in how many seconds; HACKING.md says what each finds. Logs are in
# target/nightly-logs.
# Usage: PARTS='fuzz msrv' FUZZ_SECONDS=600 COUNT=10000 scripts/nightly.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/provision.sh

PARTS=${PARTS:-loom miri model planted fuzz soak test-kernels peers deb tarball test-systemd test-fresh requirements advisories msrv}
LOGS=target/nightly-logs

skip() {
    printf 'SKIPPED %s: %s\n' "$1" "$2"
    exit 0
}

advisories() {
    "$CARGO" deny --version >/dev/null 2>&1 || skip advisories 'no cargo-deny (cargo install --locked cargo-deny)'
    "$CARGO" deny fetch db || skip advisories 'the database of advisories cannot be fetched'
    "$CARGO" deny --log-level error check --disable-fetch advisories
}

check_with() {
    local version=$1
    shift
    rustup toolchain install "$version" --profile minimal || skip msrv "rustup cannot fetch Rust $version"
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/msrv rustup run "$version" \
        cargo check --locked --workspace --all-targets "$@"
}

msrv() {
    command -v rustup >/dev/null || skip msrv 'no rustup, which would bring the compilers'
    check_with "$RUST_NEEDED"
}

part() {
    case $1 in
    advisories) advisories ;;
    msrv) msrv ;;
    deb)
        command -v dh >/dev/null || skip deb 'no debhelper (apt-get install debhelper)'
        make --no-print-directory deb && scripts/deb-test.sh
        ;;
    peers)
        rust_is 1.91 || skip peers "they need Rust 1.91, this is $(rust_version)"
        provide_packages libevent-dev libuv1-dev || skip peers 'no headers of libevent and libuv'
        RUSTFLAGS='--cfg tcp_smoltcp' CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/smoltcp \
            "$CARGO" check --locked -p megapipe-tcp --benches &&
            "$CARGO" test --locked -p megapipe-bench --features peers
        ;;
    requirements) scripts/requirements.sh ;;
    tarball) make --no-print-directory tarball && scripts/tarball-test.sh ;;
    miri)
        "$CARGO" +nightly miri --version >/dev/null 2>&1 ||
            skip miri 'no miri (rustup component add --toolchain nightly miri)'
        make --no-print-directory miri
        ;;
    *) make --no-print-directory "$1" ;;
    esac
}

mkdir -p "$LOGS"
rows=()
status=0
for name in $PARTS; do
    printf '\n#### %s\n' "$name"
    start=$SECONDS
    log=$LOGS/$name.log
    if ! (part "$name") 2>&1 | tee "$log"; then
        outcome=FAILED
        status=1
    elif grep -q '^SKIPPED' "$log"; then
        outcome=skipped
    else
        outcome=passed
    fi
    rows+=("$(printf '%-14s %-8s %6d s' "$name" "$outcome" $((SECONDS - start)))")
    while read -r reason; do
        rows+=("    $reason")
    done < <(sed -n 's/^SKIPPED //p' "$log")
done

printf '\n== nightly, commit %s\n' "$(git rev-parse --short HEAD 2>/dev/null || printf unknown)"
printf '%s\n' "${rows[@]}"
exit "$status"
