#!/usr/bin/env python3
"""Plants bugs in a copy of crates/tcp, one after the other: for each there is a test that has to fail with it.

Before that, each of these tests has to pass without a bug. The simulator has FLOWS (10000) connections to find its bugs in.
The last lines show for each bug which test found it, and after how many simulated connections. BUGS names some.
`planted.py check` compiles nothing: it finds bugs whose text is no longer in the source.

Usage: [BUGS='EdgeRoundedDown ChallengeStorm'] [FLOWS=10000] scripts/planted.py [check]
"""
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "planted"
# Seconds that a test may take. One that hangs has found nothing.
LONGEST = 1800
SIMULATOR = "simulator every_flow_ends_with_the_right_bytes"

# Bug, file of crates/tcp/tests and its test, file of crates/tcp/src, text that occurs there once, text in its place.
BUGS = [
    # Numbers around 2^32 are compared as integers.
    ("WrappedComparison", SIMULATOR, "core/receive.rs", "&& first.start.upto(hot.rcv_nxt)\n",
     "&& (first.start.upto(hot.rcv_nxt) || first.start.0 < hot.rcv_nxt.0)\n"),
    # A window update that acknowledges nothing is discarded.
    ("LostWindowUpdate", SIMULATOR, "core/ack.rs", "&& newer {", "&& newer && acked > 0 {"),
    # Of a segment that overlaps, the old bytes are kept instead of the new.
    ("OverlapTrimmedAtTheEnd", SIMULATOR, "core/receive.rs", "let skip = fresh.start - arrived.start;", "let skip = 0;"),
    # The store keeps what the engine has evicted.
    ("EvictionIgnored", SIMULATOR, "host/mod.rs",
     "self.store.received.truncate(&mut self.store.streams[slot as usize].received, end);", "let _ = (slot, end);"),
    # The right edge moves left by the rounding of the scale.
    ("EdgeRoundedDown", SIMULATOR, "core/receive.rs", "promised.div_ceil(1 << scale)", "promised >> scale"),
    # No timer while the peer's window is closed.
    ("ProbeTimerUnset", SIMULATOR, "core/timers.rs", "plan == Plan::Nothing && !hot.send_at.is_set()", "false"),
    # No timer for a delayed acknowledgement.
    ("AckTimerUnset", SIMULATOR, "core/timers.rs",
     "!hot.has(flag::ACK_NOW) && !hot.ack_at.is_set() && hot.state.is_synchronized()", "false"),
    # Data beyond the peer's window.
    ("BeyondTheWindow", SIMULATOR, "core/transmit.rs", "let usable = hot.snd_edge().past(hot.snd_nxt);",
     "let usable = (hot.snd_edge() + (1 << 20)).past(hot.snd_nxt);"),
    # An acknowledgement of bytes for which there was no room.
    ("AcknowledgesWhatIsDropped", SIMULATOR, "core/receive.rs", "if !self.make_room(slot, fresh, keep) {",
     "if !self.make_room(slot, fresh, keep) && false {"),
    # A retransmitted segment measures the round trip.
    ("RttFromRetransmission", "recovery ambiguous_round_trips", "core/sent.rs", "self.repeated |= record.repeated;", ""),
    # A measured round trip does not end the backing off.
    ("BackoffKept", "recovery timeout", "core/ack.rs",
     "// RFC 6298, 5: a measurement ends the backing off.\n        hot.backoff = 0;", ""),
    # No congestion window.
    ("CongestionIgnored", "recovery fast_recovery", "core/transmit.rs",
     "cold.map_or(0, |cold| emulated_flight(hot, cold));\n        let mut room", "0;\n        let mut room"),
    # Three duplicate acknowledgements repair nothing.
    ("NoFastRetransmit", "recovery peer_without_sack", "core/ack.rs", "if cold.duplicates == DUPLICATES && ", "if false && "),
    # What was overtaken is lost at once.
    ("ReorderingIsLoss", "recovery reordering_is_tolerated", "core/rack.rs", "if !self.reordering_seen {", "{"),
    # Data beyond the window that the peer was offered are taken.
    ("BeyondTheEdge", "windows bytes_beyond_the_edge", "core/predicted.rs", "let beyond = fresh.end.after(hot.rcv_edge);",
     "let beyond = false;"),
    # A FIN that comes too early is forgotten.
    ("FinForgotten", "windows early_fin", "core/input.rs", "if at.upto(hot.rcv_edge)\n", "if false\n"),
    # Challenge ACKs without limit.
    ("ChallengeStorm", "hardening forged_syns_and_acknowledgements", "core/input.rs",
     "has_data || challenges.may_answer(now, most)", "has_data || challenges.may_answer(now, most) || true"),
    # A closed connection waits for the peer's FIN for ever.
    ("EndlessFinWait2", "hardening closed_connections_end", "core/ack.rs", "State::FinWait2 if hot.has(flag::ORPHAN) =>",
     "State::FinWait2 if false =>"),
    # No PAWS.
    ("OldTimestampsTaken", "hardening old_timestamps", "core/handshake.rs",
     "pub(crate) fn is_older(stamps: Timestamps, recent: u32) -> bool {\n",
     "pub(crate) fn is_older(stamps: Timestamps, recent: u32) -> bool {\n    if true { return false; }\n"),
    # An RST ends TIME_WAIT.
    ("TimeWaitAssassinated", "hardening time_wait_lasts", "core/wait.rs", "let wait = self.waits[slot];\n        match",
     "if head.flags.has(Flags::RST) {\n            self.end_wait(slot);\n            return self.refuse(Reason::Over);\n"
     "        }\n        let wait = self.waits[slot];\n        match"),
    # Every RST resets.
    ("ResetAnywhere", "hardening forged_resets_in_every_state", "core/input.rs", "if head.seq == hot.rcv_nxt {\n", "if true {\n"),
]


