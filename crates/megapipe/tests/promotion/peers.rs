//! Peers that are hostile, die, or are on the other side of a fork; monitors that die or
//! refuse; other kinds of addresses.
#![allow(unsafe_code)] // a hostile peer writes where it likes

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use megapipe::{EngineKind, SubmitError};
use promote::wire::{Name, Token};
use promote::{Answer, Client, Options};
use testkit::process::{self, Fosterling};

use crate::support::{
    Folder, PATIENCE, Random, Side, Two, config, engines, own_monitor, pair, pair_at, pattern, start_monitor,
};

fn client(folder: &Folder) -> Client {
    let mut options = Options::from_environment("stranger");
    options.name = Name::new("stranger");
    options.socket = Some(folder.socket());
    Client::connect(&options).unwrap()
}

#[test]
fn a_hostile_peer_does_no_harm() {
    let folder = own_monitor("hostile");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let mut broken = 0;
        for seed in 1..=60 {
            let mut random = Random(seed);
            let mut side = Side::new(config(engine, &folder.socket()));
            let (a, b) = pair();
            let handle = side.channel.register(a, 0).unwrap();
            side.channel.read_stream(handle).unwrap();
            let mut peer = client(&folder);
            peer.offer(Token::new(1).unwrap(), b.as_fd()).unwrap();
            b.set_nonblocking(true).unwrap();
            let start = Instant::now();
            let own = loop {
                assert!(start.elapsed() < PATIENCE, "no grant");
                side.step(Duration::from_micros(200));
                if let Some(Answer::Granted { own, .. }) = peer.receive().unwrap() {
                    break own;
                }
            };
            while side.channel.stats().promoted == 0 {
                assert!(start.elapsed() < PATIENCE, "no promotion");
                side.step(Duration::from_micros(200));
            }
            let word = |offset: usize| own.address().wrapping_add(offset);
            let before = side.channel.stats().turns;
            let steps = 300;
            for _ in 0..steps {
                let value = match random.below(5) {
                    0 => random.next(),
                    1 => random.next() % 9,
                    2 => u64::MAX,
                    3 => random.next() % (1 << 17),
                    _ => 0,
                };
                // Used words, the records, and now and then any word.
                let offset = match random.below(8) {
                    0 => 12,
                    1 => 64,
                    2 => 128,
                    3 => 132,
                    4 => 1024,
                    5 => [1032, 1040][random.below(2)],
                    6 => 192 + 8 * random.below(16),
                    _ => 4 * random.below(own.len() / 4 - 1),
                };
                if offset % 8 == 0 && random.below(2) == 0 {
                    // SAFETY: inside the mapping, aligned; the peer expects that it may
                    // change.
                    unsafe { word(offset).cast::<u64>().write_volatile(value) };
                } else {
                    // SAFETY: as above.
                    unsafe { word(offset / 4 * 4).cast::<u32>().write_volatile(value as u32) };
                }
                if random.below(3) == 0 {
                    let _ = (&b).write(&[random.next() as u8; 3][..1 + random.below(3)]);
                }
                if random.below(2) == 0 {
                    let _ = side.channel.write_quiet(handle, vec![7; 1 + random.below(3000)]);
                }
                side.step(Duration::ZERO);
            }
            // It has turned as often as it was called, and sleeps when nothing comes.
            for _ in 0..20 {
                side.step(Duration::from_micros(100));
            }
            let turns = side.channel.stats().turns - before;
            assert!(turns < 20 * steps, "{turns} turns, seed {seed}");
            let seen = side.seen(0);
            assert!(seen.errors[0].iter().all(|error| *error == libc::ECONNRESET), "{:?}", seen.errors);
            assert!(
                seen.errors[1].iter().all(|error| [libc::ECONNRESET, libc::EPIPE].contains(error)),
                "{:?}",
                seen.errors
            );
            broken += u32::from(!seen.errors[0].is_empty());
            side.channel.close(handle).unwrap();
            side.channel.flush().unwrap();
        }
        assert!(broken > 10, "only {broken} were broken off");
    }
}

