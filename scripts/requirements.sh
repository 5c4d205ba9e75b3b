#!/usr/bin/env bash
# Whether each MUST and SHOULD of RFC 9293 is cited in the code and in a test of crates/tcp, or is an exception with its
# reason (crates/tcp/.duvet/exceptions). Prints totals; target/requirements.html is duvet's page of it.
# The text of the RFC is $MEGAPIPE_RFCS/rfc9293.txt, else fetched from rfc-editor.org once.
# Usage: [MEGAPIPE_RFCS=FOLDER] scripts/requirements.sh
set -euo pipefail
cd "$(dirname "$0")/../crates/tcp"

OUT=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
RFC=www.rfc-editor.org/rfc/rfc9293
TEXT=.duvet/specifications/$RFC.txt

skip() {
    printf 'SKIPPED requirements: %s\n' "$1"
    exit 0
}

# Runs duvet, and leaves what it says in a log.
quietly() { duvet "$@" >"$OUT/requirements.log" 2>&1; }

# Copies a file of requirements without every MAY.
without_may() {
    awk '/^\[\[spec\]\]$/ { getline level; may = level ~ /"MAY"/; if (!may) print $0 "\n" level; next } !may' "$1"
}

count() { find "$1" -name '*.toml' -exec cat {} + | grep -c '^quote = '; }

command -v duvet >/dev/null || skip 'no duvet (cargo install --locked --debug duvet@0.4.3)'
if [ -n "${MEGAPIPE_RFCS:-}" ]; then
    install -D -m 644 "$MEGAPIPE_RFCS/rfc9293.txt" "$TEXT"
fi

mkdir -p "$OUT"
rm -rf .duvet/requirements "$OUT/requirements"
if ! quietly extract "https://$RFC" --out "$OUT/requirements"; then
    [ -s "$TEXT" ] || skip 'RFC 9293 cannot be fetched; MEGAPIPE_RFCS can name a folder that has it'
    cat "$OUT/requirements.log"
    exit 1
fi
# The RFC has a bar beside two paragraphs, which are quoted without it.
sed -i 's/^   |  \?/   /' "$TEXT"
quietly extract "https://$RFC" --out "$OUT/requirements"
mkdir .duvet/requirements
find "$OUT/requirements" -name 'section-*.toml' | while read -r file; do
    # Section 2.1 says what the labels are; appendix B repeats everything in a table.
    [ "${file##*/}" = section-2.1.toml ] || without_may "$file" >".duvet/requirements/${file##*/}"
done
rm -rf "$OUT/requirements"
if ! quietly report --require-citations true --require-tests true --ci true --html "$OUT/requirements.html"; then
    tail -n 3 "$OUT/requirements.log"
    printf 'see %s\n' "$OUT/requirements.html"
    exit 1
fi
printf 'RFC 9293: %d requirements, of which %d are exceptions; the others are cited in code and in a test\n' \
    "$(count .duvet/requirements)" "$(count .duvet/exceptions)"
