//! Linux as the peer, over a TUN device, as a user without privileges: its sockets are on one
//! side, a host of ours on the other.
//!
//! `MEGAPIPE_TCP_MB` is the size of the named transfers in MB (16); that of the one whose sequence
//! numbers wrap is five times as large. `MEGAPIPE_TCP_MATRIX=all` runs every case of the matrix.

mod exchange;
mod matrix;
mod ours;

use std::env;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use packet::Faults;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tcp::Initial;
use testkit::netns;

use exchange::Load;
use ours::{Ours, PORT, address};

const BOUND: Duration = Duration::from_secs(300);

/// A new host, and one connection that Linux begins.
fn linux_connects(ours: &mut Ours, v6: bool, load: Load, congestion: &'static str) {
    ours.listen();
    let remote = SocketAddr::new(address(2, v6), PORT);
    let client = thread::spawn(move || {
        let socket = TcpStream::connect_timeout(&remote, Duration::from_secs(20)).expect("Linux connects");
        set_congestion(&socket, congestion);
        exchange::over(socket, load);
    });
    ours.run(1, bound());
    client.join().expect("the client");
}

/// A new host, and one connection that it begins.
fn we_connect(ours: &mut Ours, v6: bool, load: Load, congestion: &'static str) {
    let listener = TcpListener::bind((address(1, v6), 0)).expect("a listener");
    set_congestion(&listener, congestion);
    ours.connect(listener.local_addr().expect("its address"));
    let server = thread::spawn(move || {
        let (socket, _) = listener.accept().expect("a connection");
        exchange::over(socket, load);
    });
    ours.run(1, bound());
    server.join().expect("the server");
}

fn set_congestion(socket: &impl std::os::fd::AsFd, name: &str) {
    rustix::net::sockopt::set_tcp_congestion(socket, name).expect("the kernel has this congestion control");
}

fn megabytes() -> u64 {
    env::var("MEGAPIPE_TCP_MB").map_or(16, |text| text.parse().expect("MEGAPIPE_TCP_MB is a number"))
}

/// Time for a transfer of the largest size.
fn bound() -> Duration {
    BOUND + Duration::from_secs(megabytes())
}

/// A transfer one way, and the time it took.
fn transfer(name: &str, v6: bool, loss: f64, load: Load) {
    if !netns::enter(name, bound()) {
        return;
    }
    let started = Instant::now();
    let mut ours = Ours::new(1500, Faults { loss, ..Faults::default() }, Initial::Keyed, load);
    // Linux connects over IPv4, we over IPv6: each of them sends once as either.
    if v6 {
        we_connect(&mut ours, v6, load, "cubic")
    } else {
        linux_connects(&mut ours, v6, load, "cubic")
    }
    println!("{name}: {} MB in {:.1} s", megabytes(), started.elapsed().as_secs_f64());
}

fn from_linux() -> Load {
    Load { from_linux: megabytes() * 1_000_000, to_linux: 0, write: 65_521 }
}

fn to_linux() -> Load {
    Load { from_linux: 0, to_linux: megabytes() * 1_000_000, write: 65_521 }
}

#[test]
fn linux_sends_over_ipv4() {
    transfer("linux_sends_over_ipv4", false, 0.0, from_linux());
}

#[test]
fn linux_sends_over_ipv6_with_loss() {
    transfer("linux_sends_over_ipv6_with_loss", true, 0.01, from_linux());
}

#[test]
fn we_send_over_ipv4_with_loss() {
    transfer("we_send_over_ipv4_with_loss", false, 0.01, to_linux());
}

#[test]
fn we_send_over_ipv6() {
    transfer("we_send_over_ipv6", true, 0.0, to_linux());
}

/// Both ways at once, from just below 2^32 on; with 5 GB across it twice at our end, and at
/// least once at that of Linux.
#[test]
fn sequence_numbers_wrap() {
    if !netns::enter("sequence_numbers_wrap", bound() * 3) {
        return;
    }
    let started = Instant::now();
    let load = Load::both_ways(megabytes() * 5_000_000);
    let initial = Initial::Fixed { sequence: u32::MAX - 60_000, timestamp: u32::MAX - 100 };
    let mut ours = Ours::new(1500, Faults::default(), initial, load);
    linux_connects(&mut ours, false, load, "cubic");
    println!(
        "sequence_numbers_wrap: {} MB each way in {:.1} s",
        5 * megabytes(),
        started.elapsed().as_secs_f64()
    );
}

