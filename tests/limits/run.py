#!/usr/bin/python3
"""What becomes of programs under `megapipe run` at the limits of a machine, beside plain TCP.

quota: redis-py and Redis in a cgroup that may use 20 % of a CPU, both or the server alone.
priority: the server under SCHED_FIFO and the client at nice 19 on one core, and the other way round.
broadcast: one thread writes to 200 connections at once, on each side a thread for each.
breaks: what goes wrong on purpose: kills, stops, forks, handovers, few descriptors, no /proc, and so on.

Sides take turns, in another order each round; figures are medians of the rounds, ratios those of the ratios within
a round. Runs as root, with redis-server, python3-redis and a C compiler; `make build` before. Starts a monitor of its
own. Ends with 1 if an outcome of `breaks` is another one than plain TCP's and no known difference.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
CLIENT = ROOT / "crates/bench/src/apps/scripts/client.py"
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
QUOTA = 20_000  # us in each PERIOD
PERIOD = 100_000
RECEIVERS = 200
PATIENCE = 30
# Cases of `breaks` that docs/compatibility.md has as different.
DIFFERENT = {"close, dup2, O_NONBLOCK beside a read"}


class Site:
    """A folder, and the monitor of this run."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.port = random.randrange(12_000, 25_000)
        self.socket = self.folder / "monitor.sock"
        self.environment = dict(os.environ, MEGAPIPE_MONITOR=str(self.socket))
        self.program = self.folder / "limits"
        subprocess.run(["cc", "-O2", "-pthread", HERE / "limits.c", "-o", self.program], check=True)
        self.start_monitor()

    def start_monitor(self):
        self.monitor = subprocess.Popen([BUILT / "megapipe", "monitor", "--socket", self.socket], stderr=subprocess.DEVNULL)
        wait_until(self.socket.exists)

    def end(self):
        self.monitor.terminate()
        self.monitor.wait()

    def next_port(self):
        self.port += 1
        return self.port

    def start(self, command, ours, before=(), log="log", **more):
        """A program, plain or under `megapipe run`, behind what sets its limits."""
        run = [BUILT / "megapipe", "run", "--stats", "--log", self.folder / log, "--"] if ours else []
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | more
        return subprocess.Popen([*before, *run, *command], env=self.environment, **more)

    def promoted(self, log="log"):
        """Connections that the summaries of a log have as promoted; removes it."""
        log = self.folder / log
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return sum(int(number) for number in re.findall(r"(\d+) promoted", text))


def wait_until(done, seconds=10):
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("was not ready in time")
        time.sleep(0.01)


def listens(port):
    line = f":{port:04X} 00000000:0000 0A"
    return any(line in text for text in open("/proc/net/tcp"))


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def output(process):
    """What it has printed at its end, or None if it hangs."""
    try:
        return process.communicate(timeout=PATIENCE)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None


class Cgroup:
    """A cgroup with the quota, of version 2 or 1."""

    def __init__(self):
        name = f"megapipe-limits-{os.getpid()}"
        if "cpu" in read("/sys/fs/cgroup/cgroup.controllers").split():
            pathlib.Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+cpu")
            self.folder = pathlib.Path("/sys/fs/cgroup", name)
            self.folder.mkdir()
            (self.folder / "cpu.max").write_text(f"{QUOTA} {PERIOD}")
        else:
            self.folder = pathlib.Path("/sys/fs/cgroup/cpu", name)
            self.folder.mkdir()
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.folder / "cpu.cfs_quota_us").write_text(str(QUOTA))

    def command(self):
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', self.folder / "cgroup.procs"]

    def throttled_ms(self):
        found = re.search(r"throttled_(time|usec) (\d+)", read(self.folder / "cpu.stat"))
        return int(found[2]) / (1e6 if found[1] == "time" else 1e3)

    def remove(self):
        wait_until(lambda: not read(self.folder / "cgroup.procs"))
        self.folder.rmdir()


def read(file):
    return pathlib.Path(file).read_text() if pathlib.Path(file).exists() else ""


