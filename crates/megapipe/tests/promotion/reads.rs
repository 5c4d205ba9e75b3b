//! Reads of every kind on promoted connections, and pools that run dry.

use std::time::Duration;

use megapipe::{Buffer, Channel, Config, DispatchError, EngineKind, Event, Handle, OpId, ReadData};

use crate::support::{PATIENCE, Two, config, engines, own_monitor, pair, pattern};

/// Starts a read of one of the kinds.
fn start(channel: &mut Channel, handle: Handle, kind: usize) -> OpId {
    match kind % 3 {
        0 => channel.read(handle).unwrap(),
        1 => channel.read_into(handle, Vec::with_capacity(700)).unwrap(),
        _ => {
            let rooms = vec![Vec::with_capacity(10), Vec::with_capacity(300), Vec::with_capacity(5)];
            channel.read_vectored(handle, rooms).unwrap()
        }
    }
}

#[test]
fn reads_of_every_kind_give_every_byte() {
    let folder = own_monitor("kinds");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        two.add(pair());
        // Reads and writes of both endpoints are under way while the connection is
        // promoted.
        let (mut sent, mut started, mut moved) = ([0; 2], [0u64; 2], None);
        two.until("all bytes", |two| {
            if two.sides.iter().all(|side| side.channel.stats().promoted == 1) {
                moved.get_or_insert(sent.map(|sent| sent + 300_000));
            }
            for side in [0, 1] {
                let handle = two.handles[side];
                let seen = two.sides[side].seen(0);
                assert!(seen.errors == [vec![], vec![]]);
                if started[side] <= seen.reads {
                    start(&mut two.sides[side].channel, handle, started[side] as usize);
                    started[side] += 1;
                }
                let enough = moved.is_some_and(|until| sent[side] >= until[side]);
                let count = 1 + sent[side] % 3001;
                let piece = pattern(sent[side] + side, count);
                if !enough && two.sides[side].channel.write_quiet(handle, piece).is_ok() {
                    sent[side] += count;
                }
            }
            moved.is_some_and(|until| {
                [0, 1].iter().all(|&side| {
                    sent[side] >= until[side] && two.sides[1 - side].seen(0).got.len() == sent[side]
                })
            })
        });
        for side in [0, 1] {
            assert!(two.sides[side].seen(0).got == pattern(1 - side, sent[1 - side]), "other bytes");
            assert!(two.sides[side].channel.stats().ring_reads > 0);
        }
    }
}

#[test]
fn cancelled_reads_end_and_take_nothing() {
    let folder = own_monitor("cancel");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        two.add(pair());
        two.promoted();
        let handle = two.handles[1];
        for round in 0..30 {
            let kind = round % 4;
            let channel = &mut two.sides[1].channel;
            let op =
                if kind == 3 { channel.read_stream(handle).unwrap() } else { start(channel, handle, kind) };
            if round % 2 == 0 {
                two.sides[1].step(Duration::from_millis(1));
            }
            two.sides[1].channel.cancel(op).unwrap();
            two.until("the cancelled read", |two| two.sides[1].ended_ops.contains(&op));
            assert_eq!(two.sides[1].seen(0).errors[0].pop(), Some(libc::ECANCELED));
            let bytes = pattern(round, 100 + round);
            two.send(0, &bytes);
            two.sides[0].channel.flush().unwrap();
            let mut started = false;
            two.until("the bytes", |two| {
                let seen = two.sides[1].seen(0);
                if seen.got.len() < bytes.len() && (!started || seen.reads > 0) {
                    seen.reads = 0;
                    started = true;
                    two.sides[1].channel.read(handle).unwrap();
                }
                two.sides[1].seen(0).got.len() == bytes.len()
            });
            assert!(std::mem::take(&mut two.sides[1].seen(0).got) == bytes);
            two.sides[1].seen(0).reads = 0;
        }
    }
}

#[test]
fn a_dry_pool_loses_no_bytes_and_no_wake_up() {
    let folder = own_monitor("dry");
    for engines in engines() {
        let small = |engine: EngineKind| Config {
            read_buffers: 4,
            ring_buffers: 2,
            buffer_size: 1024,
            ..config(engine, &folder.socket())
        };
        let mut two = Two::with(engines.map(small));
        two.add(pair());
        two.read_streams();
        two.promoted();
        let total = 600_000;
        let bytes = pattern(0, total);
        let (mut sent, mut got) = (0, Vec::new());
        let mut held: Vec<Buffer> = Vec::new();
        let start = std::time::Instant::now();
        let mut nothing = 0;
        while got.len() < total {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {total} bytes: {:?}",
                got.len(),
                two.sides[1].channel.stats()
            );
            let count = (total - sent).min(5000);
            let handle = two.handles[0];
            let piece = bytes[sent..sent + count].to_vec();
            if count > 0 && two.sides[0].channel.write_quiet(handle, piece).is_ok() {
                sent += count;
            }
            two.sides[0].step(Duration::ZERO);
            let next = match two.sides[1].channel.dispatch(Some(Duration::from_micros(100))) {
                Err(DispatchError::Interrupted) => None,
                next => next.unwrap(),
            };
            match next {
                Some(completion) => {
                    let Event::Read { result: Ok(1..), data: ReadData::Buffer(data), .. } = completion.event
                    else {
                        panic!()
                    };
                    got.extend_from_slice(&data);
                    held.push(data);
                    nothing = 0;
                }
                // A program that holds all buffers gets no more, and drops them at some
                // time.
                None => nothing += 1,
            }
            if nothing > 3 {
                held.clear();
            }
        }
        assert!(got == bytes);
    }
}

#[test]
fn an_unread_connection_leaves_buffers_to_others() {
    let folder = own_monitor("hoard");
    for engines in engines() {
        let few = |engine: EngineKind| Config { read_buffers: 64, ..config(engine, &folder.socket()) };
        let mut two = Two::with(engines.map(few));
        two.add(pair());
        let idle = two.handles;
        two.promoted();
        // It was read once, and then no more.
        two.sides[1].channel.read(idle[1]).unwrap();
        two.send(0, b"once");
        two.until("its first bytes", |two| two.sides[1].seen(0).got == b"once");
        for piece in pattern(0, 3 << 20).chunks(100_000) {
            two.sides[0].channel.write_quiet(idle[0], piece.to_vec()).unwrap();
        }
        two.add(pair());
        let handle = two.handles[1];
        two.sides[1].channel.read_stream(handle).unwrap();
        let bytes = pattern(5, 1 << 20);
        for piece in bytes.chunks(50_000) {
            two.send(0, piece);
        }
        two.until("the other's bytes", |two| two.sides[1].seen(1).got.len() == bytes.len());
        assert!(two.sides[1].seen(1).got == bytes);
        two.sides[1].channel.read_stream(idle[1]).unwrap();
        two.until("the idle one's bytes", |two| two.sides[1].seen(0).got.len() == (3 << 20) + 4);
        assert!(two.sides[1].seen(0).got[4..] == pattern(0, 3 << 20));
    }
}
