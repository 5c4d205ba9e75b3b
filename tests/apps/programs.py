#!/usr/bin/env python3
"""Programs that talk with each other over loopback, with checksums: one scenario in one process,
in the environment of whoever starts it. Usage: programs.py SCENARIO DIRECTORY

Prints "ok NAME" or "not ok NAME: why" for each step."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import built
import databases
import handover as handing
import remote
from helpers import STEP_LIMIT, described, free_port, program, run, same, server, some_bytes

NEEDS = {
    "curl": ("curl", "nginx"),
    "iperf3": ("iperf3",),
    "socat": ("socat",),
    "openssl": ("openssl",),
    "git": ("git", "git-daemon"),
    "git-http": ("git", "git-http-backend", "git-remote-http", "apache2"),
    "git-ssh": ("git", "ssh", "sshd"),
    "ssh": ("ssh", "sshd", "scp", "sftp", "socat"),
    "ssh-forking": ("ssh", "sshd", "scp", "sftp", "socat"),
    "handover": ("cat",),
    "netcat": ("nc.openbsd", "nc.traditional", "ncat"),
    "ftp": ("vsftpd", "curl"),
    "apache": ("apache2", "curl"),
    "redis": ("redis-server", "redis-benchmark", "redis-cli"),
    "node": ("node",),
    "haproxy": ("haproxy", "wrk", "nginx"),
    "pgbench": ("pgbench", "postgres", "setpriv"),
    "sanitisers": ("cc", "valgrind"),
    "java": ("java", "javac"),
    "go": ("go", "cc"),
    "postgres-regress": ("pg_config", "postgres", "psql", "setpriv", "cc"),
}


MODULES = (sys.modules[__name__], remote, databases, built)


def missing(scenario):
    """Why a scenario cannot run here; None: it can."""
    absent = [name for name in NEEDS[scenario] if not program(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if scenario in ("pgbench", "postgres-regress") and os.geteuid() == 0 and not databases.database_user():
        return "PostgreSQL does not run as root, and there is no user postgres"
    if scenario == "postgres-regress" and not databases.regression_sources().exists():
        return "no sources of PostgreSQL in MEGAPIPE_TEST_POSTGRES"
    return None


@contextlib.contextmanager
def nginx(place, sendfile="on"):
    """nginx with files to fetch and a place to put some; gives its port."""
    for folder in ("www", "put"):
        (place / folder).mkdir(exist_ok=True)
    (place / "www/large").write_bytes(some_bytes(8 << 20))
    (place / "www/small").write_bytes(some_bytes(1000, 2))
    port = free_port()
    command = described("nginx", place, port, main="env LD_PRELOAD;", http=f"sendfile {sendfile};", server=(
        "root @folder@/www; location /put { dav_methods PUT; root @folder@/put; }"))
    with server(*command, port=port):
        yield port


def curl(place, step):
    for sendfile in ("on", "off"):
        with nginx(place, sendfile) as port:
            url = f"http://127.0.0.1:{port}"
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
    port = free_port()
    # The program has the connection itself, behind the end of what its client sends.
    with step("handed-to-a-program"), \
            server("socat", f"TCP-LISTEN:{port},reuseaddr,fork", "EXEC:cat,nofork", port=port):
        for size in [10, 3000, 300_000] * 10:
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{port}", input=data[:size]).stdout, data[:size])
    port, relay = free_port(), free_port()
    with server("socat", f"TCP-LISTEN:{port},reuseaddr,fork", "PIPE", port=port), \
            server("socat", f"TCP-LISTEN:{relay},reuseaddr,fork", f"TCP:127.0.0.1:{port}", port=relay):
        with step("echo-through-a-relay"):
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{relay}", input=data[:2 << 20]).stdout,
                 data[:2 << 20])


def handover(place, step):
    port = free_port()
    with server(sys.executable, handing.__file__, "serve", port, port=port):
        for seed, way in enumerate(handing.WAYS):
            with step(way):
                asked = run(sys.executable, handing.__file__, "ask", port, way, seed, 300, check=False)
                assert asked.returncode == 0, (asked.stdout + asked.stderr).decode()


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
    port = free_port()
    with nginx(place) as behind, server(
            *described("haproxy", place, port, answer=f"server one 127.0.0.1:{behind}"), port=port):
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

    name = scenario.replace("-", "_")
    next(getattr(module, name) for module in MODULES if hasattr(module, name))(place, step)


if __name__ == "__main__":
    main()
