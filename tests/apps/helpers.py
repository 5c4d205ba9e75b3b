"""What scenarios have in common: where programs are, servers for a while, bytes and their checksums."""

import contextlib
import hashlib
import os
import pathlib
import random
import shutil
import socket
import subprocess
import time
import tomllib

# Distributions keep some programs out of PATH.
PLACES = ("/usr/sbin", "/usr/lib/git-core", *sorted(map(str, pathlib.Path("/usr/lib/postgresql").glob("*/bin"))))
PROGRAMS = tomllib.loads((pathlib.Path(__file__).parents[1] / "programs.toml").read_text())
STEP_LIMIT = 60


def program(name):
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(PLACES))


def free_port():
    """A port below those that the kernel gives out: until the server listens, no other socket gets it by chance."""
    given_out = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as place, contextlib.suppress(OSError):
            place.bind(("127.0.0.1", random.randrange(10_000, given_out)))
            return place.getsockname()[1]


def run(*command, **options):
    options = {"check": True, "capture_output": True, "timeout": STEP_LIMIT, **options}
    return subprocess.run([program(command[0]) or command[0], *map(str, command[1:])], **options)


def described(name, place, port, part="command", **values):
    """The command of a server of tests/programs.toml. Its files are written into the place."""
    about = PROGRAMS[name]
    values = {"folder": place, "port": port, "user": "root" if os.geteuid() == 0 else "nobody",
              **about.get("values", {}), **values}

    def fill(text):
        return "".join(fill(str(values[part])) if number % 2 else part for number, part in enumerate(text.split("@")))
    for file, text in about.get("files", {}).items():
        (place / file).write_text(fill(text))
    return [fill(word) for word in about[part] + (about.get("tcp", []) if part == "command" else [])]


@contextlib.contextmanager
def server(*command, port, **options):
    """A server while the block runs; ended by SIGTERM, or SIGKILL if it does not end."""
    process = subprocess.Popen([program(command[0]) or command[0], *map(str, command[1:])],
                               **{"stdin": subprocess.DEVNULL, **options})
    try:
        listens(port, process)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def listens(port, process):
    """Waits until somebody listens, without a connection: some servers serve only one."""
    wanted = f":{port:04X} "
    deadline = time.monotonic() + STEP_LIMIT
    while time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            lines = pathlib.Path(table).read_text().splitlines()[1:]
            if any(wanted in line.split()[1] + " " and line.split()[3] == "0A" for line in lines):
                return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")


def some_bytes(count, seed=1):
    return random.Random(seed).randbytes(count)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def same(got, wanted):
    if digest(got) != digest(wanted):
        raise AssertionError(f"{len(got)} bytes of {digest(got)[:12]}, not {len(wanted)} of {digest(wanted)[:12]}")
