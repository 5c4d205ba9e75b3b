#!/usr/bin/env python3
"""Tries the installed nginx with its own epoll, and with the module on each engine: the same requests, a reload,
a graceful end and an upgrade of the binary under load.

Usage: test.py MODULE
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 60
WORKERS = 2

CONFIGURATION = """
{load}
env LD_LIBRARY_PATH; env MEGAPIPE_ENGINE;
user root; worker_processes {workers}; pid {folder}/nginx.pid; error_log {folder}/error.log notice;
worker_shutdown_timeout 50s;
events {{ worker_connections 1024; use {method}; }}
http {{
    access_log off; sendfile on; tcp_nopush on; root {folder}/www; client_max_body_size 100m; keepalive_requests 1000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem; keepalive_timeout 60s;
    upstream behind {{ server 127.0.0.1:{ports[2]}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{ports[0]} reuseport; listen unix:{folder}/nginx.sock; listen 127.0.0.1:{ports[1]} ssl http2;
        listen 127.0.0.1:{ports[3]} proxy_protocol;
        location / {{ }}
        location /memory {{ return 200 "from memory\\n"; }}
        location /address {{ return 200 "$proxy_protocol_addr\\n"; }}
        location /put/ {{ dav_methods PUT DELETE; client_body_in_file_only off; root {folder}; }}
        location /threads/ {{ alias {folder}/www/; aio threads; sendfile off; output_buffers 2 32k; }}
        location /slow/ {{ alias {folder}/www/; limit_rate 2m; }}
        location /proxied/ {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://behind/; }}
        location /unbuffered/ {{ proxy_buffering off; proxy_request_buffering off; proxy_http_version 1.1;
                                 proxy_pass http://behind/; }}
        location /nobody {{ proxy_pass http://127.0.0.1:{ports[4]}; }}
    }}
    server {{ listen 127.0.0.1:{ports[2]}; location / {{ }}
              location /put/ {{ dav_methods PUT DELETE; root {folder}; }} }}
}}
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


class Client:
    """One connection of HTTP/1.1."""

    def __init__(self, address, tls=False):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT)
        self.socket.connect(address)
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)
        self.received = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, path, method="GET", body=b"", fields="", pieces=1 << 30):
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}{length}\r\n".encode() + body
        for at in range(0, len(request), pieces):
            self.socket.sendall(request[at:at + pieces])

    def more(self):
        part = self.socket.recv(1 << 16)
        self.received += part
        return part

    def answer(self, head=False):
        """Status and body of the next answer."""
        while b"\r\n\r\n" not in self.received:
            if not self.more():
                raise EOFError(f"no answer, but {self.received!r}")
        header, _, rest = self.received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in header.split(b"\r\n")[1:])
        status = int(header.split()[1])
        size = 0 if head or status in (204, 304) else int(fields[b"content-length"])
        parts, have = [rest], len(rest)
        while have < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise EOFError(f"{have} of {size} bytes")
            parts.append(part)
            have += len(part)
        whole = b"".join(parts)
        self.received = whole[size:]
        return status, whole[:size]

    def ask(self, path, **how):
        self.send(path, **how)
        return self.answer(how.get("method") == "HEAD")


