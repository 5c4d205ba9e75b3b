"""Scenarios of databases: Redis, PostgreSQL."""

import contextlib
import hashlib
import os
import pathlib
import pwd
import re
import signal
import subprocess
import time

from helpers import STEP_LIMIT, described, free_port, program, run, same, server, some_bytes


def redis(place, step):
    port = free_port()
    with server(*described("redis", place, port), port=port, stdout=subprocess.DEVNULL):
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


def database_user():
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


def as_database_user():
    """What makes a command that user's: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return ()
    return (program("setpriv"), "--reuid", "postgres", "--regid", "postgres", "--clear-groups")


def own_directory(path):
    path.mkdir()
    if os.geteuid() == 0:
        user = database_user()
        os.chown(path, user.pw_uid, user.pw_gid)
    return path


@contextlib.contextmanager
def postgres(place):
    """A new database that is reached by TCP alone; gives the server and the clients' environment."""
    drop = as_database_user()
    place, port = own_directory(place / "db"), free_port()
    env = {**os.environ, "PGUSER": "postgres", "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGDATABASE": "postgres"}
    initdb, *options = described("postgres", place, port, part="prepare")
    run(*drop, program(initdb), *options, env=env, cwd="/", timeout=STEP_LIMIT * 3)
    postgres, *options = described("postgres", place, port)
    with server(*drop, program(postgres), *options, port=port, env=env, cwd="/") as database:
        deadline = time.monotonic() + 30
        while run("pg_isready", check=False, env=env).returncode != 0:
            assert time.monotonic() < deadline and database.poll() is None
            time.sleep(0.1)
        yield env
        database.send_signal(signal.SIGINT)


def pgbench(place, step):
    with postgres(place) as env:
        def as_user(name, *arguments, **options):
            return run(*as_database_user(), program(name), *arguments, env=env, cwd="/", **options)

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


def regression_sources():
    """The directory of PostgreSQL's regression tests, as its sources have them."""
    return pathlib.Path(os.environ.get("MEGAPIPE_TEST_POSTGRES", "/usr/src/postgresql"), "src/test/regress")


def pg_regress():
    major = re.search(r"\d+", run("pg_config", "--version").stdout.decode())[0]
    return pathlib.Path(f"/usr/lib/postgresql/{major}/lib/pgxs/src/test/regress/pg_regress")


def postgres_regress(place, step):
    """PostgreSQL's own regression tests, all of whose connections are TCP."""
    source = regression_sources()
    include = run("pg_config", "--includedir-server").stdout.decode().strip()
    for library, file in {"regress": source / "regress.c", **{
            name: source.parents[2] / f"contrib/spi/{name}.c" for name in ("refint", "autoinc")}}.items():
        run("cc", "-shared", "-fPIC", "-O2", "-I", include, "-o", place / f"{library}.so", file)
    with postgres(place) as env:
        out = own_directory(place / "out")
        told = subprocess.run(
            [*as_database_user(), pg_regress(), "--host=127.0.0.1", f"--port={env['PGPORT']}", "--user=postgres",
             f"--inputdir={source}", f"--outputdir={out}", f"--dlpath={place}", f"--bindir={postgres_programs()}",
             f"--schedule={source / 'parallel_schedule'}", "--max-concurrent-tests=20"],
            env=env, cwd=out, capture_output=True, text=True).stdout
        print(told)
        for name, status in re.findall(r"^(?:test|    ) ?(\w+) +\.\.\. (ok|FAILED)", told, re.M):
            with step(name):
                assert status == "ok", status


def postgres_programs():
    return run("pg_config", "--bindir").stdout.decode().strip()
