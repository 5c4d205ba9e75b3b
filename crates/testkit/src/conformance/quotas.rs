//! Read streams with a quota: never more buffers than it allows, and never fewer for long.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Event, Handle, OpId, ReadData, Source};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form, WATCHDOG, gather};
use crate::net::{self, End};
use crate::process;
use crate::skip::Verdict;

const BUFFER: usize = 512;

fn quota(most: u16) -> NonZeroU16 {
    NonZeroU16::new(most).expect("a quota is not 0")
}

fn small(fixture: &Fixture, read_buffers: u16) -> Driver {
    fixture.driver_with(|config| {
        config.read_buffers = read_buffers;
        config.buffer_size = BUFFER as u32;
    })
}

/// A stream of at most `most` buffers, whose peer has sent `bytes`.
fn sent_to(driver: &mut Driver, form: Form, most: u16, bytes: &[u8]) -> (Handle, OpId, TcpStream) {
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.add(socket, form, 0);
    let op = driver.read_stream_with_quota(handle, quota(most)).unwrap();
    peer.write_all(bytes).unwrap();
    (handle, op, peer)
}

/// A read that brought bytes and goes on.
#[track_caller]
fn bytes_of(completion: &Completion, op: OpId) -> Vec<u8> {
    assert_eq!(completion.op, op, "another operation surfaced: {completion:?}");
    match &completion.event {
        Event::Read { result: Ok(count @ 1..), data, more: true } => gather(data, *count),
        other => panic!("no bytes: {other:?}"),
    }
}

/// Completions of `op` until nothing more comes.
#[track_caller]
fn fill(driver: &mut Driver, op: OpId, most: usize, got: &mut Vec<u8>) -> Vec<Completion> {
    let mut held = Vec::new();
    for _ in 0..most {
        let completion = driver.next();
        got.extend(bytes_of(&completion, op));
        held.push(completion);
    }
    driver.expect_silence();
    held
}

pub fn the_bound_is_exact(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(64 * BUFFER, 1);
    for form in Form::ALL {
        for most in [1, 3, 16] {
            let mut driver = small(fixture, 64);
            let (_, op, peer) = sent_to(&mut driver, form, most, &sent);
            let mut got = Vec::new();
            let mut held = fill(&mut driver, op, most.into(), &mut got);
            // Waiting costs nothing.
            let (turns, cpu) = (driver.stats().turns, process::thread_cpu_time());
            assert!(driver.next_within(Duration::from_millis(100)).is_none());
            assert!(driver.stats().turns - turns < 10);
            assert!(process::thread_cpu_time() - cpu < Duration::from_millis(50));
            // As many come as are dropped.
            for count in [1, most / 2, most].map(usize::from) {
                held.drain(..count);
                held.extend(fill(&mut driver, op, count, &mut got));
            }
            drop(peer);
            while got.len() < sent.len() {
                held.remove(0);
                let completion = driver.next();
                got.extend(bytes_of(&completion, op));
                held.push(completion);
                assert!(held.len() <= most.into());
            }
            assert!(got == sent, "other bytes");
            // The end waits for its turn as bytes do.
            driver.expect_silence();
            held.remove(0);
            let (end, more) = driver.expect_read(op);
            assert!(end.unwrap().is_empty() && !more);
            held.clear();
            driver.expect_silence();
        }
    }
    Ok(())
}

