//! Contexts of several threads share a device: packets that come to the wrong queue, or to one
//! without a context, still find their connection.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use testkit::netns;
use testkit::skip::{self, Skipped};

use super::support::{BOUND, OWN_OR_NONE, Place, connect};

/// After this time without a packet the kernel knows nothing of a flow any more, and may send it to
/// another queue (tun.c: 3 s, checked each 3 s, rounded up).
const SILENCE: Duration = Duration::from_secs(6);

/// A connection, and the number of the context that serves it.
fn open() -> (TcpStream, u8) {
    let mut stream = connect(7);
    let mut number = [0];
    stream.read_exact(&mut number).expect("a greeting");
    (stream, number[0])
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"ping").expect("writing");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("an echo");
    assert_eq!(&answer, b"ping");
}

/// A context that is alone reads all queues. One that comes later gets its own back; what the
/// kernel then sends there of the other's connections is passed on. One that ends leaves its queue.
#[test]
fn contexts_leave_their_queues_to_each_other() {
    const CLIENTS: usize = 60;
    if !netns::enter("contexts::contexts_leave_their_queues_to_each_other", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("contexts-join", thread);
        let mut server = place.start(&place.build("tests/c/contexts.c"), &["2"]);
        assert_eq!(server.command("begin 0"), "began");
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| open()).collect();
        assert_eq!(server.command("begin 1"), "began");
        assert!(clients.iter().all(|&(_, context)| context == b'0'));
        thread::sleep(SILENCE);
        clients.iter_mut().for_each(|(stream, _)| ask(stream));
        let mut others: Vec<_> =
            (0..CLIENTS).map(|_| open()).filter(|&(_, context)| context == b'1').collect();
        assert!(others.len() > CLIENTS / 6, "the later context serves {} of {CLIENTS}", others.len());
        others.iter_mut().for_each(|(stream, _)| ask(stream));

        assert_eq!(server.command("end 0"), "ended");
        for (stream, _) in &mut clients {
            assert_eq!(stream.read(&mut [0]).expect("the end of the stream"), 0);
        }
        others.iter_mut().for_each(|(stream, _)| ask(stream));
        assert!((0..CLIENTS).all(|_| open().1 == b'1'));
        drop(others);
        assert_eq!(server.command("end 1"), "ended");
        assert_eq!(server.command("begin 1"), "began");
        ask(&mut open().0);
        assert_eq!(server.command("end 1"), "ended");
    }
}

/// A thread that ends without destroying its context leaves its queue to the others, too, and its
/// connections end.
#[test]
fn a_thread_that_ends_leaves_its_queue() {
    const CLIENTS: usize = 60;
    if !netns::enter("contexts::a_thread_that_ends_leaves_its_queue", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("contexts-leave", thread);
        let mut server = place.start(&place.build("tests/c/contexts.c"), &["2"]);
        for context in 0..2 {
            assert_eq!(server.command(&format!("begin {context}")), "began");
        }
        let clients: Vec<_> = (0..CLIENTS).map(|_| open()).collect();
        assert_eq!(server.command("leave 0"), "ended");
        assert!((0..CLIENTS).all(|_| open().1 == b'1'));
        for (mut stream, context) in clients {
            if context == b'1' {
                ask(&mut stream);
            } else {
                stream.write_all(b"ping").expect("an open connection");
                let error = stream.read(&mut [0]).expect_err("nobody has closed it");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
        assert_eq!(server.command("end 1"), "ended");
    }
}

/// Has the kernel forward packets, and refuse those for this network with an ICMP error.
fn prohibit(network: &str) -> Result<(), String> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| format!("no forwarding: {error}"))?;
    let route = Command::new("ip").args(["route", "add", "prohibit", network]).output();
    let route = route.map_err(|error| format!("no ip: {error}"))?;
    assert!(route.status.success(), "{route:?}");
    Ok(())
}

/// The kernel sends all its ICMP errors to one queue. Each context still learns that its connection
/// attempt is refused on the way.
#[test]
fn errors_find_the_context_that_they_are_about() {
    let test = "contexts::errors_find_the_context_that_they_are_about";
    if !netns::enter(test, BOUND) {
        return;
    }
    if let Err(why) = prohibit("10.80.0.0/16") {
        println!("SKIPPED {test}: {why}");
        return skip::record(test, &Skipped::because(why));
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("contexts-errors", thread);
        let mut program = place.start(&place.build("tests/c/contexts.c"), &["2"]);
        for context in 0..2 {
            assert_eq!(program.command(&format!("begin {context}")), "began");
        }
        for context in 0..2 {
            assert_eq!(program.command(&format!("connect {context} 10.80.0.1 80")), "No route to host");
        }
        for context in 0..2 {
            assert_eq!(program.command(&format!("end {context}")), "ended");
        }
    }
}
