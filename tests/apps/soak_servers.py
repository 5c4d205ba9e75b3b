"""The programs of the soak: how each is started, asked whether it serves, and killed."""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import time

import databases
import helpers
from soak_clients import FILES

HERE = pathlib.Path(__file__).resolve().parent
PROBE_SECONDS = 0.5


def free_port(rng):
    """Below those that the kernel gives to clients, so that it is still there after a restart."""
    while True:
        port = rng.randrange(15_000, 30_000)
        with socket.socket() as place, contextlib.suppress(OSError):
            place.bind(("127.0.0.1", port))
            return port


class Service:
    """A server, over all its lives. Whoever uses it depends on `on`, too."""

    needs = ()
    on = ()
    # How it may be killed, and how often each way beside the others.
    deaths = {signal.SIGKILL: 3, signal.SIGTERM: 2}
    # Signals to one of its children.
    children_deaths = {}
    reloads = False
    # Seconds for which the end of a child disturbs others.
    unrest = 0.5

    def __init__(self, place, rng):
        self.place = place / self.name
        self.place.mkdir()
        self.port = free_port(rng)

    @classmethod
    def missing(cls):
        absent = [name for name in cls.needs if not helpers.program(name)]
        return f"not installed: {', '.join(absent)}" if absent else None

    def prepare(self, environment):
        """What is done once, before the first start."""

    def command(self, **values):
        return helpers.described(self.name, self.place, self.port, **values)

    def options(self):
        return {}

    def asks(self):
        """What is sent to ask whether it serves, and how the answer begins."""

    def tidy_up(self):
        """Before its memory is measured; returns what it says of it."""
        return ""

    def serves(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), PROBE_SECONDS) as probe:
                question, answer = self.asks()
                probe.sendall(question)
                return probe.recv(100).startswith(answer)
        except OSError:
            return False


class Redis(Service):
    name = "redis"
    needs = ("redis-server",)

    def asks(self):
        return b"PING\r\n", b"+PONG"

    def tidy_up(self):
        """Drops the list of a redis-benchmark that was killed between its pushes and its pops, up to 90 MB each time, and
        has the allocator give back what it keeps for later; returns what Redis says that it uses."""
        with socket.create_connection(("127.0.0.1", self.port), PROBE_SECONDS) as asks:
            asks.sendall(b"DEL mylist\r\nMEMORY PURGE\r\nINFO memory\r\nQUIT\r\n")
            told = asks.makefile("rb").read().decode(errors="replace")
        return " ".join(line for line in told.splitlines() if line.startswith(("used_memory:", "used_memory_peak:")))


class Nginx(Service):
    name = "nginx"
    needs = ("nginx",)
    deaths = {signal.SIGTERM: 2, signal.SIGQUIT: 1}
    children_deaths = {signal.SIGKILL: 3, signal.SIGTERM: 1}
    reloads = True
    # A reload lets connections that are in use live on until they are idle.
    unrest = 3

    def prepare(self, environment):
        contents = environment.contents
        (self.place / "www/put").mkdir(parents=True)
        for name, size in FILES.items():
            (self.place / "www" / name).write_bytes(contents.of(name, 0, size))

    def command(self):
        return super().command(http="sendfile on; keepalive_timeout 600s;", server=(
            "root @folder@/www; location /put/ { dav_methods PUT; sendfile off; }"))

    def asks(self):
        return b"GET /f1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200"


class Haproxy(Service):
    name = "haproxy"
    needs = ("haproxy", "nginx")
    on = ("nginx",)

    def prepare(self, environment):
        self.behind = environment.services["nginx"].port

    def command(self):
        # Several threads move sockets between their epoll sets.
        return super().command(
            threads=2, main="log stdout format raw daemon",
            defaults="log global\n    option httplog\n    option dontlog-normal",
            answer=f"server behind 127.0.0.1:{self.behind} pool-purge-delay 1s")

    def asks(self):
        return b"GET /f1 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200"


