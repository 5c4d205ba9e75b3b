//! Refusals and their reasons.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use promote::Reason;
use promote::client::{Answer, Client};
use testkit::process;
use testkit::skip::{self, Skipped};

use crate::support::*;

#[test]
fn descriptors_that_are_no_local_connection() {
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 1\n"));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    let (unix, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (near, _far) = connection("127.0.0.1", "127.0.0.1");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let cases = [
        (udp.as_fd(), Reason::ClosedEarly),
        (unix.as_fd(), Reason::ClosedEarly),
        (pipe.as_fd(), Reason::ClosedEarly),
        (file.as_fd(), Reason::ClosedEarly),
        (listener.as_fd(), Reason::ClosedEarly),
        (near.as_fd(), Reason::NoPeer),
    ];
    for (number, (descriptor, reason)) in (1..).zip(cases) {
        a.offer(token(number), descriptor).unwrap();
        assert_eq!(refused(&mut a), (token(number), reason));
    }
    assert_eq!(metric(&running.place, "refusals_total{reason=\"closed-early\"}"), 5);
    assert_eq!(metric(&running.place, "offers_total"), 6);
    drop(a);
    running.end();
}

/// The monitor reports the user of the other endpoint while an offer waits, and before it refuses the offer.
#[test]
fn the_user_of_the_other_endpoint_is_reported() {
    let (running, mut a) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 400\n"));
    let (near, _far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    assert_eq!(peer(&mut a), (token(1), None));
    assert_eq!(refused(&mut a), (token(1), Reason::NoPeer));
    drop(a);
    running.end();
}

/// The reason why the other endpoint is not offered is reported before the refusal,
/// whichever of the two comes first, and for that connection alone.
#[test]
fn the_reason_of_a_decline_is_reported() {
    let (running, first) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 400\n"));
    let mut a = running.client_with_doorbells("a");
    let mut b = running.client_with_doorbells("b");
    for comes_first in [true, false] {
        let (near, far) = connection("127.0.0.1", "127.0.0.1");
        if comes_first {
            offer(&mut a, 1, &near);
        }
        assert!(b.decline(Reason::IoUring, far.as_fd()));
        if !comes_first {
            // The monitor reads each client by itself: behind this answer it has read the decline.
            let (other, _far) = connection("127.0.0.1", "127.0.0.1");
            offer(&mut b, 2, &other);
            assert_eq!(refused(&mut b), (token(2), Reason::NoPeer));
            offer(&mut a, 1, &near);
        }
        match receive(&mut a) {
            Answer::Declined { token: of, reason } => assert_eq!((of, reason), (token(1), Reason::IoUring)),
            other => panic!("{other:?}"),
        }
        assert_eq!(refused(&mut a), (token(1), Reason::NoPeer));
        let (near, _far) = connection("127.0.0.1", "127.0.0.1");
        offer(&mut a, 3, &near);
        assert_eq!(refused(&mut a), (token(3), Reason::NoPeer));
    }
    drop((first, a, b));
    running.end();
}

/// A decline no longer counts once its endpoint is offered, or is another connection's.
#[test]
fn a_decline_ends_with_its_connection() {
    let (running, first) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 400\n"));
    let mut a = running.client_with_doorbells("a");
    let mut b = running.client_with_doorbells("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    assert!(b.decline(Reason::IoUring, far.as_fd()));
    offer(&mut b, 1, &far);
    offer(&mut a, 1, &near);
    assert_eq!(granted(&mut a).token, token(1));
    assert_eq!(granted(&mut b).token, token(1));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let from = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let connect = || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        (TcpStream::from(socket), listener.accept().unwrap().0)
    };
    let (near, far) = connect();
    assert!(b.decline(Reason::IoUring, far.as_fd()));
    // Behind this answer the monitor has read the decline.
    offer(&mut b, 2, &connection("127.0.0.1", "127.0.0.1").0);
    refused(&mut b);
    socket2::SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop((far, near));
    let (near, _far) = connect();
    offer(&mut a, 3, &near);
    assert_eq!(refused(&mut a), (token(3), Reason::NoPeer), "no word of the earlier connection");
    drop((first, a, b));
    running.end();
}

/// Another process that has a copy of an endpoint declines it, before it is offered or after: that stands, for the holder
/// that offers it and for the peer.
#[test]
fn a_copied_end_stays_declined() {
    let (running, first) = Running::start(&format!("{SHARE}[limits]\noffer_expires_ms = 400\n"));
    let [mut holder, mut peer, mut copier] =
        ["holder", "peer", "copier"].map(|name| running.client_with_doorbells(name));
    let declined = |client: &mut Client, number| {
        match receive(client) {
            Answer::Declined { token: of, reason } => {
                assert_eq!((of, reason), (token(number), Reason::Shared))
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(refused(client), (token(number), Reason::NoPeer));
    };
    for (number, comes_first) in [(1, true), (2, false)] {
        let (near, far) = connection("127.0.0.1", "127.0.0.1");
        if comes_first {
            offer(&mut holder, number, &near);
        }
        assert!(copier.decline(Reason::Shared, near.as_fd()));
        if !comes_first {
            // Behind this answer the monitor has read the decline.
            let (other, _far) = connection("127.0.0.1", "127.0.0.1");
            offer(&mut copier, number, &other);
            assert_eq!(refused(&mut copier), (token(number), Reason::NoPeer));
            offer(&mut holder, number, &near);
        }
        declined(&mut holder, number);
        offer(&mut peer, number, &far);
        declined(&mut peer, number);
        offer(&mut holder, number + 2, &near);
        declined(&mut holder, number + 2);
    }
    drop((first, holder, peer, copier));
    running.end();
}

/// The policy decides the reason: where it lets the two users share, only the other offer
/// is missing.
#[test]
fn another_users_endpoint_is_named_unless_the_policy_lets_the_two_share() {
    const NAME: &str = "refuse::another_users_endpoint_is_named_unless_the_policy_lets_the_two_share";
    const OTHER: u32 = 64_001;
    if !rustix::process::geteuid().is_root() {
        return skip::record(NAME, &Skipped::because("needs root to become another user"));
    }
    let rule =
        |more: &str| format!("[[allow]]\none = {{ uid = [0] }}\nother = {{ uid = [{OTHER}] }}\n{more}");
    let denial = format!("[[deny]]\none = {{ uid = [{OTHER}] }}\nother = {{}}\n");
    let cases = [
        (String::new(), Reason::OtherUser),
        (rule(""), Reason::NoPeer),
        (rule("addresses = [\"127.0.0.1\"]\n"), Reason::NoPeer),
        (rule("addresses = [\"10.0.0.0/8\"]\n"), Reason::OtherUser),
        // No further rule that allows would help, and none is recommended.
        (rule(&denial), Reason::Policy),
        ("[[allow]]\none = { uid = [0] }\nother = { uid = [64002] }\n".to_owned(), Reason::OtherUser),
        // Only the program itself could show whether it is of that group.
        (
            format!("[[allow]]\none = {{ uid = [0] }}\nother = {{ uid = [{OTHER}], gid = [7] }}\n"),
            Reason::NoPeer,
        ),
    ];
    for (rules, reason) in cases {
        let (running, mut a) = Running::start(&format!("{SHARE}{rules}[limits]\noffer_expires_ms = 400\n"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepting = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(OTHER);
            // Of this thread alone.
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            listener.accept().unwrap().0
        });
        let _far = accepting.join().unwrap();
        offer(&mut a, 1, &near);
        let reported: &[Option<u32>] = match reason {
            Reason::OtherUser => &[Some(OTHER); 2],
            Reason::NoPeer => &[None],
            _ => &[],
        };
        for user in reported {
            assert_eq!(peer(&mut a), (token(1), *user), "{rules}");
        }
        assert_eq!(refused(&mut a), (token(1), reason), "{rules}");
        assert_eq!(metric(&running.place, &format!("refusals_total{{reason=\"{reason}\"}}")), 1);
        drop(a);
        running.end();
    }
}

/// A socket that connects to itself, by simultaneous open, has no other endpoint.
#[test]
fn a_connection_to_itself() {
    let (running, mut a) = Running::start(SHARE);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.connect(&socket.local_addr().unwrap()).unwrap();
    offer(&mut a, 1, &socket);
    assert_eq!(refused(&mut a), (token(1), Reason::OtherHost));
    drop(a);
    running.end();
}

#[test]
fn programs_that_the_policy_does_not_let_share() {
    let policy = "same_user = true\n[[deny]]\none = {}\nother = {}\naddresses = [\"127.0.0.0/8\"]\n";
    let (running, mut a) = Running::start(policy);
    let mut b = running.client("b");
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(&mut a, 1, &near);
    offer(&mut b, 1, &far);
    assert_eq!(refused(&mut a), (token(1), Reason::Policy));
    assert_eq!(refused(&mut b), (token(1), Reason::Policy));
    // Another address may share.
    let (near, far) = connection("::1", "::1");
    offer(&mut a, 1, &near);
    offer(&mut b, 1, &far);
    granted(&mut a);
    granted(&mut b);
    drop((a, b));
    running.end();
}

/// Offers one endpoint of a connection as another user; its uid comes from the kernel.
#[test]
fn programs_of_two_users_share_by_rule_only() {
    const NAME: &str = "refuse::programs_of_two_users_share_by_rule_only";
    const STRANGER: u32 = 65_534;
    if let Some(role) = process::role() {
        let (socket, port) = role.split_once(' ').unwrap();
        let options = promote::client::Options {
            socket: Some(socket.into()),
            doorbells: true,
            ..promote::client::Options::from_environment("stranger")
        };
        let mut client = promote::Client::connect(&options).unwrap();
        assert!(matches!(receive(&mut client), promote::Answer::Welcome { .. }));
        let near = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        client.offer(token(1), near.as_fd()).unwrap();
        let answer = receive(&mut client);
        println!("answer: {answer:?}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip::record(NAME, &Skipped::because("needs root to become another user"));
    }
    let rule = "[[allow]]\none = { uid = [0] }\nother = { uid = [65534], gid = [65534] }\n";
    // Another user could block a pipe's writers.
    let granted = if sys::doorbell::may_use_queues() { "kind: Queue })" } else { "doorbells: None }" };
    for (policy, expected) in [(SHARE.to_owned(), "OtherUser"), (format!("{SHARE}{rule}"), granted)] {
        let (running, first) = Running::start(&policy);
        let mut a = running.client_with_doorbells("a");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = running.place.join("socket");
        let role = format!("{} {}", socket.display(), listener.local_addr().unwrap().port());
        let mut command = process::this_test_as(NAME, &role);
        let child = command.uid(STRANGER).gid(STRANGER).stdout(Stdio::piped()).spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let reason = format!("another user cannot run this test program: {error}");
                return skip::record(NAME, &Skipped::because(reason));
            }
        };
        let far = listener.accept().unwrap().0;
        offer(&mut a, 1, &far);
        let own = format!("{:?}", receive(&mut a));
        let output = child.wait_with_output().unwrap();
        let other = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(own.contains(expected) && other.contains(expected), "{own}\n{other}");
        drop((first, a));
        running.end();
    }
}

#[test]
fn a_user_that_has_all_its_memory() {
    let limits = "[limits]\nsegment_size = 8192\nbytes_per_user = 16384\n";
    let (running, mut a) = Running::start(&format!("{SHARE}{limits}"));
    let mut b = running.client("b");
    let pairs: Vec<_> = (0..2).map(|_| connection("127.0.0.1", "127.0.0.1")).collect();
    for (number, (near, far)) in (1..).zip(&pairs) {
        offer(&mut a, number, near);
        offer(&mut b, number, far);
    }
    assert_eq!((granted(&mut a).own.len(), granted(&mut b).own.len()), (8192, 8192));
    assert_eq!(refused(&mut a), (token(2), Reason::Quota));
    assert_eq!(refused(&mut b), (token(2), Reason::Quota));
    a.withdraw(token(1));
    b.withdraw(token(1));
    promote(&mut a, &mut b, 3);
    drop((a, b));
    running.end();
}

#[test]
fn a_client_that_offers_too_fast_or_too_much() {
    let limits = "[limits]\noffers_per_second = 0\noffers_burst = 3\nwaiting_per_client = 2\noffer_expires_ms = 600000\n";
    let (running, mut a) = Running::start(&format!("{SHARE}{limits}"));
    let pairs: Vec<_> = (0..4).map(|_| connection("127.0.0.1", "127.0.0.1")).collect();
    for (number, (near, _)) in (1..).zip(&pairs) {
        offer(&mut a, number, near);
    }
    assert_eq!(refused(&mut a), (token(3), Reason::Quota));
    assert_eq!(refused(&mut a), (token(4), Reason::Rate));
    // Another client has a rate of its own.
    let mut b = running.client("b");
    offer(&mut b, 1, &pairs[0].1);
    granted(&mut a);
    granted(&mut b);
    drop((a, b));
    running.end();
}

#[test]
fn without_descriptors_to_spare_connections_stay_on_tcp() {
    process::isolated("refuse::without_descriptors_to_spare_connections_stay_on_tcp", || {
        let (running, mut a) = Running::start(SHARE);
        let mut b = running.client("b");
        promote(&mut a, &mut b, 1);
        await_metric(&running.place, "promoted_ends", 0);
        // Other threads of the monitor close what that took, and each would leave one more.
        process::await_closes();
        let (near, far) = connection("127.0.0.1", "127.0.0.1");
        process::leave_descriptors(3);
        offer(&mut a, 2, &near);
        offer(&mut b, 2, &far);
        // The clients' own waiting takes descriptors here too, so it is done without.
        let mut answers = Vec::new();
        for client in [&mut a, &mut b] {
            let start = std::time::Instant::now();
            while start.elapsed() < WATCHDOG {
                match client.receive().unwrap() {
                    Some(answer) => {
                        answers.push(format!("{answer:?}"));
                        break;
                    }
                    None => std::thread::yield_now(),
                }
            }
        }
        assert_eq!(answers.len(), 2);
        assert!(answers.iter().all(|answer| answer.contains("NoMemory")), "{answers:?}");
        process::limit_descriptors(1024);
        promote(&mut a, &mut b, 3);
        drop((a, b));
        running.end();
    });
}

#[test]
fn a_full_monitor_refuses_clients() {
    let (running, a) = Running::start(&format!("{SHARE}[limits]\nclients_per_user = 2\n"));
    let b = running.client("b");
    let mut third = promote::Client::connect(&running.options("third")).unwrap();
    assert!(try_receive(&mut third).unwrap_err().to_string().contains("quota"));
    assert!(third.receive().unwrap().is_none(), "reported once");
    drop(b);
    await_metric(&running.place, "clients", 1);
    drop(running.client("c"));
    drop(a);
    running.end();
}
