//! Many promoted connections, random operations, and monitors that come and go meanwhile.

use std::time::Duration;

use megapipe::{Config, EngineKind, Handle, OpId};
use proptest::prelude::*;

use crate::support::{
    Folder, MonitorProcess, PATIENCE, Random, Two, config, engines, own_monitor, pair, pattern, play_monitor,
};

/// Connections that are promoted at once, with traffic on all of them from the beginning.
fn keep_their_bytes_apart(engines: [EngineKind; 2]) {
    const MANY: usize = 1000;
    let folder = own_monitor(&format!("many-{}-{}", engines[0].name(), engines[1].name()));
    let mut two = Two::new(engines, &folder);
    let mut connections = Vec::new();
    for place in 0..MANY {
        two.add(pair());
        two.read_streams();
        // Under way in the kernel while the connections are promoted.
        let sent = [1 + place % 90, 1 + place % 7];
        for side in [0, 1] {
            two.send(side, &pattern(place * 7 + side, sent[side]));
        }
        connections.push((two.handles, sent));
    }
    let mut random = Random(99);
    for _ in 0..8000 {
        let side = random.below(2);
        // A few are busy, most are seldom used.
        let among = if random.below(2) == 0 { 8 } else { MANY };
        let place = random.below(among);
        let count = 1 + random.below(600);
        let (handles, sent) = &mut connections[place];
        let bytes = pattern(sent[side] + place * 7 + side, count);
        if two.sides[side].channel.write_quiet(handles[side], bytes).is_ok() {
            sent[side] += count;
        }
        two.sides[random.below(2)].step(Duration::ZERO);
    }
    let all = [0, 1].map(|side| connections.iter().map(|(_, sent)| sent[side]).sum::<usize>());
    two.until("all bytes", |two| {
        [0, 1].iter().all(|&side| {
            two.sides[1 - side].seen.values().map(|seen| seen.got.len()).sum::<usize>() == all[side]
        })
    });
    for (place, (_, sent)) in connections.iter().enumerate() {
        for side in [0, 1] {
            let expected = pattern(place * 7 + side, sent[side]);
            assert!(two.sides[1 - side].seen(place as u64).got == expected, "connection {place}");
        }
    }
    two.promoted();
}

#[test]
fn a_thousand_connections_keep_their_bytes_apart_on_io_uring() {
    keep_their_bytes_apart([EngineKind::Uring, EngineKind::Uring]);
}

#[test]
fn a_thousand_connections_keep_their_bytes_apart_on_epoll() {
    keep_their_bytes_apart([EngineKind::Epoll, EngineKind::Epoll]);
}

#[test]
fn a_thousand_connections_keep_their_bytes_apart_on_both_engines() {
    keep_their_bytes_apart([EngineKind::Uring, EngineKind::Epoll]);
}

