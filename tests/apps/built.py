"""Scenarios of programs that are built here: C with and without sanitisers, under valgrind and
static, Java, Go."""

import os
import pathlib
import subprocess

from helpers import STEP_LIMIT, free_port, listens, program, run

HERE = pathlib.Path(__file__).parent
CONNECTIONS = 6


def talk(serve, ask):
    """Both are commands that take a verb, a port and a number of connections; both have to say
    that every byte was right, by their exit status."""
    port = free_port()
    process = subprocess.Popen([*map(str, serve), "serve", str(port), str(CONNECTIONS)], stdin=subprocess.DEVNULL)
    try:
        listens(port, process)
        run(*ask, "ask", port, CONNECTIONS)
        status = process.wait(STEP_LIMIT)
        if status != 0:
            raise RuntimeError(f"the server ended with {status}")
    finally:
        process.kill()
        process.wait()


def sanitisers(place, step):
    source = HERE / "traffic.c"
    kinds = {"none": (), "address": ("-fsanitize=address",), "thread": ("-fsanitize=thread",),
             "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover"), "static": ("-static",)}
    # As `megapipe run` sets it.
    os.environ["ASAN_OPTIONS"] = "verify_asan_link_order=0"
    for kind, options in kinds.items():
        built = place / f"traffic-{kind}"
        run("cc", "-O1", "-g", "-pthread", *options, "-o", built, source)
        with step(kind):
            talk([built], [built])
        if kind != "none":
            with step(f"{kind}-asks-one-without"):
                talk([place / "traffic-none"], [built])
    valgrind = [program("valgrind"), "-q", "--error-exitcode=9", place / "traffic-none"]
    with step("memcheck"):
        talk(valgrind, valgrind)
    with step("memcheck-asks-one-without"):
        talk([place / "traffic-none"], valgrind)
    with step("memcheck-finds-what-is-wrong"):
        wrong = place / "wrong.c"
        wrong.write_text(WRONG)
        run("cc", "-O0", "-o", place / "wrong", wrong)
        ended = run(valgrind[0], "-q", "--error-exitcode=9", place / "wrong", check=False).returncode
        assert ended == 9, ended
    with step("address-finds-what-is-wrong"):
        run("cc", "-O0", "-fsanitize=address", "-o", place / "wrong", place / "wrong.c")
        assert b"heap-buffer-overflow" in run(place / "wrong", check=False).stderr


WRONG = """
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
    char *bytes = malloc(10);
    bytes[0] = 1;
    return write(1, bytes, 11) == 11 && bytes[10] == 7;
}
"""


def java(_place, step):
    command = [program("java"), HERE / "Traffic.java"]
    for kind in ("blocking", "nio"):
        with step(kind):
            port = free_port()
            run(*command, kind, port, CONNECTIONS, timeout=STEP_LIMIT * 2)


def go(place, step):
    run("go", "build", "-o", place / "traffic-go", HERE / "traffic.go",
        env={**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(place / "cache"), "GO111MODULE": "off"}, timeout=STEP_LIMIT * 3)
    run("cc", "-O1", "-pthread", "-o", place / "traffic-c", HERE / "traffic.c")
    with step("go-to-go"):
        talk([place / "traffic-go"], [place / "traffic-go"])
    with step("c-to-go"):
        talk([place / "traffic-go"], [place / "traffic-c"])
    with step("go-to-c"):
        talk([place / "traffic-c"], [place / "traffic-go"])