def redis(site, ours, threads, rate, seconds, server_before, client_before):
    """Figures of redis-py against Redis, or None if one hangs."""
    port = site.next_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", site.folder]
    server = site.start(command, ours, server_before, "server", stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port), PATIENCE)
        before = cpu_s(server.pid)
        command = [CLIENT, "redis-py-get", "--port", port, "--threads", threads, "--warm-up", seconds / 4]
        command += ["--window", seconds, "--rate", rate]
        client = site.start([sys.executable, *map(str, command)], ours, client_before, "client")
        printed = output(client)
        server_cpu = cpu_s(server.pid) - before
    finally:
        server.terminate()
        server.wait()
    site.promoted("server")
    promoted = site.promoted("client")
    if printed is None or not printed.startswith("{"):
        return {"outcome": printed or "hangs", "promoted": promoted}
    figures = json.loads(printed)
    each = figures["requests"] / 1e6
    return {
        "requests_per_s": figures["requests_per_s"],
        "p50_us": figures["p50_us"],
        "p99_us": figures["p99_us"],
        "server_cpu_us": server_cpu / each,
        "client_cpu_us": figures["cpu_s"] / each,
        "promoted": promoted,
    }


def paced(name, measure, rates):
    """A closed loop, then a quarter of the requests that plain TCP bore in the first round."""

    def closed(ours):
        figures = measure(ours, 0)
        if not ours and "requests_per_s" in figures:
            rates.setdefault(name, figures["requests_per_s"] / 4)
        return figures

    yield f"{name}, closed loop", closed
    yield f"{name}, at a quarter of plain's rate", lambda ours: measure(ours, rates[name])


def quota(site, seconds):
    rates = {}
    for threads in (1, 8):
        for name, parts in (("both", (True, True)), ("the server", (True, False))):

            def measure(ours, rate, threads=threads, parts=parts):
                group = Cgroup()
                limits = [group.command() if part else [] for part in parts]
                pins = [["taskset", "-c", str(cpu)] for cpu in (0, 1)]
                try:
                    before = [limit + pin for limit, pin in zip(limits, pins)]
                    return redis(site, ours, threads, rate, seconds, *before) | {"throttled_ms": group.throttled_ms()}
                finally:
                    group.remove()

            yield from paced(f"20 % of a CPU for {name}, {threads} threads", measure, rates)


def priority(site, seconds):
    rates = {}
    high, low = ["taskset", "-c", "0", "chrt", "-f", "10"], ["taskset", "-c", "0", "nice", "-n", "19"]
    for threads in (1, 8):
        for name, server, client in (("server SCHED_FIFO, client nice 19", high, low), ("client SCHED_FIFO, server nice 19", low, high)):

            def measure(ours, rate, threads=threads, server=server, client=client):
                return redis(site, ours, threads, rate, seconds, server, client)

            yield from paced(f"{name}, {threads} threads", measure, rates)


def broadcast(site, _seconds):
    for name, cpus in (("two cores", (["taskset", "-c", "0"], ["taskset", "-c", "1"])), ("not pinned", ([], []))):

        def measure(ours, cpus=cpus):
            port = site.next_port()
            server = site.start([site.program, "broadcaster", str(port), str(RECEIVERS)], ours, cpus[0], "server")
            wait_until(lambda: listens(port))
            client = site.start([site.program, "audience", str(port), str(RECEIVERS)], ours, cpus[1], "client")
            printed = [output(part) for part in (client, server)]
            site.promoted("server")
            promoted = site.promoted("client")
            if not all(text and text.startswith("{") for text in printed):
                return {"outcome": f"{printed}", "promoted": promoted}
            client, server = map(json.loads, printed)
            return {
                "requests_per_s": client["received"] / server["seconds"],
                "p50_us": client["p50_us"],
                "p99_us": client["p99_us"],
                "server_cpu_us": server["cpu_us"],
                "client_cpu_us": client["cpu_us"],
                "promoted": promoted,
            }

        yield f"a broadcast to {RECEIVERS} threads each 10 ms, {name}", measure