#[test]
fn a_writer_may_outrun_its_reader_by_a_hundred_megabytes() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 100;
    let folder = own_monitor("outrun");
    for engines in engines() {
        let long = |engine| Config { write_queue_max: 256, ..config(engine, &folder.socket()) };
        let mut two = Two::with(engines.map(long));
        two.add(pair());
        two.promoted();
        let handles = two.handles;
        let piece = |number: usize| pattern(number * PIECE, PIECE);
        for number in 0..PIECES {
            let written = two.sides[0].channel.write(handles[0], piece(number));
            assert!(written.is_ok(), "write {number} is refused");
            two.sides[0].step(Duration::ZERO);
        }
        // Back-pressure as the kernel's: writes that it has no room for wait, and do not
        // complete in time.
        for _ in 0..20 {
            two.sides.iter_mut().for_each(|side| _ = side.step(Duration::from_millis(1)));
        }
        let done = two.sides[0].seen(0).writes;
        assert!(done < PIECES as u64 / 2, "{done} writes ended without a reader");
        assert_eq!(two.sides[0].channel.stats().spills, 1);
        // The other direction has room of its own.
        two.sides[0].channel.read_stream(handles[0]).unwrap();
        two.send(1, b"meanwhile");
        two.until("a word back", |two| two.sides[0].seen(0).got == b"meanwhile");

        two.sides[1].channel.read_stream(handles[1]).unwrap();
        let mut got = 0;
        let mut expected = piece(0);
        // Patience is for each piece: a slow machine takes long for all.
        for pieces in 1..=PIECES {
            two.until("all bytes", |two| {
                let new = std::mem::take(&mut two.sides[1].seen(0).got);
                let mut left = new.as_slice();
                while !left.is_empty() {
                    if got % PIECE == 0 {
                        expected = piece(got / PIECE);
                    }
                    let here = &expected[got % PIECE..];
                    let (first, rest) = left.split_at(here.len().min(left.len()));
                    assert!(first == &here[..first.len()], "other bytes behind {got}");
                    (left, got) = (rest, got + first.len());
                }
                got >= pieces * PIECE
            });
        }
        assert_eq!(got, PIECES * PIECE);
        two.until("the writes' ends", |two| two.sides[0].seen(0).writes == PIECES as u64);
        // It comes back to the ring.
        let before = two.sides[0].channel.stats().ring_writes;
        two.send(0, b"after all");
        two.until("the rest", |two| two.sides[1].seen(0).got == b"after all");
        assert!(two.sides[0].channel.stats().ring_writes > before);
    }
}

#[test]
fn a_busy_ring_leaves_others_their_turn() {
    let folder = own_monitor("busy");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        // Not promoted: its peer is no channel.
        let (a, mut plain) = pair();
        let other = two.sides[1].channel.register(a, 77).unwrap();
        two.sides[1].channel.read_stream(other).unwrap();
        std::io::Write::write_all(&mut plain, b"hello").unwrap();
        let (mut sent, mut steps) = (0, 0);
        while two.sides[1].seen(77).got.is_empty() {
            // The ring has bytes at every poll, and is never full.
            let count = if sent == 0 { 8192 } else { 4096 };
            two.send(0, &pattern(sent, count));
            sent += count;
            two.sides[0].step(Duration::ZERO);
            assert!(two.sides[1].step(PATIENCE), "nothing came");
            steps += 1;
            assert!(steps < 1000, "the kernel's bytes are never seen");
        }
    }
}

#[test]
fn monitors_may_die_and_come_back_under_load() {
    play_monitor();
    let folder = Folder::new("restarts");
    let start = || MonitorProcess::start("load::monitors_may_die_and_come_back_under_load", &folder);
    for engines in engines() {
        let mut monitor = start();
        let mut two = Two::new(engines, &folder);
        let mut sent = Vec::new();
        for round in 0..3 {
            two.add(pair());
            two.read_streams();
            // A connection that is registered while there is no monitor is offered to the next.
            two.promoted();
            sent.push(0);
            for step in 0..300 {
                if step == 100 {
                    monitor.kill();
                }
                if step == 200 {
                    monitor = start();
                }
                let (offset, count) = (sent[round], 1 + step * 13);
                two.send(0, &pattern(offset, count));
                sent[round] += count;
                for side in &mut two.sides {
                    side.step(Duration::from_micros(50));
                }
                two.until("bytes", |two| two.sides[1].seen(round as u64).got.len() == sent[round]);
            }
            assert!(two.sides[1].seen(round as u64).got == pattern(0, sent[round]));
        }
        monitor.kill();
    }
}

