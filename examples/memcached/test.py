#!/usr/bin/env python3
"""Tries the installed memcached plain, and on channels with each engine: the same conversation has the same answers.

Usage: test.py PRELOAD
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

LIMIT = 60
LARGE = bytes(range(65, 91)) * 12000  # more than a socket's buffer

CONVERSATION = [
    b"version\r\n", b"set a 5 0 5\r\nhello\r\n", b"get a\r\n", b"gets a b\r\n", b"add a 0 0 1\r\nx\r\n",
    b"append a 0 0 3\r\nabc\r\n", b"prepend a 0 0 3\r\nxyz\r\n", b"get a\r\n", b"replace c 0 0 1\r\nx\r\n",
    b"set n 0 0 2\r\n41\r\n", b"incr n 1\r\n", b"decr n 2\r\n", b"incr a 1\r\n", b"touch a 100\r\n",
    b"cas a 0 0 1 999\r\nx\r\n", b"delete a\r\n", b"delete a\r\n", b"get a\r\n",
    b"ms m 3 T0\r\nabc\r\n", b"mg m v t\r\n", b"md m\r\n",
    b"set q 0 0 1 noreply\r\n1\r\nget q\r\n", b"get " + b" ".join(b"k%d" % key for key in range(20)) + b"\r\n",
    b"nonsense\r\n", b"get " + b"k" * 251 + b"\r\n", b"flush_all\r\n", b"verbosity 1\r\n",
]


def receive(connection, size):
    """Exactly so many bytes, or what comes before the end."""
    received = bytearray()
    while len(received) < size and (part := connection.recv(min(size - len(received), 1 << 16))):
        received += part
    return bytes(received)


def until(connection, end):
    received = b""
    while not received.endswith(end) and (part := connection.recv(1 << 16)):
        received += part
    return received


def talk(connect):
    """Every answer to the conversation: whole commands first, then each byte on its own."""
    answers = []
    for pieces in (1 << 16, 1):
        with connect() as connection:
            for command in CONVERSATION:
                for at in range(0, len(command), pieces):
                    connection.sendall(command[at:at + pieces])
                # Commands with their answers behind them: mn ends what can be answered.
                connection.sendall(b"mn\r\n")
                answers.append(until(connection, b"MN\r\n"))
    return answers


def large_values(connect):
    """Values that go to the kernel in parts, more of them than the client reads for a while."""
    expected = b"VALUE l 0 %d\r\n%b\r\nEND\r\n" % (len(LARGE), LARGE)
    with connect() as connection, connect() as other:
        connection.sendall(b"set l 0 0 %d\r\n%b\r\n" % (len(LARGE), LARGE))
        assert until(connection, b"\r\n") == b"STORED\r\n"
        connection.sendall(b"set s 0 0 1\r\nx\r\n")
        assert until(connection, b"\r\n") == b"STORED\r\n"
        for _ in range(20):
            connection.sendall(b"get l\r\nget s\r\n")
        for _ in range(100):
            other.sendall(b"get s\r\n")
            assert until(other, b"END\r\n") == b"VALUE s 0 1\r\nx\r\nEND\r\n"
        expected += b"VALUE s 0 1\r\nx\r\nEND\r\n"
        for _ in range(20):
            assert receive(connection, len(expected)) == expected


def flood(connect):
    """A client that asks and does not read stalls nobody else, and gets all when it reads."""
    with connect() as greedy, connect() as other:
        other.sendall(b"set f 0 0 1000\r\n%b\r\n" % (b"f" * 1000))
        assert until(other, b"\r\n") == b"STORED\r\n"
        greedy.setblocking(False)
        asked, request = 0, b"get f\r\n" * 500
        place, last = 0, time.monotonic()
        # Until memcached reads no more.
        while time.monotonic() - last < 0.5:
            try:
                place += greedy.send(request[place:])
                last = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
            if place == len(request):
                asked, place = asked + 500, 0
        for _ in range(100):
            other.sendall(b"get f\r\n")
            assert until(other, b"END\r\n").startswith(b"VALUE f")
        greedy.settimeout(LIMIT)
        answer = len(b"VALUE f 0 1000\r\n\r\nEND\r\n") + 1000
        assert len(receive(greedy, asked * answer)) == asked * answer


def many(connect):
    """Connections at a time, and one after the other."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect()) for _ in range(300)]
        for _ in range(5):
            for connection in connections:
                connection.sendall(b"version\r\n")
            for connection in connections:
                assert until(connection, b"\r\n").startswith(b"VERSION")
    for _ in range(500):
        with connect() as connection:
            connection.sendall(b"version\r\nquit\r\n")
            assert until(connection, b"no such end").startswith(b"VERSION")
    # Resets, and ends in the middle of a command.
    for number in range(100):
        with connect() as connection:
            connection.sendall(b"get l\r\n" * number + b"set half 0 0 100\r\nabc")
    with connect() as connection:
        connection.sendall(b"version\r\n")
        assert until(connection, b"\r\n").startswith(b"VERSION")


