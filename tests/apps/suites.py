"""The suites: how each is started, what it needs, and how its results are read."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import installed
import programs


class Suite:
    """One suite. `promotes`: it has connections that eager mode has to promote. `known`: tests
    that differ there, and why."""

    quick = False
    promotes = True
    known = {}
    limit = 300

    def __init__(self, name):
        self.name = name

    def missing(self):
        """Why it cannot run here; None: it can."""
        return None

    def prepare(self, _place):
        """What is to be built first; None, or why it cannot be."""
        return None

    def environment(self, _place):
        return {}

    def directory(self, place):
        return place


def junit(path):
    """Tests of a JUnit file, by name: passed, failed or skipped."""
    tests = {}
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return tests
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        status = "passed"
        if case.find("skipped") is not None:
            status = "skipped"
        if case.find("failure") is not None or case.find("error") is not None:
            status = "failed"
        # A test may be told several times, once for each subtest.
        if tests.get(name) != "failed":
            tests[name] = status
    return tests


# unittest -v: "test_a (module.Case.test_a) ... ok", with anything that the test prints between.
UNITTEST = re.compile(r"^(\w+ \([\w.]+\))(?:.*?\.\.\. ?)?", re.M)
UNITTEST_END = re.compile(r"^(?:.*\.\.\. |.*?)(ok|FAIL|ERROR|skipped\b.*|expected failure)$")


def unittest_verbose(text):
    """Tests of what `unittest -v` prints, by name."""
    tests, current = {}, None
    for line in text.splitlines():
        if line.startswith("======"):
            current = None
        elif begun := UNITTEST.match(line):
            current = begun[1]
            tests.setdefault(current, "failed")
        if current and (end := UNITTEST_END.match(line)):
            word = end[1].split()[0]
            tests[current] = {"ok": "passed", "expected": "passed", "skipped": "skipped"}.get(word, "failed")
            current = None
    return tests


TRIAL = re.compile(r"^(twisted\.[\w.]+) \.\.\.\s+\[(OK|SKIPPED|TODO)\]", re.M)


def trial_verbose(text):
    """Tests of what trial's bwverbose reporter prints, by name."""
    return {name: "passed" if word == "OK" else "skipped" for name, word in TRIAL.findall(text)}


def is_interpreter(path):
    """Whether it is a real interpreter, not a shell script that starts one."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


@functools.cache
def interpreters():
    """Interpreters, the one that runs this first, and then the others of its installation."""
    own = pathlib.Path(os.path.realpath(sys.executable))
    # What runs this may be one of a virtual environment, with packages that its own has not.
    found = [pathlib.Path(sys.executable), own]
    # Version managers keep each version in a directory of its own: VERSIONS/X.Y.Z/bin/python3.
    found += sorted(own.parents[2].glob("*/bin/python3"), reverse=True)
    if chosen := os.environ.get("MEGAPIPE_TEST_PYTHON"):
        found.insert(0, pathlib.Path(chosen))
    return [path for path in found if is_interpreter(path)]


@functools.cache
def standard_tests(interpreter):
    """An interpreter's version, the names of its tests, and the resources that they may be given."""
    ask = ("import json, os, sys, test, test.libregrtest.cmdline as c; "
           "print(json.dumps([sys.version_info[:2], os.listdir(test.__path__[0]), list(c.RESOURCE_NAMES)]))")
    asked = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True)
    if asked.returncode != 0:
        return (0, 0), set(), ()
    version, names, resources = json.loads(asked.stdout)
    return tuple(version), {name.removesuffix(".py") for name in names}, resources


