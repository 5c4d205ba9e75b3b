//! What the monitor reports of its state, and to which clients.

use std::os::fd::{AsFd, OwnedFd};

use promote::viewer::{View, Viewer};
use promote::wire::view::{Place, Record, Section};
use promote::wire::{ClientMessage, MonitorMessage, Name};
use promote::{Client, Reason};
use sys::packet;

use super::support::*;

fn viewer(running: &Running) -> Viewer {
    Viewer::connect(&promote::Place::chosen(running.place.join("socket")), "viewer").unwrap()
}

/// Promotes connections with these numbers; returns the grants of both endpoints.
fn promoted(a: &mut Client, b: &mut Client, numbers: std::ops::RangeInclusive<u64>) -> Vec<[Grant; 2]> {
    let meet = |number| {
        let (near, far) = connection("127.0.0.1", "127.0.0.1");
        offer(a, number, &near);
        offer(b, number, &far);
        // They live on without their sockets, which is enough here.
        [granted(a), granted(b)]
    };
    numbers.map(meet).collect()
}

/// Of the policy that is followed: not of a file that cannot be used.
#[test]
fn what_the_policy_allows_a_user_is_reported() {
    let rule = "[[allow]]\none = { uid = [26] }\nother = { uid = [33, 26, 7] }\n";
    let (running, first) = Running::start(&format!("{SHARE}{rule}"));
    let file = running.place.join("policy.toml");
    let allowed = |user: u32| viewer(&running).allowed(user).unwrap().unwrap();
    let report = allowed(26);
    assert_eq!((report.users(), report.everybody, report.outdated), (&[26, 7, 33][..], false, false));
    assert_eq!(report.source.to_string(), file.display().to_string());
    assert_eq!(allowed(33).users(), [33, 26]);
    std::fs::write(&file, "no policy\n").unwrap();
    let kept = allowed(26);
    assert_eq!((kept.users(), kept.outdated), (report.users(), true));
    let own = rustix::process::geteuid().as_raw();
    std::fs::write(&file, "same_user = false\n").unwrap();
    assert_eq!((allowed(own).users(), allowed(own).outdated), (&[][..], false));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "").unwrap();
    assert!(allowed(own).by_default && allowed(own).users() == [own]);
    drop(first);
    running.end();
}

#[test]
fn everything_is_reported_page_by_page() {
    let (running, first) = Running::start(SHARE);
    let view = viewer(&running);
    let seen = view.query().unwrap();
    assert_eq!((seen.totals.clients, seen.totals.promoted), (1, 0));
    assert!(seen.totals.everybody && seen.promoted.is_empty());
    assert_eq!(seen.totals.pid, std::process::id());
    assert_eq!(seen.loops.len(), 1, "not who asks");
    assert_eq!(seen.loops[0].name, Name::new("first"));

    let (mut a, mut b) = (running.client("a"), running.client("b"));
    let grants = promoted(&mut a, &mut b, 1..=100);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    offer(&mut a, 1000, &udp);
    assert_eq!(refused(&mut a).1, Reason::ClosedEarly);
    // As a program would write it.
    set_word(&grants[0][0].own, 12, 1);
    set_word(&grants[0][0].own, 1024, 5000);
    set_word(&grants[0][1].own, 1040, 3000);
    set_word(&grants[0][0].own, 512, 7);

    let seen = view.query().unwrap();
    let totals = seen.totals;
    assert_eq!((totals.clients, totals.promoted, totals.offers, totals.granted), (3, 200, 201, 200));
    assert_eq!(totals.bytes, 200 * 262_144);
    assert_eq!(totals.refused.iter().sum::<u64>(), 1);
    assert_eq!(totals.refused[Reason::ClosedEarly.index()], 1);
    let loops: Vec<_> = seen.loops.iter().map(|client| (client.name.to_string(), client.promoted)).collect();
    assert_eq!(loops, [("first".to_owned(), 0), ("a".to_owned(), 100), ("b".to_owned(), 100)]);
    assert_eq!(seen.loops[1].refused, totals.refused);
    assert_eq!(seen.promoted.len(), 200);
    for end in &seen.promoted {
        let other = seen.promoted.iter().find(|other| other.number == end.other).unwrap();
        assert_eq!((other.other, other.local, other.peer), (end.number, end.peer, end.local));
        assert_ne!(end.client, other.client);
        assert!(end.words.is_some());
    }
    let end = |seen: &View, number: u64| *seen.promoted.iter().find(|end| end.number == number).unwrap();
    let sender = seen.promoted.iter().find(|end| end.words.unwrap().tail == 5000).unwrap();
    let one = sender.words.unwrap();
    assert!(one.aware && !one.armed && !one.ended);
    assert_eq!((sender.tail_consumed, one.sent_messages, one.consumed_messages), (Some(3000), 7, 0));
    assert_eq!(end(&seen, sender.other).words.unwrap().head, 3000);

    // An ended connection is reported no more, and the other endpoint's memory is no
    // longer watched.
    b.withdraw(token(1));
    await_metric(&running.place, "promoted_ends", 199);
    let seen = view.query().unwrap();
    assert_eq!(seen.promoted.len(), 199);
    assert_eq!(end(&seen, sender.number).tail_consumed, None);
    drop(b);
    await_metric(&running.place, "promoted_ends", 100);
    let seen = view.query().unwrap();
    assert_eq!((seen.promoted.len(), seen.loops.len()), (100, 2));
    drop((a, first, view));
    running.end();
}

