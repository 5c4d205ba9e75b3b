#!/usr/bin/env python3
"""Runs tests that are installed as GNOME does it, one program after the other, and prints what
they print (TAP). Usage: installed.py SUITE PROGRAM.."""

import configparser
import os
import pathlib
import shlex
import signal
import subprocess
import sys

TESTS = pathlib.Path("/usr/share/installed-tests")
LIMIT = 120
# Tests that hang one time in three as they are.
LEAVE_OUT = {"server-test": ("-s", "/server/fail", "-s", "/server/early")}


def main():
    suite, names = sys.argv[1], sys.argv[2:]
    for name in names:
        about = configparser.ConfigParser(interpolation=None)
        about.read(TESTS / suite / f"{name}.test")
        command = [*shlex.split(about["Test"]["Exec"]), *LEAVE_OUT.get(name, ())]
        print(f"program {name}", flush=True)
        # They start servers of their own, which end with the group.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                   cwd=pathlib.Path(command[0]).parent, start_new_session=True)
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = f"still running after {LIMIT} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        print(f"status {name} {status}", flush=True)


if __name__ == "__main__":
    main()
