#!/usr/bin/env python3
"""Runs programs' own test suites plain, and under the preload library, and compares.

The claim: the same tests pass in every mode, and so many connections and bytes really went
over shared memory. Usage: run.py [--quick] [--list] [--modes M,..] [--keep DIR] [SUITE..]

A suite that is not installed is named and skipped, with the reason.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import suites

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILE = "debug" if "MEGAPIPE_TEST_BUILT" in os.environ else "release"
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / PROFILE
MODES = ("plain", "observe", "eager")
PR_SET_CHILD_SUBREAPER = 36

CONNECTIONS = re.compile(r"(\d+) connections, (\d+) promoted")
BYTES = re.compile(r"over shared memory \d+ messages and (\d+) bytes sent, \d+ messages and (\d+) bytes received")


class Outcome:
    """What one suite came to in one mode."""

    def __init__(self, tests, seconds, note=None):
        self.tests = tests
        self.seconds = seconds
        self.note = note
        self.connections = self.promoted = self.sent = self.received = 0

    def passed(self):
        return {name for name, status in self.tests.items() if status == "passed"}

    def read_summaries(self, path):
        """Adds up what the library wrote at the exit of each process."""
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            if found := CONNECTIONS.search(line):
                self.connections += int(found[1])
                self.promoted += int(found[2])
            elif found := BYTES.search(line):
                self.sent += int(found[1])
                self.received += int(found[2])


def descendants():
    """Processes below this one, also those that left their parents: it is their subreaper."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def marked(mark):
    """Those of this run's processes that carry its mark in their environment."""
    for pid in descendants():
        try:
            if mark in pathlib.Path("/proc", str(pid), "environ").read_bytes():
                yield pid
        except OSError:
            pass