/// The monitor maps regions only as long as they are granted.
#[test]
fn regions_of_ended_connections_are_unmapped() {
    testkit::process::isolated("view::regions_of_ended_connections_are_unmapped", || {
        let (running, first) = Running::start(SHARE);
        let (mut a, mut b) = (running.client("a"), running.client("b"));
        let segments = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains("megapipe-segment")).count()
        };
        let grants = promoted(&mut a, &mut b, 1..=10);
        // This process's: two for each endpoint; the monitor's: one. Both are one process
        // here.
        drop(viewer(&running).query().unwrap());
        assert_eq!(segments(), 60);
        drop(grants);
        assert_eq!(segments(), 20);
        (1..=5).for_each(|number| a.withdraw(token(number)));
        await_metric(&running.place, "promoted_ends", 15);
        assert_eq!(segments(), 15);
        drop((a, b));
        await_metric(&running.place, "promoted_ends", 0);
        assert_eq!(segments(), 0);
        drop(first);
        running.end();
    });
}

#[test]
fn any_content_of_the_memory_is_only_a_number() {
    let (running, first) = Running::start(SHARE);
    let (mut a, mut b) = (running.client("a"), running.client("b"));
    let grants = promoted(&mut a, &mut b, 1..=2);
    let view = viewer(&running);
    let mut state = 0x9e37_79b9_u32;
    for round in 0..200u32 {
        for offset in (0..1048).step_by(4) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = match round % 4 {
                0 => u32::MAX,
                1 => 0,
                _ => state,
            };
            set_word(&grants[0][0].own, offset, value);
        }
        let seen = view.query().unwrap();
        assert_eq!((seen.promoted.len(), seen.loops.len()), (4, 3));
        let spoilt = seen.promoted.iter().filter(|end| end.words.unwrap().tail != 0).count();
        assert!(round % 4 != 0 || spoilt == 1, "no other end's numbers are touched");
    }
    // And the monitor serves on.
    promote(&mut a, &mut b, 10);
    drop((a, b, first, view));
    running.end();
}

fn raw(running: &Running) -> OwnedFd {
    packet::connect(&running.place.join("socket")).unwrap()
}

fn send(socket: &OwnedFd, message: ClientMessage) -> std::io::Result<()> {
    packet::send(socket.as_fd(), message.encode().as_bytes(), &[])
}

const HELLO: fn() -> ClientMessage =
    || ClientMessage::Hello { version_min: 1, version_max: 1, name: Name::new("raw") };

/// The next packet, waited for.
fn next_packet(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 256];
    let set = sys::epoll::Set::new().unwrap();
    set.add(socket.as_fd(), sys::epoll::IN, 0).unwrap();
    assert_eq!(set.wait(&mut [sys::epoll::Event::NONE], Some(WATCHDOG)).unwrap(), 1, "nothing comes");
    let len = packet::receive(socket.as_fd(), &mut bytes).unwrap().len;
    bytes[..len].to_vec()
}

