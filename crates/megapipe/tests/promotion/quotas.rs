//! Read streams with a quota on promoted connections: bytes that come while the program
//! holds enough buffers are delivered when it drops one, although no doorbell comes.

use std::io::Write;
use std::net::TcpStream;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use megapipe::{Completion, Config, DispatchError, EngineKind, Event, Handle, OpId, ReadData};

use crate::support::{PATIENCE, Random, Side, Two, config, engines, own_monitor, pair, pattern};

const BUFFER: usize = 1024;

/// One dispatch of a side that reads within a quota.
fn step(side: &mut Side, wait: Duration) -> Option<Completion> {
    match side.channel.dispatch(Some(wait)) {
        Err(DispatchError::Interrupted) => None,
        completion => completion.unwrap(),
    }
}

#[track_caller]
fn next(side: &mut Side) -> Completion {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(completion) = step(side, PATIENCE) {
            assert!(start.elapsed() < PATIENCE, "it came when the wait was over");
            return completion;
        }
    }
    panic!("nothing came: {:?}", side.channel.stats());
}

#[track_caller]
fn bytes(completion: &Completion) -> &[u8] {
    match &completion.event {
        Event::Read { result: Ok(1..), data: ReadData::Buffer(data), more: true } => data,
        other => panic!("no bytes: {other:?}"),
    }
}

fn small(engine: EngineKind, socket: &std::path::Path) -> Config {
    Config { buffer_size: BUFFER as u32, ..config(engine, socket) }
}

/// A connection of which the second side reads at most `most` buffers.
fn within(two: &mut Two, most: u16) -> (Handle, OpId) {
    two.add(pair());
    let handle = two.handles[1];
    let most = NonZeroU16::new(most).unwrap();
    (handle, two.sides[1].channel.read_stream_with_quota(handle, most).unwrap())
}

/// Both sides go on for a while; nothing may come to the second.
#[track_caller]
fn nothing_comes(two: &mut Two) {
    for _ in 0..30 {
        two.sides[0].step(Duration::from_micros(200));
        let completion = step(&mut two.sides[1], Duration::from_millis(1));
        assert!(completion.is_none(), "{completion:?}");
    }
}

#[test]
fn a_quota_holds_through_a_promotion() {
    const MOST: u16 = 3;
    let folder = own_monitor("quota-moves");
    for engines in engines() {
        let mut two = Two::with(engines.map(|engine| small(engine, &folder.socket())));
        let (handle, op) = within(&mut two, MOST);
        // It is full before the connection moves, with more in the kernel.
        let sent = pattern(0, 20 * BUFFER);
        let mut written = 10 * BUFFER;
        two.send(0, &sent[..written]);
        let (mut held, mut got) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while [0, 1].iter().any(|&side| two.sides[side].channel.stats().promoted == 0)
            || held.len() < MOST.into()
        {
            assert!(start.elapsed() < PATIENCE, "{:?}", two.sides[1].channel.stats());
            two.sides[0].step(Duration::from_micros(200));
            if let Some(completion) = step(&mut two.sides[1], Duration::from_micros(200)) {
                assert_eq!(completion.op, op);
                got.extend_from_slice(bytes(&completion));
                held.push(completion);
            }
        }
        nothing_comes(&mut two);
        // The reader has to consume the kernel's bytes before the ring is used. Then all
        // of them come through the ring, while the stream is full and its loop sleeps.
        for until in [10 * BUFFER, 15 * BUFFER, 20 * BUFFER] {
            while written < until {
                two.send(0, &sent[written..written + BUFFER / 2]);
                written += BUFFER / 2;
                nothing_comes(&mut two);
            }
            while got.len() < until {
                // No doorbell comes: the peer does nothing.
                held.remove(0);
                let completion = next(&mut two.sides[1]);
                assert_eq!(completion.op, op);
                got.extend_from_slice(bytes(&completion));
                held.push(completion);
                let more = step(&mut two.sides[1], Duration::from_millis(1));
                assert!(more.is_none(), "more than the quota");
            }
        }
        assert!(got == sent, "other bytes");
        let stats = [0, 1].map(|side| two.sides[side].channel.stats());
        assert!(stats[0].ring_writes > 0 && stats[1].ring_reads > 0, "{stats:?}");
        // The end of the stream waits too.
        let other = two.handles[0];
        two.sides[0].channel.close(other).unwrap();
        nothing_comes(&mut two);
        held.clear();
        let end = next(&mut two.sides[1]);
        assert!(matches!(end.event, Event::Read { result: Ok(0), more: false, .. }), "{end:?}");
        assert!(two.sides[1].channel.cancel(op).is_err());
        two.sides[1].channel.close(handle).unwrap();
    }
}