def end_leftovers(mark):
    for pid in list(marked(mark)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Runner:
    def __init__(self, out, library, monitor):
        self.out = out
        self.library = library
        self.monitor = monitor

    def environment(self, suite, mode, summary, mark):
        # What the caller set for the library is not what is tested here.
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("MEGAPIPE_") and name != "LD_PRELOAD"}
        env["MEGAPIPE_APPS_RUN"] = mark
        if mode != "plain":
            env |= {
                "LD_PRELOAD": str(self.library),
                "MEGAPIPE_PROMOTE": mode,
                "MEGAPIPE_MONITOR": str(self.monitor),
                "MEGAPIPE_STATS": "1",
                "MEGAPIPE_LOG": str(summary),
            }
        return env

    def run(self, suite, mode):
        place = self.out / suite.name / mode
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        summary = place / "summary"
        summary.touch()
        summary.chmod(0o666)
        mark = f"{os.getpid()}-{suite.name}-{mode}"
        env = self.environment(suite, mode, summary, mark) | suite.environment(place)
        began = time.monotonic()
        note = None
        with open(place / "log", "wb") as log:
            process = subprocess.Popen(
                suite.command(place), cwd=suite.directory(place), env=env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(suite.limit)
                if status < 0:
                    note = f"ended by signal {-status}"
            except subprocess.TimeoutExpired:
                note = f"still running after {suite.limit} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        end_leftovers(f"MEGAPIPE_APPS_RUN={mark}".encode())
        outcome = Outcome(suite.results(place), time.monotonic() - began, note)
        outcome.read_summaries(summary)
        return outcome


def start_monitor(program, place):
    policy = place / "policy"
    policy.write_text("same_user = true\n")
    socket = place / "monitor.sock"
    log = open(place / "monitor.log", "wb")
    monitor = subprocess.Popen(
        [program, "monitor", "--socket", socket, "--config", policy], cwd=place,
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 10
    while not socket.exists():
        if monitor.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the monitor did not start: {(place / 'monitor.log').read_text()}")
        time.sleep(0.02)
    return monitor, socket


def lost(outcomes, mode, suite):
    """Tests that pass plain, and do not in this mode, apart from those of which it is known."""
    return outcomes["plain"].passed() - outcomes[mode].passed() - set(suite.known)


def differences(outcomes, suite):
    """Lines that tell where a mode differs from plain."""
    plain = outcomes.get("plain")
    for mode, outcome in outcomes.items():
        if outcome.note:
            yield f"{mode}: {outcome.note}"
        if plain is None or mode == "plain":
            continue
        names = sorted(lost(outcomes, mode, suite))
        for name in names[:20]:
            yield f"{mode}: {name} {outcome.tests.get(name, 'did not run')}, passes plain"
        if len(names) > 20:
            yield f"{mode}: {len(names) - 20} more"
        for name in sorted((plain.passed() - outcome.passed()) & set(suite.known)):
            yield f"{mode}: {name} differs, as is known: {suite.known[name]}"


def holds(outcomes, suite):
    """Whether the same tests pass, and enough was promoted for that to say something."""
    plain = outcomes.get("plain")
    if any(outcome.note for outcome in outcomes.values()) or (plain and not plain.passed()):
        return False
    if plain and any(lost(outcomes, mode, suite) for mode in outcomes):
        return False
    eager = outcomes.get("eager")
    return eager is None or not suite.promotes or (eager.promoted > 0 and eager.sent + eager.received > 0)


def row(name, outcomes, verdict):
    def cell(mode):
        outcome = outcomes.get(mode)
        return str(len(outcome.passed())) if outcome else "-"
    eager = outcomes.get("eager")
    promoted = f"{eager.promoted}/{eager.connections}" if eager else "-"
    moved = f"{max(eager.sent, eager.received):,}" if eager else "-"
    seconds = "/".join(f"{outcomes[mode].seconds:.0f}" for mode in MODES if mode in outcomes)
    return (name, cell("plain"), cell("observe"), cell("eager"), promoted, moved, seconds, verdict)


def print_table(rows):
    header = ("suite", "plain", "observe", "eager", "promoted ends", "ring bytes", "seconds", "")
    rows = [header, *rows]
    widths = [max(len(line[column]) for line in rows) for column in range(len(header))]
    for line in rows:
        cells = [line[0].ljust(widths[0])]
        cells += [line[column].rjust(widths[column]) for column in range(1, 7)]
        print("  ".join([*cells, line[7]]).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="SUITE", help="suites to run; all, if none is named")
    parser.add_argument("--quick", action="store_true", help="those that take seconds only")
    parser.add_argument("--list", action="store_true", help="name the suites, and what they lack")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="suites at a time")
    parser.add_argument("--keep", type=pathlib.Path, help="directory for logs; a temporary one otherwise")
    parser.add_argument("--library", type=pathlib.Path, default=BUILT / "libmegapipe_preload.so")
    parser.add_argument("--program", type=pathlib.Path, default=BUILT / "megapipe")
    asked = parser.parse_args()
    modes = [mode for mode in MODES if mode in asked.modes.split(",")]
    known = {suite.name: suite for suite in suites.all_suites()}
    if unknown := set(asked.names) - set(known):
        sys.exit(f"no such suite: {', '.join(sorted(unknown))}")
    chosen = [suite for suite in known.values()
              if (not asked.names or suite.name in asked.names) and (suite.quick or not asked.quick)]
    if asked.list:
        for suite in chosen:
            print(f"{suite.name:32} {suite.missing() or ''}".rstrip())
        return 0

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out = (asked.keep or pathlib.Path(tempfile.mkdtemp(prefix="megapipe-apps."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    meeting = pathlib.Path(tempfile.mkdtemp(prefix="megapipe-"))
    for place in (out, meeting):
        # Databases run as users of their own.
        place.chmod(0o755)
    monitor, socket = start_monitor(asked.program.resolve(), meeting)
    runner = Runner(out, asked.library.resolve(), socket)

    rows, failed, skipped, told = [], [], [], {}
    try:
        def one(suite):
            (out / suite.name).mkdir(exist_ok=True)
            if why := suite.missing() or suite.prepare(out / suite.name):
                return suite, why
            return suite, {mode: runner.run(suite, mode) for mode in modes}

        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
            for suite, outcomes in pool.map(one, chosen):
                if isinstance(outcomes, str):
                    skipped.append(f"{suite.name}: {outcomes}")
                    print(f"SKIPPED {skipped[-1]}", flush=True)
                    continue
                good = holds(outcomes, suite)
                rows.append(row(suite.name, outcomes, "" if good else "FAILED"))
                print("  ".join(rows[-1]), flush=True)
                for line in differences(outcomes, suite):
                    print(f"    {line}", flush=True)
                told[suite.name] = {
                    mode: {**{key: value for key, value in vars(outcome).items() if key != "tests"},
                           "passed": sorted(outcome.passed())}
                    for mode, outcome in outcomes.items()}
                if not good:
                    failed.append(suite.name)
    finally:
        monitor.terminate()
        monitor.wait()
        shutil.rmtree(socket.parent, ignore_errors=True)
    (out / "results.json").write_text(json.dumps(told, indent=1))
    print()
    print_table(rows)
    for line in skipped:
        print(f"SKIPPED {line}")
    print(f"logs: {out}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
