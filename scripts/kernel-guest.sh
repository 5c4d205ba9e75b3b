#!/bin/sh
# shellcheck shell=dash
# /init of a guest of test-kernels.sh: mounts the host's files, runs what /suites names (lines of NAME FOLDER COMMAND),
# and ends the machine. Lines that begin with "guest:" are for test-kernels.sh.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
# Of one suite; the longest, the conformance suite, takes two minutes where nothing else runs.
LIMIT=3000

mount_kernel_below() {
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    mount -t devtmpfs devtmpfs "$1/dev"
}

# QEMU ends with status 2 * $1 + 1.
leave() {
    echo "guest: leaves with $1"
    printf %b "\\0$1" | dd of=/dev/port bs=1 seek=$((0x501)) 2>/dev/null
    poweroff -f
}

/bin/busybox mkdir -p /proc /sys /dev /host /written /root
/bin/busybox --install -s /bin
mount_kernel_below ''
stty -onlcr </dev/console
while read -r module; do
    insmod "/modules/$module.ko" || leave 2
done </modules/order

# The host's files cannot be written to; what is written stays in memory.
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 root /host || leave 2
mount -t tmpfs tmpfs /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work overlay /root || leave 2
mount_kernel_below /root
mkdir /root/dev/shm /root/dev/pts
mount -t devpts devpts /root/dev/pts
ln -s /proc/self/fd /root/dev/fd
for directory in dev/shm run tmp; do
    mount -t tmpfs tmpfs "/root/$directory"
done
ip link set lo up
# As systemd has it.
ulimit -Hn 524288
ulimit -Sn 1024
echo "guest: up, Linux $(uname -r)"

failed=0
while read -r name folder command; do
    echo "guest: runs $name"
    start=$(date +%s)
    timeout -s KILL "$LIMIT" chroot /root sh -c "cd '$folder' && exec $command" </dev/null 2>&1
    status=$?
    echo "guest: $name ended with $status after $(($(date +%s) - start)) s"
    [ "$status" -eq 0 ] || failed=1
done </suites
# What only the kernel noticed.
dmesg | grep -E 'BUG|WARNING:|Oops|soft lockup|rcu.*stall' | sed 's/^/guest: the kernel says: /'
leave "$failed"
