#!/usr/bin/env python3
"""A client of the soak: several threads that ask a server, and check each byte of the answers.
Usage: soak_clients.py KIND DIRECTORY NAME SEED LANES PORT

Kinds: redis, http, postgres. What breaks, or is wrong, goes into DIRECTORY/NAME.log as lines of JSON."""

import hashlib
import json
import math
import os
import pathlib
import random
import signal
import struct
import sys
import threading
import time
import traceback

from soak_wire import (BREAKS, END, LIVES, PAUSED, RUN, STYLES, Broken, Contents, Control, Lane, Log, Pause, Progress, Wire,
                       Wrong)

FILES = {f"f{number}": size for number, size in enumerate((1, 100, 1000, 4096, 20_000, 65_536, 300_000, 1 << 20, 5_000_000))}


class Client:
    """One lane's connections, one after another."""

    def __init__(self, lane, contents, rng, port, name):
        self.lane = lane
        self.contents = contents
        self.rng = rng
        self.port = port
        # What a client sent before it was killed may be carried out while the next one runs.
        self.name = f"{name}.{lane.number}.{lane.get(LIVES) % 16}"

    def connect(self):
        with self.lane.operation("connect"):
            buffers = self.rng.choice((None, None, None, 32768, 65536))
            return Wire(self.port, self.rng.choice(STYLES), self.lane, self.rng, buffers)

    def connection(self):
        """From connect to close; broken or wrong, it ends by an exception."""
        wire = self.connect()
        try:
            self.use(wire)
        finally:
            wire.close()

    def size(self, most):
        return min(most, int(math.exp(self.rng.uniform(0, math.log(most))) + 0.5))


class Redis(Client):
    """SET and GET of values that follow from key and version."""

    KEYS = 24
    MOST = 1 << 20

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.server = None
        # Versions that a key may have; None: it may be absent.
        self.versions = {}
        self.next = self.rng.randrange(1 << 30)

    def use(self, wire):
        with self.lane.operation("redis info", wire):
            wire.send(b"INFO server\r\n")
            told = self.answer(wire)
            server = told[told.index(b"run_id:"):].split(b"\r\n")[0]
        if server != self.server:
            # Another process, with nothing in it.
            self.server = server
            self.versions = {}
            with self.lane.operation("redis delete", wire):
                wire.send(b"DEL %s\r\n" % b" ".join(b"%s.%d" % (self.name.encode(), key) for key in range(self.KEYS)))
                self.answer(wire)
        for _ in range(self.rng.choice((1, 3, 20, 200, 1000))):
            self.lane.look_round()
            with self.lane.operation("redis batch", wire):
                self.batch(wire)
        self.part(wire)

    def batch(self, wire):
        count = self.rng.choice((1, 1, 1, 1, 2, 8, 50))
        most = self.MOST if count < 8 else 20_000
        pieces, wanted, sent = [], [], {}
        for _ in range(count):
            key = f"{self.name}.{self.rng.randrange(self.KEYS)}"
            if self.rng.random() < 0.4:
                size = self.size(most)
                version = (self.next, size)
                self.next += 1
                value = self.contents.of(key, *version)
                pieces += (b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key.encode(), size), value, b"\r\n")
                self.versions.setdefault(key, {None}).add(version)
                sent[key] = {version}
                wanted.append((key, version, None))
            else:
                pieces.append(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key.encode()))
                wanted.append((key, None, sent.get(key) or set(self.versions.get(key, {None}))))
        wire.send(*pieces)
        for key, version, allowed in wanted:
            told = self.answer(wire)
            if version:
                self.contents.check(f"SET {key}", told, b"OK")
                # That one, or one that was sent behind it.
                self.versions[key] = {other for other in self.versions[key] if other and other[0] >= version[0]}
            else:
                self.look(key, told, allowed)

    def look(self, key, told, allowed):
        if told is None:
            if None not in allowed:
                raise Wrong(f"GET {key}: not there, {allowed} wanted")
        elif not any(version and told == self.contents.of(key, *version) for version in allowed):
            known = [version for version in allowed if version]
            wanted = self.contents.of(key, *max(known)) if known else b""
            self.contents.check(f"GET {key} of {allowed}", told, wanted)

    def answer(self, wire):
        line = wire.take_until(b"\r\n")
        if line[:1] in b"+:":
            return line[1:]
        if line[:1] == b"$":
            size = int(line[1:])
            if size < 0:
                return None
            told = wire.take(size + 2)
            self.contents.check("end of a value", told[-2:], b"\r\n")
            return told[:-2]
        raise Wrong(f"an answer that begins {line[:100]}")

    def part(self, wire):
        way = self.rng.randrange(4)
        if way == 0:
            with self.lane.operation("redis half-close", wire):
                wire.send(b"GET nothing\r\n")
                wire.end_writing()
                # Redis drops a client at its end of file, with or without the answer.
                try:
                    while wire.receive(0):
                        pass
                except Broken:
                    pass
        elif way == 1:
            key = f"{self.name}.0"
            with self.lane.operation("redis quit", wire):
                wire.send(b"GET %s\r\nQUIT\r\n" % key.encode())
                self.look(key, self.answer(wire), self.versions.get(key, {None}))
                self.contents.check("QUIT", self.answer(wire), b"OK")
                wire.expect_end()
        elif way == 2:
            with self.lane.operation("redis abort", wire):
                wire.send(b"GET %s.1\r\n" % self.name.encode() * 4)
            wire.close(reset=self.rng.random() < 0.5)