def datagrams(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(LIMIT)
        for number in range(50):
            client.sendto(number.to_bytes(2, "big") + b"\0\0\0\1\0\0version\r\n", ("127.0.0.1", port))
            answer = client.recv(2000)
            assert answer[:2] == number.to_bytes(2, "big") and b"VERSION" in answer, answer


def free_port():
    with socket.socket() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        listener.bind(("127.0.0.1", 0))
        datagram.bind(listener.getsockname())
        return listener.getsockname()[1]


@contextlib.contextmanager
def memcached(environment, *arguments):
    user = ["-u", "root"] if os.geteuid() == 0 else []
    command = ["memcached", *user, "-t", "2", "-c", "1000", *arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=said)
        try:
            yield process
            assert process.poll() is None, "memcached has ended"
        except BaseException:
            # The loader's words, too. It says of each connection that was reset that it was.
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace")[-2000:])
            raise
        finally:
            process.terminate()
            process.wait(LIMIT)


def connector(process, family, address):
    def connect():
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(LIMIT)
        end = time.monotonic() + LIMIT
        while True:
            try:
                connection.connect(address)
                return connection
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.02)
    return connect


def run(environment, folder):
    port = free_port()
    with memcached(environment, "-l", "127.0.0.1", "-p", str(port), "-U", str(port)) as process:
        connect = connector(process, socket.AF_INET, ("127.0.0.1", port))
        answers = talk(connect)
        large_values(connect)
        flood(connect)
        many(connect)
        datagrams(port)
        if environment:
            check_channels(process.pid, environment["MEGAPIPE_ENGINE"])
    path = str(folder / "memcached.sock")
    with memcached(environment, "-s", path) as process:
        compare(answers, talk(connector(process, socket.AF_UNIX, path)))
    return answers


def compare(expected, answers):
    for command, theirs, ours in zip(2 * CONVERSATION, expected, answers, strict=True):
        assert theirs == ours, (command, theirs, ours)


def check_channels(pid, engine):
    """The two workers have channels; on io_uring each shows as a ring."""
    assert "libmegapipe-memcached" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    files = [os.readlink(entry) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
    rings = sum("io_uring" in name for name in files)
    assert rings == (2 if engine == "uring" else 0), files


def main():
    preload = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("memcached"):
        print("SKIPPED memcached: it is not installed")
        return
    engines = [os.environ["MEGAPIPE_ENGINE"]] if "MEGAPIPE_ENGINE" in os.environ else ["uring", "epoll"]
    with tempfile.TemporaryDirectory() as folder:
        plain = run({}, pathlib.Path(folder))
        for engine in engines:
            environment = {"LD_PRELOAD": str(preload), "MEGAPIPE_ENGINE": engine}
            compare(plain, run(environment, pathlib.Path(folder)))
            print(f"PASS memcached ({engine})")


main()