class Postgres(Service):
    name = "postgres"
    needs = ("postgres", "initdb", "psql")
    deaths = {signal.SIGKILL: 1, signal.SIGINT: 2, signal.SIGQUIT: 1}
    children_deaths = {signal.SIGKILL: 1, signal.SIGTERM: 5}
    # The others are told to end, and the database recovers.
    unrest = 5

    @classmethod
    def missing(cls):
        if not (why := super().missing()) and os.geteuid() == 0 and not databases.database_user():
            return "PostgreSQL does not run as root, and there is no user postgres"
        return why

    def options(self):
        user = databases.database_user() if os.geteuid() == 0 else None
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()} if user else {}

    def prepare(self, environment):
        if user := self.options().get("user"):
            os.chown(self.place, user, -1)
        with open(environment.place / "initdb.out", "wb") as out:
            for command, said in (
                    (super().command(part="prepare"), b""),
                    (("postgres", "--single", "-F", "-D", self.place / "data", "postgres"),
                     b"CREATE TABLE soak (name text PRIMARY KEY, body text)\n")):
                subprocess.run([helpers.program(command[0]), *command[1:]], input=said, check=True, cwd=self.place,
                               stdout=out, stderr=subprocess.STDOUT, **self.options())

    def command(self):
        return (*super().command(), "-c", "max_connections=100", "-c", "restart_after_crash=on",
                "-c", "shared_buffers=64MB")

    def asks(self):
        words = b"user\0postgres\0database\0postgres\0\0"
        return struct.pack(">ii", 8 + len(words), 196608) + words, b"R"


SERVICES = (Redis, Nginx, Haproxy, Postgres)

# What servers say of bytes that no client sent, or of a child that died of itself.
COMPLAINTS = {
    "redis": ("Protocol error", "REDIS BUG REPORT"),
    "nginx": ("client sent invalid", "client sent plain", "exited on signal 11", "exited on signal 6"),
    "haproxy": ("panic", "BUG"),
    "postgres": ("invalid frontend message", "invalid length of", "invalid message", "unsupported frontend protocol",
                 "signal 11", "signal 6"),
}


class Noise:
    """Load of the programs' own, whose answers nobody checks."""

    def __init__(self, services, rng):
        port = {name: service.port for name, service in services.items()}
        self.commands = []
        if "redis" in port and helpers.program("redis-benchmark"):
            self.commands += [
                ("redis-benchmark", "-p", port["redis"], "-q", "-r", 100, "-n", 30_000, "-c", clients, "-P", pipeline,
                 "-d", size, "-t", "set,get,lpush,lpop,mset")
                for clients in (1, 20, 100) for pipeline in (1, 16) for size in (3, 3000)]
        for name in ("nginx", "haproxy"):
            if name in port and helpers.program("wrk"):
                self.commands += [
                    ("wrk", "-t", 1, "-c", clients, "-d", 3, *more, f"http://127.0.0.1:{port[name]}/{file}")
                    for clients in (1, 30) for file in ("f2", "f6") for more in ((), ("-H", "Connection: close"))]
        if "postgres" in port and helpers.program("psql"):
            self.commands += [
                ("psql", "-h", "127.0.0.1", "-p", port["postgres"], "-U", "postgres", "-At", "-o", "/dev/null", "-c",
                 "SELECT md5(i::text) FROM generate_series(1, 100000) i")] * 4
        self.rng = rng

    def command(self):
        return self.rng.choice(self.commands) if self.commands else None


def children(pid):
    """Processes that a server keeps to serve."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def serving(service, pid):
    """Those of them that talk with clients."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            title = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            # PostgreSQL's others are its own: "postgres: checkpointer", but "postgres: postgres postgres 127.0.0.1(1)".
            if service != "postgres" or b"127.0.0.1(" in title:
                found.append(child)
    return found
