//! Clients that lie, flood, stall or break off do no harm to others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use promote::wire::{ClientMessage, MonitorMessage, Name, Packet};
use promote::{Answer, Client, Reason};
use socket2::SockRef;
use sys::epoll::{self, Event, Set};
use sys::packet;
use testkit::process;
use testkit::skip::{self, Skipped};

use crate::support::*;

fn hello() -> Packet {
    ClientMessage::Hello { version_min: 1, version_max: 1, name: Name::new("liar\n\x1b") }.encode()
}

/// A connection without a `Client`.
struct Raw(OwnedFd);

impl Raw {
    fn connect(running: &Running) -> Raw {
        Raw(packet::connect(&running.place.join("socket")).unwrap())
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        packet::send(self.0.as_fd(), bytes, descriptors).unwrap();
    }

    /// The same with more descriptors than any message has.
    fn send_many(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(descriptors)));
        let parts = [std::io::IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.0, &parts, &mut ancillary, rustix::net::SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message; `None` at the end.
    fn receive(&self) -> Option<MonitorMessage> {
        let set = Set::new().unwrap();
        set.add(self.0.as_fd(), epoll::IN, 0).unwrap();
        assert_eq!(set.wait(&mut [Event::NONE], Some(WATCHDOG)).unwrap(), 1, "no answer comes");
        let mut bytes = [0; 256];
        match packet::receive(self.0.as_fd(), &mut bytes) {
            Ok(received) if received.len > 0 => Some(MonitorMessage::decode(&bytes[..received.len]).unwrap()),
            // Cut off with something unread.
            Ok(_) => None,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
                None
            }
        }
    }

    fn is_cut_off(&self) {
        let refusal = MonitorMessage::Refuse { token: None, reason: Reason::Version };
        loop {
            match self.receive() {
                Some(MonitorMessage::Welcome { .. }) => {}
                Some(message) => assert_eq!(message, refusal),
                None => return,
            }
        }
    }
}

#[test]
fn violations_of_the_protocol_are_cut_off() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    let end = near.as_fd();
    let offer = ClientMessage::Offer { token: token(1) }.encode();
    let withdraw = ClientMessage::Withdraw { token: token(1) }.encode();
    let future = ClientMessage::Hello { version_min: 5, version_max: 9, name: Name::new("") }.encode();
    let hello = hello();
    let (hello, offer, withdraw) = (hello.as_bytes(), offer.as_bytes(), withdraw.as_bytes());
    let many = [end; 3];
    type Said<'a> = (&'a [u8], &'a [BorrowedFd<'a>]);
    let cases: &[&[Said<'_>]] = &[
        &[(&[1], &[])],
        &[(&hello[..20], &[])],
        &[(&[0xff; 256], &[])],
        &[(&[0; 4096], &[])],
        &[(future.as_bytes(), &[])],
        &[(offer, &[end])],
        &[(hello, &[end])],
        &[(hello, &[]), (hello, &[])],
        &[(hello, &[]), (offer, &[])],
        &[(hello, &[]), (offer, &many)],
        &[(hello, &[]), (withdraw, &[end])],
        &[(hello, &[]), (offer, &[end]), (offer, &[end])],
    ];
    for said in cases {
        let raw = Raw::connect(&running);
        for (bytes, descriptors) in *said {
            raw.send(bytes, descriptors);
        }
        raw.is_cut_off();
    }
    await_metric(&running.place, "protocol_errors_total", cases.len() as u64);
    await_metric(&running.place, "waiting_offers", 0);
    // An offer right behind a hello of another version counts as none, and its connection goes on.
    let offers = metric(&running.place, "offers_total");
    let raw = Raw::connect(&running);
    raw.send(future.as_bytes(), &[]);
    // The monitor may have been faster.
    let _ = packet::send(raw.0.as_fd(), offer, &[end]);
    raw.is_cut_off();
    await_metric(&running.place, "protocol_errors_total", cases.len() as u64 + 1);
    assert_eq!(metric(&running.place, "offers_total"), offers);
    (&near).write_all(b"byte").unwrap();
    (&far).read_exact(&mut [0; 4]).unwrap();
    // A packet with more descriptors than any message has.
    let raw = Raw::connect(&running);
    raw.send(hello, &[]);
    raw.send_many(offer, &[near.as_fd(); 20]);
    raw.is_cut_off();
    promote(&mut a, &mut b, 1);
    drop((a, b));
    running.end();
}