class Standard(Suite):
    """A module of CPython's own suite."""

    def __init__(self, module, limit=300, ignore=(), only=(), quick=False, promotes=True):
        super().__init__(f"cpython-{module}")
        self.module, self.limit, self.ignore, self.only = module, limit, ignore, only
        self.quick, self.promotes = quick, promotes

    @functools.cached_property
    def interpreter(self):
        # --junit-xml came with 3.8.
        for path in interpreters():
            version, names, _ = standard_tests(path)
            if version >= (3, 8) and self.module in names:
                return path
        return None

    def missing(self):
        return None if self.interpreter else "no Python interpreter with its test package"

    def command(self, place):
        resources = [name for name in ("network", "walltime") if name in standard_tests(self.interpreter)[2]]
        command = [self.interpreter, "-m", "test", "-u", ",".join(resources), "--junit-xml", place / "junit.xml"]
        for pattern in self.ignore:
            command += ["-i", pattern]
        for pattern in self.only:
            command += ["-m", pattern]
        return [*command, "-v", self.module]

    def environment(self, place):
        return {"TMPDIR": str(place)}

    def results(self, place):
        return junit(place / "junit.xml")


@functools.cache
def imports(interpreter, modules):
    return subprocess.run([interpreter, "-c", f"import {modules}"], capture_output=True).returncode == 0


class Packaged(Suite):
    """The suite of a Python package, which an interpreter has to have installed."""

    def __init__(self, name, needs, arguments, read, limit=300, environment=None):
        super().__init__(name)
        self.needs, self.arguments, self.read, self.limit = needs, arguments, read, limit
        self.extra = environment or {}

    @functools.cached_property
    def interpreter(self):
        return next((path for path in interpreters() if imports(path, self.needs)), None)

    def missing(self):
        return None if self.interpreter else f"no Python interpreter can import {self.needs}"

    def command(self, place):
        return [self.interpreter, *self.arguments(place)]

    def environment(self, place):
        return {"TMPDIR": str(place), **self.extra}

    def results(self, place):
        return self.read(place)


def from_log(read):
    return lambda place: read((place / "log").read_text(errors="replace"))


def pytest(*modules):
    return lambda place: ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60",
                          f"--junitxml={place / 'junit.xml'}", "--pyargs", *modules]


# One process for each module: they patch the interpreter they run in.
ONE_BY_ONE = "import subprocess, sys\nfor name in sys.argv[1:]:\n subprocess.run([sys.executable, '-m', 'unittest', '-v', name])"

TRIO = ("socket", "highlevel_socket", "highlevel_open_tcp_stream", "highlevel_open_tcp_listeners",
        "highlevel_serve_listeners", "highlevel_ssl_helpers", "ssl", "subprocess", "unix_pipes", "threads")

TWISTED = ("test.test_tcp", "test.test_internet", "test.test_process", "test.test_ssl", "test.test_ftp",
           "test.test_protocols", "internet.test.test_tcp", "internet.test.test_endpoints",
           "internet.test.test_process", "internet.test.test_tls", "internet.test.test_core",
           "web.test.test_http", "web.test.test_webclient", "web.test.test_newclient")

GEVENT = ("socket", "socket_close", "socket_errors", "socket_ex", "socket_send_memoryview", "socket_timeout",
          "socket_ssl", "greenio", "select", "selectors", "server", "server_pywsgi", "pywsgi", "backdoor",
          "makefile_ref", "core_fork", "subprocess", "example_echoserver", "example_portforwarder")


TOKIO = ("tcp_accept", "tcp_connect", "tcp_echo", "tcp_into_split", "tcp_into_std", "tcp_peek", "tcp_shutdown",
         "tcp_socket", "tcp_split", "tcp_stream", "io_driver", "net_panic", "io_async_fd")


def packages():
    return [
        Crate("tokio", TOKIO, "full"),
        Crate("polling", ("concurrent_modification", "io", "many_connections", "multiple_pollers", "notify",
                          "other_modes", "precision", "timeout")),
        Crate("async-io", ("async", "block_on", "timer")),
        Packaged("tornado", "tornado.test.runtests", lambda _: ["-m", "tornado.test.runtests", "--verbose"],
                 from_log(unittest_verbose), limit=300, environment={"ASYNC_TEST_TIMEOUT": "30"}),
        Packaged("trio", "trio._tests, pytest, pytest_timeout, trustme", lambda place: [
            *pytest(*("trio._tests.test_" + name for name in TRIO), "trio._core._tests.test_io")(place),
            "-p", "trio._tests.pytest_plugin"], lambda place: junit(place / "junit.xml")),
        Packaged("twisted", "twisted.trial", lambda place: [
            "-m", "twisted.trial", "--temp-directory", place / "trial", "--reporter=bwverbose",
            *("twisted." + name for name in TWISTED)], from_log(trial_verbose), limit=400),
        Packaged("gevent", "gevent.tests", lambda _: [
            "-c", ONE_BY_ONE, *("gevent.tests.test__" + name for name in GEVENT)],
            from_log(unittest_verbose), limit=500),
    ]