def planted(source, bug):  # the text of its file with a bug in it
    name, _, file, old, new = bug
    text = (source / "crates/tcp/src" / file).read_text()
    if text.count(old) != 1:
        sys.exit(f"{name}: {file} has {text.count(old)} times `{old}`")
    return text.replace(old, new)


def copy():  # of the tracked files; writes those alone that differ, so that cargo builds nothing else
    source = TARGET / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    files = {name for name in os.fsdecode(listed).split("\0") if name and (ROOT / name).is_file()}
    for file in source.rglob("*"):
        if file.is_file() and str(file.relative_to(source)) not in files:
            file.unlink()
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        content = (ROOT / name).read_bytes()
        if not (source / name).exists() or (source / name).read_bytes() != content:
            (source / name).write_bytes(content)
    return source


def run(source, test, log, flows):  # whether it fails; None: it did not end
    file, name = test.split()
    command = [CARGO, "test", "--locked", "-p", "megapipe-tcp", "--test", file]
    env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET / "build"), "MEGAPIPE_TCP_FLOWS": str(flows), "RUST_BACKTRACE": "0"}
    with log.open("w") as out:
        if subprocess.run([*command, "--no-run"], cwd=source, env=env, stdout=out, stderr=out).returncode != 0:
            sys.exit(f"it does not compile: {log}")
        child = subprocess.Popen([*command, "--", "--exact", name, "--nocapture"], cwd=source, env=env, stdout=out, stderr=out,
                                 start_new_session=True)
        try:
            child.wait(LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None
    return child.returncode != 0


def main():
    for bug in BUGS:
        planted(ROOT, bug)
    if sys.argv[1:] == ["check"]:
        return
    chosen = os.environ.get("BUGS", "").split()
    bugs = [bug for bug in BUGS if not chosen or bug[0] in chosen]
    source, logs, failed, rows, found = copy(), TARGET / "logs", False, [], 0
    logs.mkdir(parents=True, exist_ok=True)
    for test in sorted({bug[1] for bug in bugs}):
        log = logs / f"none-{test.split()[1]}.log"
        if run(source, test, log, 1000) is not False:
            print(f"{test} fails without a bug: {log}")
            failed = True
    for bug in bugs:
        name, test, file, *_ = bug
        place, log = source / "crates/tcp/src" / file, logs / f"{name}.log"
        whole = place.read_text()
        place.write_text(planted(source, bug))
        try:
            outcome = run(source, test, log, int(os.environ.get("FLOWS", 10000)))
        finally:
            place.write_text(whole)
        flow = re.search(r"^seed \d+, (after \d+ flows)$", log.read_text(), re.M)
        rows.append(f"{name:26} {'found' if outcome else 'NOT FOUND':10} {test.replace(' ', '::')} {flow[1] if flow else ''}")
        print(rows[-1], flush=True)
        found += outcome is True
    print(f"\n== {found} of {len(bugs)} planted bugs found", *rows, sep="\n")
    sys.exit(failed or found < len(bugs) or not bugs)


main()