pub fn an_echo_of_one_buffer_goes_on(fixture: &mut Fixture) -> Verdict {
    const ROUNDS: usize = 100;
    const SMALL: usize = 100;
    const LARGE: usize = 10_000;
    fixture.for_each_form(|mut driver, form| {
        let (handle, op, mut peer) = sent_to(&mut driver, form, 1, &[]);
        driver.set_nodelay(handle, true).unwrap();
        peer.set_nodelay(true).unwrap();
        // The peer sends only what follows its echo: a wait must not sleep over a buffer that its
        // own batch has sent.
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let message = [round as u8; SMALL];
                    peer.write_all(&message).unwrap();
                    assert_eq!(net::read_exactly(&mut peer, SMALL), message);
                    // Several buffers at once: each waits for the echo of the one before.
                    peer.write_all(&net::pattern(LARGE, 5)).unwrap();
                    assert!(net::read_exactly(&mut peer, LARGE) == net::pattern(LARGE, 5));
                }
            });
            let mut left = ROUNDS * (SMALL + LARGE);
            while left > 0 {
                let start = Instant::now();
                let completion = driver.next();
                assert!(start.elapsed() < WATCHDOG, "it came when the wait was over");
                left -= bytes_of(&completion, op).len();
                let Event::Read { data: ReadData::Buffer(buffer), .. } = completion.event else { panic!() };
                driver.write_quiet(handle, buffer).unwrap();
            }
            driver.flush().unwrap();
        });
    });
    Ok(())
}

pub fn a_written_buffer_counts_until_it_is_dropped(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(3 * BUFFER, 2);
    for form in Form::ALL {
        let mut driver = small(fixture, 64);
        let (handle, op, mut peer) = sent_to(&mut driver, form, 1, &sent);
        for piece in sent.chunks(BUFFER) {
            let completion = driver.next();
            assert!(bytes_of(&completion, op) == piece);
            let Event::Read { data: ReadData::Buffer(buffer), .. } = completion.event else { panic!() };
            let write = driver.write(handle, buffer).unwrap();
            // Its completion has the buffer.
            let written = driver.next();
            assert_eq!(written.op, write);
            driver.expect_silence();
            drop(written);
            assert!(net::read_exactly(&mut peer, BUFFER) == piece);
        }
        driver.expect_silence();
    }
    Ok(())
}

pub fn a_hoarder_holds_up_nobody(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(40 * BUFFER, 3);
    for form in Form::ALL {
        let mut driver = small(fixture, 8);
        let (_, op, _hoarder) = sent_to(&mut driver, form, 4, &sent);
        let mut got = Vec::new();
        let _held = fill(&mut driver, op, 4, &mut got);
        let mut others: Vec<_> = (1..20)
            .map(|cookie| {
                let (socket, peer) = net::tcp_pair();
                let handle = driver.add(socket, form, cookie);
                let op = match cookie % 3 {
                    0 => driver.read_stream_with_quota(handle, quota(2)).unwrap(),
                    _ => driver.read_stream(handle).unwrap(),
                };
                (op, peer)
            })
            .collect();
        for round in 0..30 {
            for (op, peer) in &mut others {
                peer.write_all(&[round; 50]).unwrap();
                let completion = driver.next();
                assert_eq!(bytes_of(&completion, *op), [round; 50]);
            }
        }
    }
    Ok(())
}

pub fn a_full_stream_goes_on_under_load(fixture: &mut Fixture) -> Verdict {
    const PIECES: usize = 40;
    /// What others may bring between two pieces.
    const BETWEEN: usize = 5000;
    let sent = net::pattern(PIECES * BUFFER, 4);
    for form in Form::ALL {
        let mut driver = small(fixture, 64);
        let (_, op, _peer) = sent_to(&mut driver, form, 1, &sent);
        let floods: Vec<_> = (1..4)
            .map(|cookie| {
                let (socket, peer) = net::tcp_pair();
                let handle = driver.add(socket, form, cookie);
                driver.read_stream(handle).unwrap();
                (handle, peer)
            })
            .collect();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            let write = |mut peer: &TcpStream| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) && peer.write_all(&[7; 4096]).is_ok() {
                }
            };
            let writers: Vec<_> = floods.iter().map(|(_, peer)| scope.spawn(move || write(peer))).collect();
            let mut got = Vec::new();
            let mut between = 0;
            while got.len() < sent.len() {
                let completion = driver.next();
                if completion.op == op {
                    got.extend(bytes_of(&completion, op));
                    between = 0;
                }
                between += 1;
                assert!(between < BETWEEN, "{} bytes, and then only others'", got.len());
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            for (handle, _) in &floods {
                driver.close(*handle).unwrap();
            }
            // A write that waits for room ends when the close has been answered.
            while writers.iter().any(|writer| !writer.is_finished()) {
                driver.next_within(Duration::from_millis(2));
            }
            assert!(got == sent, "other bytes");
        });
    }
    Ok(())
}

