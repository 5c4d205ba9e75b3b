//! Two endpoints are matched, and get memory that each can write and the other only read.

use crate::support::*;

/// Offers both endpoints, by two clients, and checks what both get.
fn are_matched(listen: &str, connect: &str) {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, far) = connection(listen, connect);
    offer(&mut a, 7, &near);
    offer(&mut b, 9, &far);
    let (one, other) = (granted(&mut a), granted(&mut b));
    assert_eq!((one.token, other.token), (token(7), token(9)));
    for (grant, counterpart) in [(&one, &other), (&other, &one)] {
        assert_eq!(grant.own.number(), counterpart.peer.number());
        assert!(grant.own.is_writable() && !grant.peer.is_writable() && !grant.peer_loop.page.is_writable());
        assert_eq!(word(&grant.own, 0), 0x3152_504d);
        assert_eq!(word(&grant.own, 4), 1);
        assert_eq!(word(&grant.own, 8) as usize, grant.own.len());
        assert_eq!((word(&grant.peer_loop.page, 0), word(&grant.peer_loop.page, 4)), (0x314c_504d, 1));
        set_word(&grant.own, 12, 1);
        assert_eq!(word(&counterpart.peer, 12), 1);
    }
    drop((a, b));
    running.end();
}

#[test]
fn over_ipv4() {
    are_matched("127.0.0.1", "127.0.0.1");
}

#[test]
fn over_ipv6() {
    are_matched("::1", "::1");
}

#[test]
fn over_ipv4_with_one_endpoint_in_ipv6() {
    are_matched("::", "127.0.0.1");
}

#[test]
fn in_one_loop() {
    let (running, mut a) = Running::start(SHARE);
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    offer(&mut a, 2, &far);
    let (one, other) = (granted(&mut a), granted(&mut a));
    assert_eq!(one.own.number(), other.peer.number());
    assert!(std::sync::Arc::ptr_eq(&one.peer_loop, &other.peer_loop), "one page, mapped once");
    drop(a);
    running.end();
}

/// The monitor keeps no copy of what it was offered: a close is seen at once.
#[test]
fn a_waiting_offer_keeps_no_connection_open() {
    use std::io::Read;
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 600000\n"));
    let (near, mut far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    drop(near);
    far.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    // The other endpoint is half closed by now, and may not be offered.
    offer(&mut a, 2, &far);
    assert_eq!(refused(&mut a), (token(2), promote::Reason::ClosedEarly));
    drop(a);
    running.end();
}

#[test]
fn withdrawals_and_departures_leave_nothing() {
    let (running, mut a) = Running::start(SHARE);
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    a.withdraw(token(1));
    await_metric(&running.place, "waiting_offers", 0);
    offer(&mut a, 1, &near);
    offer(&mut b, 1, &far);
    granted(&mut a);
    granted(&mut b);
    assert_eq!(metric(&running.place, "promoted_ends"), 2);
    assert_eq!(metric(&running.place, "segment_bytes"), 2 * 256 * 1024);
    assert_eq!(metric(&running.place, "matches_total"), 1);
    b.withdraw(token(1));
    await_metric(&running.place, "promoted_ends", 1);
    drop(a);
    await_metric(&running.place, "promoted_ends", 0);
    assert_eq!(metric(&running.place, "clients"), 1);
    drop(b);
    running.end();
}

/// The signals are the process's own, unless it is a monitor and nothing else.
#[test]
fn signals_stay_with_the_process_unless_they_are_given_to_the_monitor() {
    let blocked = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    let taken = |signals: bool| {
        let place = Scratch::new();
        let listener = monitor::Listener::bind(&place.join("socket"), monitor::Access::Everybody).unwrap();
        let options = monitor::Options { signals, ..monitor::Options::default() };
        // On a thread of its own: the mask is the thread's.
        let taken = std::thread::spawn(move || {
            let before = blocked();
            let _monitor = monitor::Monitor::new(listener, options).unwrap();
            blocked() & !before
        });
        taken.join().unwrap()
    };
    let set = |signals: &[i32]| signals.iter().fold(0u64, |set, signal| set | 1 << (signal - 1));
    assert_eq!(taken(false), set(&[libc::SIGXFSZ]));
    assert_eq!(taken(true), set(&[libc::SIGXFSZ, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]));
}