/// Linux connects: from a byte to a megabyte, both families, many at once; and to a port where
/// nobody listens.
#[test]
fn linux_clients_talk_to_our_server() {
    if !netns::enter("linux_clients_talk_to_our_server", BOUND) {
        return;
    }
    for v6 in [false, true] {
        let remote = SocketAddr::new(address(2, v6), PORT);
        for (connections, len) in [(1, 1), (40, 5_000), (3, 1_000_000)] {
            let load = Load::both_ways(len);
            let mut ours = Ours::new(1500, Faults::default(), Initial::Keyed, load);
            ours.listen();
            let client = move || exchange::over(TcpStream::connect(remote).expect("Linux connects"), load);
            let clients: Vec<_> = (0..connections).map(|_| thread::spawn(client)).collect();
            ours.run(connections, BOUND);
            clients.into_iter().for_each(|client| client.join().expect("a client"));
            let nobody = SocketAddr::new(remote.ip(), 9);
            let refused =
                thread::spawn(move || TcpStream::connect(nobody).expect_err("nobody listens").kind());
            while !refused.is_finished() {
                ours.turn();
            }
            assert_eq!(refused.join().expect("the client"), io::ErrorKind::ConnectionRefused);
        }
    }
}

/// Packets are lost, repeated, reordered, changed, cut, joined and overlap, both ways.
#[test]
fn linux_clients_over_a_bad_path() {
    if !netns::enter("linux_clients_over_a_bad_path", BOUND) {
        return;
    }
    let faults = Faults {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.02,
        reorder_by: Duration::from_millis(2),
        cut: 0.05,
        join: 0.05,
        overlap: 0.05,
        corrupt: 0.005,
        ..Faults::default()
    };
    let load = Load::both_ways(1_000_000);
    for v6 in [false, true] {
        linux_connects(&mut Ours::new(1500, faults, Initial::Keyed, load), v6, load, "cubic");
    }
}

/// More clients have answered our SYN-ACKs than may wait to be accepted. They are connected by their
/// own account, send, and are served once there is room.
#[test]
fn our_accept_queue_is_full_when_the_ack_comes() {
    const CLIENTS: usize = 8;
    if !netns::enter("our_accept_queue_is_full_when_the_ack_comes", BOUND) {
        return;
    }
    let load = Load::both_ways(100_000);
    for v6 in [false, true] {
        let mut ours = Ours::new(1500, Faults::default(), Initial::Keyed, load);
        let listener = ours.listen_only(1);
        let remote = SocketAddr::new(address(2, v6), PORT);
        // All SYNs wait in the device before ours looks at the first.
        let clients: Vec<_> = (0..CLIENTS).map(|_| begin(remote)).collect();
        while ours.overflows() < CLIENTS as u64 - 1 {
            ours.turn();
        }
        let clients: Vec<_> =
            clients.into_iter().map(|client| thread::spawn(move || exchange::over(client, load))).collect();
        ours.accept_from(listener);
        ours.run(CLIENTS, BOUND);
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    }
}

/// A connection of Linux that is being made; its SYN is on the way.
fn begin(remote: SocketAddr) -> TcpStream {
    let family = if remote.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
    let begun = rustix::net::connect(&socket, &remote);
    assert_eq!(begun, Err(rustix::io::Errno::INPROGRESS));
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(false).expect("a mode");
    socket
}

/// The same the other way round: Linux has no room when our ACKs come.
#[test]
fn the_accept_queue_of_linux_is_full_when_our_ack_comes() {
    const CLIENTS: usize = 8;
    if !netns::enter("the_accept_queue_of_linux_is_full_when_our_ack_comes", BOUND) {
        return;
    }
    let load = Load::both_ways(100_000);
    for v6 in [false, true] {
        let mut ours = Ours::new(1500, Faults::default(), Initial::Keyed, load);
        let listener = TcpListener::bind((address(1, v6), 0)).expect("a listener");
        let remote = listener.local_addr().expect("its address");
        (0..CLIENTS).for_each(|_| ours.connect(remote));
        ours.send();
        while half_open_at_linux(v6) < CLIENTS {
            thread::yield_now();
        }
        // Room for one from now on.
        rustix::net::listen(&listener, 0).expect("a backlog");
        let before = listen_overflows();
        while listen_overflows() - before < CLIENTS as u64 - 1 {
            ours.turn();
        }
        let server = thread::spawn(move || {
            let connections: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (socket, _) = listener.accept().expect("a connection");
                    thread::spawn(move || exchange::over(socket, load))
                })
                .collect();
            connections.into_iter().for_each(|one| one.join().expect("a connection"));
        });
        ours.run(CLIENTS, BOUND);
        server.join().expect("the server");
    }
}

/// Connections of this namespace whose last ACK has not come (proc_pid_net(5)).
fn half_open_at_linux(v6: bool) -> usize {
    const SYN_RECV: &str = "03";
    let sockets = fs::read_to_string(if v6 { "/proc/net/tcp6" } else { "/proc/net/tcp" }).expect("a list");
    sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some(SYN_RECV)).count()
}

/// Connections that this namespace had no room for in an accept queue.
fn listen_overflows() -> u64 {
    let text = fs::read_to_string("/proc/net/netstat").expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|name| name == "ListenOverflows").expect("a counter");
    values.split(' ').nth(at).expect("a value").parse().expect("a number")
}