pub fn a_full_stream_can_be_cancelled(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(8 * BUFFER, 5);
    for form in Form::ALL {
        for dropped_first in [false, true] {
            let mut driver = small(fixture, 64);
            let (handle, op, _peer) = sent_to(&mut driver, form, 2, &sent);
            let mut got = Vec::new();
            let mut held = fill(&mut driver, op, 2, &mut got);
            driver.cancel(op).unwrap();
            if dropped_first {
                held.clear();
            }
            let (end, more) = driver.expect_read(op);
            assert_eq!(end.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert!(!more);
            held.clear();
            driver.expect_silence();
            assert!(driver.cancel(op).is_err());
            // It took nothing.
            got.extend(driver.read_exactly(handle, sent.len() - got.len()));
            assert!(got == sent, "other bytes");
        }
    }
    Ok(())
}

pub fn a_full_stream_can_be_closed(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        for with_writes in [false, true] {
            let mut driver = small(fixture, 64);
            let (handle, op, mut peer) = sent_to(&mut driver, form, 2, &net::pattern(8 * BUFFER, 6));
            let held = fill(&mut driver, op, 2, &mut Vec::new());
            if with_writes {
                driver.write_quiet(handle, vec![1; 1000]).unwrap();
            }
            driver.close(handle).unwrap();
            let (_, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
            assert_eq!(end, End::Reset, "bytes were left unread");
            // The next handle and operation in their places have other names.
            let (_, next, _next_peer) = sent_to(&mut driver, form, 1, &[5; 8 * BUFFER]);
            let completion = driver.next();
            assert_eq!(bytes_of(&completion, next), [5; BUFFER]);
            drop(held);
            driver.expect_silence();
        }
    }
    Ok(())
}

pub fn a_full_stream_can_be_unregistered(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(8 * BUFFER, 7);
    let mut driver = small(fixture, 64);
    let (handle, op, _peer) = sent_to(&mut driver, Form::Descriptor, 2, &sent);
    let mut got = Vec::new();
    let held = fill(&mut driver, op, 2, &mut got);
    let Source::Fd(fd) = driver.unregister(handle).unwrap() else { panic!("it was a descriptor") };
    drop(held);
    driver.expect_silence();
    // No read was under way, which would have taken bytes along.
    let mut stream = TcpStream::from(fd);
    let mut rest = vec![0; sent.len() - got.len()];
    stream.read_exact(&mut rest).unwrap();
    assert!([got, rest].concat() == sent, "other bytes");
    Ok(())
}

pub fn buffers_that_outlive_their_stream_count_for_nothing(fixture: &mut Fixture) -> Verdict {
    let sent = net::pattern(30 * BUFFER, 8);
    for form in Form::ALL {
        let mut driver = small(fixture, 64);
        let (handle, mut op, _peer) = sent_to(&mut driver, form, 3, &sent);
        let mut got = Vec::new();
        let mut before = Vec::new();
        for _ in 0..4 {
            let held = fill(&mut driver, op, 3, &mut got);
            driver.cancel(op).unwrap();
            assert!(driver.expect_read(op).0.is_err());
            before.extend(held);
            op = driver.read_stream_with_quota(handle, quota(3)).unwrap();
        }
        let held = fill(&mut driver, op, 3, &mut got);
        before.clear();
        driver.expect_silence();
        drop(held);
        fill(&mut driver, op, 3, &mut got);
        assert!(got == sent[..got.len()], "other bytes");
    }
    Ok(())
}

pub fn datagrams_have_a_quota_too(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver();
        let socket = UdpSocket::bind(net::v4()).unwrap();
        let (ours, peer) = (socket.local_addr().unwrap(), UdpSocket::bind(net::v4()).unwrap());
        let handle = driver.add(socket.into(), form, 0);
        let op = driver.read_stream_with_quota(handle, quota(2)).unwrap();
        let texts: Vec<_> = (0..12u8).map(|number| vec![number; usize::from(number % 4) * 10]).collect();
        texts.iter().for_each(|text| _ = peer.send_to(text, ours).unwrap());
        let mut held = Vec::new();
        for text in &texts {
            let with_buffer =
                |one: &Completion| matches!(one.event, Event::Read { data: ReadData::Buffer(_), .. });
            if held.iter().filter(|one| with_buffer(one)).count() == 2 {
                driver.expect_silence();
                held.clear();
            }
            let completion = driver.next();
            assert_eq!(completion.op, op);
            let Event::Read { result: Ok(count), data, more: true } = &completion.event else {
                panic!("{:?}", completion.event)
            };
            assert_eq!(&gather(data, *count), text);
            held.push(completion);
        }
    }
    Ok(())
}