#[test]
fn withdrawing_an_unknown_token_has_no_effect() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    a.withdraw(token(77));
    promote(&mut a, &mut b, 1);
    drop((a, b));
    running.end();
}

#[test]
fn a_flood_leaves_the_others_served() {
    const OFFERS: u64 = 100_000;
    // So few that it is a flood however slow the machine.
    let limits = "[limits]\noffers_per_second = 100\n";
    let (running, mut a) = Running::start(&format!("{SHARE}{limits}"));
    let mut b = running.client("b");
    let mut flooder = running.client("flooder");
    let flood = std::thread::spawn(move || {
        let (near, _far) = connection("127.0.0.1", "127.0.0.1");
        let (mut sent, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < OFFERS {
            assert!(start.elapsed() < WATCHDOG, "{answered} of {sent} answered");
            let was = (sent, answered);
            while sent < OFFERS && flooder.offer(token(1 + sent), near.as_fd()).is_ok() {
                sent += 1;
            }
            while let Some(answer) = flooder.receive().unwrap() {
                match answer {
                    Answer::Peer { .. } | Answer::Declined { .. } => {}
                    Answer::Refused { .. } => answered += 1,
                    answer => panic!("{answer:?}"),
                }
            }
            if was == (sent, answered) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    });
    for number in 1..=200 {
        promote(&mut a, &mut b, number);
    }
    flood.join().unwrap();
    promote(&mut a, &mut b, 1000);
    assert!(metric(&running.place, "refusals_total{reason=\"rate\"}") > 0);
    drop((a, b));
    running.end();
}

/// A socket whose last close waits until its peer, which is returned too, reads or is gone.
fn lingering() -> (OwnedFd, TcpStream) {
    let (socket, peer) = testkit::net::tight_tcp_pair();
    let options = SockRef::from(&socket);
    options.set_nonblocking(true).unwrap();
    while options.send(&[0; 4096]).is_ok() {}
    options.set_linger(Some(Duration::from_secs(600))).unwrap();
    (socket, peer)
}

/// Closes this process's copies, which blocks too if the monitor was faster.
fn close_elsewhere(sockets: Vec<OwnedFd>) {
    std::thread::spawn(move || drop(sockets));
}

/// Sends lingering sockets in every way in which the monitor comes to close them, and
/// returns the peers that keep them lingering.
fn offer_lingering(connect: impl Fn() -> Raw, near: BorrowedFd<'_>) -> (Vec<TcpStream>, Vec<Raw>) {
    let hello = hello();
    let offer = |number| ClientMessage::Offer { token: token(number) }.encode();
    let (mut peers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (sockets, new): (Vec<_>, Vec<_>) = (0..3).map(|_| lingering()).unzip();
        peers.extend(new);
        // As an offer.
        let honest = connect();
        honest.send(hello.as_bytes(), &[]);
        honest.send(offer(1).as_bytes(), &[sockets[0].as_fd()]);
        // As the last of too many descriptors.
        let wasteful = connect();
        wasteful.send(hello.as_bytes(), &[]);
        let mut many = [near; 20];
        many[19] = sockets[1].as_fd();
        wasteful.send_many(offer(1).as_bytes(), &many);
        // Unread, by a client that is gone before.
        let hasty = connect();
        hasty.send(hello.as_bytes(), &[]);
        hasty.send(offer(1).as_bytes(), &[sockets[2].as_fd()]);
        drop(hasty);
        clients.extend([honest, wasteful]);
        close_elsewhere(sockets);
    }
    (peers, clients)
}

#[test]
fn closes_that_linger_hold_no_other_client_up() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, _far) = connection("127.0.0.1", "127.0.0.1");
    let (peers, clients) = offer_lingering(|| Raw::connect(&running), near.as_fd());
    for number in 1..=20 {
        promote(&mut a, &mut b, number);
    }
    drop((peers, clients));
    promote(&mut a, &mut b, 21);
    drop((a, b));
    running.end();
}