class Http(Client):
    """Files of which the sums are known, and files of one's own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sums = {name: hashlib.sha256(self.contents.of(name, 0, size)).digest() for name, size in FILES.items()}
        self.uploads = 0

    def use(self, wire):
        self.rng.choice((self.keep_alive, self.keep_alive, self.short, self.half_close, self.abort, self.slow))(wire)

    def ask(self, wire, path, *more, method="GET", body=b""):
        head = [f"{method} /{path} HTTP/1.1", "Host: soak", *more]
        if body:
            head.append(f"Content-Length: {len(body)}")
        wire.send("\r\n".join([*head, "", ""]).encode(), body)

    def answer(self, wire):
        head = wire.take_until(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        if not head.startswith(b"HTTP/1.1 ") or status not in (b"200", b"201", b"204", b"206", b"502", b"503", b"504"):
            raise Wrong(f"an answer that begins {head[:200]}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if status >= b"500":
            raise Broken(f"status {status.decode()}")
        return status, wire.take(int(fields.get(b"content-length", b"0"))), fields.get(b"connection")

    def fill_to(self, wire, most, pause=0):
        """Waits for so many bytes of an answer that is longer, unless it says that there will be none."""
        while len(wire.buffer) < most:
            wire.fill()
            if wire.buffer.startswith(b"HTTP/1.1 50"):
                self.answer(wire)
            time.sleep(pause)

    def check(self, name, told):
        status, body, _ = told
        if status != b"200" or len(body) != FILES[name] or hashlib.sha256(body).digest() != self.sums[name]:
            self.contents.check(f"GET {name}: {status}", body, self.contents.of(name, 0, FILES[name]))

    def some_file(self):
        # Small ones more often: they make the calls, large ones the bytes.
        return list(FILES)[min(self.rng.randrange(len(FILES)), self.rng.randrange(len(FILES)))]

    def keep_alive(self, wire):
        for _ in range(self.rng.choice((1, 5, 30, 300))):
            self.lane.look_round()
            way = self.rng.random()
            with self.lane.operation("http keep-alive", wire):
                if way < 0.1:
                    self.upload(wire)
                elif way < 0.2:
                    self.range(wire)
                elif way < 0.3:
                    names = [self.some_file() for _ in range(self.rng.randint(2, 8))]
                    for name in names:
                        self.ask(wire, name)
                    for name in names:
                        self.check(name, self.answer(wire))
                else:
                    name = self.some_file()
                    self.ask(wire, name)
                    self.check(name, self.answer(wire))

    def upload(self, wire):
        # One that broke off may yet be carried out.
        self.uploads += 1
        path = f"put/{self.name}.{self.uploads % 32}"
        version, size = self.rng.randrange(1 << 30), self.size(2 << 20)
        body = self.contents.of(path, version, size)
        self.ask(wire, path, method="PUT", body=body)
        status, _, _ = self.answer(wire)
        if status not in (b"201", b"204"):
            raise Wrong(f"PUT: status {status}")
        self.ask(wire, path)
        self.contents.check(f"GET {path} after PUT", self.answer(wire)[1], body)

    def range(self, wire):
        name = "f8"
        first = self.rng.randrange(FILES[name])
        last = min(FILES[name] - 1, first + self.size(1 << 20))
        self.ask(wire, name, f"Range: bytes={first}-{last}")
        self.contents.check(f"GET {name} {first}-{last}", self.answer(wire)[1],
                            self.contents.of(name, 0, FILES[name])[first:last + 1])

    def short(self, wire):
        with self.lane.operation("http short", wire):
            name = self.some_file()
            self.ask(wire, name, "Connection: close")
            self.check(name, self.answer(wire))
            wire.expect_end()

    def half_close(self, wire):
        with self.lane.operation("http half-close", wire):
            for _ in range(self.rng.choice((0, 12))):
                self.ask(wire, "f2")
                self.check("f2", self.answer(wire))
            # nginx gives up an answer that it has not sent whole when its client half-closes.
            name = self.some_file() if "haproxy" in self.name else "f3"
            self.ask(wire, name, "Connection: close")
            wire.end_writing()
            self.check(name, self.answer(wire))
            wire.expect_end()

    def abort(self, wire):
        with self.lane.operation("http abort", wire):
            for _ in range(self.rng.choice((0, 12))):
                self.ask(wire, "f2")
                self.check("f2", self.answer(wire))
            self.ask(wire, "f8")
            self.fill_to(wire, self.rng.randrange(FILES["f8"]))
        wire.close(reset=self.rng.random() < 0.5)

    def slow(self, wire):
        with self.lane.operation("http slow", wire):
            self.ask(wire, "f7")
            self.fill_to(wire, 300_000, pause=0.002)
            self.check("f7", self.answer(wire))


class Postgres(Client):
    """The protocol of PostgreSQL, as far as it takes to ask and check."""

    # admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections
    MAY_FAIL = (b"57P01", b"57P02", b"57P03", b"53300")

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rows = {}
        self.next = self.rng.randrange(1 << 30)

    def use(self, wire):
        with self.lane.operation("postgres begin", wire):
            words = b"user\0postgres\0database\0postgres\0application_name\0soak\0\0"
            wire.send(struct.pack(">ii", 8 + len(words), 196608) + words)
            self.result(wire)
            self.ask(wire, "CREATE TEMP TABLE t (i int, b text)")
            self.result(wire)
        for _ in range(self.rng.choice((1, 5, 30, 200))):
            self.lane.look_round()
            what = self.rng.choice((self.series, self.text, self.row, self.row, self.row, self.copy, self.prepared))
            with self.lane.operation(f"postgres {what.__name__}", wire):
                what(wire)
        if self.rng.random() < 0.7:
            with self.lane.operation("postgres end", wire):
                wire.send(self.message(b"X", b""))
                # A server that is told to end at that very moment says so.
                wire.expect_end([b"\0C" + code + b"\0" for code in self.MAY_FAIL])

    @staticmethod
    def message(kind, body):
        return kind + struct.pack(">i", 4 + len(body)) + body

    def ask(self, wire, text):
        wire.send(self.message(b"Q", text.encode() + b"\0"))

    def result(self, wire):
        """Rows until the server waits for the next query."""
        rows = []
        while True:
            head = wire.take(5)
            kind, size = head[:1], struct.unpack(">i", head[1:])[0]
            if kind not in b"RSKZCDTENG12n3" or not 4 <= size <= 1 << 24:
                raise Wrong(f"a message that begins {head}")
            body = wire.take(size - 4)
            if kind == b"D":
                rows.append(self.fields(body))
            elif kind == b"E":
                told = {field[:1]: field[1:] for field in body.split(b"\0") if field}
                if told.get(b"C") in self.MAY_FAIL:
                    raise Broken(f"error {told[b'C'].decode()}")
                raise Wrong(f"an error: {told}")
            elif kind in b"ZG":
                return rows

    @staticmethod
    def fields(body):
        count, at, found = struct.unpack_from(">h", body)[0], 2, []
        for _ in range(count):
            size = struct.unpack_from(">i", body, at)[0]
            found.append(None if size < 0 else body[at + 4:at + 4 + size])
            at += 4 + max(size, 0)
        return found

    def words(self, name, version, size):
        return self.contents.of(name, version, size // 2 + 1).hex()[:size]

    def rows_are(self, what, rows, wanted):
        if rows != wanted:
            self.contents.check(what, b"\n".join(b"|".join(field or b"" for field in row) for row in rows),
                                b"\n".join(b"|".join(row) for row in wanted))

    def series(self, wire):
        first, count = self.rng.randrange(1 << 20), self.size(3000)
        self.ask(wire, f"SELECT i, md5(i::text) FROM generate_series({first}, {first + count - 1}) i")
        self.rows_are("series", self.result(wire), [
            [b"%d" % number, hashlib.md5(b"%d" % number).hexdigest().encode()] for number in range(first, first + count)])

    def text(self, wire):
        piece, times = self.words("text", self.rng.randrange(100), 1000), self.size(1000)
        self.ask(wire, f"SELECT repeat('{piece}', {times})")
        self.rows_are("text", self.result(wire), [[piece.encode() * times]])

    def row(self, wire):
        """A row that was committed stays, whoever is killed."""
        key = f"{self.name}.{self.rng.randrange(8)}"
        if self.rng.random() < 0.5 and key in self.rows:
            self.ask(wire, f"SELECT body FROM soak WHERE name = '{key}'")
            rows = self.result(wire)
            allowed = self.rows[key]
            if not any(rows == [[self.words(key, *version).encode()]] for version in allowed):
                self.rows_are(f"row {key}", rows, [[self.words(key, *max(allowed)).encode()]])
            return
        version = (self.next, self.size(200_000))
        self.next += 1
        if key in self.rows:
            self.rows[key].add(version)
        self.ask(wire, f"INSERT INTO soak VALUES ('{key}', '{self.words(key, *version)}') "
                       "ON CONFLICT (name) DO UPDATE SET body = EXCLUDED.body")
        self.result(wire)
        self.rows[key] = {version}

    def copy(self, wire):
        rows = [[b"%d" % number, self.words("copy", number, self.size(500)).encode()]
                for number in range(self.size(2000))]
        self.ask(wire, "COPY t FROM STDIN")
        self.result(wire)
        data = b"".join(b"\t".join(row) + b"\n" for row in rows)
        step = self.size(len(data)) + 100
        wire.send(*[self.message(b"d", data[at:at + step]) for at in range(0, len(data), step)], self.message(b"c", b""))
        self.result(wire)
        self.ask(wire, "SELECT i, b FROM t ORDER BY i")
        self.rows_are("copy", self.result(wire), rows)
        self.ask(wire, "TRUNCATE t")
        self.result(wire)

    def prepared(self, wire):
        numbers = [self.rng.randrange(1 << 30) for _ in range(self.rng.randint(1, 50))]
        pieces = [self.message(b"P", b"\0SELECT $1::int, md5($1::text)\0" + struct.pack(">hi", 1, 23))]
        for number in numbers:
            text = b"%d" % number
            pieces += (self.message(b"B", b"\0\0" + struct.pack(">hhi", 0, 1, len(text)) + text + struct.pack(">h", 0)),
                       self.message(b"E", b"\0" + struct.pack(">i", 0)))
        wire.send(*pieces, self.message(b"S", b""))
        self.rows_are("prepared", self.result(wire), [
            [b"%d" % number, hashlib.md5(b"%d" % number).hexdigest().encode()] for number in numbers])


KINDS = {"redis": Redis, "http": Http, "postgres": Postgres}


def run_lane(client, log):
    """Connections until the end. A wrong byte ends the process, so that all is left as it is."""
    lane = client.lane
    while lane.control.state != END:
        try:
            client.connection()
        except Pause:
            lane.put(PAUSED, 1)
            while lane.control.state not in (RUN, END):
                time.sleep(0.02)
            lane.put(PAUSED, 0)
            lane.good = time.monotonic()
        except Broken as error:
            now = time.monotonic()
            lane.add(BREAKS)
            log.write(json.dumps({"kind": "broken", "lane": lane.number, "since": lane.good, "at": now,
                                  "label": lane.label, "error": str(error)}))
            lane.good = now
            time.sleep(0.05)
        except Wrong as error:
            log.write(json.dumps({"kind": "wrong", "lane": lane.number, "at": time.monotonic(),
                                  "label": lane.label, "error": str(error)}))
            os.kill(os.getpid(), signal.SIGSTOP)
        except Exception:
            log.write(json.dumps({"kind": "wrong", "lane": lane.number, "at": time.monotonic(),
                                  "label": lane.label, "error": traceback.format_exc()}))
            raise


def main():
    kind, directory, name, seed, lanes, port = sys.argv[1:]
    directory = pathlib.Path(directory)
    control = Control(directory / "control")
    progress = Progress(directory / f"{name}.progress")
    contents = Contents(int(seed))
    log = Log(directory / f"{name}.log")
    threads = []
    for number in range(int(lanes)):
        # Each life of a client does something else.
        lane = Lane(progress, number, control)
        rng = random.Random(f"{seed} {name} {number} {lane.get(LIVES)}")
        client = KINDS[kind](lane, contents, rng, int(port), name)
        threads.append(threading.Thread(target=run_lane, args=(client, log)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