def measure_all(site, part, cases, rounds, seconds, records):
    """Every case in every round, sides in turns; prints a table."""
    results = {}
    for turn in range(rounds):
        for name, measure in cases(site, seconds):
            for ours in (False, True) if turn % 2 == 0 else (True, False):
                figures = measure(ours)
                records.append({"part": part, "case": name, "round": turn + 1, "megapipe": ours} | figures)
                results.setdefault((name, ours), []).append(figures)
                print(".", end="", flush=True, file=sys.stderr)
    print(f"\n{part}\n")
    print("| case | requests/s | x | p50 us | p99 us | server CPU us, x | client CPU us, x | throttled ms | promoted |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in results):
        print(row(name, results[name, False], results[name, True]))


def row(name, plain, ours):
    failed = [f"{side}: {each['outcome']}" for side, all in (("plain", plain), ("Megapipe", ours)) for each in all if "outcome" in each]
    rounds = [(one, other) for one, other in zip(plain, ours) if "outcome" not in one | other]
    if not rounds:
        return f"| {name} | {'; '.join(failed)} |" + " |" * 7
    plain, ours = zip(*rounds)
    if failed:
        name += f" ({'; '.join(failed)})"
    median = lambda side, field: statistics.median(each.get(field) or 0 for each in side)
    pair = lambda field: f"{median(plain, field):.0f} -> {median(ours, field):.0f}"
    ratios = lambda field: [one[field] / other[field] for one, other in zip(ours, plain) if other[field]]
    ratio = lambda field: f"{statistics.median(ratios(field)):.2f}"
    rates = ratios("requests_per_s")
    cells = [
        name,
        pair("requests_per_s"),
        f"{ratio('requests_per_s')} ({min(rates):.2f} to {max(rates):.2f})",
        f"{pair('p50_us')}, {ratio('p50_us')}",
        f"{pair('p99_us')}, {ratio('p99_us')}",
        f"{pair('server_cpu_us')}, {ratio('server_cpu_us')}",
        f"{pair('client_cpu_us')}, {ratio('client_cpu_us')}",
        pair("throttled_ms") if "throttled_ms" in plain[0] else "",
        f"{median(ours, 'promoted'):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


class Break:
    """A server and one client, of which one is treated badly."""

    def __init__(self, site, ours):
        self.site, self.ours = site, ours
        self.port = site.next_port()

    def serve(self, before=()):
        command = [self.site.program, "server", str(self.port)]
        self.server = self.site.start(command, self.ours, before, "server", stdout=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port))

    def ask(self, role, argument=0, before=()):
        self.client = self.site.start([self.site.program, role, str(self.port), str(argument)], self.ours, before, "client")

    def ready(self):
        return self.client.stdout.readline().strip() == "ready"

    def outcome(self):
        printed = output(self.client)
        if printed is None:
            return "hangs"
        status = self.client.returncode
        return printed.splitlines()[-1] if printed else f"ended with {status}"

    def end(self):
        for process in (self.client, self.server):
            process.poll() is None and process.kill()
            process.wait()
            process.stdout and process.stdout.close()
        self.site.promoted("server")
        return self.site.promoted("client")

    def simple(self, role, argument=0, server=(), client=()):
        self.serve(server)
        self.ask(role, argument, client)
        return self.outcome()

    def killed_server(self):
        self.serve()
        self.ask("endure", 10)
        self.ready()
        time.sleep(0.3)
        self.server.kill()
        return self.outcome()

    def killed_client(self):
        """The server has to close its connection, and serve another client."""
        self.serve()
        self.ask("endure", 20)
        self.ready()
        time.sleep(0.3)
        self.client.kill()
        self.client.communicate()
        connection = re.compile(rf":{self.port:04X} \S+ (01|08)")
        wait_until(lambda: not connection.search(read("/proc/net/tcp")), 5)
        self.ask("endure", 1)
        self.ready()
        return f"the next client {self.outcome()}"

    def stopped(self):
        """The server is stopped for 2 s while both ways are full."""
        self.serve()
        self.ask("full")
        self.ready()
        self.server.send_signal(signal.SIGSTOP)
        time.sleep(2)
        self.server.send_signal(signal.SIGCONT)
        return self.outcome()

    def lost_monitor(self):
        """The connection goes on, and the next program finds the next monitor."""
        self.serve()
        self.ask("endure", 3)
        self.ready()
        self.site.monitor.kill()
        self.site.monitor.wait()
        self.site.socket.unlink()
        self.site.start_monitor()
        first = self.outcome()
        self.site.promoted("client")
        self.ask("endure", 1)
        self.ready()
        return f"{first}; the next {self.outcome()}"

    def moved(self):
        """Both go to one core, the server to SCHED_FIFO and the client to nice 19, then back."""
        self.serve(["taskset", "-c", "0"])
        self.ask("endure", 3, ["taskset", "-c", "1"])
        self.ready()
        tasks = [int(task) for task in os.listdir(f"/proc/{self.server.pid}/task")]
        os.setpriority(os.PRIO_PROCESS, self.client.pid, 19)
        for cpus, policy in (({0}, os.SCHED_FIFO), ({0, 1}, os.SCHED_OTHER)):
            os.sched_setaffinity(self.client.pid, cpus)
            for task in tasks:
                os.sched_setscheduler(task, policy, os.sched_param(10 if policy == os.SCHED_FIFO else 0))
                os.sched_setaffinity(task, cpus)
            time.sleep(1)
        return self.outcome()

    def rootless(self):
        folder = self.site.folder / "empty"
        folder.mkdir(exist_ok=True)
        return self.simple("root", folder)


FULL_SHM = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm; head -c 9999 /dev/zero >/dev/shm/full 2>/dev/null; exec "$0" "$@"']
FEW = ["prlimit", "--nofile=64"]

BREAKS = {
    "server killed (SIGKILL) under load": Break.killed_server,
    "client killed (SIGKILL) under load": Break.killed_client,
    "server stopped for 2 s, both ways full": Break.stopped,
    "monitor killed and started again": Break.lost_monitor,
    "both moved onto one core, SCHED_FIFO and nice 19": Break.moved,
    "fork, both take turns": lambda self: self.simple("fork"),
    "exec with the connection": lambda self: self.simple("exec"),
    "the connection handed over by SCM_RIGHTS": lambda self: self.simple("pass"),
    "close, dup2, O_NONBLOCK beside a read": lambda self: self.simple("change"),
    "SIGALRM leaves reads by siglongjmp": lambda self: self.simple("leave"),
    "pthread_cancel of reads that always find data": lambda self: self.simple("cancel"),
    "100 MB by MSG_WAITALL, a signal each ms": lambda self: self.simple("burst"),
    "a wait by epoll_wait without libc": lambda self: self.simple("raw-epoll"),
    "select of 600 connections": lambda self: self.simple("select", 0, (), ["prlimit", "--nofile=1024:4096"]),
    "chroot to an empty folder": Break.rootless,
    "64 descriptors (ulimit -n)": lambda self: self.simple("endure", 1, FEW, FEW),
    "/dev/shm full": lambda self: self.simple("endure", 1, FULL_SHM, FULL_SHM),
    "seccomp: sendto, recvfrom, write, exit": lambda self: self.simple("confine"),
}


def break_all(site, rounds, records):
    print("\nbreaks\n\n| what | plain TCP | Megapipe | promoted |\n|---|---|---|---|")
    alike = True
    for name, run in BREAKS.items():
        seen = {False: [], True: []}
        promoted = []
        for turn in range(rounds):
            for ours in (False, True) if turn % 2 == 0 else (True, False):
                broken = Break(site, ours)
                try:
                    outcome = run(broken)
                except TimeoutError as error:
                    outcome = str(error)
                count = broken.end()
                promoted += [count] if ours else []
                seen[ours].append(outcome)
                records.append({"part": "breaks", "case": name, "round": turn + 1, "megapipe": ours, "outcome": outcome, "promoted": count})
        alike = alike and (name in DIFFERENT or set(seen[True]) <= set(seen[False]))
        words = [" or ".join(sorted(set(seen[ours]))) for ours in (False, True)]
        print(f"| {name} | {words[0].rstrip('; ')} | {words[1].rstrip('; ')} | {max(promoted)} |", flush=True)
    return alike


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["quota", "priority", "broadcast", "breaks"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=pathlib.Path, help="records, one a line")
    arguments = parser.parse_args()
    records, alike = [], True
    folder = tempfile.mkdtemp(prefix="megapipe-limits-")
    site = Site(folder)
    try:
        for part in arguments.parts:
            if part == "breaks":
                alike = break_all(site, arguments.rounds, records)
            else:
                cases = {"quota": quota, "priority": priority, "broadcast": broadcast}[part]
                measure_all(site, part, cases, arguments.rounds, arguments.seconds, records)
    finally:
        site.end()
        shutil.rmtree(folder)
        if arguments.json:
            arguments.json.write_text("".join(json.dumps(record) + "\n" for record in records))
    sys.exit(0 if alike else 1)


if __name__ == "__main__":
    main()