class Nginx:
    def __init__(self, module, engine, folder):
        self.folder, self.engine, self.ports = folder, engine, free_ports(5)
        load = f"load_module {module};" if engine else ""
        method = "megapipe" if engine else "epoll"
        (folder / "nginx.conf").write_text(CONFIGURATION.format(
            load=load, method=method, folder=folder, ports=self.ports, workers=WORKERS))
        environment = {**os.environ, **({"MEGAPIPE_ENGINE": engine} if engine else {})}
        self.plain = ("127.0.0.1", self.ports[0])
        # A daemon, as nginx changes the binary of no other. It listens when this returns.
        subprocess.run([shutil.which("nginx"), "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"],
                       env=environment, check=True)
        until(lambda: (folder / "nginx.pid").exists() and len(children(self.master())) >= WORKERS, "no workers")

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(self.plain) == 0

    def master(self):
        return int((self.folder / "nginx.pid").read_text())

    def log(self):
        return (self.folder / "error.log").read_text()

    def end(self):
        for file in self.folder.glob("nginx.pid*"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
                master = int(file.read_text())
                os.kill(master, signal.SIGTERM)
                until(lambda: not runs(master), "nginx does not end")


def until(condition, complaint):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, complaint
        time.sleep(0.02)


def runs(pid):
    return pathlib.Path(f"/proc/{pid}/exe").exists()


def children(pid):
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.add(int(entry.name))
    return found


def requests(nginx):
    """What is asked of each server, and what each answered."""
    seen = []
    large = (nginx.folder / "www/large").read_bytes()
    body = large[:3_000_000]
    for address, tls in ((nginx.plain, False), (str(nginx.folder / "nginx.sock"), False),
                         (("127.0.0.1", nginx.ports[1]), True)):
        with Client(address, tls) as client:
            for path in ("/memory", "/small", "/page", "/middle", "/large", "/memory", "/none", "/proxied/large",
                         "/proxied/small", "/unbuffered/large", "/threads/large", "/proxied/none", "/nobody"):
                for _ in range(3):
                    status, answer = client.ask(path)
                    seen.append((path, status, len(answer), digest(answer)))
            for fields in ("Range: bytes=100-199\r\n", "Range: bytes=1000000-\r\n", "Accept-Encoding: gzip\r\n"):
                status, answer = client.ask("/large", fields=fields)
                seen.append((fields, status, digest(answer)))
            seen.append(client.ask("/large", method="HEAD"))
            for prefix in ("", "/proxied", "/unbuffered"):
                for size in (1, 5000, 20_000, 3_000_000):
                    status, _ = client.ask(f"{prefix}/put/{size}", method="PUT", body=body[:size])
                    stored = (nginx.folder / "put" / str(size)).read_bytes()
                    seen.append((prefix, size, status, stored == body[:size]))
                    seen.append(client.ask(f"{prefix}/put/{size}", method="DELETE"))
            for path in ("/memory", "/page"):
                client.send(path, pieces=1)
                seen.append((path, digest(client.answer()[1])))
            # In one go; the answers to the last ones are large.
            for path in ("/memory", "/small", "/middle", "/large", "/memory"):
                client.socket.sendall(20 * f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                seen += [(path, digest(client.answer()[1])) for _ in range(20)]
    return seen


def ends(nginx):
    """Half-closed connections, aborted ones, and other first bytes than HTTP's."""
    seen = []
    with Client(nginx.plain) as client:
        client.ask("/memory")
        client.send("/middle")
        client.socket.shutdown(socket.SHUT_WR)
        seen.append(digest(client.answer()[1]))
        seen.append(client.more())
    with Client(nginx.plain) as client:
        client.send("/memory", fields="Connection: close\r\n")
        seen.append(client.answer())
        seen.append(client.more())
    for path in ("/memory", "/large", "/proxied/large", "/slow/large"):
        for asked in (1, 2):
            with Client(nginx.plain) as client:
                for _ in range(asked):
                    client.send(path)
                client.socket.recv(100)
    with Client(("127.0.0.1", nginx.ports[3])) as client:
        client.socket.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n")
        seen += [client.ask("/address") for _ in range(3)]
    with Client(nginx.plain) as client:
        client.socket.sendall(b"nonsense\r\n\r\n")
        seen.append(client.answer()[0])
    return seen


def slow_readers(nginx):
    """Clients that ask for much and read late stall nobody else."""
    large = digest((nginx.folder / "www/large").read_bytes())
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Client(nginx.plain)) for _ in range(20)]
        for client in slow:
            client.ask("/memory")
            client.socket.sendall(10 * b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" + 300 * b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
        with Client(nginx.plain) as other:
            for _ in range(200):
                assert other.ask("/memory") == (200, b"from memory\n")
        for client in slow[:4]:
            for _ in range(10):
                assert digest(client.answer()[1]) == large
            for _ in range(300):
                assert len(client.answer()[1]) == 1000


def many(nginx):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(nginx.plain)) for _ in range(300)]
        for _ in range(5):
            for client in clients:
                client.send("/memory")
            for client in clients:
                assert client.answer() == (200, b"from memory\n")
    for number in range(500):
        with Client(nginx.plain) as client:
            assert client.ask("/page" if number % 2 else "/memory")[0] == 200


class Load:
    """Clients that ask all the time, on connections that live and on new ones. nginx closes a kept connection
    behind an answer when its worker ends, never before one; only an idle one may find that closed."""

    def __init__(self, nginx):
        self.nginx, self.stop, self.answers, self.errors = nginx, threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.run, args=(kept,)) for kept in (True, True, False, False)]
        for thread in self.threads:
            thread.start()

    def run(self, kept):
        fields = "" if kept else "Connection: close\r\n"
        while not self.stop.is_set():
            try:
                with Client(self.nginx.plain) as client:
                    answered = 0
                    while not self.stop.is_set():
                        try:
                            status, body = client.ask("/memory", fields=fields)
                        except (EOFError, ConnectionResetError, BrokenPipeError):
                            if not kept or not answered:
                                raise
                            break
                        assert (status, body) == (200, b"from memory\n")
                        answered += 1
                        self.answers += 1
                        if not kept:
                            break
            except Exception as error:  # whatever it is: the test shows it
                self.errors.append(repr(error))
                return

    def more(self):
        before = self.answers
        until(lambda: self.errors or self.answers > before + 200, "no more answers")

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        return self.errors


