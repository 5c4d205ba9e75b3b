#!/usr/bin/env python3
"""Runs memcached's own tests against the installed memcached, plain and on channels with each engine: the same
tests pass. They are those of its sources of the same version (apt-get source memcached).

Usage: suite.py PRELOAD SOURCES
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT = 600

# The tests start what a build leaves beside them, which takes an option that distributions leave out.
WRAPPER = """#!/bin/bash
arguments=()
for argument in "$@"; do
    if [ "$argument" = relaxed_privileges ]; then unset 'arguments[-1]'; else arguments+=("$argument"); fi
done
exec env {environment} memcached "${{arguments[@]}}"
"""


def prepare(sources, place, environment):
    shutil.copytree(sources, place)
    wrapper = place / "memcached-debug"
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    wrapper.write_text(WRAPPER.format(environment=settings))
    wrapper.chmod(0o755)
    subprocess.run(["cc", "-o", place / "timedrun", place / "timedrun.c"], check=True)


def results(place, test):
    """How a file of tests ended, and those that failed; some files make another number of tests each time."""
    try:
        run = subprocess.run(["perl", "-I", "t/lib", f"t/{test}"], cwd=place, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "takes too long", [], 0
    return run.returncode, sorted(re.findall(r"^not ok \d+ (.*)", run.stdout, re.M)), len(re.findall("^ok", run.stdout, re.M))


def main():
    preload, sources = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    tests = sorted(file.name for file in (sources / "t").glob("*.t"))
    assert tests, f"{sources} has no tests: name memcached's sources"
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        places = {}
        for mode in ("plain", "uring", "epoll"):
            environment = {} if mode == "plain" else {"LD_PRELOAD": preload, "MEGAPIPE_ENGINE": mode}
            if "LD_LIBRARY_PATH" in os.environ:
                environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
            places[mode] = pathlib.Path(folder, mode)
            prepare(sources, places[mode], environment)
        for test in tests:
            plain, *channels = (results(place, test) for place in places.values())
            same = all(one[:2] == plain[:2] for one in channels)
            differ += not same
            print(f"{'same' if same else 'DIFFERS'} {test}: {plain[2]} passed plain, {len(plain[1])} failed", flush=True)
    sys.exit(f"{differ} of {len(tests)} differ" if differ else 0)


main()
