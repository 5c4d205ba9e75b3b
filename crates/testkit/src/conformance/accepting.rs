//! Listening sockets.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use megapipe::{AcceptAs, AcceptCount, AcceptError, Accepted, EngineKind, Event, OpId, Source, SubmitError};
use sys::capabilities::Capabilities;

use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net::{self, End, Scratch};
use crate::skip::Verdict;
use crate::stack;

/// A stack has lightweight sockets alone.
fn kinds() -> &'static [AcceptAs] {
    if stack::is_on() { &[AcceptAs::LwSocket] } else { &[AcceptAs::Fd, AcceptAs::LwSocket] }
}

/// The next completion is an accepted connection of this accept, and whether it goes on.
fn accepted(driver: &mut Driver, op: OpId) -> (Accepted, bool) {
    let completion = driver.next();
    assert_eq!(completion.op, op);
    let Event::Accept { result, more } = completion.event else { panic!("{:?}", completion.event) };
    (result.unwrap(), more)
}

/// The connection carries bytes, and is of the kind that was asked for.
fn works(driver: &mut Driver, accepted: Accepted, kind: AcceptAs, peer: &mut TcpStream) {
    let descriptor = kind == AcceptAs::Fd && !stack::is_on();
    assert_eq!(matches!(accepted.socket, Source::Fd(_)), descriptor);
    let handle = driver.register(accepted.socket, 0).unwrap();
    peer.write_all(b"ping").unwrap();
    assert_eq!(driver.read_exactly(handle, 4), b"ping");
    driver.write_quiet(handle, &b"pong"[..]).unwrap();
    driver.close(handle).unwrap();
    let (bytes, end) = driver.quietly_while(|| net::read_to_end(peer));
    assert_eq!((&bytes[..], end), (&b"pong"[..], End::Finished));
}

fn listening(driver: &mut Driver) -> (TcpListener, megapipe::Handle) {
    let listener = net::listener();
    let handle = driver.register(listener.try_clone().unwrap(), 11).unwrap();
    (listener, handle)
}

pub fn connections_come_with_their_peers(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        for count in [AcceptCount::Exactly(8), AcceptCount::Unlimited] {
            let mut driver = fixture.driver();
            let (listener, handle) = listening(&mut driver);
            // Half of them wait when the accept begins, half come while it runs.
            let mut peers: Vec<_> = (0..4).map(|_| net::connect(&listener)).collect();
            let op = driver.accept_with_peer(handle, count, kind).unwrap();
            driver.flush().unwrap();
            peers.extend((0..4).map(|_| net::connect(&listener)));
            // Connections wait in the order in which they were made.
            let connections: Vec<_> = (0..8).map(|_| accepted(&mut driver, op)).collect();
            for (place, ((connection, more), mut peer)) in connections.into_iter().zip(peers).enumerate() {
                assert_eq!(connection.peer, Some(peer.local_addr().unwrap()));
                assert_eq!(more, count == AcceptCount::Unlimited || place < 7);
                works(&mut driver, connection, kind, &mut peer);
            }
        }
        // Without being asked for, and for UNIX sockets, there is none.
        let mut driver = fixture.driver();
        let (listener, handle) = listening(&mut driver);
        let op = driver.accept(handle, AcceptCount::Exactly(1), kind).unwrap();
        let _peer = net::connect(&listener);
        assert_eq!(accepted(&mut driver, op).0.peer, None);
        let scratch = Scratch::new();
        let path = scratch.join("peer");
        let handle = driver.register(UnixListener::bind(&path).unwrap(), 0).unwrap();
        let op = driver.accept_with_peer(handle, AcceptCount::Exactly(1), kind).unwrap();
        let _peer = UnixStream::connect(&path).unwrap();
        assert_eq!(accepted(&mut driver, op).0.peer, None);
    }
    Ok(())
}

pub fn one_connection(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        for early in [false, true] {
            let mut driver = fixture.driver();
            let (listener, handle) = listening(&mut driver);
            let waiting = early.then(|| net::connect(&listener));
            let op = driver.accept(handle, AcceptCount::Exactly(1), kind).unwrap();
            driver.flush().unwrap();
            let mut peer = waiting.unwrap_or_else(|| net::connect(&listener));
            let (connection, more) = accepted(&mut driver, op);
            assert!(!more);
            works(&mut driver, connection, kind, &mut peer);
            // The accept is over: the next one has to be asked for.
            let mut peer = net::connect(&listener);
            driver.expect_silence();
            let op = driver.accept(handle, AcceptCount::Exactly(1), kind).unwrap();
            let (connection, _) = accepted(&mut driver, op);
            works(&mut driver, connection, kind, &mut peer);
        }
    }
    Ok(())
}