RUST = re.compile(r"^test (\S+) (?:- should panic )?\.\.\. (ok|ignored|FAILED)", re.M)


class Crate(Suite):
    """Tests of a Rust crate, built from the sources that cargo has, in a copy of them."""

    limit = 300

    def __init__(self, crate, tests, features=""):
        super().__init__(crate)
        self.tests, self.features = tests, features

    @functools.cached_property
    def source(self):
        home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
        found = sorted(home.glob(f"registry/src/*/{self.name}-[0-9]*/tests"))
        return found[-1].parent if found else None

    def missing(self):
        return None if self.source else f"cargo has no sources of {self.name} with tests"

    def prepare(self, place):
        """Builds the tests; None, or why that failed."""
        copy = place / "source"
        if not copy.exists():
            shutil.copytree(self.source, copy)
        chosen = [word for test in self.tests for word in ("--test", test)]
        try:
            built = subprocess.run(
                ["cargo", "test", "--no-run", "--message-format=json", "--features", self.features, *chosen],
                cwd=copy, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
        except subprocess.TimeoutExpired:
            return "its tests take too long to build"
        if built.returncode != 0:
            return f"its tests do not build: {built.stderr.strip().splitlines()[-1:]}"
        told = (json.loads(line) for line in built.stdout.splitlines() if line.startswith("{"))
        self.programs = [message["executable"] for message in told if message.get("executable")]
        return None

    def directory(self, place):
        return place.parent / "source"

    def command(self, _place):
        return ["sh", "-c", 'for test; do echo "program $test"; "$test" --test-threads 2; done', "sh", *self.programs]

    def results(self, place):
        tests, words = {}, {"ok": "passed", "ignored": "skipped"}
        for part in (place / "log").read_text(errors="replace").split("\nprogram "):
            program = pathlib.Path(part.split("\n")[0].split()[-1]).name.rpartition("-")[0]
            tests |= {f"{program}::{name}": words.get(word, "failed") for name, word in RUST.findall(part)}
        return tests


class Installed(Suite):
    """Tests that a distribution installs as GNOME does: a file for each program, which prints TAP."""

    limit = 900

    def __init__(self, suite, names, known=None):
        super().__init__(suite)
        self.names, self.known = names, known or {}

    def present(self):
        found = {path.stem for path in (installed.TESTS / self.name).glob("*.test")}
        return [name for name in self.names if name in found]

    def missing(self):
        if not self.present():
            return f"no installed tests of {self.name} (on Debian: {INSTALLED[self.name]})"
        return None if shutil.which("dbus-run-session") else "not installed: dbus-run-session"

    def environment(self, place):
        # What they find out of a desktop is none of ours.
        return {"TMPDIR": str(place), "HOME": str(place), "XDG_RUNTIME_DIR": str(place), "LC_ALL": "C.UTF-8"}

    def command(self, _place):
        runner = pathlib.Path(__file__).with_name("installed.py")
        return ["dbus-run-session", "--", os.path.realpath(sys.executable), runner, self.name, *self.present()]

    def results(self, place):
        tests = {}
        for part in (place / "log").read_text(errors="replace").split("\nprogram "):
            name = part.split("\n")[0].split()[-1]
            for bad, test, skipped in TAP.findall(part):
                tests[f"{name}:{test}"] = "skipped" if skipped else "failed" if bad else "passed"
            tests[name] = "passed" if f"\nstatus {name} 0" in part else "failed"
        return tests


TAP = re.compile(r"^(not )?ok \d+ (?:- )?(\S+)( # SKIP)?", re.M)

INSTALLED = {"glib": "libglib2.0-tests", "libsoup-2.4": "libsoup2.4-tests", "libsoup-3.0": "libsoup-3.0-tests"}


# Each test in a process of its own, with 60 seconds; what one prints is no result.
EACH = 'program=$1; shift; for test; do flags=; case $test in *.js|*.mjs) flags=$(sed -n "s#^// Flags: ##p" "$test");; esac; ' \
    'if timeout 60 "$program" $flags "$test" >"$TMPDIR/output" 2>&1 </dev/null; then echo "ok 1 ${test##*/}"; ' \
    'else echo "not ok 1 ${test##*/}"; sed "s/^/# /" "$TMPDIR/output"; fi; done'


class OneByOne(Suite):
    """Tests that a program runs one by one. `program`, `source`: variables that name the program and its sources."""

    limit = 1500

    def __init__(self, name, program, source=None, patterns=(), known=None):
        super().__init__(name)
        self.program = os.environ.get(program)
        self.needs = [variable for variable in (program, source) if variable and variable not in os.environ]
        self.source = pathlib.Path(os.environ.get(source or "", "/"))
        self.patterns, self.known = patterns, known or {}

    def missing(self):
        if self.needs:
            return f"{' and '.join(self.needs)} not set (HACKING.md)"
        return None if self.tests() else f"no tests of {self.name} are there"

    def tests(self):
        return sorted(path for pattern in self.patterns for path in self.source.glob(pattern))

    def environment(self, place):
        # Tests that are of another version know other globals.
        return {"NODE_TEST_DIR": str(place), "NODE_TEST_KNOWN_GLOBALS": "0", "TMPDIR": str(place)}

    def command(self, _place):
        return ["sh", "-c", EACH, "sh", self.program, *self.tests()]

    def results(self, place):
        found = TAP.findall((place / "log").read_text(errors="replace"))
        return {name: "failed" if bad else "passed" for bad, name, _ in found}


class Libuv(OneByOne):
    """libuv's tests, by the program that they are built into."""

    def environment(self, place):
        return {"UV_RUN_AS_ROOT": "1", "TMPDIR": str(place)}

    def directory(self, _place):
        # Some look for files of the build.
        return pathlib.Path(self.program).parent

    def tests(self):
        listed = subprocess.run([self.program, "--list"], capture_output=True, text=True,
                                env={**os.environ, "UV_RUN_AS_ROOT": "1"})
        return [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]


class Programs(Suite):
    """Programs of the distribution that talk with each other: programs.py."""

    def __init__(self, scenario, quick=False):
        super().__init__(scenario)
        self.quick = quick
        # Servers that execute another program for each connection, or forbid themselves most calls,
        # before much was said on it.
        # Go makes its system calls itself.
        self.promotes = scenario not in ("git", "git-ssh", "ftp", "go")
        self.limit = 1200 if scenario == "postgres-regress" else 300

    def missing(self):
        return programs.missing(self.name)

    def environment(self, _place):
        return {name: os.environ[name] for name in ("MEGAPIPE_TEST_POSTGRES",) if name in os.environ}

    def command(self, place):
        return [os.path.realpath(sys.executable), pathlib.Path(__file__).with_name("programs.py"), self.name, place]

    def results(self, place):
        found = STEP.findall((place / "log").read_text(errors="replace"))
        return {name: "failed" if bad else "passed" for bad, name in found}


STEP = re.compile(r"^(not )?ok ([\w.-]+)", re.M)


CONNECTIONS = ("*Connection*", "*Listener*", "*Challenge*", "*Address*", "*Wait*", "*Manager*", "*CloseFds*")

GLIB = (
    "socket", "socket-address", "socket-listener", "socket-service", "socket-common", "gsocketclient-slow",
    "pollable", "network-address", "network-monitor", "network-monitor-race", "inet-address", "io-stream",
    "io-channel-basic", "io-channel", "mainloop", "proxy-test", "simple-proxy", "sleepy-stream", "stream-rw_all",
    "buffered-input-stream", "async-splice-output-stream", "async-close-output-stream", "contexts", "gdbus-peer",
    "gdbus-peer-object-manager", "gdbus-auth", "gdbus-server-auth", "gdbus-connection", "gdbus-connection-slow",
    "gdbus-connection-flush", "gdbus-connection-loss", "gdbus-close-pending", "gdbus-non-socket", "gdbus-overflow",
    "gdbus-threading", "gdbus-sasl", "unix-fd", "unix-streams", "unix", "gsubprocess", "spawn-test",
    "spawn-multithreaded", "spawn-singlethread", "tls-interaction", "task", "timeout", "timer", "unix-multithreaded")

LIBSOUP = (
    "auth-test", "cache-test", "chunk-io-test", "chunk-test", "coding-test", "connection-test", "context-test",
    "continue-test", "cookies-test", "forms-test", "hsts-test", "http2-body-stream-test", "http2-test", "logger-test",
    "misc-test", "multipart-test", "multithread-test", "no-ssl-test", "ntlm-test", "proxy-test", "pull-api-test",
    "range-test", "redirect-test", "request-body-test", "requester-test", "resource-test", "samesite-test",
    "server-auth-test", "server-test", "session-test", "sniffing-test", "socket-test", "ssl-test", "streaming-test",
    "timeout-test", "unix-socket-test", "websocket-test")


NODE = tuple(f"test/parallel/test-{area}-*.{kind}" for area in ("net", "http", "cluster") for kind in ("js", "mjs"))


def all_suites():
    return [Programs(name, quick=name in ("socat", "openssl")) for name in programs.NEEDS] + packages() + [
        OneByOne("node-parallel", "MEGAPIPE_TEST_NODE", "MEGAPIPE_TEST_NODE_SOURCE", NODE, known={
            "test-http-writable-true-after-close.js":
                "it expects of two connections that the first is reported first (docs/compatibility.md)"}),
        Libuv("libuv", "MEGAPIPE_TEST_LIBUV"),
        Installed("glib", GLIB),
        Installed("libsoup-2.4", LIBSOUP),
        Installed("libsoup-3.0", LIBSOUP),
        # VSOCK: the tests hang on machines with a vsock device and no host behind it.
        Standard("test_socket", ignore=("*VSOCK*",)),
        # Half of its tests are about tasks and queues only.
        Standard("test_asyncio", limit=600, ignore=[
            f"test.test_asyncio.test_{module}.*"
            for module in ("tasks", "futures", "futures2", "locks", "queues", "taskgroups", "pep492")]),
        Standard("test_selectors", promotes=False),
        Standard("test_epoll", quick=True),
        Standard("test_poll", promotes=False),
        Standard("test_select", promotes=False),
        Standard("test_signal", promotes=False),
        Standard("test_eintr", promotes=False),
        Standard("test_subprocess", promotes=False),
        Standard("test_socketserver", quick=True),
        Standard("test_ssl"),
        Standard("test_httplib", quick=True),
        Standard("test_httpservers", quick=True),
        Standard("test_ftplib", quick=True),
        Standard("test_poplib"),
        Standard("test_imaplib"),
        Standard("test_telnetlib", promotes=False),
        Standard("test_asyncore"),
        Standard("test_asynchat"),
        Standard("test_smtpd", promotes=False),
        Standard("test_smtplib", quick=True),
        Standard("test_xmlrpc"),
        Standard("test_docxmlrpc"),
        Standard("test_urllib2_localnet", quick=True),
        Standard("test_wsgiref", quick=True, promotes=False),
        Standard("test_multiprocessing_fork", limit=600),
        # The rest takes minutes to start interpreters.
        Standard("test_multiprocessing_spawn", limit=600, only=CONNECTIONS),
        Standard("test_multiprocessing_forkserver", limit=600, only=CONNECTIONS),
        Standard("test_concurrent_futures", limit=600, promotes=False),
        Standard("test_logging"),
        Standard("test_timeout", promotes=False),
        Standard("test_os", promotes=False),
    ]
