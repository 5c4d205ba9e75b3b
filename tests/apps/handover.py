#!/usr/bin/env python3
"""Connections that are handed over in the middle: a server that echoes, or has others echo, and clients that send as
they like. Usage: handover.py serve PORT | handover.py ask PORT WAY SEED COUNT

A client sends a head (WAY, how long to wait and how much to echo before it hands the connection over), and then bytes, all of
which have to come back."""

import array
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

HEAD = struct.Struct("<BBI")
# Who echoes what the server leaves: a program in its place, another process, a program beside it, itself.
WAYS = ("exec", "message", "beside", "kept")
PATIENCE = 20


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()


def exactly(connection, count):
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def adopt(channel):
    """Echoes on every connection that comes in a message."""
    while True:
        _, [(_, _, descriptor)], _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
        [number] = array.array("i", descriptor[:4])
        connection = socket.socket(fileno=number)
        connection.setblocking(True)
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def answer(connection, channel):
    head = exactly(connection, HEAD.size)
    if len(head) < HEAD.size:
        return
    way, pause, count = HEAD.unpack(head)
    time.sleep(pause / 1000)
    connection.sendall(exactly(connection, count))
    match WAYS[way]:
        case "exec":
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.execvp("cat", ["cat"])
        case "message":
            socket.send_fds(channel, [b"."], [connection.fileno()])
        case "beside":
            program = subprocess.Popen(["cat"], stdin=connection, stdout=connection)
            connection.close()
            program.wait()
        case "kept":
            echo(connection)


def serve(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    ours, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        listener.close()
        try:
            adopt(others)
        except ValueError:  # the server has ended
            os._exit(0)
    others.close()
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer(connection, ours)
            os._exit(0)
        connection.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def send(connection, data, chunk, pause, ends):
    for start in range(0, len(data), chunk):
        connection.sendall(data[start:start + chunk])
        time.sleep(pause)
    if ends:
        connection.shutdown(socket.SHUT_WR)


def talk(port, way, seeded):
    """One connection; why it went wrong, if it did."""
    # The end is sent before all is echoed, or not; or a program is to read what is echoed.
    end = seeded.choice(("sent", "sent", "unsent", "handed"))
    size = seeded.choice((0, 1, 10, 3000, 30_000, 200_000, 300_000, 1_000_000))
    size = min(size, 30_000) if end == "handed" else size
    # What goes through memory and the kernel needs the end that sent it (docs/compatibility.md).
    before = seeded.choice((0, 0, size // 2, size)) if size <= 200_000 or end == "unsent" else 0
    head = HEAD.pack(WAYS.index(way), seeded.choice((0, 0, 1, 3, 20)), before)
    data = seeded.randbytes(size)
    chunk = seeded.choice((size + len(head), 1 + size // 3, 16384, 100_000))
    pause = seeded.choice((0, 0, 0, 0.001))
    what = f"{size} bytes in pieces of {chunk}, {before} echoed before, the end {end}"
    echoed = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        task = (connection, head + data, chunk, pause, end != "unsent")
        try:
            if end == "handed":
                send(*task)
                time.sleep(seeded.choice((0, 0.001, 0.01)))
                connection.setblocking(True)
                echoed = subprocess.run(["cat"], stdin=connection, stdout=subprocess.PIPE, timeout=PATIENCE).stdout
            else:
                sender = threading.Thread(target=send, args=task)
                sender.start()
                while (end != "unsent" or len(echoed) < size) and (more := connection.recv(65536)):
                    echoed += more
                sender.join()
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{what}: {error} after {len(echoed)}"
    return None if echoed == data else f"{what}: {len(echoed)} came back"


def ask(port, way, seed, count):
    seeded = random.Random(seed)
    wrong = [why for why in (talk(port, way, seeded) for _ in range(count)) if why]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        sys.exit(ask(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
