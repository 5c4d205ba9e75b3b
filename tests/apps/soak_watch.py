"""What the soak looks at from outside: what processes hold, what the monitor counts, and what there is to see of
a hang."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import time

MIB = 1 << 20
DUMP_SECONDS = 120
# What a process may hold more than at its first quiet moment.
MORE_DESCRIPTORS = 8
MORE_MEMORY = {"monitor": 16 * MIB, "redis": 128 * MIB, "client": 64 * MIB}
MORE_MEMORY_ELSEWHERE = 48 * MIB
SHARED = re.compile(r"/memfd:megapipe-(segment|loop)")


class Holdings:
    """What one process has: descriptors, segments of connections, pages of loops, memory of its own."""

    def __init__(self, pid):
        place = pathlib.Path("/proc", str(pid))
        self.descriptors = len(os.listdir(place / "fd"))
        mapped = SHARED.findall((place / "maps").read_text())
        self.segments = mapped.count("segment")
        self.pages = mapped.count("loop")
        status = (place / "status").read_text()
        self.memory = int(re.search(r"^RssAnon:\s+(\d+) kB", status, re.M)[1]) << 10

    def __str__(self):
        return (f"{self.descriptors} descriptors, {self.segments} segments, {self.pages} pages, "
                f"{self.memory / MIB:.1f} MiB")


def holdings(pid):
    try:
        return Holdings(pid)
    except (OSError, TypeError):
        return None  # ended meanwhile


def leaks(kind, first, now):
    """What a process holds in a quiet moment that it did not in its first one."""
    if now.descriptors > first.descriptors + MORE_DESCRIPTORS:
        yield f"{now.descriptors} descriptors, {first.descriptors} at first"
    if now.memory > first.memory + MORE_MEMORY.get(kind, MORE_MEMORY_ELSEWHERE):
        yield f"{now.memory / MIB:.0f} MiB, {first.memory / MIB:.0f} at first"


def totals(program, socket):
    """What the monitor counts; None if it does not answer."""
    try:
        told = subprocess.run([program, "top", "--once", "--json", "--interval", "0", "--socket", socket],
                              capture_output=True, timeout=10, check=True).stdout
        return json.loads(told)["monitors"][0]
    except (subprocess.SubprocessError, ValueError, LookupError):
        return None


def dump(place, program, socket, pids):
    """Leaves what there is to see of processes that no longer go on."""
    place.mkdir(exist_ok=True)
    commands = {"top.json": [program, "top", "--once", "--json", "--interval", "0.5", "--socket", socket]}
    if shutil.which("ss"):
        commands["ss"] = ["ss", "-tanpoie"]
    if shutil.which("gdb"):
        commands |= {f"{name}.gdb": ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"]
                     for name, pid in pids.items()}
    for name, pid in pids.items():
        with open(place / f"{name}.proc", "w", encoding="utf-8") as file:
            for what in ("status", "stack", "wchan", "syscall", "maps"):
                try:
                    for task in os.listdir(f"/proc/{pid}/task"):
                        text = pathlib.Path(f"/proc/{pid}/task/{task}/{what}").read_text(errors="replace")
                        file.write(f"== {what} of {task}\n{text}\n")
                        if what == "maps":
                            break
                except OSError as error:
                    file.write(f"== {what}: {error}\n")
            file.write(segments(pid))
            try:
                for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
                    what = os.readlink(f"/proc/{pid}/fd/{fd}")
                    file.write(f"{fd} -> {what}\n")
                    if "eventpoll" in what:
                        file.write(pathlib.Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="utf-8"))
            except OSError as error:
                file.write(f"== fd: {error}\n")
    deadline = time.monotonic() + DUMP_SECONDS
    for name, command in commands.items():
        with open(place / name, "wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
            left = max(0.1, deadline - time.monotonic())
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=left)


# Words of a segment (docs/promotion.md, section 2).
WORDS = {"aware": (12, "I"), "armed": (64, "I"), "ended": (68, "I"), "sleeper": (72, "I"), "left": (76, "I"),
         "at_kernel": (96, "I"), "owes": (100, "I"), "sending": (104, "I"), "parts_published": (128, "I"),
         "parts_taken": (132, "I"), "bells": (136, "I"), "sent_data": (384, "Q"),
         "sent_tcp": (392, "Q"), "rung": (400, "Q"), "taken_data": (408, "Q"), "taken_tcp": (416, "Q"),
         "taken_ring": (424, "Q"), "arming": (432, "I"), "tail": (1024, "Q"), "base": (1032, "Q"), "head": (1040, "Q")}


def segments(pid):
    """The words of each segment that a process maps; equal numbers are the same file."""
    lines = []
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                if "megapipe-" in line and "memfd" in line:
                    place, rights, _, _, number, name = line.split()[:6]
                    memory.seek(int(place.split("-")[0], 16))
                    head = memory.read(4096)
                    if "loop" in name:
                        words = [f"asleep {index}: {struct.unpack_from('<I', head, at)[0]}" for index, at in
                                 enumerate((64, *range(256, 256 + 64 * 6, 64)))]
                    else:
                        words = [f"{word} {struct.unpack_from('<' + kind, head, at)[0]}"
                                 for word, (at, kind) in WORDS.items()]
                    lines.append(f"{number} {rights} {name}: {', '.join(words)}\n")
    except OSError as error:
        lines.append(f"== segments: {error}\n")
    return "".join(lines)


class Disturbances:
    """When services were not there for everybody, by our own doing."""

    def __init__(self, services):
        self.services = services
        self.past = {name: [] for name in services}
        self.open = {}

    def begin(self, name, least):
        """From now on, until it serves again, and for `least` seconds."""
        begun, until = self.open.get(name, (time.monotonic(), 0))
        self.open[name] = (begun, max(until, time.monotonic() + least))

    def serves(self, name):
        """It does; whether the disturbance is over by that."""
        begun, until = self.open[name]
        if time.monotonic() < until:
            return
        del self.open[name]
        # Clients come to know of it a moment later.
        self.past[name].append((begun, time.monotonic() + GRACE))

    def explain(self, name, since, at):
        """Whether a connection to a service may have broken in that time."""
        names = (name, *self.services[name].on)
        return any(
            (name in self.open and self.open[name][0] <= at)
            or any(begun <= at and since <= ended for begun, ended in self.past[name])
            for name in names)


GRACE = 2
