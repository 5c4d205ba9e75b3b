"""Scenarios of programs that carry files and sessions: ssh, git, netcat, apache."""

import contextlib
import getpass
import os
import pathlib
import pwd
import subprocess
import threading
import time

from helpers import STEP_LIMIT, described, free_port, program, run, same, server, some_bytes

AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost")


@contextlib.contextmanager
def ssh_server(place, *options):
    """sshd with keys and configuration of its own; gives the client's configuration."""
    for name in ("host", "user"):
        if not (place / name).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name)
    (place / "authorized").write_bytes((place / "user.pub").read_bytes())
    port = free_port()
    (place / "sshd").write_text(f"""
ListenAddress 127.0.0.1:{port}
HostKey {place}/host
AuthorizedKeysFile {place}/authorized
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
""")
    (place / "ssh").write_text(f"""
Host there
    HostName 127.0.0.1
    Port {port}
    User {getpass.getuser()}
    IdentityFile {place}/user
    IdentitiesOnly yes
    UserKnownHostsFile {place}/known
    StrictHostKeyChecking no
    BatchMode yes
    LogLevel ERROR
""")
    if os.geteuid() == 0:
        # Its service has it made; it is in memory.
        pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with server("sshd", "-D", "-E", place / "sshd.log", *options, "-f", place / "sshd", port=port):
        yield place / "ssh"


def ssh(place, step, *options):
    data = some_bytes(6 << 20)
    (place / "data").write_bytes(data)
    with ssh_server(place, *options) as config:
        def there(*command, **more):
            return run("ssh", "-F", config, "there", *command, **more).stdout

        with step("command"):
            assert there("echo", "hello") == b"hello\n"
        with step("status"):
            assert run("ssh", "-F", config, "there", "exit 7", check=False).returncode == 7
        with step("download"):
            same(there("cat", place / "data"), data)
        with step("upload"):
            there(f"cat > {place}/copy", input=data)
            same((place / "copy").read_bytes(), data)
        with step("both-ways"):
            same(there("cat", input=data), data)
        with step("scp"):
            run("scp", "-q", "-F", config, place / "data", f"there:{place}/scp-there")
            run("scp", "-q", "-F", config, f"there:{place}/scp-there", place / "scp-here")
            same((place / "scp-here").read_bytes(), data)
        with step("sftp"):
            run("sftp", "-q", "-F", config, "-b", "-", "there", input=(
                f"put {place}/data {place}/sftp-there\nget {place}/sftp-there {place}/sftp-here\n").encode())
            same((place / "sftp-here").read_bytes(), data)
        with step("several-at-once"):
            at_once(lambda number: same(there("cat", input=data[number:2 << 20]), data[number:2 << 20]), 4)
        with step("one-connection-for-several"):
            shared = ("-S", place / "control")
            with background("ssh", "-F", config, *shared, "-M", "-N", "there"):
                until((place / "control").exists)
                for number in range(4):
                    same(there_by(config, shared, "cat", input=data[number:1 << 20]), data[number:1 << 20])
        forwarded, far = free_port(), free_port()
        with step("forwarding"), server("socat", f"TCP-LISTEN:{far},reuseaddr,fork", "PIPE", port=far), \
                server("ssh", "-F", config, "-N", "-L", f"127.0.0.1:{forwarded}:127.0.0.1:{far}", "there",
                       port=forwarded):
            same(run("socat", "-t", "20", "STDIO", f"TCP:127.0.0.1:{forwarded}", input=data[:2 << 20]).stdout,
                 data[:2 << 20])


def there_by(config, shared, *command, **more):
    return run("ssh", "-F", config, *shared, "there", *command, **more).stdout


def ssh_forking(place, step):
    """As `ssh`; the server forks for each connection, and executes nothing."""
    ssh(place, step, "-r")


@contextlib.contextmanager
def background(*command):
    process = subprocess.Popen([program(command[0]), *map(str, command[1:])], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STEP_LIMIT)


