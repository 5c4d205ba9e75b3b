#!/usr/bin/env bash
# Makes sure that Debian or Ubuntu packages are there: installs them when root, else says the one command to run.
# Usage: scripts/packages.sh PACKAGE...
set -euo pipefail

missing=()
for package in "$@"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
        missing+=("$package")
    fi
done
if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
fi

printf 'missing packages: %s\n' "${missing[*]}"
if ! command -v apt-get >/dev/null; then
    printf 'this is not Debian or Ubuntu: install their like by hand\n' >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    printf 'run this, then try again:\n\n    sudo apt-get install -y %s\n\n' "${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
printf 'installed: %s\n' "${missing[*]}"
