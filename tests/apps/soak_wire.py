"""What the clients of the soak have in common: bytes that can be derived, progress that others can read while
the client lives or hangs, and a connection that reads and writes in one of the ways that programs do."""

import contextlib
import mmap
import os
import random
import select
import socket
import struct
import time
import zlib

RUN, PAUSE, END = range(3)
STYLES = ("blocking", "timeout", "waitall", "scatter", "poll", "select", "epoll", "edge")

LANE = struct.Struct("<7Q72s")
LANES = 8
# Places in a lane's record.
SINCE, OPERATIONS, BYTES, CONNECTIONS, BREAKS, PAUSED, LIVES = range(7)


class Broken(Exception):
    """The connection ended before the answer was whole. Whether that is right depends on who was killed."""


class Wrong(Exception):
    """An answer that nobody may give, killed or not."""


class Pause(Exception):
    """The soak wants quiet."""


class Contents:
    """Bytes that follow from a seed, a name and a version."""

    POOL = 8 << 20

    def __init__(self, seed):
        self.pool = random.Random(seed).randbytes(self.POOL)

    def of(self, name, version, size):
        begin = zlib.crc32(f"{name}/{version}".encode()) % (self.POOL - size)
        return self.pool[begin:begin + size]

    def check(self, what, got, wanted):
        if got != wanted:
            length = min(len(got), len(wanted))
            place = next((at for at in range(length) if got[at] != wanted[at]), length)
            piece = bytes(got[place:place + 32])
            where = self.pool.find(piece) if len(piece) >= 16 else -1
            raise Wrong(f"{what}: {len(got)} bytes, not {len(wanted)}; the first difference is at {place}: "
                        f"{piece.hex()} for {bytes(wanted[place:place + 32]).hex()}; "
                        f"such bytes are in the pool at {where}, these at {self.pool.find(bytes(wanted[:64]))}")


class Control:
    """One word that the soak writes and all clients read."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 4096)

    @property
    def state(self):
        return struct.unpack_from("<Q", self.memory)[0]

    @state.setter
    def state(self, state):
        struct.pack_into("<Q", self.memory, 0, state)


class Progress:
    """The records of a client's lanes, in a file that outlives it."""

    def __init__(self, path):
        with open(path, "a+b") as file:
            file.truncate(LANE.size * LANES)
            self.memory = mmap.mmap(file.fileno(), LANE.size * LANES)

    def lane(self, number):
        record = LANE.unpack_from(self.memory, number * LANE.size)
        return record[:-1], record[-1].rstrip(b"\0").decode()

    def forget_operations(self):
        """After a kill nothing is under way."""
        for number in range(LANES):
            struct.pack_into("<Q", self.memory, number * LANE.size, 0)


class Lane:
    """One thread of a client: what it does now, and what it has done."""

    def __init__(self, progress, number, control):
        self.memory = progress.memory
        self.at = number * LANE.size
        self.number = number
        self.control = control
        # When all was well last: what breaks a connection has to lie behind that.
        self.good = time.monotonic()
        self.label = ""
        self.put(SINCE, 0)
        self.put(PAUSED, 0)
        self.add(LIVES)

    def get(self, place):
        return struct.unpack_from("<Q", self.memory, self.at + 8 * place)[0]

    def put(self, place, value):
        struct.pack_into("<Q", self.memory, self.at + 8 * place, value)

    def add(self, place, more=1):
        self.put(place, self.get(place) + more)

    @contextlib.contextmanager
    def operation(self, name, wire=None):
        """What makes no progress in here hangs, which the soak finds by the time at which it last did."""
        self.label = f"{name} {wire.style} {wire.local}" if wire else name
        struct.pack_into("72s", self.memory, self.at + 8 * 7, self.label.encode())
        self.put(SINCE, time.monotonic_ns())
        try:
            yield
            self.add(OPERATIONS)
            self.good = time.monotonic()
        finally:
            self.put(SINCE, 0)

    def look_round(self):
        if self.control.state != RUN:
            raise Pause