/// One operation of a random program, by side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    WriteLoud(usize),
    WriteCopy(usize),
    Read,
    ReadInto(usize),
    Stream,
    Cancel,
    Dispatch,
    Flush,
    Sleep,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        4 => (1..200usize).prop_map(Step::Write),
        2 => (1..90_000usize).prop_map(Step::Write),
        2 => (1..9000usize).prop_map(Step::WriteLoud),
        2 => (1..9000usize).prop_map(Step::WriteCopy),
        4 => Just(Step::Read),
        3 => (1..5000usize).prop_map(Step::ReadInto),
        1 => Just(Step::Stream),
        2 => Just(Step::Cancel),
        8 => Just(Step::Dispatch),
        2 => Just(Step::Flush),
        1 => Just(Step::Sleep),
    ];
    (0..2usize, step)
}

fn run(two: &mut Two, steps: &[(usize, Step)]) {
    let mut sent = [0usize; 2];
    let mut reads: [Vec<OpId>; 2] = [Vec::new(), Vec::new()];
    let write = |two: &mut Two, side: usize, sent: &mut [usize; 2], step: Step| {
        let handle: Handle = two.handles[side];
        let channel = &mut two.sides[side].channel;
        let bytes = |count| pattern(sent[side] + side, count);
        let (count, done) = match step {
            Step::Write(count) => (count, channel.write_quiet(handle, bytes(count)).is_ok()),
            Step::WriteLoud(count) => (count, channel.write(handle, bytes(count)).is_ok()),
            Step::WriteCopy(count) => (count, channel.write_copy(handle, &bytes(count)).is_ok()),
            _ => (0, false),
        };
        sent[side] += if done { count } else { 0 };
    };
    for &(side, step) in steps {
        let handle = two.handles[side];
        let channel = &mut two.sides[side].channel;
        match step {
            Step::Write(_) | Step::WriteLoud(_) | Step::WriteCopy(_) => write(two, side, &mut sent, step),
            Step::Read => reads[side].push(channel.read(handle).unwrap()),
            Step::ReadInto(room) => {
                reads[side].push(channel.read_into(handle, Vec::with_capacity(room)).unwrap());
            }
            Step::Stream => reads[side].push(channel.read_stream(handle).unwrap()),
            Step::Cancel => {
                // Streams and reads are treated alike: any may be over.
                for op in reads[side].drain(..).rev().take(2) {
                    let _ = channel.cancel(op);
                }
            }
            Step::Dispatch => drop(two.sides[side].step(Duration::ZERO)),
            Step::Flush => channel.flush().unwrap(),
            Step::Sleep => drop(two.sides[side].step(Duration::from_millis(1))),
        }
    }
    // To the end: everything is read, and then closed.
    two.read_streams();
    two.until("all bytes", |two| {
        [0, 1].iter().all(|&side| two.sides[1 - side].seen(0).got.len() == sent[side])
    });
    for side in [0, 1] {
        assert!(two.sides[1 - side].seen(0).got == pattern(side, sent[side]), "other bytes of side {side}");
        assert!(two.sides[side].seen(0).errors[0].iter().all(|error| *error == libc::ECANCELED));
        assert!(two.sides[side].seen(0).errors[1].is_empty());
    }
    let handle = two.handles[0];
    two.sides[0].channel.close(handle).unwrap();
    two.until("the end of stream", |two| two.sides[1].seen(0).ended);
    assert!(two.sides[1].seen(0).errors[0].iter().all(|error| *error == libc::ECANCELED));
}

#[test]
fn random_programs_get_exact_bytes() {
    let folder = own_monitor("random");
    let config = |engine, few: bool| Config {
        read_buffers: if few { 8 } else { 256 },
        ring_buffers: if few { 2 } else { 64 },
        ..config(engine, &folder.socket())
    };
    // More of them if PROPTEST_CASES asks for it.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60);
    let settings = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let program = (0..3usize, any::<bool>(), any::<bool>(), proptest::collection::vec(step(), 0..300));
    proptest!(settings, |((which, few, before, steps) in program)| {
        let mut two = Two::with(engines()[which].map(|engine| config(engine, few)));
        two.add(pair());
        if before {
            // Promoted from the first step on; otherwise somewhere in between.
            two.promoted();
        }
        run(&mut two, &steps);
    });
}