#[test]
fn a_wake_up_on_an_idle_connection_counts_for_no_other() {
    let folder = own_monitor("idle");
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let socket = folder.socket();
        let (idle, echo) = (pair(), pair());
        let (sender, receiver) = std::sync::mpsc::channel();
        let echoes = std::thread::spawn(move || {
            let mut side = Side::new(config(engine, &socket));
            let _unread = side.channel.register(idle.1, 0).unwrap();
            let handle = side.channel.register(echo.1, 1).unwrap();
            side.channel.read_stream(handle).unwrap();
            while side.channel.stats().promoted < 2 {
                side.step(Duration::from_millis(1));
            }
            sender.send(()).unwrap();
            let start = Instant::now();
            while !side.seen(1).ended && start.elapsed() < 2 * PATIENCE {
                // Long: only a wake-up ends it in time.
                side.step(2 * PATIENCE);
                let got = std::mem::take(&mut side.seen(1).got);
                if !got.is_empty() {
                    side.channel.write_quiet(handle, got).unwrap();
                }
            }
        });
        let mut side = Side::new(config(engine, &folder.socket()));
        let unread = side.channel.register(idle.0, 0).unwrap();
        let handle = side.channel.register(echo.0, 1).unwrap();
        side.channel.read_stream(handle).unwrap();
        while side.channel.stats().promoted < 2 {
            side.step(Duration::from_millis(1));
        }
        receiver.recv_timeout(PATIENCE).unwrap();
        for round in 0..100usize {
            if round < 50 {
                side.channel.write_quiet(unread, vec![1; 10]).unwrap();
                side.channel.flush().unwrap();
            }
            side.channel.write_quiet(handle, vec![2; 20]).unwrap();
            let start = Instant::now();
            while side.seen(1).got.len() < 20 * (round + 1) {
                assert!(start.elapsed() < PATIENCE, "the peer was not woken in round {round}");
                side.step(Duration::from_millis(50));
            }
            // It falls asleep after a while, of one kind or the other.
            std::thread::sleep(Duration::from_micros(300 * (round as u64 % 7)));
        }
        side.channel.close(handle).unwrap();
        side.channel.flush().unwrap();
        echoes.join().unwrap();
    }
}

