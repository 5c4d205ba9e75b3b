#!/usr/bin/env python3
"""Stacks of mTCP's calls in threads of their own beside those inside the program's calls, and beside the kernel's
TCP over veth. Prints a CSV. Usage, in a clone with a release build of megapipe-mtcp:
unshare -Ur crates/mtcp/benches/threads.py [--rounds 5] [--rows wait,echo,clients,clients-500,fair] > FILE
With --show FILE, the medians of one: of the rounds, and of the ratios to the row's first side in each round."""
import argparse
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
STACK, KERNEL = "10.79.0.2", "10.79.1.2"
NAMES = {"wait": ("connect_ms", "acknowledged_ms"),
         "echo": ("per_second", "server_ns", "client_ns", "p50_us", "p99_us"),
         "fair": ("seconds", "jain", "jain_until_first_end", "server_ns_per_kB")}
# What is measured, and by which servers. `other` has its stack on the client's CPU. A fourth word is the
# packets that the queue of the TUN device holds, in place of our 4,096.
ROWS = {"wait": ("wait", ["wait"], ["none", "own", "other"]),
        "echo": ("echo", ["echo", "{connections}", "1"], ["none", "own", "other"]),
        "clients": ("echo", ["echo", "1000", "2"], ["kernel", "none", "own", "other"]),
        "clients-500": ("echo", ["echo", "1000", "2", "500"], ["kernel", "none", "own", "other"]),
        "fair": ("fair", ["fair", "100"], ["kernel", "none", "own", "other"])}


def build(place):
    flags = ["cc", "-O2", "-Wall", "-pthread"]
    subprocess.run([*flags, "-o", place / "load", HERE / "load.c"], check=True)
    subprocess.run([*flags, "-DKERNEL", "-o", place / "kernel", HERE / "server.c"], check=True)
    subprocess.run([*flags, "-I", HERE.parent / "include", "-o", place / "mtcp", HERE / "server.c",
                    ROOT / "target/release/libmegapipe_mtcp.a", "-ldl", "-lm"], check=True)


def start(place, side):
    environment = {**os.environ, "MEGAPIPE_STACK": f"tun:bench%d,{STACK}/24", "MEGAPIPE_STACK_THREAD": side}
    if side != "kernel":
        return subprocess.Popen([place / "mtcp", "0"], env=environment, stdout=subprocess.PIPE)
    inside = f"read line; ip link set lo up; ip link set veth1 up; ip addr add {KERNEL}/24 dev veth1; exec {place}/kernel 0"
    server = subprocess.Popen(["unshare", "-n", "sh", "-c", inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    while os.readlink(f"/proc/{server.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        pass
    for words in ("link add veth0 type veth peer name veth1", f"link set veth1 netns {server.pid}",
                  "link set veth0 up", f"addr add {KERNEL.replace('.2', '.1')}/24 dev veth0"):
        subprocess.run(["ip", *words.split()], check=True)
    server.stdin.write(b"\n")
    server.stdin.flush()
    return server


def measure(place, side, words):  # in a network namespace of its own
    server = start(place, side)
    try:
        assert server.stdout.readline() == b"ready\n"
        if words[3:] and side != "kernel":
            subprocess.run(["ip", "link", "set", "bench0", "txqueuelen", words[3]], check=True)
        address = KERNEL if side == "kernel" else STACK
        subprocess.run([place / "load", address, str(server.pid), "1", *words], check=True, timeout=30)
    finally:
        server.kill()
        server.wait()


def show(file):
    table = {}
    for line in csv.DictReader(file.open()):
        sides = table.setdefault((line["row"], line["connections"], line["name"]), {})
        sides.setdefault(line["side"], []).append(float(line["value"]))
    for key, sides in table.items():
        first = next(iter(sides.values()))
        for side, values in sides.items():
            ratio = statistics.median(value / base for value, base in zip(values, first))
            spread = f"{statistics.median(values):.5g} ({min(values):.5g} to {max(values):.5g})"
            print(f"{' '.join(key):40} {side:7} {spread:40} {ratio:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--connections", default="1,16,64,256")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--show", type=pathlib.Path)
    options = parser.parse_args()
    if options.show:
        return show(options.show)
    if options.inside:
        place, side, *words = options.inside
        return measure(pathlib.Path(place), side, words)
    print("row,connections,side,round,name,value")
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        build(place)
        for row in options.rows.split(","):
            what, words, sides = ROWS[row]
            fixed = {"echo": None, "fair": "100", "wait": "1"}.get(row, "1000")
            for connections in [fixed] if fixed else options.connections.split(","):
                for turn in range(options.rounds):
                    for side in sides:
                        words_now = [word.format(connections=connections) for word in words]
                        inside = ["unshare", "-n", sys.executable, __file__, "--inside", name, side, *words_now]
                        output = subprocess.run(inside, check=True, stdout=subprocess.PIPE, text=True).stdout
                        for key, value in zip(NAMES[what], output.split()):
                            print(row, connections, side, turn, key, value, sep=",", flush=True)


main()