/// One connection of the random case.
struct Stream {
    op: OpId,
    most: usize,
    sent: Vec<u8>,
    got: Vec<u8>,
    held: Vec<Completion>,
    ended: bool,
}

fn below(state: &mut u64, bound: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 33) as usize % bound
}

pub fn random_quotas_lose_no_byte(fixture: &mut Fixture) -> Verdict {
    for seed in 1..=6u64 {
        for form in Form::ALL {
            random_quotas(small(fixture, 16), form, seed);
        }
    }
    Ok(())
}

/// Holds and drops buffers at random, cancels streams and starts them anew, and compares.
fn random_quotas(mut driver: Driver, form: Form, seed: u64) {
    const CONNECTIONS: usize = 6;
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut peers = Vec::new();
    let mut handles = Vec::new();
    let mut streams: Vec<Stream> = (0..CONNECTIONS)
        .map(|number| {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, number as u64);
            let most = 1 + below(&mut random, 4);
            let op = driver.read_stream_with_quota(handle, quota(most as u16)).unwrap();
            let len = 1 + below(&mut random, 60_000);
            let sent = net::pattern(len, seed * 100 + number as u64);
            peers.push((peer, sent.clone(), 1 + below(&mut random, 3 * BUFFER)));
            handles.push(handle);
            Stream { op, most, sent, got: Vec::new(), held: Vec::new(), ended: false }
        })
        .collect();
    let mut cancelled = Vec::new();
    let mut step = |channel: &mut Channel, completion: Option<Completion>, random: &mut u64| {
        if let Some(completion) = completion {
            let at = completion.cookie as usize;
            let stream = &mut streams[at];
            assert_eq!(completion.op, stream.op, "seed {seed}");
            match &completion.event {
                Event::Read { result: Ok(count @ 1..), data, more: true } => {
                    stream.got.extend(gather(data, *count));
                    stream.held.push(completion);
                    assert!(stream.held.len() <= stream.most, "seed {seed}: more than {}", stream.most);
                    if below(random, 50) == 0 && channel.cancel(stream.op).is_ok() {
                        cancelled.push(stream.op);
                    }
                }
                Event::Read { result: Ok(0), more: false, .. } => stream.ended = true,
                Event::Read { result: Err(error), more: false, .. } => {
                    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                    assert!(cancelled.contains(&completion.op));
                    stream.held.clear();
                    stream.op =
                        channel.read_stream_with_quota(handles[at], quota(stream.most as u16)).unwrap();
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        let stream = &mut streams[below(random, CONNECTIONS)];
        for _ in 0..below(random, 3).min(stream.held.len()) {
            let at = below(random, stream.held.len());
            stream.held.swap_remove(at);
        }
        streams.iter().all(|stream| stream.ended)
    };
    std::thread::scope(|scope| {
        for (mut peer, sent, piece) in peers {
            scope.spawn(move || sent.chunks(piece).for_each(|piece| peer.write_all(piece).unwrap()));
        }
        let start = Instant::now();
        let mut done = false;
        while !done {
            assert!(start.elapsed() < WATCHDOG, "seed {seed}: it did not end");
            let completion = driver.next_within(Duration::from_millis(1));
            done = step(&mut driver, completion, &mut random);
        }
    });
    for stream in &streams {
        assert!(stream.got == stream.sent, "seed {seed}: other bytes");
    }
}