/// The role of a process that sends a pattern, and reads one, until it is killed.
fn play_peer() {
    let port: u16 = std::env::var("PEER_PORT").unwrap().parse().unwrap();
    let engine =
        if std::env::var("PEER_ENGINE").unwrap() == "epoll" { EngineKind::Epoll } else { EngineKind::Uring };
    let mut side = Side::new(config(engine, std::path::Path::new(&std::env::var("PEER_MONITOR").unwrap())));
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let handle = side.channel.register(stream, 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    let mut sent = 0;
    let mut said = false;
    loop {
        if side.channel.stats().promoted == 1 && !std::mem::replace(&mut said, true) {
            println!("\npromoted");
        }
        let count = 1 + sent % 4093;
        if side.channel.write_quiet(handle, pattern(sent, count)).is_ok() {
            sent += count;
        }
        side.step(Duration::from_micros(50));
        side.seen(0).got.clear();
    }
}

#[test]
fn killed_peers_leave_exact_bytes() {
    if process::role().as_deref() == Some("peer") {
        play_peer();
    }
    let folder = own_monitor("killed");
    let mut random = Random(4711);
    for round in 0..16 {
        let engine = if round % 2 == 0 { "uring" } else { "epoll" };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut command = process::this_test_as("peers::killed_peers_leave_exact_bytes", "peer");
        command
            .env("PEER_PORT", listener.local_addr().unwrap().port().to_string())
            .env("PEER_ENGINE", engine)
            .env("PEER_MONITOR", folder.socket())
            .stdout(Stdio::piped());
        let mut peer = Fosterling::start(&mut command);
        let output = peer.child().stdout.take().unwrap();
        let mut side = Side::new(config(
            if round % 4 < 2 { EngineKind::Uring } else { EngineKind::Epoll },
            &folder.socket(),
        ));
        let handle = side.channel.register(listener.accept().unwrap().0, 0).unwrap();
        side.channel.read_stream(handle).unwrap();
        let promoted = std::thread::spawn(move || {
            BufReader::new(output).lines().any(|line| line.is_ok_and(|line| line == "promoted"))
        });
        let start = Instant::now();
        let mut extra = random.below(400);
        let mut sent = 0;
        while !promoted.is_finished() || side.channel.stats().promoted == 0 || extra > 0 {
            assert!(start.elapsed() < PATIENCE, "no promotion");
            extra -= usize::from(promoted.is_finished() && extra > 0);
            let count = 1 + sent % 4093;
            if side.channel.write_quiet(handle, pattern(sent, count)).is_ok() {
                sent += count;
            }
            side.step(Duration::from_micros(100));
        }
        assert!(promoted.join().unwrap());
        peer.kill();
        let start = Instant::now();
        while !side.seen(0).ended && side.seen(0).errors[0].is_empty() {
            assert!(start.elapsed() < PATIENCE, "no end");
            side.step(Duration::from_millis(10));
        }
        let seen = side.seen(0);
        assert!(seen.got == pattern(0, seen.got.len()), "other bytes in round {round}");
        assert!(seen.errors[0].iter().all(|error| *error == libc::ECONNRESET));
        // Writes without a peer fail at some time, as on TCP.
        let start = Instant::now();
        while side.seen(0).errors[1].is_empty() {
            assert!(start.elapsed() < PATIENCE, "writes without a peer go on");
            let _ = side.channel.write_quiet(handle, vec![0; 1000]);
            side.step(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_child_of_fork_leaves_the_rings_alone() {
    let folder = own_monitor("fork");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        let handle = two.handles[0];
        let channel = &mut two.sides[0].channel;
        let refused = process::in_forked_child(|| {
            let rejected = channel.write_quiet(handle, b"from the child".to_vec());
            let copied = channel.write_copy(handle, b"from the child");
            let refused = matches!(rejected, Err(rejected) if rejected.reason == SubmitError::StaleHandle)
                && matches!(copied, Err(SubmitError::StaleHandle))
                && channel.read(handle).is_err()
                && channel.close(handle).is_err();
            i32::from(!refused)
        });
        assert_eq!(refused, 0);
        two.send(0, b"from the parent");
        two.until("the parent's bytes", |two| two.sides[1].seen(0).got == b"from the parent");
    }
}

#[test]
fn connections_of_every_address_family_are_promoted() {
    let folder = own_monitor("addresses");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        let mapped = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
        for connection in [
            pair(),
            pair_at("[::1]:0", |address| address),
            pair_at("[::]:0", mapped),
            pair_at("127.0.0.9:0", |address| address),
        ] {
            let round = two.connections;
            two.add(connection);
            two.read_streams();
            two.promoted();
            let before = two.sides[1].channel.stats().ring_reads;
            two.send(0, &pattern(3, 10_000));
            two.until("bytes", |two| two.sides[1].seen(round).got.len() == 10_000);
            assert!(two.sides[1].seen(round).got == pattern(3, 10_000));
            assert!(two.sides[1].channel.stats().ring_reads > before);
        }
    }
}

#[test]
fn a_refused_connection_stays_on_tcp() {
    let folder = Folder::new("refused");
    start_monitor(&folder, "same_user = false\n");
    for engines in engines() {
        let mut two = Two::new(engines, &folder);
        two.add(pair());
        two.read_streams();
        two.until("the refusals", |two| {
            two.sides.iter().all(|side| side.channel.stats().promotions_refused > 0)
        });
        two.send(0, &pattern(0, 100_000));
        two.until("bytes", |two| two.sides[1].seen(0).got.len() == 100_000);
        assert!(two.sides[1].seen(0).got == pattern(0, 100_000));
        assert_eq!(two.sides[0].channel.stats().promoted, 0);
    }
}
