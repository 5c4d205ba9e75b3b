//! Wake-ups while the channel has more completions than the kernel's queue holds, and timers
//! while rings bring message after message.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use megapipe::{Config, EngineKind, Spin};
use socket2::{Socket, Type};
use testkit::net;
use testkit::process::{self, Fosterling};

use crate::support::{PATIENCE, Patience, Side, Two, config, crowd_out_doorbells, engines, own_monitor};

/// Sockets that all have bytes at once: with the promoted connection's they fill the table
/// of operations, and so the queue.
const READERS: usize = 508;
/// Sockets whose sends fail before that of the wake-up.
const FULL: usize = 60;
const BUFFER: usize = 256;
const ADDRESS: &str = "WAITER_ADDRESS";
const MONITOR: &str = "WAITER_MONITOR";
const NAME: &str = "overload::a_wakeup_that_the_kernel_refused_is_not_counted";

fn small(engine: EngineKind, monitor: &Path) -> Config {
    Config {
        operations_max: 512,
        batch_threshold: 64,
        buffer_size: BUFFER as u32,
        read_buffers: 8192,
        spin: Spin::Off,
        ..config(engine, monitor)
    }
}

/// The role of a process that is promoted, is woken over TCP, and falls asleep.
fn play_waiter() {
    crowd_out_doorbells();
    let variable = |name: &str| std::env::var(name).unwrap();
    let address: SocketAddr = variable(ADDRESS).parse().unwrap();
    let mut side = Side::new(small(EngineKind::Epoll, Path::new(&variable(MONITOR))));
    let handle = side.channel.register(TcpStream::connect(address).unwrap(), 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    while side.channel.stats().promoted == 0 {
        side.step(Duration::from_millis(1));
    }
    println!("\npromoted");
    loop {
        side.step(PATIENCE);
    }
}

/// Sends until the socket accepts no more. (A connection with so small a buffer would not
/// have been promoted.)
fn fill(socket: &Socket) {
    socket.set_send_buffer_size(1).unwrap();
    while socket.send_with_flags(&[0; 512], libc::MSG_DONTWAIT).is_ok() {}
}

/// Whether the peer's kernel has yet to acknowledge bytes, or may accept more of them.
fn is_moving(socket: &Socket) -> bool {
    /// In linux/sockios.h: bytes that have not been sent.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    // SIOCOUTQ is TIOCOUTQ: bytes that are not acknowledged.
    let [unacknowledged, unsent] = [libc::TIOCOUTQ, SIOCOUTQNSD].map(|request| {
        let mut count: i32 = 0;
        // SAFETY: the kernel writes one live integer.
        assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut count) }, 0);
        count
    });
    unsent == 0 || unacknowledged > unsent
}

#[test]
fn a_wakeup_that_the_kernel_refused_is_not_counted() {
    if process::role().as_deref() == Some("waiter") {
        play_waiter();
    }
    process::isolated_without(NAME, "defer_taskrun", || {
        process::limit_descriptors(4096);
        for engine in [EngineKind::Uring, EngineKind::Epoll] {
            assert_eq!(wakeups_while_the_queue_is_full(engine, true), 1);
            assert_eq!(wakeups_while_the_queue_is_full(engine, false), 0, "the socket had no room");
        }
    });
}

/// How many wake-ups of a sleeping peer count as sent.
fn wakeups_while_the_queue_is_full(engine: EngineKind, has_room: bool) -> u64 {
    let folder = own_monitor("overload");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = process::this_test_as(NAME, "waiter");
    command.env(ADDRESS, listener.local_addr().unwrap().to_string());
    command.env(MONITOR, folder.socket()).stdout(Stdio::piped());
    let mut waiter = Fosterling::start(&mut command);
    let output = waiter.child().stdout.take().unwrap();

    let mut side = Side::new(small(engine, &folder.socket()));
    let stream = listener.accept().unwrap().0;
    let socket = Socket::from(stream.try_clone().unwrap());
    let handle = side.channel.register(stream, 0).unwrap();
    side.channel.read_stream(handle).unwrap();
    let promoted = std::thread::spawn(move || {
        BufReader::new(output).lines().any(|line| line.is_ok_and(|line| line == "promoted"))
    });
    let mut patience = Patience::new();
    while !promoted.is_finished() || side.channel.stats().promoted == 0 {
        assert!(!patience.is_over(), "promotion: {:?}", side.channel.stats());
        side.step(Duration::from_millis(1));
    }
    assert!(promoted.join().unwrap());
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let (socket, peer) = net::unix_pair(Type::STREAM);
        let reader = side.channel.register(socket, 1).unwrap();
        side.channel.read_stream(reader).unwrap();
        readers.push(peer);
    }
    let mut blocked = Vec::new();
    for _ in 0..FULL {
        let (socket, peer) = net::unix_pair(Type::STREAM);
        fill(&Socket::from(socket.try_clone().unwrap()));
        blocked.push((side.channel.register(socket, 0).unwrap(), peer));
    }
    side.channel.flush().unwrap();

    // The first round has too few buffers in stock to fill the queue.
    for _ in 0..2 {
        for peer in &mut readers {
            peer.write_all(&[1; 16 * BUFFER]).unwrap();
        }
        while side.step(Duration::from_millis(20)) {}
    }
    // The peer stays asleep whatever comes.
    waiter.stop_asleep();
    if !has_room {
        // The kernel may yet deliver bytes under way to the peer: then there is room
        // again.
        let mut patience = Patience::new();
        while {
            fill(&socket);
            is_moving(&socket)
        } {
            assert!(!patience.is_over(), "the peer's window stays open");
        }
    }
    for peer in &mut readers {
        peer.write_all(&[1; 16 * BUFFER]).unwrap();
    }
    side.step(Duration::ZERO);
    for peer in &mut readers {
        peer.write_all(&[1]).unwrap();
    }
    assert_eq!(side.channel.stats().bells, 0);
    for handle in blocked.iter().map(|(handle, _)| *handle).chain([handle]) {
        side.channel.write_quiet(handle, vec![2; 10]).unwrap();
    }
    side.channel.flush().unwrap();
    while side.step(Duration::from_millis(20)) {}
    side.channel.stats().bells
}

#[test]
fn timers_come_while_rings_are_busy() {
    /// Twice as many messages as a channel delivers before it checks its timers.
    const SOON: usize = 512;
    let folder = own_monitor("busy-rings");
    for engines in engines() {
        let mut two = Two::connected(engines, &folder);
        let (socket, mut peer) = net::unix_pair(Type::STREAM);
        let other = two.sides[0].channel.register(socket, 1).unwrap();
        let timer = two.sides[0].channel.timer(Duration::ZERO, 2).unwrap();
        let mut messages = 0;
        while !two.sides[0].ended_ops.contains(&timer) {
            assert!(messages <= SOON, "no timer in {messages} messages");
            two.send(1, b"?");
            let side = &mut two.sides[0];
            assert!(side.step(PATIENCE));
            messages += 1;
            // Each batch is a turn of its own.
            side.channel.write_quiet(other, vec![1]).unwrap();
            side.channel.flush().unwrap();
            net::read_exactly(&mut peer, 1);
        }
    }
}
