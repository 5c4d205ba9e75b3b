//! Matched offers wait for a client whose socket is full.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use promote::{Answer, Client, OfferError, Reason};

use crate::support::*;

const LIMITS: &str = "[limits]\noffer_expires_ms = 600000\noffers_burst = 1000000\n";

/// Sends invalid offers until the monitor no longer reads, since the answers are not
/// read.
fn stall(a: &mut Client, b: &mut Client) -> u64 {
    let nonsense = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    let start = Instant::now();
    loop {
        while a.offer(token(1000 + sent), nonsense.as_fd()).is_ok() {
            sent += 1;
        }
        // Each of these takes the monitor at least one turn, in which it would read.
        for number in 0..20 {
            b.offer(token(5000 + number), nonsense.as_fd()).unwrap();
            assert_eq!(refused(b).1, Reason::ClosedEarly);
        }
        match a.offer(token(1000 + sent), nonsense.as_fd()) {
            Err(OfferError::Full) => return sent,
            outcome => outcome.unwrap(),
        }
        sent += 1;
        assert!(start.elapsed() < WATCHDOG, "the monitor listens for ever");
    }
}

/// Reads the answers to a stalled client at last: all refusals in order. Returns the
/// answer to its first offer, which may come between those that the monitor had not read
/// yet.
fn read_all(a: &mut Client, sent: u64) -> Answer {
    let mut first = None;
    let mut answers = Vec::new();
    for _ in 0..=sent {
        match receive(a) {
            Answer::Refused { token, reason: Reason::ClosedEarly } if token.get() >= 1000 => {
                answers.push(token)
            }
            other => assert!(first.replace(other).is_none()),
        }
    }
    assert_eq!(answers, (0..sent).map(|number| token(1000 + number)).collect::<Vec<_>>());
    first.unwrap()
}

fn is_granted(answer: &Answer, number: u64) -> bool {
    matches!(answer, Answer::Granted { token, .. } if token.get() == number)
}

#[test]
fn a_client_that_does_not_read_is_not_read_and_gets_its_grant_later() {
    let (running, mut a) = Running::start(&format!("{SHARE}{LIMITS}"));
    let (mut b, mut c) = (running.client("b"), running.client("c"));
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    let sent = stall(&mut a, &mut b);
    offer(&mut b, 1, &far);
    await_metric(&running.place, "waiting_offers", 2);
    // The others are served meanwhile.
    promote(&mut b, &mut c, 2);
    // And it too, once it reads: every answer comes, in order.
    assert!(is_granted(&read_all(&mut a, sent), 1) && is_granted(&receive(&mut b), 1));
    promote(&mut a, &mut b, 3);
    drop((a, b, c));
    running.end();
}

/// As of a server that offers all its connections before it reads an answer.
#[test]
fn all_of_many_matched_at_once_are_granted() {
    const MANY: u64 = 300;
    let (running, mut a) = Running::start(&format!("{SHARE}{LIMITS}"));
    let mut b = running.client("b");
    let pairs: Vec<_> = (0..MANY).map(|_| connection("127.0.0.1", "127.0.0.1")).collect();
    for (client, side) in [(&mut a, 0), (&mut b, 1)] {
        for (number, pair) in (1..).zip(&pairs) {
            let end = if side == 0 { &pair.0 } else { &pair.1 };
            let start = Instant::now();
            while let Err(error) = client.offer(token(number), end.as_fd()) {
                assert!(matches!(error, OfferError::Full) && start.elapsed() < WATCHDOG, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    await_metric(&running.place, "offers_total", 2 * MANY);
    assert!(metric(&running.place, "waiting_offers") > 0, "all had room");
    let mut tokens = BTreeSet::new();
    for _ in 0..MANY {
        let (one, other) = (granted(&mut a), granted(&mut b));
        assert_eq!(one.token, other.token);
        tokens.insert(one.token.get());
    }
    assert!(tokens.into_iter().eq(1..=MANY));
    assert_eq!(metric(&running.place, "waiting_offers"), 0);
    drop((a, b));
    running.end();
}

#[test]
fn held_up_offers_can_be_withdrawn_and_repeated() {
    let (running, mut a) = Running::start(&format!("{SHARE}{LIMITS}"));
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    let sent = stall(&mut a, &mut b);
    for number in [1, 2] {
        offer(&mut b, number, &far);
        await_metric(&running.place, "waiting_offers", 2);
        // Another holder of the same socket is too late.
        offer(&mut b, 9, &far);
        assert_eq!(refused(&mut b), (token(9), Reason::NoPeer));
        b.withdraw(token(number));
        await_metric(&running.place, "waiting_offers", 1);
    }
    offer(&mut b, 3, &far);
    assert!(is_granted(&read_all(&mut a, sent), 1) && is_granted(&receive(&mut b), 3));
    drop((a, b));
    running.end();
}

#[test]
fn an_offer_that_changed_while_it_was_held_up_is_refused() {
    let (running, mut a) = Running::start(&format!("{SHARE}{LIMITS}"));
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    let sent = stall(&mut a, &mut b);
    offer(&mut b, 1, &far);
    await_metric(&running.place, "waiting_offers", 2);
    drop(near);
    // The end of the stream may come late: a program that another test starts just now
    // has a copy until its exec.
    far.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(far.peek(&mut [0]).unwrap(), 0);
    let answer = read_all(&mut a, sent);
    assert!(
        matches!(answer, Answer::Refused { token: of, reason: Reason::ClosedEarly } if of == token(1)),
        "{answer:?}"
    );
    assert_eq!(refused(&mut b), (token(1), Reason::ClosedEarly));
    drop((a, b));
    running.end();
}

#[test]
fn a_held_up_offer_waits_on_when_the_other_client_leaves() {
    let (running, mut a) = Running::start(&format!("{SHARE}{LIMITS}"));
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    await_metric(&running.place, "waiting_offers", 1);
    stall(&mut a, &mut b);
    offer(&mut b, 1, &far);
    await_metric(&running.place, "waiting_offers", 2);
    drop(a);
    await_metric(&running.place, "waiting_offers", 1);
    let mut c = running.client("c");
    offer(&mut c, 5, &near);
    assert_eq!((granted(&mut c).token, granted(&mut b).token), (token(5), token(1)));
    drop((b, c));
    running.end();
}
