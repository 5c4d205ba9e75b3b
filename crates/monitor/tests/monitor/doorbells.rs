//! A doorbell for each endpoint, where both clients accept them.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use promote::wire::{ClientMessage, MonitorMessage, Name};
use promote::{Answer, Client, Doorbells, Reason};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sys::packet;
use testkit::process::{self, Fosterling};

use crate::support::*;

/// What poll(2) reports of a doorbell, at once or after a wait.
fn readiness(doorbell: &OwnedFd, wait: bool) -> PollFlags {
    let seconds = if wait { WATCHDOG.as_secs() } else { 0 };
    let limit = Timespec { tv_sec: seconds as i64, tv_nsec: 0 };
    let mut polled = [PollFd::new(doorbell, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&limit)).unwrap();
    polled[0].revents()
}

/// Reads all bytes of a doorbell.
fn drain(doorbell: &OwnedFd) -> usize {
    let mut bytes = [0; 8192];
    let count = rustix::io::read(doorbell, &mut bytes).unwrap();
    assert_eq!(rustix::io::read(doorbell, &mut bytes), Err(Errno::AGAIN));
    count
}

fn wake(doorbell: &OwnedFd) {
    assert_eq!(rustix::io::write(doorbell, &[0]), Ok(1));
}

/// The next answer, where an epoll set to wait in would take a descriptor.
fn receive_at_the_limit(client: &mut Client) -> Answer {
    process::until("an answer", || client.receive().unwrap())
}

/// Both endpoints of a new connection are granted; returns the doorbells of each.
fn granted_doorbells(a: &mut Client, b: &mut Client) -> [Option<Doorbells>; 2] {
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(a, 1, &near);
    offer(b, 2, &far);
    let doorbells = [granted(a).doorbells, granted(b).doorbells];
    a.withdraw(token(1));
    b.withdraw(token(2));
    doorbells
}

#[test]
fn only_two_that_accept_doorbells_get_them() {
    let (running, mut plain) = Running::start(SHARE);
    let mut other_plain = running.client("plain");
    let [mut modern, mut other_modern] = ["one", "other"].map(|name| running.client_with_doorbells(name));
    let none = |doorbells: [Option<Doorbells>; 2]| assert!(doorbells.iter().all(Option::is_none));
    none(granted_doorbells(&mut plain, &mut other_plain));
    none(granted_doorbells(&mut plain, &mut modern));
    none(granted_doorbells(&mut modern, &mut plain));
    let [one, other] = granted_doorbells(&mut modern, &mut other_modern).map(Option::unwrap);
    for (from, to) in [(&one, &other), (&other, &one)] {
        assert_eq!(readiness(&to.own, false), PollFlags::empty());
        wake(&from.peer);
        assert_eq!(readiness(&to.own, false), PollFlags::IN);
        assert_eq!(readiness(&from.own, false), PollFlags::empty(), "it is the other one's");
        // An endpoint wakes itself, too.
        wake(&to.own);
        assert_eq!(drain(&to.own), 2);
    }
    // Their flags are not shared, and a full one refuses.
    sys::file::set_nonblocking(one.own.as_fd(), false).unwrap();
    assert!(sys::file::is_nonblocking(other.peer.as_fd()).unwrap());
    assert_eq!(rustix::io::write(&other.peer, &[0; 8192]), Ok(4096));
    assert_eq!(rustix::io::write(&other.peer, &[0]), Err(Errno::AGAIN));
    drop((plain, other_plain, modern, other_modern));
    running.end();
}

/// One process with both endpoints.
#[test]
fn in_one_loop() {
    let (running, first) = Running::start(SHARE);
    let mut client = running.client_with_doorbells("both");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut client, 1, &near);
    offer(&mut client, 2, &far);
    let [one, other] = [granted(&mut client), granted(&mut client)].map(|grant| grant.doorbells.unwrap());
    wake(&one.peer);
    assert_eq!((drain(&other.own), readiness(&one.own, false)), (1, PollFlags::empty()));
    drop((first, client));
    running.end();
}

/// A doorbell still works when the process that wakes by it is killed.
#[test]
fn a_dead_peer_is_neither_a_hang_up_nor_a_signal() {
    const NAME: &str = "doorbells::a_dead_peer_is_neither_a_hang_up_nor_a_signal";
    if let Some(role) = process::role() {
        let (socket, port) = role.split_once(' ').unwrap();
        let options = promote::client::Options { doorbells: true, ..options_at(socket) };
        let mut client = Client::connect(&options).unwrap();
        assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
        let near = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        offer(&mut client, 1, &near);
        let doorbells = granted(&mut client).doorbells.unwrap();
        wake(&doorbells.peer);
        assert_eq!(readiness(&doorbells.own, true), PollFlags::IN);
        println!("\nawake");
        // Until it is killed.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let (running, first) = Running::start(SHARE);
    let mut client = running.client_with_doorbells("survivor");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let role =
        format!("{} {}", running.place.join("socket").display(), listener.local_addr().unwrap().port());
    let mut command = process::this_test_as(NAME, &role);
    let mut peer = Fosterling::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let far = listener.accept().unwrap().0;
    offer(&mut client, 1, &far);
    let doorbells = granted(&mut client).doorbells.unwrap();
    assert_eq!(readiness(&doorbells.own, true), PollFlags::IN);
    assert_eq!(drain(&doorbells.own), 1);
    wake(&doorbells.peer);
    let mut lines = BufReader::new(peer.child().stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "awake"));
    peer.kill();
    assert_eq!(readiness(&doorbells.own, false), PollFlags::empty());
    // EPIPE would come with SIGPIPE, which test programs ignore.
    wake(&doorbells.peer);
    drop((first, client));
    running.end();
}

