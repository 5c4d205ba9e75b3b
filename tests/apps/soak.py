#!/usr/bin/env python3
"""Programs as they are under the preload library for a long time, while they, their clients and the monitor are
killed, stopped and started again: no wrong byte, no hang, and nothing left behind.

Usage: soak.py [--seed N] [--seconds N] [--quick] [--only SERVICE,..] [--keep DIR]
The seed chooses what is sent, and what is killed and when; how that meets is the machine's.

Every byte of an answer is checked by the clients (soak_clients.py). A connection that breaks has to have a kill
beside it. An operation that takes too long is a hang. Between phases everybody closes his connections, and what
processes hold then, and the monitor counts, has to be what it was."""

import argparse
import collections
import contextlib
import ctypes
import heapq
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import helpers
import soak_servers
import soak_watch
from run import BUILT, PR_SET_CHILD_SUBREAPER, descendants
from soak_wire import BREAKS, BYTES, CONNECTIONS, END, LANES, OPERATIONS, PAUSE, PAUSED, RUN, SINCE
from soak_wire import Contents, Control, Progress

TICK = 0.05
# Longer than any stop, and than a restart of any server.
HANG_SECONDS = 30
LONGEST_STOP = 3
# A tick takes less, even beside much other work.
STALL_SECONDS = 3
QUIET_SECONDS = 25
PHASE_SECONDS = 60

# Clients: kind, service, processes, threads of each.
CLIENTS = (("redis", "redis", 3, 2), ("http", "nginx", 2, 2), ("http", "haproxy", 2, 2), ("postgres", "postgres", 2, 2))


class Failure(Exception):
    """What the soak is there to find."""


class Program:
    """A process of the soak: server, client, noise or monitor."""

    def __init__(self, name, kind, process, service=None):
        self.name = name
        self.kind = kind
        self.process = process
        self.service = service
        self.to_end = kind == "noise"

    @property
    def pid(self):
        return self.process.pid


