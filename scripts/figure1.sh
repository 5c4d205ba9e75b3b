#!/usr/bin/env bash
# Figure 1 of the MegaPipe paper (OSDI 2012) on this machine: (a) requests a connection, (b) size of a message, (c) cores
# of the server, each as records, table, picture and CSV. The paper has 8 cores and clients on other machines; here the
# client has the upper half of the CPUs, and with fewer than four shares the last one with (c)'s second core.
# Usage: scripts/figure1.sh [folder]; ROUNDS, SECONDS_EACH and ENGINES (see `megapipe-bench rpc --help`) may be set
set -euo pipefail
cd "$(dirname "$0")/.."

BENCH=${CARGO_TARGET_DIR:-target}/release/megapipe-bench
OUT=${1:-${CARGO_TARGET_DIR:-target}/figure1}
CORES=$(nproc)
HALF=$((CORES < 4 ? 1 : CORES / 2))
MOST=$((CORES < 4 ? CORES : HALF)) # cores of the server in (c)

if [ ! -x "$BENCH" ]; then
    printf 'no %s: run cargo build --release -p megapipe-bench first\n' "$BENCH" >&2
    exit 1
fi
mkdir -p "$OUT"

csv='
import json, sys
FIELDS = ("engine transactions size connections server_cpus round transactions_per_s server_cpu_ns_per_transaction"
          " server_utilization client_utilization server_waited p50_us p99_us syscalls_per_transaction").split()
print(",".join(FIELDS))
for record in map(json.loads, sys.stdin):
    if record["record"] == "measurement":
        print(",".join(str(len(record[f]) if f == "server_cpus" else record[f]) for f in FIELDS))
'

figure() {
    local name=$1 file=$OUT/$1
    shift
    printf '\n== %s\n' "$name"
    "$BENCH" rpc --rounds "${ROUNDS:-5}" --seconds "${SECONDS_EACH:-2}" --client-cpus "$HALF-$((CORES - 1))" \
        ${ENGINES:+--engines "$ENGINES"} "$@" --json "$file.jsonl" | tee "$file.txt"
    "$BENCH" show "$file.jsonl" --plot "$file.svg" >/dev/null
    python3 -c "$csv" <"$file.jsonl" >"$file.csv"
}

cores=()
for ((count = 1; count <= MOST; count++)); do
    cores+=(--server-cpus "0-$((count - 1))")
done

figure a-transactions --server-cpus "0-$((HALF - 1))" --transactions 1,2,4,8,16,32,64,128
figure b-sizes --server-cpus "0-$((HALF - 1))" --transactions 10 --sizes 64,128,256,512,1024,2048,4096,8192,16384,32768
figure c-cores --transactions 10 "${cores[@]}"