/// A program that closes a connection just promoted or refused is not delayed by a copy
/// that the monitor has still to close.
#[test]
fn an_answered_offer_has_no_copy_in_the_monitor() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    for number in 1..=20 {
        // This close keeps a thread of the monitor, and those behind it wait until there is another.
        let lingers = Raw::connect(&running);
        lingers.send(hello().as_bytes(), &[]);
        let (socket, peer) = lingering();
        lingers.send(ClientMessage::Offer { token: token(1) }.encode().as_bytes(), &[socket.as_fd()]);
        close_elsewhere(vec![socket]);
        if number % 2 == 0 {
            let (near, far) = connection("127.0.0.1", "127.0.0.1");
            offer(&mut a, number, &near);
            offer(&mut b, number, &far);
            assert_eq!(
                (granted(&mut b).token, descriptors_of(&near), descriptors_of(&far)),
                (token(number), 1, 1)
            );
            assert_eq!(granted(&mut a).token, token(number));
        } else {
            let nonsense = UdpSocket::bind("127.0.0.1:0").unwrap();
            offer(&mut a, number, &nonsense);
            assert_eq!((refused(&mut a).0, descriptors_of(&nonsense)), (token(number), 1));
        }
        drop((peer, lingers));
    }
    drop((a, b));
    running.end();
}

/// Descriptors of a socket that this process has, in which the monitor runs.
fn descriptors_of(socket: &impl AsFd) -> usize {
    let number = rustix::fs::fstat(socket).unwrap().st_ino;
    let link = std::path::PathBuf::from(format!("socket:[{number}]"));
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|of| of == link)).count()
}

/// More of them than the monitor has threads or room for, by another user.
#[test]
fn a_user_whose_closes_linger_holds_up_itself_only() {
    const NAME: &str = "hostile::a_user_whose_closes_linger_holds_up_itself_only";
    const STRANGER: u32 = 65_534;
    const OFFERS: u64 = 400;
    if let Some(socket) = process::role() {
        let raw = Raw(packet::connect(std::path::Path::new(&socket)).unwrap());
        raw.send(hello().as_bytes(), &[]);
        let (mut peers, start) = (Vec::new(), Instant::now());
        let mut blocked = 0;
        for number in 1..=OFFERS {
            let (socket, peer) = lingering();
            peers.push(peer);
            let offer = ClientMessage::Offer { token: token(number) }.encode();
            // Once the monitor reads no more, the kernel accepts some, and then no more
            // either.
            while packet::send(raw.0.as_fd(), offer.as_bytes(), &[socket.as_fd()]).is_err() {
                assert!(start.elapsed() < WATCHDOG);
                blocked += 1;
                if blocked > 50 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            close_elsewhere(vec![socket]);
        }
        println!("\nlingering");
        let _ = std::io::stdin().read_line(&mut String::new());
        drop(peers);
        let options = promote::client::Options {
            socket: Some(socket.into()),
            ..promote::client::Options::from_environment("stranger")
        };
        let mut client = Client::connect(&options).unwrap();
        assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
        let (near, _far) = connection("127.0.0.1", "127.0.0.1");
        offer(&mut client, 1, &near);
        println!("\nserved again: {:?}", receive(&mut client));
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip::record(NAME, &Skipped::because("needs root to become another user"));
    }
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 100\n"));
    let mut b = running.client("b");
    let mut command = process::this_test_as(NAME, running.place.join("socket").to_str().unwrap());
    command.uid(STRANGER).gid(STRANGER).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let reason = format!("another user cannot run this test program: {error}");
            return skip::record(NAME, &Skipped::because(reason));
        }
    };
    let mut lines = BufReader::new(stranger.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "lingering"));
    for number in 1..=20 {
        promote(&mut a, &mut b, number);
    }
    stranger.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(lines.any(|line| line.contains("served again: Refused")));
    assert!(stranger.wait().unwrap().success());
    drop((a, b));
    running.end();
}