/// A client that cannot receive all five descriptors leaves this connection on TCP, and no other.
#[test]
fn a_client_needs_room_for_all_descriptors() {
    const NAME: &str = "doorbells::a_client_needs_room_for_all_descriptors";
    if let Some(role) = process::role() {
        let (socket, port) = role.split_once(' ').unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        let (near, next) = (connect(), connect());
        let options = promote::client::Options { doorbells: true, ..options_at(socket) };
        let mut client = Client::connect(&options).unwrap();
        assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
        offer(&mut client, 1, &near);
        process::leave_descriptors(4);
        let answer = receive_at_the_limit(&mut client);
        assert!(matches!(answer, Answer::Refused { reason: Reason::NoMemory, .. }), "{answer:?}");
        process::limit_descriptors(1024);
        offer(&mut client, 2, &next);
        assert!(granted(&mut client).doorbells.is_some());
        return;
    }
    let (running, first) = Running::start(SHARE);
    let mut client = running.client_with_doorbells("other");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let role =
        format!("{} {}", running.place.join("socket").display(), listener.local_addr().unwrap().port());
    let mut peer = Fosterling::start(&mut process::this_test_as(NAME, &role));
    let mut ends = Vec::new();
    for number in 1..=2 {
        let far = listener.accept().unwrap().0;
        offer(&mut client, number, &far);
        assert!(granted(&mut client).doorbells.is_some());
        ends.push(far);
    }
    assert!(peer.child().wait().unwrap().success());
    drop((first, client));
    running.end();
}

/// The newest version that both have, whatever else a client has.
#[test]
fn the_monitor_chooses_the_newest_version() {
    let (running, first) = Running::start(SHARE);
    for (version_min, version_max, chosen) in
        [(1, 1, 1), (0, 1, 1), (1, 2, 2), (2, 2, 2), (1, 3, 3), (3, 9, 4), (0, 9, 4)]
    {
        let socket = packet::connect(&running.place.join("socket")).unwrap();
        let hello = ClientMessage::Hello { version_min, version_max, name: Name::new("raw") };
        packet::send(socket.as_fd(), hello.encode().as_bytes(), &[]).unwrap();
        assert_eq!(readiness(&socket, true), PollFlags::IN);
        let mut bytes = [0; 256];
        let received = packet::receive(socket.as_fd(), &mut bytes).unwrap();
        let welcome = MonitorMessage::decode(&bytes[..received.len]).unwrap();
        assert!(
            matches!(welcome, MonitorMessage::Welcome { version, .. } if version == chosen),
            "{version_min} to {version_max}: {welcome:?}"
        );
    }
    drop(first);
    running.end();
}

/// The monitor keeps no doorbell, and does without where it has no descriptors for them.
#[test]
fn doorbells_need_descriptors_of_the_monitor_for_a_moment_only() {
    process::isolated("doorbells::doorbells_need_descriptors_of_the_monitor_for_a_moment_only", || {
        let (running, first) = Running::start(SHARE);
        let [mut a, mut b] = ["a", "b"].map(|name| running.client_with_doorbells(name));
        assert!(granted_doorbells(&mut a, &mut b).iter().all(Option::is_some));
        // Metrics are served behind the grants and withdrawals, and other threads close the sockets.
        let open_descriptors = || {
            await_metric(&running.place, "promoted_ends", 0);
            process::await_closes();
            process::open_descriptors()
        };
        let before = open_descriptors();
        for _ in 0..20 {
            assert!(granted_doorbells(&mut a, &mut b).iter().all(Option::is_some));
        }
        assert_eq!(open_descriptors(), before);
        let (near, far) = connection("127.0.0.1", "127.0.0.1");
        // Enough for both sockets, the four of the regions and the three of a grant,
        // which the clients receive in this process; the doorbells take six beside the
        // regions.
        process::leave_descriptors(9);
        offer(&mut a, 1, &near);
        offer(&mut b, 2, &far);
        for (number, client) in [(1, &mut a), (2, &mut b)] {
            let answer = receive_at_the_limit(client);
            assert!(matches!(answer, Answer::Granted { doorbells: None, .. }), "{answer:?}");
            client.withdraw(token(number));
        }
        process::limit_descriptors(1024);
        assert!(granted_doorbells(&mut a, &mut b).iter().all(Option::is_some));
        drop((first, a, b));
        running.end();
    });
}
