#!/usr/bin/env bash
# The tests of sys, megapipe and mmsg, and `megapipe doctor`, on older kernels: those of Debian 12, each in QEMU, which
# emulates the CPU and so needs neither KVM nor root. The programs are built here; the guest sees this machine's files,
# read-only, and runs scripts/kernel-guest.sh. Kernels are kept in target/kernels; the last lines say what failed.
# Usage: scripts/test-kernels.sh [VERSION...] (6.1 6.12); SUITES=regex chooses from their names, which it prints
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/provision.sh

TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
KERNELS=$TARGET/kernels
LOGS=target/test-logs
VERSIONS=("$@")
[ $# -gt 0 ] || VERSIONS=(6.1 6.12)
# In the order in which they need each other. Those that a kernel has built in are left out.
MODULES=(virtio_ring virtio virtio_mmio netfs fscache 9pnet 9pnet_virtio 9p overlay
    tun veth inet_diag tcp_diag udp_diag unix_diag)
BOOT_SECONDS=90 # on an idle machine it takes 5
GUEST_SECONDS=5400
mkdir -p "$KERNELS" "$LOGS"

# Unpacks the newest kernel of a version, once; says where it is, or why there is none.
fetch() {
    local version=$1 package kernel
    package=$(apt-cache pkgnames "linux-image-$version." 2>/dev/null |
        grep -E '^linux-image-[^-]+(-[0-9]+)?-amd64$' | sort -V | tail -n 1)
    if [ -z "$package" ]; then
        printf 'apt-cache knows no linux-image-%s.*-amd64; Debian 12 has one\n' "$version"
        return 1
    fi
    kernel=$KERNELS/${package#linux-image-}
    if [ ! -e "$kernel/vmlinux" ]; then
        unpack_kernel "$package" "$kernel" >"$KERNELS/unpack.log" 2>&1 || {
            tr '\n' ' ' <"$KERNELS/unpack.log"
            return 1
        }
    fi
    printf '%s\n' "$kernel"
}

unpack_kernel() {
    local package=$1 kernel=$2 module file
    rm -rf "$kernel"
    mkdir -p "$kernel/modules"
    (cd "$kernel" && apt-get download -qq "$package") || return
    dpkg-deb -x "$kernel"/*.deb "$kernel/package" || return
    for module in "${MODULES[@]}"; do
        file=$(find "$kernel/package" -name "$module.ko" -o -name "$module.ko.xz")
        case $file in
        '') continue ;;
        *.xz) xz -dc "$file" >"$kernel/modules/$module.ko" || return ;;
        *) cp "$file" "$kernel/modules/" || return ;;
        esac
        printf '%s\n' "$module" >>"$kernel/modules/order"
    done
    decompress "$kernel"/package/boot/vmlinuz-* >"$kernel/part" || return
    rm -rf "$kernel/package" "$kernel"/*.deb
    mv "$kernel/part" "$kernel/vmlinux"
}

# The kernel in a bzImage, which without KVM takes longer to unpack itself than to boot. Its header says where it is
# (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length); four bytes behind it are its size.
decompress() {
    local sectors offset length
    sectors=$(number "$1" 0x1f1 1)
    offset=$(number "$1" 0x248 4)
    length=$(number "$1" 0x24c 4)
    tail -c "+$(((sectors + 1) * 512 + offset + 1))" "$1" | head -c "$((length - 4))" >"$KERNELS/payload"
    case $(od -A n -t x1 -N 4 "$KERNELS/payload") in
    *'fd 37 7a 58') xz -dc "$KERNELS/payload" ;;
    *'28 b5 2f fd') zstd -dcq "$KERNELS/payload" ;;
    *) printf 'neither xz nor zstd compressed %s\n' "$1" >&2 && return 1 ;;
    esac
}

# A little-endian number of a file, by its offset and size.
number() { od -A n -t "u$3" -j "$(($2))" -N "$3" "$1" | tr -d ' '; }

# Builds the programs and prints what runs in the guest, a line of name, folder and command for each. The guest gets links
# of its own, which later builds leave alone.
list_suites() {
    local package name path programs=$KERNELS/programs
    rm -rf "$programs"
    mkdir -p "$programs"
    "$CARGO" build --locked --quiet -p megapipe-cli || return
    ln "$TARGET/debug/megapipe" "$programs/megapipe" || return
    printf 'doctor %s %s doctor\n' "$PWD" "$programs/megapipe"
    for package in megapipe-sys megapipe megapipe-mmsg; do
        "$CARGO" test --locked --no-run -p "$package" 2>"$KERNELS/build.log" || {
            tail -n 40 "$KERNELS/build.log" >&2
            return 1
        }
        # "Executable unittests src/lib.rs (PATH)", "Executable tests/model/main.rs (PATH)"
        sed -nE 's|^ *Executable ||; s|^unittests src/lib|tests/lib|; s|/main\.rs|.rs|
            s|^tests/(.*)\.rs \((.*)\)$|\1 \2|p' "$KERNELS/build.log" |
            while read -r name path; do
                ln "$path" "$programs/${package#megapipe-}-$name" || return
                printf '%s-%s %s %s --show-output --color=never\n' \
                    "${package#megapipe-}" "$name" "$PWD/crates/${package#megapipe-}" "$programs/${package#megapipe-}-$name"
            done
    done
}

make_initrd() {
    local kernel=$1 root=$KERNELS/initrd
    rm -rf "$root"
    mkdir -p "$root/bin"
    cp "$(command -v busybox)" "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    cp -r "$kernel/modules" "$root/modules"
    cp "$KERNELS/suites" "$root/suites"
    install -m 755 scripts/kernel-guest.sh "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc) >"$KERNELS/initrd.cpio" 2>"$KERNELS/cpio.log"
}

# Runs a guest to its end, or until it is clear that it does not boot. Without tsc_early_khz the kernel measures the
# CPU's clock against emulated timers, and one boot in two hangs there.
run_guest() {
    local kernel=$1 log=$2 guest start=$SECONDS
    timeout -k 10 "$GUEST_SECONDS" qemu-system-x86_64 -M microvm -accel tcg,thread=multi -cpu max -smp 2 -m 3G \
        -nodefaults -no-reboot -display none -serial stdio -device isa-debug-exit,iobase=0x501,iosize=1 \
        -kernel "$kernel/vmlinux" -initrd "$KERNELS/initrd.cpio" \
        -append 'console=ttyS0 quiet panic=-1 tsc_early_khz=2000000' \
        -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-device,fsdev=root,mount_tag=root </dev/null >"$log" 2>&1 &
    guest=$!
    until grep -q '^guest: up' "$log" || ! kill -0 "$guest" 2>/dev/null; do
        if [ $((SECONDS - start)) -gt "$BOOT_SECONDS" ]; then
            kill "$guest"
        fi
        sleep 0.5
    done
    wait "$guest"
}

test_kernel() {
    local version=$1 log=$LOGS/linux-$1.log kernel status
    if ! kernel=$(fetch "$version"); then
        printf 'SKIPPED linux-%s: %s\n' "$version" "$kernel"
        return
    fi
    printf '\n== %s\n' "$(basename "$kernel")"
    make_initrd "$kernel" || return
    run_guest "$kernel" "$log"
    status=$?
    if ! grep -q '^guest: up' "$log"; then
        printf 'it did not boot (status %s: %s); once more\n' "$status" "$(tail -n 1 "$log")"
        run_guest "$kernel" "$log"
        status=$?
    fi
    sed -n 's/^guest: //p' "$log"
    # What the guest calls 0 is 1 here (isa-debug-exit), and a kernel that dies ends QEMU with 0.
    if [ "$status" -ne 1 ]; then
        printf '== linux-%s failed (status %s); from %s:\n' "$version" "$status" "$log"
        sed -n '/^failures:$/,/^test result:/p' "$log" | head -n 400
        return 1
    fi
}

if [ "$(uname -m)" != x86_64 ]; then
    printf 'SKIPPED test-kernels: the kernels are for x86_64, this is %s\n' "$(uname -m)"
    exit 0
fi
if ! absent=$(provide_packages qemu-system-x86 busybox-static xz-utils zstd 2>&1); then
    printf 'SKIPPED test-kernels: %s\n' "$(tr -s '\n ' '  ' <<<"$absent")"
    exit 0
fi
printf '== building what the guests run\n'
list_suites >"$KERNELS/all-suites" || exit
grep -E "^[^ ]*(${SUITES:-})[^ ]* " "$KERNELS/all-suites" >"$KERNELS/suites" || exit

failed=()
for version in "${VERSIONS[@]}"; do
    rm -f "$LOGS/linux-$version.log"
    test_kernel "$version" || failed+=("$version")
done

printf '\n== result\n'
for version in "${VERSIONS[@]}"; do
    [ ! -e "$LOGS/linux-$version.log" ] || scripts/count-tests.sh "$LOGS/linux-$version.log"
done
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
