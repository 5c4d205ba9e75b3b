//! Clients that lie, flood, stall or break off harm nobody else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use promote::wire::{ClientMessage, MonitorMessage, Name, Packet};
use promote::{Answer, Reason};
use sys::epoll::{self, Event, Set};
use sys::packet;

use crate::support::*;

fn hello() -> Packet {
    ClientMessage::Hello { version_min: 1, version_max: 1, name: Name::new("liar\n\x1b") }.encode()
}

/// A connection that speaks for itself.
struct Raw(OwnedFd);

impl Raw {
    fn connect(running: &Running) -> Raw {
        Raw(packet::connect(&running.place.file("socket")).unwrap())
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        packet::send(self.0.as_fd(), bytes, descriptors).unwrap();
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
        let refusal = MonitorMessage::Refuse { token: None, reason: Reason::Protocol };
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
fn nonsense_is_cut_off() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, _far) = connection("127.0.0.1", "127.0.0.1");
    let end = near.as_fd();
    let offer = ClientMessage::Offer { token: token(1) }.encode();
    let withdraw = ClientMessage::Withdraw { token: token(1) }.encode();
    let future = ClientMessage::Hello { version_min: 2, version_max: 9, name: Name::new("") }.encode();
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
    // A packet with more descriptors than any message has.
    let raw = Raw::connect(&running);
    raw.send(hello, &[]);
    let crowd = [rustix::fd::AsFd::as_fd(&near); 20];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&crowd)));
    let parts = [std::io::IoSlice::new(offer)];
    rustix::net::sendmsg(&raw.0, &parts, &mut ancillary, rustix::net::SendFlags::NOSIGNAL).unwrap();
    raw.is_cut_off();
    promote(&mut a, &mut b, 1);
    drop((a, b));
    running.end();
}

#[test]
fn withdrawing_what_is_not_there_is_nothing() {
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
                assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
                answered += 1;
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
