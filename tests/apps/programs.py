#!/usr/bin/env python3
"""Programs that talk with each other over loopback, with checksums: one scenario in one process,
in the environment of whoever starts it. Usage: programs.py SCENARIO DIRECTORY

Prints "ok NAME" or "not ok NAME: why" for each step."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

NEEDS = {
    "curl": ("curl", "nginx"),
    "iperf3": ("iperf3",),
    "socat": ("socat",),
    "openssl": ("openssl",),
    "git": ("git", "git-daemon"),
    "redis": ("redis-server", "redis-benchmark", "redis-cli"),
    "node": ("node",),
    "haproxy": ("haproxy", "wrk", "nginx"),
    "pgbench": ("pgbench", "postgres", "setpriv"),
}
# Distributions keep some programs out of PATH.
PLACES = ("/usr/sbin", "/usr/lib/git-core", *sorted(map(str, pathlib.Path("/usr/lib/postgresql").glob("*/bin"))))
STEP_LIMIT = 60


def program(name):
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(PLACES))


def missing(scenario):
    """Why a scenario cannot run here; None: it can."""
    absent = [name for name in NEEDS[scenario] if not program(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if scenario == "pgbench" and os.geteuid() == 0 and not database_user():
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


def database_user():
    import pwd
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def run(*command, **options):
    options = {"check": True, "capture_output": True, "timeout": STEP_LIMIT, **options}
    return subprocess.run([program(command[0]) or command[0], *map(str, command[1:])], **options)


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
    deadline = time.monotonic() + 20
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


def nginx_configuration(place, port, sendfile):
    root = place / "www"
    root.mkdir(exist_ok=True)
    (root / "large").write_bytes(some_bytes(8 << 20))
    (root / "small").write_bytes(some_bytes(1000, 2))
    text = f"""