class Wire:
    """A connected socket, read and written in one style."""

    def __init__(self, port, style, lane, rng, buffers=None):
        self.style = style
        self.lane = lane
        self.rng = rng
        self.buffer = bytearray()
        self.local = ""
        self.waiter = None
        self.socket = socket.socket()
        try:
            if buffers:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
            if rng.random() < 0.5:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.connect(("127.0.0.1", port))
            self.local = "%s:%d" % self.socket.getsockname()
        except OSError as error:
            self.socket.close()
            raise Broken(f"connect: {error}") from error
        self.begin()
        lane.add(CONNECTIONS)

    def begin(self):
        if self.style == "timeout":
            self.socket.settimeout(600)
        elif self.style in ("poll", "select", "epoll", "edge"):
            self.socket.setblocking(False)
        if self.style == "poll":
            self.waiter = select.poll()
        elif self.style in ("epoll", "edge"):
            self.waiter = select.epoll()
            self.waiter.register(self.socket, self.events(select.EPOLLIN))
            self.waits_to_write = False

    def events(self, wanted):
        return wanted | (select.EPOLLET if self.style == "edge" else 0)

    def wait(self, writing):
        """Until the socket is ready; without an end, which is the watchdog's to find."""
        if self.style == "select":
            select.select([] if writing else [self.socket], [self.socket] if writing else [], [])
        elif self.style == "poll":
            self.waiter.register(self.socket, select.POLLOUT if writing else select.POLLIN)
            self.waiter.poll()
        else:
            if writing != self.waits_to_write:
                self.waits_to_write = writing
                self.waiter.modify(self.socket, self.events(select.EPOLLOUT if writing else select.EPOLLIN))
            self.waiter.poll()

    def attempt(self, writing, call, *arguments):
        while True:
            try:
                result = call(*arguments)
                # Bytes moved: who is slow does not hang.
                self.lane.put(SINCE, time.monotonic_ns())
                return result
            except BlockingIOError:
                self.wait(writing)
            except OSError as error:
                raise Broken(f"{call.__name__}: {error}") from error

    def send(self, *pieces):
        """All of them, by one of the calls that there are."""
        way = self.rng.randrange(3)
        if way == 0 and self.style in ("blocking", "timeout", "waitall"):
            for piece in pieces:
                self.attempt(True, self.socket.sendall, piece)
            return
        rest = [memoryview(piece) for piece in pieces if piece]
        while rest:
            if way == 1:
                sent = self.attempt(True, self.socket.sendmsg, rest[:64])
            else:
                sent = self.attempt(True, self.socket.send, rest[0])
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def receive(self, wanted):
        """Some bytes, `wanted` of them if that many are to come; none at the end."""
        if self.rng.random() < 0.05:
            peeked = self.attempt(False, self.socket.recv, 64, socket.MSG_PEEK)
            got = self.attempt(False, self.socket.recv, max(len(peeked), 1))
            if bool(peeked) != bool(got) or not peeked.startswith(got):
                raise Wrong(f"MSG_PEEK told {peeked.hex()}, then came {got.hex()}")
            return got
        if self.style == "waitall" and wanted:
            return self.attempt(False, self.socket.recv, wanted, socket.MSG_WAITALL)
        most = self.rng.choice((wanted or 4096, 4096, 65536, 1 << 20, self.rng.randint(1, 5000)))
        if self.style == "scatter":
            parts = [bytearray(most // 3 + 1) for _ in range(3)]
            count = self.attempt(False, self.socket.recvmsg_into, parts)[0]
            return b"".join(parts)[:count]
        return self.attempt(False, self.socket.recv, most)

    def fill(self, wanted=0):
        got = self.receive(wanted)
        if not got:
            raise Broken(f"end of file with {len(self.buffer)} bytes of an answer")
        self.buffer += got

    def take(self, count):
        while len(self.buffer) < count:
            self.fill(count - len(self.buffer))
        taken = bytes(memoryview(self.buffer)[:count])
        del self.buffer[:count]
        self.lane.add(BYTES, count)
        return taken

    def take_until(self, mark, most=65536):
        while (place := self.buffer.find(mark)) < 0:
            if len(self.buffer) > most:
                raise Wrong(f"no {mark} in {len(self.buffer)} bytes: {bytes(self.buffer[:200])}")
            self.fill()
        return self.take(place + len(mark))[:-len(mark)]

    def expect_end(self, farewells=()):
        """Nothing but the end of file may come, or a message with one of these."""
        got = bytes(self.buffer) or self.attempt(False, self.socket.recv, 4096)
        if got and not any(farewell in got for farewell in farewells):
            raise Wrong(f"bytes behind the last answer: {got[:100]}")

    def end_writing(self):
        self.attempt(True, self.socket.shutdown, socket.SHUT_WR)

    def close(self, reset=False):
        if self.socket.fileno() < 0:
            return
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.style in ("epoll", "edge") and self.rng.random() < 0.5:
            self.waiter.unregister(self.socket)
        if self.style in ("epoll", "edge"):
            self.waiter.close()
        self.socket.close()


class Log:
    """Lines for the soak, each written at once."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, text):
        os.write(self.fd, text.encode() + b"\n")