#[test]
fn a_full_stream_ends_when_it_is_cancelled_or_closed() {
    let folder = own_monitor("quota-ends");
    for engines in engines() {
        let mut two = Two::with(engines.map(|engine| small(engine, &folder.socket())));
        let (handle, op) = within(&mut two, 2);
        two.promoted();
        let sent = pattern(3, 100 * BUFFER);
        two.send(0, &sent);
        two.sides[0].channel.flush().unwrap();
        let held = [next(&mut two.sides[1]), next(&mut two.sides[1])];
        let mut got = held.iter().flat_map(|one| bytes(one).to_vec()).collect::<Vec<_>>();
        nothing_comes(&mut two);
        two.sides[1].channel.cancel(op).unwrap();
        let end = next(&mut two.sides[1]);
        assert_eq!(end.op, op);
        assert!(matches!(&end.event, Event::Read { result: Err(error), more: false, .. }
            if error.raw_os_error() == Some(libc::ECANCELED)));
        // Buffers that outlive their stream count for nothing.
        let most = NonZeroU16::new(1).unwrap();
        two.sides[1].channel.read_stream_with_quota(handle, most).unwrap();
        let one = next(&mut two.sides[1]);
        got.extend_from_slice(bytes(&one));
        drop(held);
        nothing_comes(&mut two);
        // Others read on beside it, and it ends with its handle.
        two.add(pair());
        two.read_streams();
        two.promoted();
        two.send(0, &pattern(9, 50_000));
        two.until("the other's bytes", |two| two.sides[1].seen(1).got.len() == 50_000);
        assert!(two.sides[1].seen(1).got == pattern(9, 50_000));
        assert!(got == sent[..got.len()], "other bytes");
        two.sides[1].channel.close(handle).unwrap();
        drop(one);
        two.send(0, b"more");
        two.until("more", |two| two.sides[1].seen(1).got.len() == 50_004);
    }
}

#[test]
fn a_proxy_of_one_buffer_goes_on() {
    let folder = own_monitor("quota-proxy");
    for engines in engines() {
        let mut two = Two::with(engines.map(|engine| small(engine, &folder.socket())));
        within(&mut two, 1);
        two.promoted();
        let (plain, mut reader): (TcpStream, TcpStream) = pair();
        let out = two.sides[1].channel.register(plain, 99).unwrap();
        let sent = pattern(1, 200 * BUFFER + 17);
        two.send(0, &sent);
        two.sides[0].channel.flush().unwrap();
        let count = sent.len();
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; count];
            std::io::Read::read_exact(&mut reader, &mut all).unwrap();
            // Ends the proxy's loop.
            reader.write_all(b"all").unwrap();
            all
        });
        two.sides[1].channel.read_into(out, Vec::with_capacity(3)).unwrap();
        // Each buffer is dropped by the write it goes out with, within a wait.
        loop {
            two.sides[0].step(Duration::ZERO);
            let completion = next(&mut two.sides[1]);
            if completion.cookie == 99 {
                break;
            }
            let Event::Read { result: Ok(1..), data: ReadData::Buffer(data), .. } = completion.event else {
                panic!("{:?}", completion.event)
            };
            two.sides[1].channel.write_quiet(out, data).unwrap();
        }
        assert!(reading.join().unwrap() == sent, "other bytes");
    }
}

#[test]
fn random_quotas_lose_no_byte() {
    let folder = own_monitor("quota-random");
    for (seed, engines) in (1..).zip([engines(), engines()].concat()) {
        random_quotas(&mut Random(seed * 0x9e37_79b9), engines, &folder.socket());
    }
}

fn random_quotas(random: &mut Random, engines: [EngineKind; 2], socket: &std::path::Path) {
    const CONNECTIONS: usize = 4;
    // More where the monitor answers late: some of it has to go through the rings.
    let mut total = 300_000;
    let mut two = Two::with(engines.map(|engine| Config {
        read_buffers: 32,
        ring_buffers: 16,
        ..small(engine, socket)
    }));
    let mut streams: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let most = 1 + random.below(3);
            within(&mut two, most as u16);
            (two.handles[0], most, Vec::new(), Vec::<u8>::new())
        })
        .collect();
    let mut written = [0; CONNECTIONS];
    let start = Instant::now();
    while streams.iter().any(|(.., got)| got.len() < total) || two.sides[1].channel.stats().ring_reads == 0 {
        if streams.iter().all(|(.., got)| got.len() == total) {
            total += 10_000;
        }
        assert!(start.elapsed() < 3 * PATIENCE, "{written:?}: {:?}", two.sides[1].channel.stats());
        let at = random.below(CONNECTIONS);
        let count = (1 + random.below(5 * BUFFER)).min(total - written[at]);
        let piece = pattern(at + written[at], count);
        if count > 0 && two.sides[0].channel.write_quiet(streams[at].0, piece).is_ok() {
            written[at] += count;
        }
        two.sides[0].step(Duration::ZERO);
        for _ in 0..random.below(8) {
            let wait = Duration::from_micros([0, 100][random.below(2)]);
            let Some(completion) = step(&mut two.sides[1], wait) else { break };
            let (_, most, held, got) = &mut streams[completion.cookie as usize];
            got.extend_from_slice(bytes(&completion));
            held.push(completion);
            assert!(held.len() <= *most, "more than {most}");
        }
        let (_, _, held, _) = &mut streams[random.below(CONNECTIONS)];
        for _ in 0..random.below(3).min(held.len()) {
            let at = random.below(held.len());
            held.swap_remove(at);
        }
    }
    for (at, (.., got)) in streams.iter().enumerate() {
        assert!(*got == pattern(at, total), "other bytes");
    }
}