daemon off; worker_processes 2; pid {place}/nginx.pid; error_log {place}/nginx.log;
user {"root" if os.geteuid() == 0 else "nobody"};
env LD_PRELOAD;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile {sendfile}; keepalive_requests 1000000;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi; client_max_body_size 100m;
    server {{
        listen 127.0.0.1:{port}; root {root};
        location /put {{ dav_methods PUT; root {place}/put; }}
    }}
}}
"""
    path = place / f"nginx-{sendfile}.conf"
    path.write_text(text)
    (place / "put").mkdir(exist_ok=True)
    return path


def curl(place, step):
    for sendfile in ("on", "off"):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with server("nginx", "-c", nginx_configuration(place, port, sendfile), port=port):
            wanted = (place / "www/large").read_bytes()
            with step(f"download-sendfile-{sendfile}"):
                same(run("curl", "-sSf", f"{url}/large").stdout, wanted)
            with step(f"ranges-sendfile-{sendfile}"):
                same(run("curl", "-sSf", "-r", "1000000-5000000", f"{url}/large").stdout, wanted[1000000:5000001])
            with step(f"keep-alive-sendfile-{sendfile}"):
                small = (place / "www/small").read_bytes()
                same(run("curl", "-sSf", *[f"{url}/small"] * 200).stdout, small * 200)
            with step(f"slow-reader-sendfile-{sendfile}"):
                same(run("curl", "-sSf", "--limit-rate", "8M", f"{url}/large").stdout, wanted)
            with step(f"parallel-sendfile-{sendfile}"):
                run("curl", "-sSf", "-Z", "--parallel-max", "8", "--remove-on-error",
                    *[item for number in range(8) for item in ("-o", place / f"part{number}", f"{url}/large")])
                for number in range(8):
                    same((place / f"part{number}").read_bytes(), wanted)
            with step(f"upload-sendfile-{sendfile}"):
                run("curl", "-sSf", "-T", place / "www/large", f"{url}/put/{sendfile}")
                same((place / "put/put" / sendfile).read_bytes(), wanted)


def iperf3(_place, step):
    for name, options in {
        "upload": (), "download": ("-R",), "both-ways": ("--bidir",), "four-streams": ("-P", "4"),
        "zero-copy": ("-Z",), "small-blocks": ("-l", "128", "-n", "2M"), "small-windows": ("-w", "16K"),
    }.items():
        port = free_port()
        with step(name), server("iperf3", "-s", "-1", "-p", port, port=port, stdout=subprocess.DEVNULL):
            length = () if "-n" in options else ("-n", "64M")
            told = json.loads(run("iperf3", "-c", "127.0.0.1", "-p", port, "-J", *length, *options).stdout)
            sent, received = (told["end"][key]["bytes"] for key in ("sum_sent", "sum_received"))
            # The client counts what it gave to send before it stopped.
            if "error" in told or received == 0 or received > sent:
                raise AssertionError(f"{sent} bytes sent, {received} received: {told.get('error')}")


def socat(place, step):
    data = some_bytes(6 << 20)
    (place / "data").write_bytes(data)
    port = free_port()
    with step("file-one-way"):
        with server("socat", "-u", f"TCP-LISTEN:{port},reuseaddr", f"CREATE:{place}/copy", port=port) as receiver:
            run("socat", "-u", f"FILE:{place}/data", f"TCP:127.0.0.1:{port}")
            receiver.wait(STEP_LIMIT)
        same((place / "copy").read_bytes(), data)
    port = free_port()
    with server("socat", f"TCP-LISTEN:{port},reuseaddr,fork", "EXEC:cat", port=port):
        with step("echo-by-a-child"):
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{port}", input=data).stdout, data)
        with step("echo-by-a-child-again"):
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{port}", input=data[:5000]).stdout, data[:5000])
    port, relay = free_port(), free_port()
    with server("socat", f"TCP-LISTEN:{port},reuseaddr,fork", "PIPE", port=port), \
            server("socat", f"TCP-LISTEN:{relay},reuseaddr,fork", f"TCP:127.0.0.1:{port}", port=relay):
        with step("echo-through-a-relay"):
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{relay}", input=data[:2 << 20]).stdout,
                 data[:2 << 20])


def openssl(place, step):
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-keyout", place / "key.pem", "-out", place / "cert.pem")
    (place / "large").write_bytes(some_bytes(4 << 20))
    for name, options in {"tls-1.3": ("-tls1_3",), "tls-1.2": ("-tls1_2",)}.items():
        port = free_port()
        with step(name), server("openssl", "s_server", "-accept", port, "-cert", place / "cert.pem", "-key",
                                place / "key.pem", "-WWW", *options, cwd=place, port=port,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            told = run("openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{port}", "-verify_quiet",
                       input=b"GET /large HTTP/1.0\r\n\r\n").stdout
            same(told.partition(b"\r\n\r\n")[2], (place / "large").read_bytes())


def git(place, step):
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    base = place / "served"
    origin = base / "origin"
    run("git", "init", "-q", "-b", "main", origin)
    for number in range(20):
        (origin / f"file{number}").write_bytes(some_bytes(100_000, number))
        run("git", "-C", origin, "add", "-A")
        run("git", "-C", origin, *author, "commit", "-q", "-m", str(number))
    run("git", "clone", "-q", "--bare", origin, base / "bare")
    port = free_port()
    with server("git", "daemon", f"--base-path={base}", "--export-all", "--enable=receive-pack", "--reuseaddr",
                "--listen=127.0.0.1", f"--port={port}", port=port):
        with step("clone"):
            run("git", "clone", "-q", f"git://127.0.0.1:{port}/origin", place / "clone")
            run("git", "-C", place / "clone", "fsck", "--full")
            for number in range(20):
                same((place / f"clone/file{number}").read_bytes(), some_bytes(100_000, number))
        with step("push"):
            run("git", "clone", "-q", f"git://127.0.0.1:{port}/bare", place / "work")
            (place / "work/more").write_bytes(some_bytes(3_000_000, 99))
            run("git", "-C", place / "work", "add", "-A")
            run("git", "-C", place / "work", *author, "commit", "-q", "-m", "more")
            run("git", "-C", place / "work", "push", "-q", "origin", "main")
            run("git", "-C", base / "bare", "fsck", "--full")


def redis(place, step):
    port = free_port()
    with server("redis-server", "--port", port, "--save", "", "--dir", place, port=port, stdout=subprocess.DEVNULL):
        value = some_bytes(1 << 20).hex()
        with step("large-value"):
            run("redis-cli", "-p", port, "-x", "set", "large", input=value.encode())
            same(run("redis-cli", "-p", port, "--raw", "get", "large").stdout.strip(), value.encode())
        with step("pipe"):
            told = run("redis-cli", "-p", port, "--pipe", input=b"".join(
                f"SET key{number} value{number}\r\n".encode() for number in range(20000))).stdout
            assert b"errors: 0, replies: 20000" in told, told
            assert run("redis-cli", "-p", port, "dbsize").stdout.strip() == b"20001"
        for clients in (1, 50):
            with step(f"benchmark-{clients}"):
                run("redis-benchmark", "-p", port, "-q", "-n", 20000, "-c", clients, "-t", "ping,set,get,lpush,mset")
        with step("background-save"):
            run("redis-cli", "-p", port, "bgsave")
            run("redis-benchmark", "-p", port, "-q", "-n", 20000, "-t", "set")
            assert run("redis-cli", "-p", port, "ping").stdout.strip() == b"PONG"


NODE = """
const http = require('http'), crypto = require('crypto');
const sum = data => crypto.createHash('sha256').update(data).digest('hex');
const server = http.createServer((request, response) => {
  const parts = [];
  request.on('data', part => parts.push(part));
  request.on('end', () => response.end(Buffer.concat(parts)));
});
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const ask = (port, body) => new Promise((resolve, reject) => {
  const request = http.request({ port, host: '127.0.0.1', method: 'POST', agent }, response => {
    const parts = [];
    response.on('data', part => parts.push(part));
    response.on('end', () => resolve(Buffer.concat(parts)));
    response.on('error', reject);
  });
  request.on('error', reject);
  request.end(body);
});
server.listen(0, '127.0.0.1', async () => {
  for (const length of [1, 1000, 100000, 5000000]) {
    const bodies = Array.from({ length: 20 }, () => crypto.randomBytes(length));
    const told = await Promise.all(bodies.map(body => ask(server.address().port, body)));
    if (!told.every((body, place) => sum(body) === sum(bodies[place]))) process.exit(1);
  }
  agent.destroy();
  server.close();
});
"""


def node(place, step):
    (place / "echo.js").write_text(NODE)
    with step("echo"):
        run("node", place / "echo.js")


def wrk_told(output):
    text = output.decode()
    if "Socket errors" in text or "Non-2xx" in text or " 0 requests" in text:
        raise AssertionError(text)


def haproxy(place, step):
    behind, port = free_port(), free_port()
    (place / "haproxy.cfg").write_text(f"""