def at_once(task, count):
    """Runs task(0), task(1).. beside each other; their first error is raised."""
    errors = []

    def one(number):
        try:
            task(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def until(holds):
    deadline = time.monotonic() + STEP_LIMIT
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come")
        time.sleep(0.02)


def served_repositories(place):
    """A repository of 20 commits, and a bare copy."""
    base = place / "served"
    origin = base / "origin"
    run("git", "init", "-q", "-b", "main", origin)
    for number in range(20):
        (origin / f"file{number}").write_bytes(some_bytes(100_000, number))
        run("git", "-C", origin, "add", "-A")
        run("git", "-C", origin, *AUTHOR, "commit", "-q", "-m", str(number))
    run("git", "clone", "-q", "--bare", origin, base / "bare")
    run("git", "-C", base / "bare", "config", "http.receivepack", "true")
    return base


def clone_and_push(place, step, base, url, env=None):
    """`url(name)`: where the repository of that name is."""
    env = {**os.environ, **(env or {})}
    with step("clone"):
        run("git", "clone", "-q", url("origin"), place / "clone", env=env)
        run("git", "-C", place / "clone", "fsck", "--full")
        for number in range(20):
            same((place / f"clone/file{number}").read_bytes(), some_bytes(100_000, number))
    with step("push"):
        run("git", "clone", "-q", url("bare"), place / "work", env=env)
        (place / "work/more").write_bytes(some_bytes(3_000_000, 99))
        run("git", "-C", place / "work", "add", "-A")
        run("git", "-C", place / "work", *AUTHOR, "commit", "-q", "-m", "more")
        run("git", "-C", place / "work", "push", "-q", "origin", "main", env=env)
        run("git", "-C", base / "bare", "fsck", "--full")
    with step("fetch"):
        run("git", "-C", place / "clone", "fetch", "-q", url("bare"), "main", env=env)
        same(run("git", "-C", place / "clone", "show", "FETCH_HEAD:more").stdout, some_bytes(3_000_000, 99))


def git(place, step):
    base = served_repositories(place)
    port = free_port()
    with server("git", "daemon", f"--base-path={base}", "--export-all", "--enable=receive-pack", "--reuseaddr",
                "--listen=127.0.0.1", f"--port={port}", port=port):
        clone_and_push(place, step, base, lambda name: f"git://127.0.0.1:{port}/{name}")


def git_ssh(place, step):
    base = served_repositories(place)
    with ssh_server(place) as config:
        clone_and_push(place, step, base, lambda name: f"there:{base}/{name}",
                       {"GIT_SSH_COMMAND": f"ssh -F {config}"})


def git_http(place, step):
    base = served_repositories(place)
    backend = program("git-http-backend")
    with apache_server(place, "event", f"""
SetEnv GIT_PROJECT_ROOT {base}
SetEnv GIT_HTTP_EXPORT_ALL 1
PassEnv LD_PRELOAD
ScriptAlias /git/ {backend}/
ScriptSock {place}/cgid
<Directory {pathlib.Path(backend).parent}>
    Require all granted
</Directory>
""") as url:
        # Whoever serves as somebody else may not read these otherwise.
        env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        clone_and_push(place, step, base, lambda name: f"{url}/git/{name}", env)


@contextlib.contextmanager
def apache_server(place, kind, more=""):
    """Apache with one of its ways of using processes and threads; gives its address."""
    port = free_port()
    (place / "www").mkdir(exist_ok=True)
    modules = ("cgid" if kind != "prefork" else "cgi", "alias", "env")
    more = "Mutex posixsem\nKeepAlive On\nMaxKeepAliveRequests 0\n" + "".join(
        f"LoadModule {name}_module @modules@/mod_{name}.so\n" for name in modules) + more
    with server(*described("apache", place, port, mpm=kind, more=more), port=port, start_new_session=True):
        yield f"http://127.0.0.1:{port}"


def apache(place, step):
    data = some_bytes(6 << 20)
    (place / "www").mkdir()
    (place / "www/large").write_bytes(data)
    (place / "www/small").write_bytes(data[:1000])
    for kind in ("event", "worker", "prefork"):
        with apache_server(place, kind) as url:
            with step(f"{kind}-download"):
                same(run("curl", "-sSf", f"{url}/large").stdout, data)
            with step(f"{kind}-keep-alive"):
                same(run("curl", "-sSf", *[f"{url}/small"] * 90).stdout, data[:1000] * 90)
            with step(f"{kind}-parallel"):
                run("curl", "-sSf", "-Z", "--parallel-max", "8", "--remove-on-error",
                    *[item for number in range(8) for item in ("-o", place / f"part{number}", f"{url}/large")])
                for number in range(8):
                    same((place / f"part{number}").read_bytes(), data)


def ftp(place, step):
    """Its server forks for each connection, and forbids its processes most system calls."""
    data = some_bytes(3 << 20)
    root = place / "ftp"
    (root / "new").mkdir(parents=True)
    (root / "new").chmod(0o777)
    (root / "large").write_bytes(data)
    for number in range(30):
        (root / f"small{number}").write_bytes(data[number:number + 1000])
    root.chmod(0o555)
    port = free_port()
    (place / "empty").mkdir()
    (place / "vsftpd.conf").write_text(f"""
listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=YES
anon_root={root}
anon_upload_enable=YES
write_enable=YES
anon_umask=022
no_anon_password=YES
secure_chroot_dir={place}/empty
ftp_username={"ftp" if user_exists("ftp") else "nobody"}
xferlog_enable=NO
""")
    with server("vsftpd", place / "vsftpd.conf", port=port):
        url = f"ftp://127.0.0.1:{port}"
        with step("download"):
            same(run("curl", "-sSf", f"{url}/large").stdout, data)
        with step("active-download"):
            same(run("curl", "-sSf", "-P", "127.0.0.1", f"{url}/large").stdout, data)
        with step("upload"):
            run("curl", "-sSf", "-T", root / "large", f"{url}/new/copy")
            same((root / "new/copy").read_bytes(), data)
        with step("one-session-for-many"):
            same(run("curl", "-sSf", *(f"{url}/small{number}" for number in range(30))).stdout,
                 b"".join(data[number:number + 1000] for number in range(30)))


def user_exists(name):
    try:
        return pwd.getpwnam(name) is not None
    except KeyError:
        return False


def netcat(place, step):
    data = some_bytes(6 << 20)
    (place / "data").write_bytes(data)
    # How each listens on a port, ends with what it sends, and ends with what it receives.
    kinds = {
        "openbsd": ("nc.openbsd", ("-l", "127.0.0.1"), ("-N",)),
        "traditional": ("nc.traditional", ("-l", "-s", "127.0.0.1", "-p"), ("-q", "0")),
        "ncat": ("ncat", ("-l", "127.0.0.1"), ("--send-only",)),
    }
    for kind, (name, listens, ends) in kinds.items():
        if not program(name):
            continue
        port = free_port()
        with step(f"{kind}-sends"), open(place / f"{kind}-copy", "wb") as copy:
            with server(name, *listens, port, port=port, stdout=copy) as receiver:
                run(name, *ends, "127.0.0.1", port, input=data)
                receiver.wait(STEP_LIMIT)
            same((place / f"{kind}-copy").read_bytes(), data)
        port = free_port()
        with step(f"{kind}-serves"), open(place / "data", "rb") as file:
            with server(name, *listens, port, port=port, stdin=file):
                receiver = subprocess.Popen([program(name), *RECEIVES[kind], "127.0.0.1", str(port)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                got = b""
                while len(got) < len(data) and (part := os.read(receiver.stdout.fileno(), 1 << 16)):
                    got += part
                receiver.terminate()
                receiver.wait()
            same(got, data)


RECEIVES = {"openbsd": ("-d",), "traditional": (), "ncat": ("--recv-only",)}