pub fn so_many_connections(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        let mut driver = fixture.driver();
        let (listener, handle) = listening(&mut driver);
        let op = driver.accept(handle, AcceptCount::Exactly(5), kind).unwrap();
        let mut peers: Vec<_> = (0..7).map(|_| net::connect(&listener)).collect();
        let mut connections = Vec::new();
        for left in (0..5).rev() {
            let (connection, more) = accepted(&mut driver, op);
            assert_eq!(more, left > 0);
            connections.push(connection);
        }
        driver.expect_silence();
        for connection in connections {
            works(&mut driver, connection, kind, &mut peers.remove(0));
        }
        // The two that came too many wait in the kernel.
        let op = driver.accept(handle, AcceptCount::Exactly(2), kind).unwrap();
        let connections = [accepted(&mut driver, op).0, accepted(&mut driver, op).0];
        for connection in connections {
            works(&mut driver, connection, kind, &mut peers.remove(0));
        }
    }
    Ok(())
}

pub fn connections_without_end(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        let mut driver = fixture.driver();
        let (listener, handle) = listening(&mut driver);
        let op = driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
        for crowd in [1, 1, 30, 100] {
            let peers: Vec<_> = (0..crowd).map(|_| net::connect(&listener)).collect();
            let mut connections = Vec::new();
            for _ in 0..crowd {
                let (connection, more) = accepted(&mut driver, op);
                assert!(more);
                connections.push(connection);
            }
            for (mut peer, connection) in peers.into_iter().zip(connections) {
                works(&mut driver, connection, kind, &mut peer);
            }
        }
    }
    Ok(())
}

pub fn unix_connections(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    for (number, &kind) in kinds().iter().enumerate() {
        let mut driver = fixture.driver();
        let path = scratch.join(number.to_string());
        let handle = driver.register(UnixListener::bind(&path).unwrap(), 0).unwrap();
        let op = driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
        for _ in 0..3 {
            let mut peer = UnixStream::connect(&path).unwrap();
            let (connection, more) = accepted(&mut driver, op);
            assert!(more);
            let connection = driver.register(connection.socket, 0).unwrap();
            peer.write_all(b"unix").unwrap();
            assert_eq!(driver.read_exactly(connection, 4), b"unix");
        }
    }
    Ok(())
}

pub fn pending_says_whether_more_wait(fixture: &mut Fixture) -> Verdict {
    let known =
        stack::is_on() || fixture.engine() == EngineKind::Epoll || Capabilities::get().accept_reports_more;
    for &kind in kinds() {
        for count in [AcceptCount::Unlimited, AcceptCount::Exactly(4)] {
            let mut driver = fixture.driver();
            let (listener, handle) = listening(&mut driver);
            let _peers: Vec<_> = (0..4).map(|_| net::connect(&listener)).collect();
            let op = driver.accept(handle, count, kind).unwrap();
            let pending: Vec<_> = (0..4).map(|_| accepted(&mut driver, op).0.pending).collect();
            assert_eq!(pending, [known, known, known, false], "{kind:?}, {count:?}");
        }
    }
    Ok(())
}

pub fn accepts_take_connections_in_their_order(fixture: &mut Fixture) -> Verdict {
    for early in [false, true] {
        for flushed in [false, true] {
            for (first, second) in [(AcceptAs::Fd, AcceptAs::LwSocket), (AcceptAs::LwSocket, AcceptAs::Fd)] {
                let mut driver = fixture.driver();
                let (listener, handle) = listening(&mut driver);
                let waiting = if early { 3 } else { 0 };
                let mut peers: Vec<_> = (0..waiting).map(|_| net::connect(&listener)).collect();
                let one = driver.accept(handle, AcceptCount::Exactly(1), first).unwrap();
                if flushed && !early {
                    driver.expect_silence();
                }
                let two = driver.accept(handle, AcceptCount::Exactly(1), second).unwrap();
                let rest = driver.accept(handle, AcceptCount::Unlimited, first).unwrap();
                let mut connections = Vec::new();
                for (op, kind) in [(one, first), (two, second), (rest, first)] {
                    if !early {
                        peers.push(net::connect(&listener));
                    }
                    let (connection, more) = accepted(&mut driver, op);
                    assert_eq!(more, op == rest);
                    connections.push((connection, kind));
                }
                for ((connection, kind), mut peer) in connections.into_iter().zip(peers) {
                    works(&mut driver, connection, kind, &mut peer);
                }
            }
        }
    }
    Ok(())
}

pub fn a_cancelled_accept_lets_the_next_go_on(fixture: &mut Fixture) -> Verdict {
    for flushed in [false, true] {
        let mut driver = fixture.driver();
        let (listener, handle) = listening(&mut driver);
        let ops: Vec<_> = (0..3)
            .map(|_| driver.accept(handle, AcceptCount::Exactly(1), AcceptAs::LwSocket).unwrap())
            .collect();
        if flushed {
            driver.expect_silence();
        }
        for op in &ops[..2] {
            driver.cancel(*op).unwrap();
            let completion = driver.next();
            assert_eq!(completion.op, *op);
            let Event::Accept { result: Err(AcceptError::Cancelled), more: false } = completion.event else {
                panic!("{:?}", completion.event);
            };
        }
        let mut peer = net::connect(&listener);
        let (connection, _) = accepted(&mut driver, ops[2]);
        works(&mut driver, connection, AcceptAs::LwSocket, &mut peer);
    }
    Ok(())
}