global
    maxconn 1000
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    server one 127.0.0.1:{behind}
""")
    with server("nginx", "-c", nginx_configuration(place, behind, "on"), port=behind), \
            server("haproxy", "-db", "-f", place / "haproxy.cfg", port=port):
        wanted = (place / "www/large").read_bytes()
        with step("download"):
            same(run("curl", "-sSf", f"http://127.0.0.1:{port}/large").stdout, wanted)
        for clients in (1, 50):
            with step(f"wrk-{clients}"):
                wrk_told(run("wrk", "-t", 1, "-c", clients, "-d", "2", f"http://127.0.0.1:{port}/small").stdout)
        with step("wrk-new-connections"):
            wrk_told(run("wrk", "-t", 1, "-c", 8, "-d", "2", "-H", "Connection: close",
                         f"http://127.0.0.1:{port}/small").stdout)
        with step("wrk-direct"):
            wrk_told(run("wrk", "-t", 1, "-c", 20, "-d", "2", f"http://127.0.0.1:{behind}/small").stdout)
        with step("download-beside-wrk"):
            load = threading.Thread(target=run, args=(
                "wrk", "-t", 1, "-c", 20, "-d", "3", f"http://127.0.0.1:{port}/small"))
            load.start()
            for _ in range(4):
                same(run("curl", "-sSf", f"http://127.0.0.1:{port}/large").stdout, wanted)
            load.join()


def pgbench(place, step):
    user = database_user() if os.geteuid() == 0 else None
    drop = (program("setpriv"), "--reuid", "postgres", "--regid", "postgres", "--clear-groups") if user else ()
    data = place / "db"
    data.mkdir()
    if user:
        os.chown(data, user.pw_uid, user.pw_gid)
    port = free_port()
    home = {**os.environ, "PGUSER": "postgres", "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGDATABASE": "postgres"}

    def as_user(name, *arguments, **options):
        return run(*drop, program(name), *arguments, env=home, cwd="/", **options)

    as_user("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--no-instructions")
    with server(*drop, program("postgres"), "-D", data, "-h", "127.0.0.1", "-p", port, "-k", "", "-F", port=port,
                env=home, cwd="/") as database:
        deadline = time.monotonic() + 30
        while run("pg_isready", check=False, env=home).returncode != 0:
            assert time.monotonic() < deadline and database.poll() is None
            time.sleep(0.1)
        with step("initialise"):
            as_user("pgbench", "-i", "-q", "-s", "1")
        for name, options in {"simple": (), "extended": ("-M", "extended"), "prepared": ("-M", "prepared"),
                              "new-connections": ("-C", "-S"), "select-only": ("-S",)}.items():
            with step(name):
                told = as_user("pgbench", "-n", "-c", "4", "-j", "1", "-T", "2", *options).stdout.decode()
                assert "number of failed transactions: 0 " in told and "processed: 0" not in told, told
        with step("large-result"):
            told = as_user("psql", "-At", "-c", "select md5(i::text) from generate_series(1, 100000) i").stdout
            same(told, b"".join(hashlib.md5(str(number).encode()).hexdigest().encode() + b"\n"
                                for number in range(1, 100001)))
        with step("copy-in"):
            rows = b"".join(f"{number}\tvalue {number}\n".encode() for number in range(100000))
            as_user("psql", "-q", "-c", "create table t (a int, b text)")
            as_user("psql", "-q", "-c", "copy t from stdin", input=rows)
            same(as_user("psql", "-At", "-c", "copy (select * from t order by a) to stdout").stdout, rows)
        database.send_signal(signal.SIGINT)


def main():
    scenario, place = sys.argv[1], pathlib.Path(sys.argv[2])

    @contextlib.contextmanager
    def step(name):
        try:
            yield
            print(f"ok {name}", flush=True)
        except (Exception, SystemExit) as error:
            told = getattr(error, "stderr", None) or b""
            print(f"not ok {name}: {error} {told.decode(errors='replace')[-500:]}".replace("\n", " "), flush=True)

    globals()[scenario](place, step)


if __name__ == "__main__":
    main()