def reload(nginx):
    """New workers answer; the old ones end what they have begun."""
    before = children(nginx.master())
    large = (nginx.folder / "www/large").read_bytes()
    with Client(nginx.plain) as slow:
        slow.ask("/memory")
        slow.send("/slow/large")
        load = Load(nginx)
        load.more()
        for _ in range(3):
            old = children(nginx.master())
            os.kill(nginx.master(), signal.SIGHUP)
            until(lambda: len(children(nginx.master()) - old) >= WORKERS, "no new workers")
            load.more()
        errors = load.end()
        assert slow.answer() == (200, large), "a transfer is cut off"
    until(lambda: not before & children(nginx.master()), "old workers do not end")
    return errors


def upgrade(nginx):
    """A new master with workers of its own takes the listeners over; the old one ends."""
    old = nginx.master()
    load = Load(nginx)
    load.more()
    os.kill(old, signal.SIGUSR2)
    until(lambda: (nginx.folder / "nginx.pid.oldbin").exists() and (nginx.folder / "nginx.pid").exists()
          and nginx.master() != old and len(children(nginx.master())) >= WORKERS, "no new master")
    load.more()
    os.kill(old, signal.SIGWINCH)
    load.more()
    os.kill(old, signal.SIGQUIT)
    until(lambda: not runs(old), "the old master does not end")
    load.more()
    return load.end()


def graceful_end(nginx):
    """What is under way is answered whole, and no process is left."""
    large = (nginx.folder / "www/large").read_bytes()
    master = nginx.master()
    with Client(nginx.plain) as slow, Client(nginx.plain) as idle:
        idle.ask("/memory")
        slow.ask("/memory")
        slow.send("/slow/large")
        slow.socket.recv(1, socket.MSG_PEEK)
        workers = children(master)
        os.kill(master, signal.SIGQUIT)
        until(lambda: not nginx.listens(), "it listens still")
        assert slow.answer() == (200, large), "a transfer is cut off"
    until(lambda: not any(map(runs, workers | {master})), "it does not end")


def check_channels(nginx):
    """Each worker has a channel; on io_uring it shows as a ring."""
    for worker in children(nginx.master()):
        entries = [entry for entry in pathlib.Path(f"/proc/{worker}/fd").iterdir()]
        rings = sum("io_uring" in os.readlink(entry) for entry in entries)
        assert rings == (1 if nginx.engine == "uring" else 0), f"{rings} rings"


def run(module, engine, folder):
    nginx = Nginx(module, engine, folder)
    try:
        seen = requests(nginx) + ends(nginx)
        if engine:
            check_channels(nginx)
        slow_readers(nginx)
        many(nginx)
        errors = reload(nginx) + upgrade(nginx)
        assert not errors, errors
        graceful_end(nginx)
        complaints = [line for line in nginx.log().splitlines()
                      if any(word in line for word in ("[alert]", "[crit]", "[emerg]"))]
        assert not complaints, complaints[:5]
    except BaseException:
        print("\n".join(nginx.log().splitlines()[-20:]))
        raise
    finally:
        nginx.end()
    return seen


def main():
    module = pathlib.Path(sys.argv[1]).resolve()
    if missing := [name for name in ("nginx", "openssl") if not shutil.which(name)]:
        print(f"SKIPPED nginx: {missing[0]} is not installed")
        return
    engines = [os.environ["MEGAPIPE_ENGINE"]] if "MEGAPIPE_ENGINE" in os.environ else ["uring", "epoll"]
    plain = None
    for engine in [None, *engines]:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            for name in ("www", "put", "body"):
                (folder / name).mkdir()
            for name, size in (("small", 3), ("page", 1000), ("middle", 65_536), ("large", 5_000_000)):
                (folder / "www" / name).write_bytes(bytes(at * 7 % 251 for at in range(size)))
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                 "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
            seen = run(module, engine, folder)
        if engine is None:
            plain = seen
            continue
        for expected, found in zip(plain, seen, strict=True):
            assert expected == found, (expected, found)
        print(f"PASS nginx ({engine})")


main()