pub fn a_closed_listener_closes_what_it_took(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        for detach in [false, true] {
            let mut driver = fixture.driver();
            let (listener, handle) = listening(&mut driver);
            let mut peers: Vec<_> = (0..2).map(|_| net::connect(&listener)).collect();
            drop(listener);
            for _ in 0..3 {
                driver.accept(handle, AcceptCount::Exactly(1), kind).unwrap();
            }
            // The first is taken, and nobody hears of it.
            driver.flush().unwrap();
            if detach {
                drop(driver.unregister(handle).unwrap());
            } else {
                driver.close(handle).unwrap();
            }
            for peer in &mut peers {
                let (bytes, _) = driver.quietly_while(|| net::read_to_end(peer));
                assert!(bytes.is_empty());
            }
            driver.expect_silence();
        }
    }
    Ok(())
}

pub fn a_socket_that_does_not_listen_says_so(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        let mut driver = fixture.driver();
        let (socket, _peer) = net::tcp_pair();
        let handle = driver.register(socket, 0).unwrap();
        let op = driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
        let completion = driver.next();
        assert_eq!(completion.op, op);
        let Event::Accept { result: Err(AcceptError::Io(error)), more: false } = completion.event else {
            panic!("{:?}", completion.event);
        };
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        driver.expect_silence();
    }
    Ok(())
}

pub fn a_listener_cannot_be_read(fixture: &mut Fixture) -> Verdict {
    // On Linux an empty name has the kernel choose one.
    let unix = || OwnedFd::from(UnixListener::bind("").unwrap());
    for form in Form::ALL {
        for socket in [OwnedFd::from(net::listener()), unix()] {
            let mut driver = fixture.driver();
            let handle = driver.add(socket, form, 0);
            driver.accept(handle, AcceptCount::Unlimited, AcceptAs::Fd).unwrap();
            for _ in 0..2 {
                let reads = [
                    driver.read(handle).unwrap(),
                    driver.read_stream(handle).unwrap(),
                    driver.read_into(handle, Vec::with_capacity(8)).unwrap(),
                ];
                for read in reads {
                    let (result, more) = driver.expect_read(read);
                    assert_eq!((result.unwrap_err().raw_os_error(), more), (Some(libc::ENOTCONN), false));
                }
            }
            // One that was cancelled or closed before it was told.
            let read = driver.read(handle).unwrap();
            driver.cancel(read).unwrap();
            assert!(driver.expect_read(read).0.is_err());
            driver.read(handle).unwrap();
            driver.close(handle).unwrap();
            driver.expect_silence();
        }
    }
    Ok(())
}

pub fn wrong_calls_are_refused(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (_listener, handle) = listening(&mut driver);
    let refused = driver.accept(handle, AcceptCount::Exactly(0), AcceptAs::Fd);
    assert_eq!(refused.unwrap_err(), SubmitError::InvalidArgument);
    driver.expect_silence();
    Ok(())
}

pub fn a_cancelled_accept_takes_nothing(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        for count in [AcceptCount::Unlimited, AcceptCount::Exactly(1), AcceptCount::Exactly(9)] {
            let mut driver = fixture.driver();
            let (listener, handle) = listening(&mut driver);
            let op = driver.accept(handle, count, kind).unwrap();
            driver.flush().unwrap();
            driver.cancel(op).unwrap();
            let completion = driver.next();
            assert_eq!(completion.op, op);
            let Event::Accept { result: Err(AcceptError::Cancelled), more: false } = completion.event else {
                panic!("{:?}", completion.event);
            };
            let mut peer = net::connect(&listener);
            driver.expect_silence();
            let op = driver.accept(handle, count, kind).unwrap();
            let (connection, _) = accepted(&mut driver, op);
            works(&mut driver, connection, kind, &mut peer);
        }
    }
    Ok(())
}

pub fn a_closed_listener_takes_nothing(fixture: &mut Fixture) -> Verdict {
    for &kind in kinds() {
        for started in [false, true] {
            let mut driver = fixture.driver();
            let listener = net::listener();
            let address = listener.local_addr().unwrap();
            let handle = driver.register(listener, 0).unwrap();
            driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
            if started {
                driver.flush().unwrap();
            }
            driver.close(handle).unwrap();
            driver.expect_silence();
            driver.drive_until(
                |_| TcpStream::connect(address).is_err(),
                |_, completion| panic!("{completion:?} surfaced from a closed listener"),
            );
        }
    }
    Ok(())
}
