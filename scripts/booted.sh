# A Debian with systemd that boots in a container, for tests. Sourced; the caller sets SYSTEM, the directory where it lies.
# As root; needs mmdebstrap and systemd-container.
# shellcheck shell=bash
SUITE=bookworm

skip() {
    printf 'SKIPPED %s: %s\n' "$(basename "$0" .sh)" "$1"
    exit 0
}

# Unpacks a fresh one with these packages below $SYSTEM/root. What it is unpacked from stays.
unpack_system() {
    [ "$(id -u)" -eq 0 ] || skip 'only root starts a system in a container'
    local tool
    for tool in mmdebstrap systemd-nspawn; do
        command -v "$tool" >/dev/null || skip "no $tool (apt-get install mmdebstrap systemd-container)"
    done
    mkdir -p "$SYSTEM"
    if [ ! -f "$SYSTEM/$SUITE.tar" ]; then
        mmdebstrap --quiet --format=tar --variant=apt --include="systemd-sysv,dbus,$1" "$SUITE" "$SYSTEM/$SUITE.tar.new" ||
            skip "mmdebstrap cannot make a $SUITE"
        mv "$SYSTEM/$SUITE.tar.new" "$SYSTEM/$SUITE.tar"
    fi
    rm -rf "$SYSTEM/root"
    mkdir "$SYSTEM/root"
    tar -C "$SYSTEM/root" --numeric-owner -xf "$SYSTEM/$SUITE.tar"
    mkdir "$SYSTEM/root/test"
}

# Boots it and runs /test/inside.sh there, which ends with the line `result 0` if all is well.
run_in_system() {
    cat >"$SYSTEM/root/etc/systemd/system/inside.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /test/inside.sh
StandardOutput=file:/test/result
StandardError=file:/test/errors
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
END
    ln -s ../inside.service "$SYSTEM/root/etc/systemd/system/multi-user.target.wants/inside.service"

    # A network of its own: its programs listen on ports.
    timeout 300 systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --directory="$SYSTEM/root" \
        --console=pipe </dev/null >"$SYSTEM/console" 2>&1 || {
        printf 'the system did not end by itself; its console is in %s\n' "$SYSTEM/console"
    }
    cat "$SYSTEM/root/test/result" 2>/dev/null || skip "systemd does not start here; see $SYSTEM/console"
    if ! grep -qx 'result 0' "$SYSTEM/root/test/result"; then
        cat "$SYSTEM/root/test/errors" >&2
        return 1
    fi
}