#[test]
fn a_client_that_asks_and_does_not_read_does_no_harm() {
    let (running, first) = Running::start(SHARE);
    let (mut a, mut b) = (running.client("a"), running.client("b"));
    let _grants = promoted(&mut a, &mut b, 1..=100);
    let asker = raw(&running);
    send(&asker, HELLO()).unwrap();
    // Until the monitor reads no more of it.
    let from = Place { section: Section::Promoted, after: 0 };
    let mut asked = 0u32;
    while asked < 10_000 && send(&asker, ClientMessage::Query { from }).is_ok() {
        asked += 1;
    }
    assert!(asked > 0);
    promote(&mut a, &mut b, 500);
    // Every query has its answer, as far as there was room.
    assert!(matches!(MonitorMessage::decode(&next_packet(&asker)), Ok(MonitorMessage::Welcome { .. })));
    let (mut ends, mut records) = (0, 0);
    while ends < asked {
        let packet = next_packet(&asker);
        match Record::decode(&packet).unwrap() {
            Some(Record::Promoted(_)) => records += 1,
            Some(other) => panic!("{other:?}"),
            None => match MonitorMessage::decode(&packet).unwrap() {
                MonitorMessage::End { next } => {
                    assert!(next.is_some_and(|next| next.section == Section::Promoted));
                    ends += 1;
                }
                other => panic!("{other:?}"),
            },
        }
    }
    assert!(records >= 64, "{records}");
    drop((a, b, first, asker));
    running.end();
}

#[test]
fn a_question_comes_after_a_hello() {
    let (running, first) = Running::start(SHARE);
    let asker = raw(&running);
    send(&asker, ClientMessage::Query { from: Place::FIRST }).unwrap();
    let answer = MonitorMessage::decode(&next_packet(&asker)).unwrap();
    assert_eq!(answer, MonitorMessage::Refuse { token: None, reason: Reason::Version });
    // Places where nothing is.
    let asker = raw(&running);
    send(&asker, HELLO()).unwrap();
    next_packet(&asker);
    for section in [Section::Loops, Section::Promoted] {
        send(&asker, ClientMessage::Query { from: Place { section, after: u64::MAX } }).unwrap();
        assert_eq!(MonitorMessage::decode(&next_packet(&asker)).unwrap(), MonitorMessage::End { next: None });
    }
    drop((first, asker));
    running.end();
}

/// Another user, who exists only on a thread of this process: credentials are a thread's.
#[test]
fn a_user_is_sent_its_own_records() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED a_user_is_sent_its_own_records: needs root to become another user");
        return;
    }
    let (running, first) = Running::start(SHARE);
    let (mut a, mut b) = (running.client("a"), running.client("b"));
    let _grants = promoted(&mut a, &mut b, 1..=3);
    let path = running.place.join("socket");
    let options = running.options("stranger");
    let looked = std::thread::spawn(move || {
        // SAFETY: the system call itself, unlike its wrapper in the C library, changes this
        // thread alone.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        assert_eq!(changed, 0);
        let view = Viewer::connect(&promote::Place::chosen(path.clone()), "viewer").unwrap();
        let nothing = view.query().unwrap();
        assert!(view.allowed(65_534).unwrap().is_some());
        assert!(view.allowed(0).unwrap().is_none(), "another user's");
        let mut own = Client::connect(&options).unwrap();
        receive(&mut own);
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        offer(&mut own, 1, &udp);
        assert_eq!(refused(&mut own).1, Reason::ClosedEarly);
        (nothing, view.query().unwrap())
    });
    let (nothing, own) = looked.join().unwrap();
    assert!(!nothing.totals.everybody && nothing.loops.is_empty() && nothing.promoted.is_empty());
    let totals = nothing.totals;
    assert_eq!((totals.clients, totals.promoted, totals.offers, totals.bytes), (0, 0, 0, 0));
    assert_eq!((own.totals.clients, own.totals.offers, own.loops.len()), (1, 1, 1));
    assert_eq!(own.loops[0].uid, 65_534);
    assert_eq!(own.totals.refused[Reason::ClosedEarly.index()], 1);
    assert_eq!(viewer(&running).query().unwrap().promoted.len(), 6);
    drop((a, b, first));
    running.end();
}