class Soak:
    def __init__(self, asked, place):
        self.asked = asked
        self.place = place
        self.rng = random.Random(asked.seed)
        self.contents = Contents(asked.seed)
        self.programs = {}
        self.services = {}
        self.progress = {}
        self.logs = {}
        self.later = []
        self.order = itertools.count()
        self.stopped = {}
        self.spared = set()
        self.first = {}
        self.counts = collections.Counter()
        self.pauses = False
        # The last tick; and the end of the last time in which nobody could do anything.
        self.ticked = self.since = time.monotonic()
        (place / "control").write_bytes(bytes(4096))
        self.control = Control(place / "control")
        self.socket = place / "monitor.sock"
        self.policy = place / "policy"
        # Servers run as users of their own.
        self.policy.write_text("[[allow]]\none = {}\nother = {}\n" if os.geteuid() == 0 else "same_user = true\n")

    # Starting

    def environment(self):
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("MEGAPIPE_", "PG")) and name != "LD_PRELOAD"}
        return env | {
            "LD_PRELOAD": str(self.asked.library),
            "MEGAPIPE_PROMOTE": self.rng.choice(("eager", "auto")),
            "MEGAPIPE_MONITOR": str(self.socket),
            "MEGAPIPE_STATS": "1",
            "MEGAPIPE_LOG": str(self.place / "summaries"),
        }

    def start(self, name, kind, command, service=None, plain=False, **options):
        env = self.environment()
        if plain:
            del env["LD_PRELOAD"]
        command = [helpers.program(command[0]) or command[0], *map(str, command[1:])]
        with open(self.place / f"{name}.out", "ab") as out:
            process = subprocess.Popen(command, env=env, cwd=self.place, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True, **options)
        self.programs[name] = Program(name, kind, process, service)
        self.counts[f"{kind} starts"] += 1

    def start_server(self, name):
        service = self.services[name]
        self.disturbances.begin(name, 0)
        self.start(name, "server", service.command(), name, **service.options())

    def start_client(self, name, kind, service, lanes):
        self.progress[name].forget_operations()
        self.start(name, "client", (sys.executable, soak_servers.HERE / "soak_clients.py", kind, self.place, name,
                                    self.asked.seed, lanes, self.services[service].port), service)

    def start_monitor(self):
        self.start("monitor", "monitor", (self.asked.program, "monitor", "--socket", self.socket, "--config",
                                          self.policy), plain=True)

    def start_noise(self):
        if not self.pauses and (command := self.noise.command()):
            self.start("noise", "noise", command)

    def start_all(self):
        (self.place / "summaries").touch()
        (self.place / "summaries").chmod(0o666)
        for kind in soak_servers.SERVICES:
            if self.asked.only and kind.name not in self.asked.only:
                continue
            if why := kind.missing():
                print(f"SKIPPED soak of {kind.name}: {why}", flush=True)
                continue
            self.services[kind.name] = kind(self.place, self.rng)
            self.services[kind.name].prepare(self)
        if not self.services:
            return False
        self.disturbances = soak_watch.Disturbances(self.services)
        self.start_monitor()
        for name in self.services:
            self.start_server(name)
        self.clients = {}
        for kind, service, processes, lanes in CLIENTS:
            for number in range(processes if service in self.services else 0):
                name = f"{kind}-{service}-{number}"
                self.clients[name] = (kind, service, lanes)
                self.progress[name] = Progress(self.place / f"{name}.progress")
                log = self.place / f"{name}.log"
                log.touch()
                self.logs[name] = open(log, encoding="utf-8")
                self.start_client(name, *self.clients[name])
        self.noise = soak_servers.Noise(self.services, self.rng)
        self.start_noise()
        return True

    # Time

    def at(self, seconds, call, *arguments):
        heapq.heappush(self.later, (time.monotonic() + seconds, next(self.order), call, arguments))

    def tick(self):
        time.sleep(TICK)
        now = time.monotonic()
        if now - self.ticked > STALL_SECONDS:
            # All of us were stopped, or had no processor: nobody hung meanwhile.
            self.since = now
        self.ticked = now
        while self.later and self.later[0][0] <= now:
            _, _, call, arguments = heapq.heappop(self.later)
            call(*arguments)
        self.reap()
        for name in list(self.disturbances.open):
            if name in self.programs and self.services[name].serves():
                self.disturbances.serves(name)
        self.read_logs()
        self.watch()

    def reap(self):
        """Ends that we asked for are followed by a start; others are failures."""
        for program in list(self.programs.values()):
            status = program.process.poll()
            if status is None:
                continue
            del self.programs[program.name]
            self.stopped.pop(program.pid, None)
            if program.kind == "noise":
                if status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
                    raise Failure(f"{program.process.args} ended by signal {-status}")
                self.at(0.1, self.start_noise)
            elif not program.to_end and program.name in self.disturbances.open and status > 0:
                # What a killed one left, shared memory or a port, may be in its way for a moment.
                self.at(0.5, self.start_server, program.name)
            elif not program.to_end:
                raise Failure(f"{program.name} ended by itself, status {status}: see {program.name}.out")
            else:
                self.at(self.rng.uniform(0, 0.5), *self.starter(program))

    def starter(self, program):
        if program.kind == "server":
            return self.start_server, program.name
        if program.kind == "client":
            return self.start_client, program.name, *self.clients[program.name]
        return (self.start_monitor,)

    def read_logs(self):
        for name, log in self.logs.items():
            for line in log:
                told = json.loads(line)
                if told["kind"] == "wrong":
                    raise Failure(f"{name} lane {told['lane']}: WRONG in {told['label']}: {told['error']}")
                if not self.disturbances.explain(self.clients[name][1], told["since"], told["at"]):
                    raise Failure(f"{name} lane {told['lane']}: broke, and nobody was killed, between "
                                  f"{told['since']:.3f} and {told['at']:.3f} in {told['label']}: {told['error']}")

    def watch(self):
        """The watchdog. Who hangs is left as he is until all was looked at."""
        now = time.monotonic()
        for name, progress in self.progress.items():
            if name not in self.programs:
                continue
            for number in range(self.clients[name][2]):
                record, label = progress.lane(number)
                if record[SINCE] and (hung := now - max(record[SINCE] / 1e9, self.since)) > HANG_SECONDS:
                    raise Failure(f"{name} lane {number}: HANGS for {hung:.0f} s in {label}")

    # Killing

    def say(self, what, program, pid=None):
        self.counts[what] += 1
        print(f"{time.monotonic():.3f} {what} {program.name} {pid or program.pid}", file=self.events, flush=True)

    def disturb(self):
        """One event, of those that are possible now."""
        program = self.rng.choice([other for other in self.programs.values() if other.name not in self.spared] or [None])
        if program is None or program.to_end and program.kind != "noise":
            return
        kill = self.rng.random() < (0.3 if program.kind == "monitor" else 0.6)
        pids = [program.pid]
        if program.kind == "server":
            pids += soak_servers.serving(program.service, program.pid)
        pid = self.rng.choice(pids)
        if not kill:
            self.stop(program, pid)
        elif pid == program.pid:
            self.kill(program)
        else:
            self.kill_child(program, pid)

    def stop(self, program, pid):
        """For a while, at the end of which it may be killed."""
        self.say("SIGSTOP", program, pid)
        self.send(pid, signal.SIGSTOP)
        self.stopped[pid] = program
        self.at(self.rng.uniform(0.01, LONGEST_STOP), self.go_on, pid)

    def go_on(self, pid):
        program = self.stopped.pop(pid, None)
        if program is None:
            return
        if self.rng.random() < 0.3 and not self.pauses and self.programs.get(program.name) is program:
            if pid == program.pid:
                self.kill(program)
            else:
                self.kill_child(program, pid)
        self.send(pid, signal.SIGCONT)

    @staticmethod
    def send(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def kill(self, program):
        if program.to_end and program.kind != "noise":
            return
        deaths = {signal.SIGKILL: 2, signal.SIGTERM: 1}
        if program.kind == "server":
            service = self.services[program.service]
            deaths = service.deaths
            self.disturbances.begin(program.service, service.unrest)
            if service.reloads and self.rng.random() < 0.4:
                self.say("SIGHUP", program)
                self.send(program.pid, signal.SIGHUP)
                return
        number = self.rng.choices(list(deaths), deaths.values())[0]
        program.to_end = True
        self.say(f"{signal.Signals(number).name} {program.kind}", program)
        if program.kind == "monitor":
            self.count_promotions()
        self.send(program.pid, number)
        if number != signal.SIGKILL:
            # Some wait for their clients, who wait for the next answer.
            self.at(2, self.end_for_good, program)

    def end_for_good(self, program):
        if program.process.poll() is None:
            for pid in (*soak_servers.children(program.pid), program.pid):
                self.send(pid, signal.SIGKILL)

    def kill_child(self, program, pid):
        service = self.services[program.service]
        number = self.rng.choices(list(service.children_deaths), service.children_deaths.values())[0]
        if pid not in soak_servers.serving(program.service, program.pid):
            return
        self.disturbances.begin(program.service, service.unrest)
        self.say(f"{signal.Signals(number).name} worker", program, pid)
        self.send(pid, number)

    # Quiet

    def count_promotions(self):
        if told := soak_watch.totals(self.asked.program, self.socket):
            self.counts["promoted ends"] += told["granted"]

    def quieten(self):
        """Everybody closes what he has; then nothing may be left of it."""
        self.pauses = True
        for pid in list(self.stopped):
            self.go_on(pid)
        self.control.state = PAUSE
        if noise := self.programs.get("noise"):
            self.send(noise.pid, signal.SIGTERM)
        self.wait_for("clients that close", self.all_paused)
        self.wait_for("connections that go", self.nothing_promoted)
        # An end whose other end left maps them until it is used or closed, as a proxy does after a while.
        self.wait_for("segments that go", self.nothing_mapped)
        for name, service in self.services.items():
            if name in self.programs and (told := service.tidy_up()):
                print(f"{time.monotonic():.3f} says {name}: {told}", file=self.events, flush=True)
        for program in self.programs.values():
            for pid in self.pids(program):
                if now := soak_watch.holdings(pid):
                    if program.name == "monitor" and (told := soak_watch.totals(self.asked.program, self.socket)):
                        # One to each client, and its page; how many there are is no matter of the monitor.
                        now.descriptors -= 2 * told["clients"]
                    self.compare(program, pid, now)

    def compare(self, program, pid, now):
        first = self.first.setdefault(pid, now)
        told = list(soak_watch.leaks(program.service if program.kind == "server" else program.kind, first, now))
        self.counts["quiet looks"] += 1
        self.counts["of them at who was there before"] += first is not now
        print(f"{time.monotonic():.3f} holds {program.name} {pid}: {now}", file=self.events, flush=True)
        if told:
            raise Failure(f"{program.name} {pid} LEAKS: {'; '.join(told)}")

    def all_paused(self):
        waits = [name for name, (_, _, lanes) in self.clients.items()
                 if name not in self.programs
                 or not all(self.progress[name].lane(number)[0][PAUSED] for number in range(lanes))]
        if "monitor" not in self.programs or "noise" in self.programs or self.disturbances.open:
            waits.append("others")
        return waits

    def nothing_promoted(self):
        told = soak_watch.totals(self.asked.program, self.socket)
        if told is None:
            return ["an answer of the monitor"]
        return [f"{told[what]} {what}" for what in ("waiting_offers", "promoted_ends", "segment_bytes") if told[what]]

    @staticmethod
    def pids(program):
        serving = soak_servers.serving(program.service, program.pid) if program.kind == "server" else []
        return [program.pid, *serving]

    def nothing_mapped(self):
        held = ((program, pid, soak_watch.holdings(pid)) for program in self.programs.values()
                for pid in self.pids(program))
        return [f"{program.name} {pid} maps {now.segments}" for program, pid, now in held if now and now.segments]

    def wait_for(self, what, waits):
        began = time.monotonic()
        while left := waits():
            if time.monotonic() - max(began, self.since) > HANG_SECONDS + QUIET_SECONDS:
                raise Failure(f"waited in vain for {what}: {', '.join(left)}")
            self.tick()

    def go(self):
        self.pauses = False
        self.control.state = RUN
        self.start_noise()
        # Who is spared lives long enough to be compared; not always the same.
        names = list(self.programs)
        self.spared = set(self.rng.sample(names, len(names) // 3)) | {"redis-redis-0", "http-haproxy-0"}

    # All of it

    def run(self):
        began = time.monotonic()
        if not self.start_all():
            return
        self.wait_for("servers that serve", lambda: list(self.disturbances.open))
        self.go()
        end = time.monotonic() + self.asked.seconds
        while time.monotonic() < end:
            phase = min(end, time.monotonic() + self.asked.phase)
            following = time.monotonic() + self.asked.every
            while time.monotonic() < phase:
                self.tick()
                if time.monotonic() >= following:
                    self.disturb()
                    following = time.monotonic() + self.rng.expovariate(1 / self.asked.every)
            self.quieten()
            print(f"{time.monotonic() - began:6.0f} s: {self.told()}", flush=True)
            if time.monotonic() < end:
                self.go()
        self.finish()

    def finish(self):
        self.count_promotions()
        self.control.state = END
        for program in self.programs.values():
            program.to_end = True
        for name in self.clients:
            self.end(self.programs.pop(name), None)
        for name in (*self.services, "monitor"):
            self.end(self.programs.pop(name), signal.SIGINT if name == "postgres" else signal.SIGTERM)
        for name in self.services:
            text = (self.place / f"{name}.out").read_text(errors="replace")
            for complaint in soak_servers.COMPLAINTS[name]:
                if (at := text.find(complaint)) >= 0:
                    raise Failure(f"{name} complains: {text[max(0, at - 100):at + 200]}")
        self.read_logs()
        if self.counts["promoted ends"] == 0:
            raise Failure("nothing was promoted: a run that says nothing")

    def end(self, program, number):
        if number:
            self.send(program.pid, number)
        try:
            status = program.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.programs[program.name] = program
            raise Failure(f"{program.name} does not end") from None
        if status not in (0, -(number or 0)):
            raise Failure(f"{program.name} ended with status {status}")

    def told(self):
        sums = collections.Counter()
        for name, progress in self.progress.items():
            for number in range(LANES):
                record, _ = progress.lane(number)
                for key, place in (("operations", OPERATIONS), ("bytes", BYTES), ("connections", CONNECTIONS),
                                   ("broken", BREAKS)):
                    sums[key] += record[place]
        kills = sum(count for what, count in self.counts.items() if what.startswith("SIG") and what != "SIGSTOP")
        return (f"{sums['operations']:,} operations, {sums['bytes']:,} bytes checked, {sums['connections']:,} connections, "
                f"{sums['broken']:,} of them or attempts broken by kills; {kills} kills, {self.counts['SIGSTOP']} stops")

    def dump(self):
        pids = {}
        for program in self.programs.values():
            pids[program.name] = program.pid
            if program.kind == "server":
                pids |= {f"{program.name}-{pid}": pid for pid in soak_servers.children(program.pid)}
        soak_watch.dump(self.place / "dump", self.asked.program, self.socket, pids)

    def __enter__(self):
        self.events = open(self.place / "events", "w", encoding="utf-8")
        return self

    def __exit__(self, *_):
        # All that lives below: those who left their parents, too, since this is their subreaper.
        while left := descendants():
            for pid in left:
                self.send(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        self.events.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or time.time()))
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("DURATION") or 600))
    parser.add_argument("--phase", type=float, default=PHASE_SECONDS, help="seconds between two quiet moments")
    parser.add_argument("--every", type=float, default=0.7, help="seconds between two kills or stops, on average")
    parser.add_argument("--only", type=lambda names: names.split(","), help="services, by comma")
    parser.add_argument("--keep", type=pathlib.Path, help="directory for logs; a temporary one otherwise")
    parser.add_argument("--library", type=pathlib.Path, default=BUILT / "libmegapipe_preload.so")
    parser.add_argument("--program", type=pathlib.Path, default=BUILT / "megapipe")
    parser.add_argument("--quick", action="store_true", help="some seconds, without PostgreSQL, always the same seed")
    asked = parser.parse_args()
    if asked.quick:
        asked.seed, asked.seconds, asked.phase, asked.every = 1, 12, 6, 0.4
        asked.only = ["redis", "nginx", "haproxy"]
    asked.library, asked.program = asked.library.resolve(), asked.program.resolve()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    place = (asked.keep or pathlib.Path(tempfile.mkdtemp(prefix="megapipe-soak."))).resolve()
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755)
    print(f"seed {asked.seed}, {asked.seconds:.0f} s, logs: {place}", flush=True)
    with Soak(asked, place) as soak:
        try:
            soak.run()
        except Failure as failure:
            print(soak.told())
            print(f"FAILED: {failure}\nlogs: {place}, seed {asked.seed}; what there is to see goes to {place}/dump",
                  flush=True)
            soak.dump()
            return 1
        if not soak.services:
            return 0
        print(soak.told())
        print(", ".join(f"{what}: {count}" for what, count in sorted(soak.counts.items())))
    print("no wrong byte, no hang, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
